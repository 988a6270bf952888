"""Prints a sheet of a spreadsheet (xlsx, xlsb, xls, ods) as CSV: `python -m workers.read_sheet FILE
MEMORY_MIB`.

It runs as a separate process with bounded memory, as `workers.read_parquet`. The first line is
JSON: {sheet, others: the sheets that were not read}, or {error}. Each row is one line: line ends
within a cell are U+2028. The sheet is the first one that has two rows with cells.
"""

from __future__ import annotations

import csv
import json
import resource
import sys
import zipfile
from datetime import date, datetime, time, timedelta
from typing import Any

LINE_END_IN_CELL = "\u2028"
CPU_S = 120
LARGEST = 512 * 2**20  # bytes that its parts unpack to; the reader takes four times as much memory


def main(path: str, memory_mib: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    try:
        from python_calamine import load_workbook

        if _unpacked(path) > LARGEST:
            return _failed(f"it unpacks to more than {LARGEST // 2**20} MiB")
        book = load_workbook(path)
        names = list(book.sheet_names)
        rows: list[list[Any]] = []
        name = ""
        for name in names:
            rows = book.get_sheet_by_name(name).to_python(skip_empty_area=True)
            if sum(any(cell != "" for cell in row) for row in rows) > 1:
                break
        others = [other for other in names if other != name]
    except MemoryError:
        return _failed(f"its cells need more than {memory_mib} MiB of memory")
    except ImportError:
        return _failed("the package python-calamine is not installed")
    except Exception as error:  # damaged files raise all kinds of errors
        return _failed(str(error) or type(error).__name__)
    sys.stdout.reconfigure(encoding="utf-8", newline="")  # type: ignore[union-attr]
    sys.stdout.write(json.dumps({"sheet": name, "others": others}) + "\n")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    try:
        writer.writerows([plain(cell) for cell in row] for row in rows)
    except BrokenPipeError:
        return 0
    return 0


def _unpacked(path: str) -> int:
    """What a zip archive says that it unpacks to; 0 for a file that is none."""
    if not zipfile.is_zipfile(path):
        return 0
    with zipfile.ZipFile(path) as archive:
        return sum(part.file_size for part in archive.infolist())


def _failed(problem: str) -> int:
    sys.stdout.write(json.dumps({"error": problem[:500]}) + "\n")
    return 0


def plain(cell: Any) -> str:
    """As text: times in ISO 8601, whole numbers without a fraction."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return str(cell.total_seconds())
    text = str(cell).replace("\r\n", "\n").replace("\r", "\n")
    return text.encode("utf-8", "replace").decode().replace("\n", LINE_END_IN_CELL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
