"""Mappings: the layouts, what is guessed, what is refused, and files as bad as they come."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from apps.trajectories.decoding import RowError
from apps.trajectories.importers import ImportError_, OpenFile, chat, read, records, tables
from apps.trajectories.importers.guess import guess, guess_beside
from apps.trajectories.importers.mapping import Mapping, MappingError, as_json, load, when
from apps.trajectories.schema import parse

PAIRS = b"question,answer,solved\nWhere is my order?,On its way.,yes\nCancel it.,I cannot.,no\n"
TURNS = """call,turn,speaker,words,resolved
b,2,agent,Done.,0
a,1,customer,Refund me.,1
b,1,customer,Close it.,0
a,2,agent,Refunded.,1
"""


def opened(
    data: bytes | str, name: str = "file.csv", mapping: Mapping | None = None, **more: Any
) -> OpenFile:
    return read(
        io.BytesIO(data.encode() if isinstance(data, str) else data), name, mapping=mapping, **more
    )


def good(reading: OpenFile) -> list[Any]:
    """The rows, each checked; fails at one that is refused."""
    return [parse(row) for _, row in reading.rows if not _raised(row)]


def _raised(row: Any) -> bool:
    if isinstance(row, RowError):
        raise row
    return False


def said(row: Any) -> list[tuple]:
    return [(turn.role, turn.content) for turn in row.messages]


def test_questions_and_answers() -> None:
    reading = opened(PAIRS)
    rows = good(reading)
    assert reading.guessed and reading.mapping.layout == "pairs"
    assert said(rows[0]) == [("user", "Where is my order?"), ("assistant", "On its way.")]
    assert [row.outcome.status for row in rows] == ["success", "failure"]
    assert [row.id for row in rows] == [row.id for row in good(opened(PAIRS))]


def test_rows_that_are_one_message_each_are_gathered_and_put_in_order() -> None:
    reading = opened(TURNS)
    rows = good(reading)
    wanted = {
        "conversation": "call",
        "order": "turn",
        "role": "speaker",
        "content": "words",
        "outcome": "resolved",
    }
    assert as_json(reading.mapping)["fields"] == wanted
    assert [(row.id, said(row), row.outcome.status) for row in rows] == [
        ("b", [("user", "Close it."), ("assistant", "Done.")], "failure"),
        ("a", [("user", "Refund me."), ("assistant", "Refunded.")], "success"),
    ]


def test_tool_calls_in_columns_are_calls_and_replies() -> None:
    data = (
        'conversation,role,text,tool_name,tool_arguments\n1,user,Weather?,,\n1,assistant,,get_weather,"{""city"":'
        ' ""Oslo""}"\n1,tool,rain,get_weather,\n1,assistant,Rain.,,\n'
    )
    [row] = good(opened(data))
    call = row.messages[1].tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Oslo"})
    assert (row.messages[2].role, row.messages[2].tool_call_id, row.messages[2].content) == (
        "tool",
        call.id,
        "rain",
    )


CELLS_OF_CALLS = (
    (
        '[{"name": "find", "arguments": {"nr": 1}, "result": "lost"}]',
        [("find", {"nr": 1})],
        [("lost", 0)],
    ),
    (
        (
            '[{"tool": "find", "args": {"nr": 1}}, {"tool": "find", "args": {"nr": 2}, "output":'
            ' {"ok": true}}]'
        ),
        [("find", {"nr": 1}), ("find", {"nr": 2})],
        [('{"ok": true}', 1)],
    ),
    (
        '[{"id": "x", "type": "function", "function": {"name": "find", "arguments": "{}"}}]',
        [("find", {})],
        [],
    ),
    (
        (
            '[{"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments":'
            ' "{}"}}]}, {"role": "tool", "content": "lost"}]'
        ),
        [("find", "{}")],
        [("lost", 0)],
    ),
    ("find(nr=1); find(nr=2)", [("find", {"nr": 1}), ("find", {"nr": 2})], []),
    ("[]", [], []),
)


def calls_and_results(row: Any) -> tuple[list, list]:
    """[(tool, arguments)] of the calls, and [(text, place of the call it answers)] of the
    results.
    """
    calls = [call for message in row.messages for call in message.tool_calls or ()]
    ids = [call.id for call in calls]
    results = [
        (one.content, ids.index(one.tool_call_id)) for one in row.messages if one.role == "tool"
    ]
    return [(call.function.name, call.function.arguments) for call in calls], results


@pytest.mark.parametrize(("cell", "calls", "results"), CELLS_OF_CALLS)
def test_tool_calls_of_a_question_come_before_its_answer(
    cell: str, calls: list, results: list
) -> None:
    """By the guess, whatever the column is called; a result belongs to its own call."""
    example = json.dumps({"name": "find", "arguments": {}})
    for column in ("tool_calls", "Tools"):
        data = json.dumps(
            [
                {"question": "Where?", column: example, "answer": "?"},
                {"question": "Where?", column: cell, "answer": "Lost."},
            ]
        )
        reading = opened(data, "x.json")
        assert reading.mapping.fields["tool_calls"] == column and not reading.report.unread
        row = good(reading)[1]
        assert calls_and_results(row) == (calls, results)
        assert (row.messages[0].role, row.messages[-1].content) == (
            "user",
            "Lost.",
        ) and "extra" not in (row.metadata or {})


@pytest.mark.parametrize(("cell", "calls", "results"), CELLS_OF_CALLS)
@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_tool_calls_of_a_message_keep_the_results_inside_them(
    role: str, cell: str, calls: list, results: list
) -> None:
    before = [
        {"role": "user", "text": "Where?"},
        {"role": "assistant", "text": "I look.", "tool_calls": "find(nr=0)"},
    ]
    data = json.dumps([*before, {"role": role, "text": "Lost.", "tool_calls": cell}]).replace(
        'tool_calls": "', 'tools": "'
    )
    reading = opened(data, "x.json")
    assert reading.mapping.layout == "messages" and reading.mapping.fields["tool_calls"] == "tools"
    [row] = good(reading)
    assert said(row)[:2] == [("user", "Where?"), ("assistant", "I look.")] and (
        "Lost." in [one.content for one in row.messages]
    )
    found, answered = calls_and_results(row)
    assert found == [("find", {"nr": 0}), *calls] and not reading.report.unread
    answers = [(text, place + 1) for text, place in results]
    assert [one for one in answered if one[0] != "Lost."] == answers


def test_tool_calls_in_a_whole_conversation_keep_the_results_inside_them() -> None:
    call = {"name": "find", "arguments": {"nr": 1}}
    talk = [
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [call, call | {"result": "lost"}],
        },
        {
            "role": "assistant",
            "content": "Lost.",
            "tool_calls": json.dumps(call | {"output": "here"}),
        },
    ]
    calls = [("find", {"nr": 1})] * 3
    for name in ("talk", "chat_history"):  # a mapping, and the format “history”
        [row] = good(opened(json.dumps({name: talk, "nr": 7}), "x.json"))
        assert calls_and_results(row) == (calls, [("lost", 1), ("here", 2)])
        assert [one.content for one in row.messages] == [
            "Where?",
            "I look.",
            "lost",
            "Lost.",
            "here",
        ]


def test_definitions_of_tools_are_not_guessed_to_be_calls_and_text_is_reported() -> None:
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
    assert "tool_calls" not in guess([{"question": "a", "answer": "b", "tools": tools}]).fields
    mapping = load(
        {"layout": "pairs", "fields": {"question": "q", "answer": "a", "tool_calls": "t"}}
    )
    reading = opened("q,a,t\nHi,Yo,looked it up\n", mapping=mapping)
    [row] = good(reading)
    assert said(row) == [("user", "Hi"), ("assistant", "Yo")] and row.metadata["extra"] == {
        "t": "looked it up"
    }
    assert reading.report.unread["tool_calls"].count == 1


def test_names_of_people_among_the_roles_and_a_few_unreadable_cells_spoil_no_guess() -> None:
    rows = "".join(
        f"{chat},{who},x,{at}\n"
        for chat in "abc"
        for who, at in (("customer", "soon"), ("Karen", "2026-01-31"), ("Karen", "2026-02-01"))
    )
    reading = opened(f"ticket,speaker,text,sent_at\n{rows}")
    mapping = reading.mapping
    assert (mapping.layout, mapping.roles, mapping.fields["started_at"]) == (
        "messages",
        {"karen": "assistant"},
        "sent_at",
    )
    nested = [
        {"sample": {"prompt": "a", "completion": "b"}, "scores": {"overall": 0.5}, "bot": "x"}
    ]
    assert {
        "question": "sample.prompt",
        "answer": "sample.completion",
        "score": "scores.overall",
    }.items() <= guess(nested).fields.items()


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        (
            "[{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': None}]",
            [("user", "Hi"), ("assistant", None)],
        ),
        (
            '[{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]',
            [("user", "Hi"), ("assistant", "Yo")],
        ),
        ("User: Hi\nAgent: Yo\nthere", [("user", "Hi"), ("assistant", "Yo\nthere")]),
    ],
)
def test_a_conversation_in_a_cell(cell: str, wanted: list) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([["nr", "talk"], ["1", cell], ["2", cell]])
    assert [said(row) for row in good(opened(out.getvalue()))] == [wanted, wanted]


def test_paths_into_nested_json_and_fixed_texts() -> None:
    record = {
        "meta": {"eval": {"score": 0.25, "by": "x"}},
        "log": {"turns": [{"who": "customer", "said": "Hi"}]},
    }
    fields = {
        "messages": "log.turns",
        "role": "who",
        "content": "said",
        "score": "$.meta.eval.score",
        "agent_name": "=bot",
        "model": "log.turns[0].none",
    }
    mapping = load({"fields": fields, "threshold": 0.5})
    [row] = good(opened(json.dumps(record), "f.json", mapping))
    assert (said(row), row.agent.name, row.outcome.status) == ([("user", "Hi")], "bot", "failure")
    assert row.metadata == {"extra": {"meta": {"eval": {"by": "x"}}}}, (
        "what is mapped is not kept twice"
    )


def test_the_list_of_records_inside_a_document_is_found() -> None:
    reading = opened(
        json.dumps(
            {"version": 1, "items": [{"prompt": "a", "reply": "b"}, {"prompt": "c", "reply": "d"}]}
        ),
        "f.json",
    )
    assert reading.mapping.records == "items"
    assert [said(row)[0][1] for row in good(reading)] == ["a", "c"]


@pytest.mark.parametrize(
    ("values", "statuses"),
    [
        (["true", "false"], ["success", "failure"]),
        (["0", "1"], ["failure", "success"]),
        (["yes", "No"], ["success", "failure"]),
        (["solved", "pending"], ["success", "unknown"]),
        (["👍", "👎"], ["success", "failure"]),
    ],
)
def test_what_an_outcome_means_is_guessed(values: list[str], statuses: list[str]) -> None:
    data = "q,a,success\n" + "".join(f"x{value},y,{value}\n" for value in values)
    reading = opened(data)
    assert [row.outcome.status for row in good(reading)] == statuses


def test_failed_true_is_a_failure_and_a_score_has_a_threshold() -> None:
    assert [row.outcome.status for row in good(opened("q,a,failed\n1x,y,true\n2x,y,false\n"))] == [
        "failure",
        "success",
    ]
    reading = opened("q,a,stars\nx1,y,5\nx2,y,2\n")
    assert (reading.mapping.threshold, [row.outcome.status for row in good(reading)]) == (
        4.0,
        ["success", "failure"],
    )
    reading.mapping.threshold = 1.5
    assert [
        row.outcome.status
        for row in good(opened("q,a,stars\nx1,y,5\nx2,y,2\n", mapping=reading.mapping))
    ] == ["success"] * 2


def test_success_false_in_a_row_of_messages_is_a_failure() -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    [row] = good(opened(json.dumps({"messages": talk, "success": False, "score": 0.1}), "f.json"))
    assert (row.outcome.status, row.outcome.reward) == ("failure", 0.1)


def test_what_is_lost_is_reported_and_kept() -> None:
    data = "question,answer,success,when,note\na,b,maybe not,soon,hello\nc,d,yes,2026-01-01,\n"
    mapping = load(
        {
            "layout": "pairs",
            "fields": {
                "question": "question",
                "answer": "answer",
                "outcome": "success",
                "started_at": "when",
            },
            "success": ["yes"],
        }
    )
    reading = opened(data, mapping=mapping)
    first, second = good(reading)
    assert {
        name: (one.count, one.example, one.position) for name, one in reading.report.unread.items()
    } == {
        "outcome": (1, "maybe not", 2),
        "started_at": (1, "soon", 2),
    }
    assert dict(reading.report.unmapped) == {"note": 1}
    assert first.metadata["extra"] == {"success": "maybe not", "when": "soon", "note": "hello"}
    assert (first.outcome.status, second.outcome.status) == ("unknown", "success")
    mapping.keep_rest = False
    assert "extra" not in good(opened(data, mapping=mapping))[0].metadata


def test_rows_are_refused_by_line_and_the_others_go_on() -> None:
    data = 'question,answer\na,b\n1,2,3\n"x"y",z\nc,d\n,\n"open,e\nf,g\n'
    found = list(opened(data).rows)
    assert [(position, isinstance(row, RowError)) for position, row in found] == [
        (2, False),
        (3, True),
        (4, True),
        (5, False),
        (7, True),
    ]
    assert (
        "has 3 cells" in str(found[1][1])
        and "not doubled" in str(found[2][1])
        and "1 more lines" in str(found[-1][1])
    )


def test_an_id_that_is_not_unique_is_refused_and_replaces_nothing() -> None:
    mapping = load({"layout": "pairs", "fields": {"question": "q", "answer": "a", "id": "nr"}})
    found = list(opened("nr,q,a\n1,x,y\n1,z,w\n", mapping=mapping).rows)
    assert isinstance(found[1][1], RowError) and "has the id of row 2" in str(found[1][1])


def test_roles_that_nobody_knows_are_asked_for_or_refused() -> None:
    data = "chat,from,text\n1,Karen from sales,Hi\n1,customer,Hello\n"
    assert guess(
        [
            dict(zip(("chat", "from", "text"), line.split(","), strict=True))
            for line in data.splitlines()[1:]
        ]
    ).roles == {"karen from sales": "assistant"}
    mapping = load(
        {
            "layout": "messages",
            "fields": {"conversation": "chat", "role": "from", "content": "text"},
        }
    )
    [(_, error)] = opened(data, mapping=mapping).rows
    assert isinstance(error, RowError) and "Karen from sales" in str(error)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"layout": "pairs", "fields": {"question": "q"}}, "answer"),
        ({"fields": {"messages": "m", "nonsense": "x"}}, "not a field of the layout"),
        ({"fields": {"messages": "m" * 301}}, "longer than"),
        ({"layout": "poem"}, "layout"),
        ({"fields": {"messages": "m"}, "more": 1}, "more"),
        ([], "object"),
    ],
)
def test_a_mapping_that_cannot_be_used_says_why(given: Any, problem: str) -> None:
    with pytest.raises(MappingError, match=problem.replace("[", r"\[")):
        load(given)


def test_a_column_may_have_any_name_and_what_is_none_is_said_with_the_file() -> None:
    mapping = load({"layout": "pairs", "fields": {"question": "what they asked?", "answer": "a["}})
    assert said(good(opened("what they asked?,a[\nx,y\n", mapping=mapping))[0]) == [
        ("user", "x"),
        ("assistant", "y"),
    ]
    assert (
        "“a[” is neither a column nor a JMESPath"
        in opened("what they asked?,b\nx,y\n", mapping=mapping).problem
    )


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("2026-01-31 12:00", "2026-01-31T12:00:00+00:00"),
        ("2026/1/31 12:00:00 UTC".replace("/1/", "/01/"), "2026-01-31T12:00:00+00:00"),
        ("1769860800", "2026-01-31T12:00:00+00:00"),
        ("1769860800000", "2026-01-31T12:00:00+00:00"),
        ("Sat, 31 Jan 2026 12:00:00 GMT", "2026-01-31T12:00:00+00:00"),
        ("1769860800.0", "2026-01-31T12:00:00+00:00"),
        (1769860800, "2026-01-31T12:00:00+00:00"),
        (1769860800000, "2026-01-31T12:00:00+00:00"),
        ("2026-01-31 3:05 PM", "2026-01-31T15:05:00+00:00"),
        ("2026-1-31, 12:05:09 a.m.", "2026-01-31T00:05:09+00:00"),
        ("31.01.2026 12 PM", "2026-01-31T12:00:00+00:00"),
        ("1/31/2026, 3:05:07\u202fPM", "2026-01-31T15:05:07+00:00"),
        ("Jan 31, 2026 3:05 pm", "2026-01-31T15:05:00+00:00"),
        ("January 31, 2026", "2026-01-31T00:00:00+00:00"),
        ("31 Jan 2026 15:05:00", "2026-01-31T15:05:00+00:00"),
        ("2026-01-31 9:05", "2026-01-31T09:05:00+00:00"),
        ("2026-01-31T09:05:00.25+01:00", "2026-01-31T08:05:00.250000+00:00"),
        ("3:05 PM", None),
        ("1.76986E+12", None),
        ("2026-01-31 13:05 PM", None),
        (3, None),
        (2.5, None),
        ("31/12/2026", None),
        ("soon", None),
    ],
)
def test_times(value: str | float, wanted: str | None) -> None:
    dates = "month" if "," in str(value) else ""
    assert when(value, dates) == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (
            ["23/11/2026 07:40:20", "02/01/2026"],
            ["2026-11-23T07:40:20+00:00", "2026-01-02T00:00:00+00:00"],
        ),
        (
            ["02/01/2026", "11/23/2026 7:40"],
            ["2026-02-01T00:00:00+00:00", "2026-11-23T07:40:00+00:00"],
        ),
        (["23-11-2026", "2-1-2026"], ["2026-11-23T00:00:00+00:00", "2026-01-02T00:00:00+00:00"]),
        (["02/01/2026", "03/01/2026"], None),
        (["23/11/2026", "11/23/2026"], None),
    ],
)
def test_slashed_dates_are_read_by_what_the_column_shows_or_asked_for(
    values: list[str], wanted: list[str] | None
) -> None:
    data = json.dumps([{"question": "Hi", "answer": "Yo", "date": value} for value in values])
    reading = opened(data, "x.json")
    assert reading.mapping.fields["started_at"] == "date"
    if wanted is None:
        assert (
            "Choose the date format" in reading.problem
            and not list(reading.rows)
            and not reading.mapping.dates
        )
    else:
        assert [
            row.started_at.isoformat() for row in good(reading)
        ] == wanted and reading.mapping.dates


def test_a_chosen_date_format_decides_and_what_contradicts_it_is_reported() -> None:
    fields = {"question": "q", "answer": "a", "started_at": "t"}
    data = "q,a,t\nHi,Yo,02/01/2026\nHi,Yo,11/23/2026\n"
    reading = opened(data, mapping=load({"layout": "pairs", "fields": fields, "dates": "day"}))
    assert [row.started_at and row.started_at.isoformat() for row in good(reading)] == [
        "2026-01-02T00:00:00+00:00",
        None,
    ]
    assert reading.report.unread["started_at"].example == "11/23/2026"


# Encodings and tables


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "cp1252"]
)
def test_text_in_other_encodings(encoding: str) -> None:
    data = "question;answer\nGrüße;für Sie\n".encode(encoding)
    reading = opened(data)
    assert reading.unit == "line"
    assert said(good(reading)[0]) == [("user", "Grüße"), ("assistant", "für Sie")]
    assert not reading.source.mended
    assert reading.source.is_encoding_guessed == (encoding == "cp1252")


def test_headers_that_repeat_or_are_empty_get_a_name() -> None:
    reading = opened("question,answer,note,note,\na,b,c,d,e\n")
    assert (
        good(reading)[0].metadata == {"extra": {"note (2)": "d", "column 5": "e"}}
        or reading.report.unmapped
    )
    assert set(dict(reading.head[0][1])) == {"question", "answer", "note", "note (2)", "column 5"}
    assert "has the name of another" in reading.source.mended[0]["warning"]


def test_a_table_as_spreadsheets_write_it_loses_nothing_without_a_note() -> None:
    lines = [
        "sep=;",
        "",
        "question;answer;note;stars;tokens",
        "short;row",
        '"two\nlines";b;c;1e308;1e308;;',
        " ; ;;;",
        "question;answer;note;stars;tokens",
        "a\x00b;c;;NaN;7",
        "one;cell;too;4;1;many",
    ]
    reading = opened("\ufeff" + "\r\n".join(lines), "x.csv")
    found = list(reading.rows)
    assert [(position, isinstance(row, RowError)) for position, row in found] == [
        (4, False),
        (5, False),
        (9, False),
        (10, True),
    ]
    assert "has 6 cells, the header has 5" in str(found[-1][1])
    rows = [parse(row) for _, row in found[:3]]
    assert [said(row) for row in rows] == [
        [("user", "short"), ("assistant", "row")],
        [("user", "two\nlines"), ("assistant", "b")],
        [("user", "a\ufffdb"), ("assistant", "c")],
    ]
    assert {(one["position"], one["warning"].split(":")[0]) for one in reading.source.mended} == {
        (4, "has 2 of the header's 5 cells"),
        (8, "repeats the header"),
        (9, "an invalid character (NUL or an unpaired surrogate) was replaced"),
    }
    assert {name: one.count for name, one in reading.report.unread.items()} == {"score": 2}


def test_numbers_and_times_that_cannot_be_kept_are_reported_and_cost_no_row() -> None:
    fields = ("score", "input_tokens", "cost_usd", "latency_s", "latency_ms", "started_at")
    mapping = load(
        {
            "layout": "pairs",
            "fields": {"question": "q", "answer": "a"} | {name: name for name in fields},
        }
    )
    for value in ("1e308", "NaN", "-inf", "9999-12-31"):
        reading = opened(
            f"q,a,{','.join(fields)}\nHi,Yo{f',{value}' * len(fields)}\n", mapping=mapping
        )
        [row] = good(reading)
        assert set(reading.report.unread) == set(fields) == set(row.metadata["extra"]), value


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"question,answer\n\n", "has a header line but no rows"),
        (b"\xef\xbb\xbf\r\n \r\n", "is empty"),
        (b"PK\x03\x04rest", "cannot be read as a spreadsheet"),
        (b"%PDF-1.7", "a PDF"),
        (b"PAR1 nothing more", "cannot be read as Parquet"),
        (b"\x01\x02\x03\x04" * 100, "not JSON"),
        (b"[1, 2]", "no record with fields"),
        (b"", "empty"),
    ],
)
def test_a_file_that_is_none_of_these_is_one_sentence(data: bytes, problem: str) -> None:
    with pytest.raises(ImportError_, match=problem):
        list(opened(data, "file").rows)


def test_a_cell_that_is_too_long_costs_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_RECORD", 1000)
    monkeypatch.setattr(records, "MAX_RECORD", 1000)
    found = list(opened("question,answer\na," + "x" * 1001 + "\nc,d\n").rows)
    assert [isinstance(row, RowError) for _, row in found] == [True, False]


def parquet_of(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(table), out, **options)
    return out.getvalue()


def test_parquet_with_nested_messages_is_chat_and_with_columns_is_mapped() -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    reading = opened(parquet_of({"id": ["a"], "messages": [talk], "reward": [float("nan")]}), "f")
    assert (reading.format, said(good(reading)[0])) == (
        "chat",
        [("user", "Hi"), ("assistant", "Yo")],
    )
    reading = opened(
        parquet_of({"prompt": ["a", "b"], "response": ["c", "d"], "ok": [True, False]}), "f"
    )
    assert [(said(row)[0][1], row.outcome.status) for row in good(reading)] == [
        ("a", "success"),
        ("b", "failure"),
    ]


@pytest.mark.proof
def test_a_small_parquet_file_that_unpacks_to_much_is_refused() -> None:
    bomb = parquet_of({"question": pa.array(["x" * 100_000] * 400), "answer": ["y"] * 400})
    assert len(bomb) < 2**20
    with pytest.raises(ImportError_, match="unpacks to more than"):
        list(opened(bomb, "f", limit=20 * 2**20).rows)


@pytest.mark.proof
def test_a_parquet_bomb_in_one_page_ends_its_reader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "READER_MEMORY_MIB", 600)
    same = pa.DictionaryArray.from_arrays(
        pa.array([0] * 64, pa.int32()), pa.array(["x" * 20_000_000])
    )
    bomb = parquet_of({"question": same, "answer": ["y"] * 64})
    assert len(bomb) < 2 * 2**20
    with pytest.raises(ImportError_, match="cannot be read as Parquet"):
        list(opened(bomb, "f").rows)


@pytest.mark.parametrize("last", ['["b"]\n', '["b'])
def test_a_parquet_reader_that_dies_midway_is_no_end_of_the_file(
    monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    written = '["question"]\n["a"]\n' + last
    dies = f"import os, sys; sys.stdout.write({written!r}); sys.stdout.flush(); os._exit(9)"
    monkeypatch.setattr(tables, "PARQUET_READER", [sys.executable, "-c", dies])
    with pytest.raises(ImportError_, match="its reader crashed"):
        list(opened(parquet_of({"question": ["a", "b", "c"]}), "f").rows)


# Properties


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(CELLS, CELLS, st.sampled_from(["yes", "no", "", "?"])), min_size=1, max_size=6
    )
)
def test_every_row_of_a_table_is_a_trajectory_or_refused(rows: list[tuple]) -> None:
    """Whatever is in the cells, and the same again gives the same ids."""
    out = io.StringIO()
    csv.writer(out).writerows([("question", "answer", "ok"), *rows])
    mapping = load(
        {
            "layout": "pairs",
            "fields": {"question": "question", "answer": "answer", "outcome": "ok"},
            "success": ["yes"],
        }
    )
    found = list(opened(out.getvalue(), mapping=mapping).rows)
    assert len(found) == sum(any(cell.strip() for cell in row) for row in rows)
    for _, row in found:
        assert isinstance(row, RowError) or parse(row).messages
    again = list(opened(gzip.compress(out.getvalue().encode()), mapping=mapping).rows)
    assert [row["id"] for _, row in found if isinstance(row, dict)] == [
        row["id"] for _, row in again if isinstance(row, dict)
    ]


@pytest.mark.proof
@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=300) | st.text(max_size=300).map(str.encode),
    name=st.sampled_from(["a.csv", "a", "a.tsv.gz"]),
)
def test_any_bytes_give_rows_or_one_sentence(data: bytes, name: str) -> None:
    try:
        for _, row in opened(data, name).rows:
            assert isinstance(row, RowError) or isinstance(row["messages"], list)
    except ImportError_ as error:
        assert str(error)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "messages", "id", "success", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@pytest.mark.proof
@settings(max_examples=80, deadline=None)
@given(
    records_=st.lists(
        st.dictionaries(
            st.sampled_from(["history", "q", "a", "role", "content", "turns", "id", "ok"]),
            JSON,
            max_size=5,
        ),
        max_size=4,
    )
)
def test_any_records_of_mixed_types_are_guessed_at_without_an_error(records_: list[dict]) -> None:
    data = b"\n".join(json.dumps(record).encode() for record in records_)
    try:
        for _, row in opened(data, "f.jsonl").rows:
            assert isinstance(row, RowError | dict)
    except ImportError_ as error:
        assert str(error)


@pytest.mark.proof
def test_a_conversation_table_is_held_on_the_disk_not_in_memory() -> None:
    """Rows of 10 MB are gathered while less than that is allocated."""
    import tracemalloc

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        with path.open("w") as file:
            file.write("chat,role,text\n")
            for number in range(2_000):
                file.write(f"{number % 1_000},{'user' if number < 1_000 else 'bot'},{'x' * 5000}\n")
        mapping = load(
            {
                "layout": "messages",
                "fields": {"conversation": "chat", "role": "role", "content": "text"},
            }
        )
        tracemalloc.start()
        with path.open("rb") as file:
            count = sum(
                len(row["messages"]) for _, row in read(file, "t.csv", mapping=mapping).rows
            )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (count, peak < 8 * 2**20) == (2_000, True), peak


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("lookup(nr=5001)", [("lookup", {"nr": 5001})]),
        ('lookup({"nr": 5001})', [("lookup", {"nr": 5001})]),
        ('shop.lookup: {"nr": 1, "ok": true}', [("shop.lookup", {"nr": 1, "ok": True})]),
        ("a(x='1'); b()", [("a", {"x": "1"}), ("b", {})]),
        ("[a(x=1), b(y=[2])]", [("a", {"x": 1}), ("b", {"y": [2]})]),
        ('["a(x=1)"]', [("a", {"x": 1})]),
        ('{"name": "a", "arguments": "{}"}', [("a", {})]),
    ],
)
def test_calls_in_a_column_are_read_as_people_write_them(said: str, wanted: list) -> None:
    mapping = load(
        {"layout": "messages", "fields": {"role": "r", "content": "c", "tool_calls": "t"}}
    )
    data = json.dumps([{"r": "user", "c": "Hi"}, {"r": "bot", "c": "", "t": said}])
    [row] = good(opened(data, "x.json", mapping))
    assert [
        (call.function.name, call.function.arguments) for call in row.messages[1].tool_calls
    ] == wanted


@pytest.mark.parametrize(
    "said", ["looked it up", "lookup(nr)", "lookup(1, 2)", "lookup(**x)", "lookup(x=1", "import os"]
)
def test_what_is_no_call_is_reported_and_kept(said: str) -> None:
    mapping = load(
        {"layout": "messages", "fields": {"role": "r", "content": "c", "tool_calls": "t"}}
    )
    reading = opened(
        json.dumps([{"r": "user", "c": "Hi"}, {"r": "bot", "c": "Yes.", "t": said}]),
        "x.json",
        mapping,
    )
    [row] = good(reading)
    assert not row.messages[1].tool_calls and row.metadata["extra"]["t"] == said
    assert reading.report.unread["tool_calls"].example == said


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("0,5", 0.5),
        ("1.234,5", 1234.5),
        ("1,234.5", 1234.5),
        ("1 234,50", 1234.5),
        ("123,456", None),
        ("12,345,678", None),
        ("1,234,56", None),
        ("1,234", None),
        ("1,2,3", None),
    ],
)
def test_numbers_as_spreadsheets_write_them(said: str, wanted: float | None) -> None:
    """`1,234` may be either, so it is reported, not guessed; so is a number out of bounds."""
    mapping = load(
        {"layout": "pairs", "fields": {"question": "q", "answer": "a", "cost_usd": "cost"}}
    )
    reading = opened(json.dumps([{"q": "Hi", "a": "Yo", "cost": said}]), "x.json", mapping)
    [row] = good(reading)
    assert (row.usage.cost_usd if row.usage else None) == wanted and (
        "cost_usd" in reading.report.unread
    ) == (wanted is None)


def test_a_german_spreadsheet_is_read_and_its_outcome_understood() -> None:
    data = (
        "\ufeffFrage;Antwort;Datum;Dauer\r\nWo ist es?;Unterwegs.;31.01.2026 9:05;1,5\r\n".encode()
    )
    fields = {"question": "Frage", "answer": "Antwort", "started_at": "Datum", "latency_s": "Dauer"}
    [row] = good(opened(data, "x.csv", load({"layout": "pairs", "fields": fields})))
    assert (row.started_at.isoformat(), row.latency_ms) == ("2026-01-31T09:05:00+00:00", 1500)
    assert guess(
        [{"question": "q", "answer": "a", "solved": value} for value in ("ja", "nein")]
    ).success == ["ja"]


SPOKEN = ("conversation", "role", "content", "started_at")
ASKED = ("question", "answer", "started_at", "outcome")


@pytest.mark.parametrize(
    ("fields", "header", "rows", "wanted"),
    [
        (SPOKEN, "Gespräch;Rolle;Nachricht;Zeitpunkt", ("Kundin;Wo?", "Assistent;Hier."), ""),
        (SPOKEN, "GESPRAECH-ID;Sprecher;Äußerung;Zeitstempel", ("Nutzer;Wo?", "KI;Hier."), ""),
        (
            SPOKEN,
            "id conversation;rôle;contenu;horodatage",
            ("Utilisateur;Où ?", "Conseillère;Ici."),
            "",
        ),
        (SPOKEN, "Entretien;ROLE;Contenu;Date et heure", ("client;Où ?", "assistante;Ici."), ""),
        (SPOKEN, "Conversación;Rol;Mensaje;Fecha", ("usuario;¿Dónde?", "asistente;Aquí."), ""),
        (SPOKEN, "conversa;papel;mensagem;data e hora", ("usuário;Onde?", "robô;Aqui."), ""),
        (ASKED, "Frage;Antwort;Datum;Ergebnis", ("Wo?", "gelöst"), "success"),
        (ASKED, "Requête;Réponse;Date;Résultat", ("Où ?", "non résolu"), "failure"),
        (ASKED, "Pregunta;Respuesta;Fecha y hora;¿Resuelto?", ("¿Dónde?", "sí"), "success"),
        (ASKED, "Pergunta;Resposta;Data/Hora;Resolvido", ("Onde?", "não"), "failure"),
    ],
)
def test_german_french_spanish_and_portuguese_headers_are_guessed(
    fields: tuple, header: str, rows: tuple, wanted: str
) -> None:
    at = "2026-01-31 09:05"
    if fields is SPOKEN:
        data = f"{header}\n" + "".join(f"7;{row};{at}\n" for row in rows)
    else:
        data = f"{header}\n{rows[0]};x;{at};{rows[1]}\n"
    reading = opened(data)
    assert list(map(reading.mapping.fields.get, fields)) == header.split(";")
    [row] = good(reading)
    assert [one.role for one in row.messages] == ["user", "assistant"] and row.started_at.day == 31
    assert fields is SPOKEN or row.outcome.status == wanted


def test_a_transcript_in_another_language_is_a_conversation() -> None:
    data = json.dumps([{"Verlauf": "Kunde: Wo?\nBerater: Hier.", "nr": 1}])
    assert said(good(opened(data, "x.json"))[0]) == [("user", "Wo?"), ("assistant", "Hier.")]


def test_chat_rows_with_names_of_their_own_are_offered_a_mapping() -> None:
    row = {
        "conversation_id": "c1",
        "time": "2026-01-31T09:05:00Z",
        "bot": "helpdesk",
        "messages": [{"role": "user", "content": "Hi"}],
    }
    found = guess_beside([row], chat.KNOWN)
    assert found and found.fields == {
        "messages": "messages",
        "id": "conversation_id",
        "started_at": "time",
        "agent_name": "bot",
    }
    assert [item["name"] for item in chat.beside([(1, row | {"success": True})])] == [
        "conversation_id",
        "time",
        "bot",
    ]
    for other in (
        {"messages": row["messages"], "success": False, "note": "x"},
        row | {"usage": {"input_tokens": 1}},
        row | {"messages": [{"role": "assistant", "content": "Hi", "reasoning_content": "…"}]},
    ):
        assert guess_beside([other], chat.KNOWN) is None, "a mapping would read no more, or less"
