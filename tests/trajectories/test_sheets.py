"""Spreadsheets: one sheet is a table, whatever program wrote it."""

from __future__ import annotations

import io
import sys
import zipfile
from html import escape

import pytest

from apps.trajectories.importers import ImportError_, read, tables

pytest.importorskip("python_calamine")
TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
RELATED = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def workbook(**sheets: list[list[str | int]]) -> bytes:
    """The parts of an xlsx file that a reader needs."""
    out = io.BytesIO()
    numbers = range(1, len(sheets) + 1)
    with zipfile.ZipFile(out, "w") as file:
        parts = "".join(
            f'<Override PartName="/xl/worksheets/s{n}.xml" ContentType="{KIND}.worksheet+xml"/>'
            for n in numbers
        )
        file.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{TYPES}"><Default Extension="rels" ContentType="application/vnd.'
            'openxmlformats-package.relationships+xml"/><Override PartName="/xl/workbook.xml"'
            f' ContentType="{KIND}.sheet.main+xml"/>{parts}</Types>',
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{RELATED}"><Relationship Id="r1" Type="{OFFICE}/officeDocument"'
            ' Target="xl/workbook.xml"/></Relationships>',
        )
        named = "".join(
            f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>'
            for n, name in zip(numbers, sheets, strict=True)
        )
        file.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{named}</sheets></workbook>',
        )
        links = "".join(
            f'<Relationship Id="r{n}" Type="{OFFICE}/worksheet" Target="worksheets/s{n}.xml"/>'
            for n in numbers
        )
        file.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{RELATED}">{links}</Relationships>',
        )
        for n, rows in zip(numbers, sheets.values(), strict=True):
            cells = "".join(
                f'<row r="{at}">' + "".join(map(cell, row)) + "</row>"
                for at, row in enumerate(rows, 1)
            )
            file.writestr(
                f"xl/worksheets/s{n}.xml",
                f'<worksheet xmlns="{MAIN}"><sheetData>{cells}</sheetData></worksheet>',
            )
    return out.getvalue()


def cell(value: str | int) -> str:
    if isinstance(value, int):
        return f"<c><v>{value}</v></c>"
    return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'


TALK = [
    ["case", "turn", "speaker", "text"],
    ["A-1", 1, "Kunde", "Wo ist\nmeine Bestellung?"],
    ["A-1", 2, "Mitarbeiter", "Unterwegs; morgen, 9 Uhr"],
]


def test_the_first_sheet_with_rows_is_read_and_the_others_are_named() -> None:
    data = workbook(Cover=[["Report"]], Chats=TALK, Notes=[["x"], ["y"]])
    reading = read(io.BytesIO(data), "calls.xlsx")
    [(position, row)] = reading.rows
    assert (reading.format, reading.unit, position) == ("mapped", "row", 2)
    assert [(turn["role"], turn["content"]) for turn in row["messages"]] == [
        ("user", "Wo ist\nmeine Bestellung?"),
        ("assistant", "Unterwegs; morgen, 9 Uhr"),
    ]
    [note] = reading.source.mended
    assert "“Chats”" in note["warning"] and "“Notes”" in note["warning"]


def test_an_archive_that_is_no_spreadsheet_is_one_sentence() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.txt", "x")
    with pytest.raises(ImportError_, match="cannot be read as a spreadsheet"):
        read(io.BytesIO(out.getvalue()), "calls.zip")


def test_a_small_file_that_unpacks_to_much_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.xml", "")
        file.filelist[0].file_size = 513 * 2**20  # as its directory says
    with pytest.raises(ImportError_, match="unpacks to more than 512 MiB"):
        read(io.BytesIO(out.getvalue()), "calls.xlsx")


def test_a_reader_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tables, "SHEET_READER", [sys.executable, "-c", "import time; time.sleep(99)"]
    )
    monkeypatch.setattr(tables, "SHEET_S", 0.2)
    with pytest.raises(ImportError_, match="its reader crashed"):
        read(io.BytesIO(workbook(A=TALK)), "calls.xlsx")
