"""Task files: what each format gives, what is refused and how it is said, and that what is written
is read back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.evals import formats
from apps.evals.formats import RowProblem, TaskRow, package, read, sniff, write
from apps.evals.formats.verifiers_package import package_name
from workers.lib.checks import check, match_calls, score
from workers.lib.verifiers import normalise as reward_normalise

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
ASKED = [{"role": "user", "content": "Close ticket 5."}]
CALL = {"tool": "close", "args": {"id": 5}}
TOOL = {
    "type": "function",
    "function": {"name": "close", "description": "Close", "parameters": {"type": "object"}},
}


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"the sample data {name} is not beside the project")
    return SHARED / name


def lines(*rows: Any) -> list[str]:
    return [row if isinstance(row, str) else json.dumps(row) for row in rows]


def one(format: str, *rows: Any, answers: Iterable[Any] | None = None) -> TaskRow:
    [row] = read(format, lines(*rows), None if answers is None else lines(*answers))
    assert isinstance(row, TaskRow), row
    return row


def problem(format: str, *rows: Any) -> RowProblem:
    found = [row for row in read(format, lines(*rows)) if isinstance(row, RowProblem)]
    assert len(found) == 1, found
    return found[0]


# Own JSONL


def test_rows_of_an_environment_package_are_taken_with_its_names() -> None:
    row = {
        "id": "add-ana",
        "prompt": "Remind me to call Ana.",
        "expected": {"tool": "todo.add", "args": {"text": "call Ana"}},
    }
    read_row, repeated, unnamed = read(
        "flywheel",
        [
            json.dumps(row),
            json.dumps(row | {"key": "other"}),
            json.dumps(row | {"id": "b", "prompt": 7}),
        ],
    )
    assert read_row.key == "add-ana" and read_row.messages == [
        {"role": "user", "content": "Remind me to call Ana."}
    ]
    assert (repeated.field, unnamed.field) == ("id", "prompt")


BFCL_TOOL = {"name": "f", "description": "?", "parameters": {"type": "dict", "properties": {}}}


@pytest.mark.parametrize(
    ("content", "is_empty"),
    [
        ("", True),
        (" \n\u00a0", True),
        ("\u200b\u3164", True),
        ([], True),
        ([{"type": "text", "text": " "}, {"type": "text"}], True),
        ("?", False),
        ("👍", False),
        ([{"type": "text", "text": ""}, {"type": "image_url", "image_url": {"url": "a"}}], False),
    ],
)
@pytest.mark.parametrize("format", ["flywheel", "nemo-gym", "bfcl", "openai-evals", "csv"])
def test_a_task_needs_a_request_in_every_format(
    format: str, content: str | list, is_empty: bool
) -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    rows = {
        "flywheel": {"messages": asked, "expected": {"answer": "a"}},
        "nemo-gym": {"responses_create_params": {"input": asked}, "ground_truth": []},
        "bfcl": {"id": "irrelevance_1", "question": [asked], "function": [BFCL_TOOL]},
        "openai-evals": {"input": asked, "ideal": "a"},
    }
    if format != "csv":
        file = [json.dumps(rows[format])]
    elif isinstance(content, str):
        file = ["prompt,answer\n", *f'"{content}",a\n'.splitlines(keepends=True)]
    else:
        file = ["prompt,answer\n", f'"{json.dumps(asked).replace(chr(34), chr(34) * 2)}",a\n']
    (row,) = read(format, file)
    assert isinstance(row, RowProblem) is is_empty
    assert not is_empty or "Enter the request" in str(row)


def test_a_problem_names_the_field_as_the_file_does() -> None:
    row = {"id": "a", "prompt": "Remind me.", "expected": {"answer": "a"}}
    found = read("flywheel", [json.dumps(row), json.dumps(row), json.dumps(row | {"prompt": " "})])
    assert [item.field for item in found if isinstance(item, RowProblem)] == ["id", "prompt"]


def test_own_rows_are_read_whole() -> None:
    record = {
        "key": "a",
        "messages": ASKED,
        "expected": CALL,
        "tools": [TOOL],
        "demonstration": "ok",
        "group": "g",
        "split": "Hold-Out",
        "metadata": {"x": [1]},
    }
    row = one("flywheel", record)
    assert row == TaskRow("a", ASKED, CALL, [TOOL], "ok", "g", "holdout", {"x": [1]})
    assert row.line == 1


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"messages": None}, "messages", "missing"),
        ({"messages": []}, "messages", "no message with the role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a number"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        (
            {"messages": [*ASKED, {"role": "assistant", "tool_calls": [{"id": "x"}]}]},
            "messages[1].tool_calls[0]",
            "function.name",
        ),
        ({"expected": None}, "expected", "missing"),
        ({"expected": {"tool": "x"}}, "expected.args", "missing"),
        ({"expected": {"tool": " ", "args": {}}}, "expected.tool", "empty"),
        ({"expected": {"calls": [{"tool": 1, "args": {}}]}}, "expected.calls[0].tool", "a number"),
        ({"expected": {"answer": None}}, "expected", "neither"),
        ({"expected": {"constraint": {"rhymes": True}}}, "expected.constraint", "rhymes"),
        ({"split": "later"}, "split", "later"),
        ({"tools": [{"x": 1}]}, "tools[0]", "function.name"),
        ({"key": "k" * 121}, "key", "121"),
        ({"group": 5.5}, "group", "a number"),
        ({"demonstration": {}}, "demonstration", "an object"),
        ({"colour": "red"}, "colour", "unknown field"),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages", "NUL"),
        ({"metadata": {"a\0": 1}}, "metadata", "NUL"),
        ({"key": "a\ud800"}, "key", "cannot be stored"),
        ({"expected": {"answer": ["\udc00"]}}, "expected", "cannot be stored"),
    ],
)
def test_a_bad_row_says_where_and_what_to_do(change: dict, field: str, says: str) -> None:
    found = problem("flywheel", {"key": "a", "messages": ASKED, "expected": CALL} | change)
    assert (found.line, found.field) == (1, field)
    assert says in found.message
    assert field in str(found)


def test_an_escape_that_is_only_written_about_is_no_such_character() -> None:
    asked = [{"role": "user", "content": "What is \\u0000, and what \\\\u0000?"}]
    assert one("flywheel", {"messages": asked, "expected": CALL}).messages == asked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "a list"),
        ('{"a": NaN}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff{}", "UTF-8"),
    ],
)
def test_a_broken_line_is_a_problem_of_its_line_only(line: str | bytes, says: str) -> None:
    good = {"messages": ASKED, "expected": CALL}
    found = list(read("flywheel", ["", line, json.dumps(good)]))
    assert [type(row) for row in found] == [RowProblem, TaskRow]
    assert found[0].line == 2
    assert says in found[0].message


def test_a_key_that_comes_again_and_an_empty_file_are_problems() -> None:
    good = {"messages": ASKED, "expected": CALL}
    again = problem("flywheel", good, good)
    assert (again.line, again.field) == (2, "key")
    assert "no rows" in problem("flywheel", "").message


def storable(**size: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8", exclude_characters="\0"), **size)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(storable(), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(storable(), json_values, max_size=3)
names = storable(min_size=1).filter(str.strip)
calls = st.fixed_dictionaries({"tool": names, "args": objects})
expectations = (
    calls
    | st.fixed_dictionaries(
        {"calls": st.lists(calls, max_size=3)}, optional={"ordered": st.booleans()}
    )
    | st.fixed_dictionaries(
        {"answer": storable() | st.integers() | st.lists(storable(), min_size=1)}
    )
    | st.just({"constraint": {"words": 1}})
)
made_calls = st.fixed_dictionaries(
    {
        "id": storable(),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": names, "arguments": storable()}),
    }
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": storable()}), max_size=2)
turns = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user"]), "content": storable() | parts}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": storable()}, optional={"name": storable()}
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": st.none(),
            "tool_calls": st.lists(made_calls, min_size=1),
        }
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "tool_call_id": storable(), "content": storable()}
    ),
)
tools = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": names}, optional={"parameters": objects}),
    }
)
tasks = st.builds(
    TaskRow,
    key=storable(min_size=1, max_size=120),
    messages=st.lists(turns, max_size=4).map(lambda made: [*made, *ASKED]),
    expected=expectations,
    tools=st.lists(tools, max_size=2),
    demonstration=storable(),
    group=storable(max_size=200),
    split=st.sampled_from(["", "train", "validation", "holdout", "regression", "general"]),
    metadata=objects,
)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("format", ["flywheel", "nemo-gym"])
@given(rows=st.lists(tasks, min_size=1, max_size=3, unique_by=lambda row: row.key))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(format: str, rows: list[TaskRow]) -> None:
    written = list(write(format, rows))
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in written)
    assert list(read(format, [line.encode() for line in written])) == rows
    assert sniff("x.jsonl", "".join(written)) == format


# NeMo Gym

GYM = {
    "id": 7,
    "responses_create_params": {
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Close ticket 5."}]},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"n": 5}'},
            {"type": "function_call_output", "call_id": "c1", "output": "found"},
        ],
        "tools": [
            {"type": "function", "name": "close", "parameters": {"type": "object"}, "strict": False}
        ],
        "parallel_tool_calls": False,
        "temperature": 1.0,
    },
    "ground_truth": [{"name": "close", "arguments": '{"id": 5}'}],
    "category": "tickets",
}


def test_a_nemo_gym_row_becomes_chat_messages_and_is_written_as_it_was() -> None:
    row = one("nemo-gym", GYM)
    assert row.key == "nemo-gym-7"
    assert [message["role"] for message in row.messages] == ["system", "user", "assistant", "tool"]
    assert row.messages[1]["content"] == "Close ticket 5."
    assert row.messages[2]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"n": 5}'}
    assert row.expected == CALL
    assert row.tools[0]["function"]["name"] == "close"
    again = json.loads(next(write("nemo-gym", [row])))
    assert again["id"] == 7
    assert again["category"] == "tickets"
    assert again["ground_truth"] == GYM["ground_truth"]
    assert again["responses_create_params"]["temperature"] == 1.0
    assert (
        again["responses_create_params"]["input"][2:] == GYM["responses_create_params"]["input"][2:]
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ground_truth": None}, "ground_truth"),
        ({"ground_truth": [{"name": "x", "arguments": "{"}]}, "ground_truth[0].arguments"),
        (
            {"responses_create_params": {"input": [{"type": "web_search_call"}]}},
            "responses_create_params.input[0].type",
        ),
        ({"responses_create_params": {"input": 5}}, "responses_create_params.input"),
        ({"response": {}, "reward": 1.0}, "response"),
    ],
)
def test_a_nemo_gym_row_that_is_no_task_is_a_problem(change: dict, field: str) -> None:
    assert problem("nemo-gym", GYM | change).field == field


def test_a_written_row_that_somebody_changed_is_a_problem() -> None:
    record = json.loads(next(write("nemo-gym", [TaskRow("a", ASKED, CALL)])))
    record["ground_truth"][0]["arguments"] = '{"id": 6}'
    found = problem("nemo-gym", record)
    assert found.field == "ground_truth"
    assert "verifier_metadata.flywheel" in found.message


def test_nemo_gyms_own_rows_are_read() -> None:
    with shared("workplace_assistant/example.jsonl").open("rb") as file:
        rows = list(read("nemo-gym", file))
    assert len(rows) == 5
    assert all(isinstance(row, TaskRow) and row.tools and row.expected for row in rows)
    assert list(read("nemo-gym", write("nemo-gym", rows))) == rows


# BFCL

QUESTION = {
    "id": "simple_1",
    "question": [[{"role": "user", "content": "Area of a 3 by 4 triangle?"}]],
    "function": [
        {
            "name": "area",
            "parameters": {
                "type": "dict",
                "properties": {"base": {"type": "float"}, "any": {"type": "any"}},
            },
        }
    ],
}
ANSWER = {
    "id": "simple_1",
    "ground_truth": [{"area": {"base": [3, 3.5], "unit": ["cm", ""], "at": [{"x": [1, 2]}]}}],
}


def test_a_bfcl_question_gets_its_answers() -> None:
    row = one("bfcl", QUESTION, answers=[ANSWER])
    assert row.expected["tool"] == "area"
    assert row.expected["args"] == {"base": 3, "at": {"x": 1}}
    assert row.expected["accept"] == {
        "base": [3, 3.5],
        "unit": ["cm", ""],
        "at": [{"x": 1}, {"x": 2}],
    }
    assert row.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"base": {"type": "number"}, "any": {}},
    }
    for args, right in (
        ({"base": 3.5, "at": {"x": 2}}, True),
        ({"base": 3, "at": {"x": 1}, "unit": "CM"}, True),
        ({"base": 4, "at": {"x": 1}}, False),
        ({"base": 3, "at": {"x": 1}, "unit": "m"}, False),
    ):
        assert check(row.expected, json.dumps({"tool": "area", "args": args})) is right


def test_bfcl_pairs_that_do_not_fit_are_problems() -> None:
    [without, stray] = read("bfcl", lines(QUESTION), lines({"id": "other", "ground_truth": []}))
    assert isinstance(without, RowProblem)
    assert without.field == "ground_truth"
    assert isinstance(stray, RowProblem)
    assert "other" in stray.message
    [several] = read("bfcl", lines(QUESTION | {"question": [[], []]}), lines(ANSWER))
    assert "2 turns" in several.message
    assert one("bfcl", QUESTION | {"id": "irrelevance_3"}).expected == {"calls": []}
    with pytest.raises(ValueError, match="bfcl"):
        read("csv", [], [])


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", ["simple_python", "multiple", "parallel", "irrelevance"])
def test_bfcls_own_files_are_read_whole(name: str) -> None:
    answers = SHARED / "bfcl" / f"possible_answer_{name}.json"
    with shared(f"bfcl/BFCL_v4_{name}.json").open("rb") as questions:
        rows = list(
            read("bfcl", questions, answers.read_bytes().splitlines() if answers.exists() else None)
        )
    assert rows
    for row in rows:
        assert isinstance(row, TaskRow), row
        right = json.dumps(row.expected.get("calls", [row.expected]))
        assert check(row.expected, right)


# OpenAI evals


def test_openai_evals_rows_are_read() -> None:
    row = one("openai-evals", {"input": ASKED, "ideal": ["5", "five"], "source": "x"})
    assert (row.expected, row.metadata) == ({"answer": ["5", "five"]}, {"source": "x"})
    assert one("openai-evals", {"input": "Say 5", "ideal": 5}).messages == [
        {"role": "user", "content": "Say 5"}
    ]
    assert problem("openai-evals", {"input": ASKED}).field == "ideal"
    assert problem("openai-evals", {"input": 3, "ideal": "x"}).field == "input"


# CSV


def rows_of(text: str) -> list[TaskRow | RowProblem]:
    return list(read("csv", text.splitlines(keepends=True)))


def test_csv_rows_are_read_in_each_of_their_forms() -> None:
    found = rows_of(
        "\ufeffkey,Prompt,tool,args,args.id,answer,split,group,metadata.source\n"
        'a,"Close, please",close,"{""why"": ""old""}",5,,test,g,desk\n'
        "\n"
        'b,"Two\nlines",,,,seven,,,\n'
        "c,Zero,pad,,00057,,,,\n"
    )
    assert [row.expected for row in found] == [
        {"tool": "close", "args": {"why": "old", "id": 5}},
        {"answer": "seven"},
        {"tool": "pad", "args": {"id": "00057"}},
    ]
    first = found[0]
    assert (first.split, first.group, first.metadata, first.line) == (
        "holdout",
        "g",
        {"source": "desk"},
        2,
    )
    assert found[1].messages[0]["content"] == "Two\nlines"


def test_csv_expected_is_json_or_an_answer() -> None:
    found = rows_of('prompt,expected\nA,"{""calls"": []}"\nB,Paris\nC,"{""tool"": "\n')
    assert found[0].expected == {"calls": []}
    assert found[1].expected == {"answer": "Paris"}
    assert (found[2].line, found[2].field) == (4, "expected")


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("prompt,colour,answer\nA,red,b\n", "colour", "Columns are"),
        ("question,answer\nA,b\n", "question", "unknown column"),
        ("key,answer\nA,b\n", "prompt", "required"),
        ("prompt,split\nA,train\n", "expected", "no expected answers"),
        ("prompt,answer,answer\nA,b,c\n", "answer", "twice"),
        ("prompt,answer\nA,b,c\n", "", "3 cells"),
        ("prompt,answer\n ,b\n", "prompt", "empty"),
        ("prompt,answer\na\0,b\n", "prompt", "NUL"),
        ("prompt,answer,tool\nA,b,c\n", "expected", "exactly one"),
        ("prompt,tool,args\nA,b,[1]\n", "args", "a list"),
        (f"prompt,tool,args.x\nA,b,{'[' * 90 + ']' * 90}\n", "args.x", "deeper than"),
        ('prompt,tool,args,args.x\nA,b,"{""x"": 1}",2\n', "args.x", "once"),
        ('prompt,answer\n"A,b\n', "", "not CSV"),
        ("", "", "no rows"),
    ],
)
def test_a_bad_csv_says_what_is_wrong(text: str, field: str, says: str) -> None:
    [found] = rows_of(text)
    assert isinstance(found, RowProblem)
    assert found.field == field
    assert says in found.message


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(str.encode),
    st.sampled_from(formats.FORMATS),
)
@settings(deadline=None)
def test_no_file_makes_a_reader_fail(data: bytes, format: str) -> None:
    for row in read(format, data.splitlines(keepends=True)):
        assert isinstance(row, TaskRow | RowProblem)
    sniff("x", data)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "key",
                "id",
                "messages",
                "input",
                "ideal",
                "question",
                "function",
                "expected",
                "responses_create_params",
                "ground_truth",
                "tools",
            ]
        ),
        json_values,
    ),
    st.sampled_from(formats.FORMATS),
)
@settings(deadline=None)
def test_no_record_makes_a_reader_fail(record: dict, format: str) -> None:
    for row in read(
        format, [json.dumps(record)], [json.dumps(record)] if format == "bfcl" else None
    ):
        assert isinstance(row, TaskRow | RowProblem)


@pytest.mark.parametrize(
    ("name", "head", "format"),
    [
        ("a.jsonl", json.dumps(GYM), "nemo-gym"),
        ("a.json", json.dumps(QUESTION), "bfcl"),
        ("a.jsonl", '{"input": [], "ideal": "x"}', "openai-evals"),
        ("a.jsonl", '\n{"messages": [], "expected": {}}\n', "flywheel"),
        ("a.csv", "wrong,columns\n", "csv"),
        ("a.txt", "prompt,answer\n", "csv"),
        ("a.jsonl", '{"messages": []}', None),
        ("a.bin", b"\x00\xff", None),
    ],
)
def test_formats_are_told_by_their_fields(name: str, head: str | bytes, format: str | None) -> None:
    assert sniff(name, head) == format


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown task file format"):
        read("xml", [])
    with pytest.raises(ValueError, match="Unknown export format"):
        write("bfcl", [])


# Checks


def reply(*made: dict) -> dict:
    functions = [{"name": call["tool"], "arguments": json.dumps(call["args"])} for call in made]
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "function": each} for each in functions],
    }


OTHER = {"tool": "open", "args": {}}


@pytest.mark.parametrize(
    ("expected", "made", "success"),
    [
        (CALL, [CALL], True),
        (CALL, [{"tool": "close", "args": {"id": 5.0}}], True),
        (CALL, [{"tool": "close", "args": {"id": 6}}], False),
        (CALL, [{"tool": "close", "args": {"id": 5, "x": 1}}], False),
        (CALL, [], False),
        (CALL, [CALL, CALL], False),
        ({"calls": [CALL, OTHER]}, [OTHER, CALL], True),
        ({"calls": [CALL, OTHER], "ordered": True}, [OTHER, CALL], False),
        ({"calls": [CALL, OTHER]}, [CALL], False),
        ({"calls": []}, [], True),
        ({"calls": []}, [CALL], False),
    ],
)
def test_calls_are_right_only_if_all_are(expected: dict, made: list[dict], success: bool) -> None:
    assert (score(expected, reply(*made))["success"] == 1) is success


def test_the_assignment_finds_the_one_way_in_which_all_calls_fit() -> None:
    loose = {"tool": "t", "args": {"a": 1}, "accept": {"a": [1, 2]}}
    strict = {"tool": "t", "args": {"a": 1}}
    made = [{"tool": "t", "args": {"a": 1}}, {"tool": "t", "args": {"a": 2}}]
    assert match_calls(made, {"calls": [loose, strict]})["success"] == 1
    assert match_calls(made, {"calls": [strict, strict]}) == {
        "success": 0.0,
        "tools": 1.0,
        "arguments": 0.5,
    }


def test_arguments_that_do_not_parse_are_wrong_and_text_calls_count() -> None:
    broken = {"tool_calls": [{"function": {"name": "close", "arguments": "{"}}]}
    assert score(CALL, broken)["success"] == 0
    assert check(CALL, json.dumps(CALL))
    with pytest.raises(ValueError, match="needs"):
        check({}, "x")


FENCED = f"```json\n{json.dumps(CALL)}\n```"
WITHOUT_ARGUMENTS = {"tool": "refresh", "args": {}}


@pytest.mark.parametrize(
    ("expected", "message", "success"),
    [
        (CALL, {"content": FENCED}, 1),
        (CALL, {"content": json.dumps({"name": CALL["tool"], "arguments": CALL["args"]})}, 1),
        (CALL, {"content": [{"type": "text", "text": json.dumps(CALL)}]}, 1),
        ({"calls": []}, {"content": FENCED}, 0),
        ({"calls": []}, {"content": "I cannot do that."}, 1),
        (
            WITHOUT_ARGUMENTS,
            {"tool_calls": [{"function": {"name": "refresh", "arguments": ""}}]},
            1,
        ),
        (WITHOUT_ARGUMENTS, {"tool_calls": [{"function": {"name": "refresh"}}]}, 1),
    ],
)
def test_a_call_counts_in_every_form_that_the_rewards_read(
    expected: dict, message: dict, success: int
) -> None:
    assert score(expected, {"role": "assistant"} | message)["success"] == success


@given(json_values, json_values)
def test_values_are_equal_as_the_reward_has_it(one_: Any, other: Any) -> None:
    same = check(
        {"tool": "t", "args": {"a": one_}}, json.dumps({"tool": "t", "args": {"a": other}})
    )
    assert same is (reward_normalise(one_) == reward_normalise(other))


# The package for verifiers

ROWS = [
    TaskRow(
        "a",
        ASKED,
        CALL,
        [TOOL],
        split="holdout",
        metadata={"recorded_results": [CALL | {"content": "Closed."}]},
    ),
    TaskRow("b", ASKED, {"answer": "5"}),
]


def test_a_package_is_complete_and_compiles(tmp_path: Path) -> None:
    files = package(ROWS, "My tasks!")
    parts = (
        "__init__",
        "blocks",
        "calls",
        "compare",
        "content",
        "json_text",
        "responses",
        "results",
        "tools",
    )
    assert set(files) == {"pyproject.toml", "README.md", "eval.toml"} | {
        f"my_tasks/{name}"
        for name in (
            "__init__.py",
            "taskset.py",
            "harness.py",
            "checks.py",
            "storable.py",
            "tasks.jsonl",
        )
    } | {f"my_tasks/messages/{name}.py" for name in parts}
    for path, text in files.items():
        if path.endswith(".py"):
            compile(text, path, "exec")
    assert list(read("flywheel", files["my_tasks/tasks.jsonl"].splitlines())) == ROWS
    assert 'id = "my-tasks"' in files["eval.toml"]
    for path in files:  # all that scores needs the standard library alone: -I hides the rest
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("" if path == "my_tasks/__init__.py" else files[path])
    code = "from my_tasks import checks; assert checks.check({'answer': '5'}, '5.')"
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        check=True,
    )


@pytest.mark.parametrize(
    ("given_", "made"),
    [
        ("Tau-Bench 1", "tau_bench_1"),
        ("1st", "tasks_1st"),
        ("class", "tasks_class"),
        ("verifiers", "tasks_verifiers"),
    ],
)
def test_package_names(given_: str, made: str) -> None:
    assert package_name(given_) == made


def test_nothing_to_export_is_said() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        package([], "x")
    with pytest.raises(ValueError, match="letters"):
        package(ROWS, "???")
