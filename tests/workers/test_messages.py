"""Messages and tool calls: every form in which the field writes a call, by what it is wrapped in;
which are the same.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lib import messages
from workers.lib.messages import (
    MAX_DEPTH,
    OpenCalls,
    ToolCall,
    argument_share,
    arguments_of,
    call_of,
    calls_in,
    calls_of,
    exchanges,
    is_example,
    json_of,
    last_answer,
    last_request,
    native_calls,
    normalise,
    read_json,
    read_repeated,
    reasoning_of,
    same_call,
    same_value,
    schemas_of,
    system_prompt,
    text_of,
    to_native,
    to_text,
    tool_names,
    unpacked,
    without_reasoning,
)
from workers.lib.messages.json_text import is_json

ARGS = {"id": 12, "note": "a “b” {c}"}
TEXT = json.dumps(ARGS)
# One call in every form; the first three are told as text in <tool_call> tags, code fences, lists
# and bare.
FORMS: dict[str, dict] = {
    "ours": {"tool": "close", "args": ARGS},
    "flat": {"name": "close", "arguments": ARGS},
    "flat, arguments as text": {"name": "close", "arguments": TEXT},
    "ours, args as text": {"tool": "close", "args": TEXT},
    "llama": {"name": "close", "parameters": ARGS},
    "tau-bench": {"name": "close", "kwargs": ARGS},
    "openai, text": {
        "id": "c1",
        "type": "function",
        "function": {"name": "close", "arguments": TEXT},
    },
    "openai, object": {"type": "function", "function": {"name": "close", "arguments": ARGS}},
    "openai, no type": {"function": {"name": "close", "arguments": ARGS}},
    "responses": {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "close",
        "arguments": TEXT,
    },
    "anthropic": {"type": "tool_use", "id": "c1", "name": "close", "input": ARGS},
    "vercel": {"type": "tool-call", "toolCallId": "c1", "toolName": "close", "args": ARGS},
}
WRAPPINGS = {
    "bare": "{}",
    "spaces": " \n{}\n ",
    "fence": "```\n{}\n```",
    "json fence": "```json\n{}\n```",
    "tags": "<tool_call>\n{}\n</tool_call>",
    "tags with words before": "I will close it.\n<tool_call>{}</tool_call>",
    "open tag": "<tool_call>{}",
}


def assistant(content: Any = None, *calls: Any, **more: Any) -> dict:
    return (
        {"role": "assistant", "content": content}
        | ({"tool_calls": list(calls)} if calls else {})
        | more
    )


def pairs(found: list[ToolCall] | None) -> list[tuple[str, Any]] | None:
    return None if found is None else [(call.tool, call.args) for call in found]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_call_is_read_in_every_form_fence_and_list(form: str, wrapping: str, count: int) -> None:
    """`count` 0: not in a list."""
    value = [FORMS[form]] * count if count else FORMS[form]
    text = WRAPPINGS[wrapping].replace("{}", json.dumps(value), 1)
    for message in (assistant(text), assistant([{"type": "text", "text": text}])):
        assert pairs(calls_of(message)) == [("close", ARGS)] * max(1, count)
        assert [call.problem for call in calls_of(message)] == [""] * max(1, count)


@pytest.mark.parametrize("form", FORMS)
def test_a_value_that_says_calls_is_read_in_every_form(form: str) -> None:
    call, one = FORMS[form], [("close", ARGS)]
    assert pairs([call_of(call)]) == one  # type: ignore[list-item]
    assert (
        pairs(calls_in(call)) == pairs(calls_in([call])) == pairs(calls_in(json.dumps(call))) == one
    )
    assert pairs(calls_in({"calls": [call, call]})) == one * 2
    assert (
        pairs(calls_in({"tool_calls": [call]}))
        == pairs(calls_in(f"```json\n{json.dumps([call])}\n```"))
        == one
    )
    assert call_of(call).id in ("", "c1")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "call",
    [
        FORMS["openai, text"],
        FORMS["openai, object"],
        FORMS["flat"],
        FORMS["flat, arguments as text"],
        FORMS["openai, no type"] | {"type": "custom"},
    ],
)
def test_native_calls_are_read_whatever_the_content_is(call: dict) -> None:
    for content in (
        None,
        "",
        "I close it.",
        json.dumps(FORMS["ours"]),
        [{"type": "text", "text": "Closing"}],
    ):
        message = assistant(content, call, call)
        assert pairs(native_calls(message)) == pairs(calls_of(message)) == [("close", ARGS)] * 2
    older = assistant(None, function_call={"name": "close", "arguments": TEXT})
    assert pairs(calls_of(older)) == pairs(calls_of(FORMS["responses"])) == [("close", ARGS)]
    assert calls_of(FORMS["responses"])[0].id == "c1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done.",
        "null",
        "[]",
        "{}",
        "12",
        '"close"',
        '{"answer": 4}',
        '{"name": "Ben"}',
        '[{"name": "Ben"}]',
        "[1, 2]",
        f"I have closed it: {to_text('close', ARGS)}",
        '{"a":' * 40 + "1" + "}" * 40,
        f"Here:\n```json\n{to_text('close', ARGS)}\n```",
        "{close the ticket}",
        "\x00\ud800",
    ],
)
def test_what_is_not_a_call_is_an_answer(text: str) -> None:
    assert calls_of(assistant(text)) == []


CALL, OTHER_CALL = to_text("close", ARGS), to_text("delete", {})
TAGGED = f"<tool_call>{CALL}</tool_call>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Done.", "Done."),
        ("I think <b>so", "I think <b>so"),
        ("", ""),
        ("<think>hm</think>Done.", "Done."),
        ("<think>\nhm\n</think>\n\nDone.", "Done."),
        ("<THINKING>hm</THINKING> Done.", "Done."),
        ("<think></think>Done.", "Done."),
        ("hm, so.\n</think>\nDone.", "Done."),
        ("hm</think>Done.", "Done."),
        ("<think>never closed", ""),
        ("<think>a<think>b</think>c", "c"),
        ("<think>a</think>b<think>c</think>d", "b d"),
        ("Use a <think> tag: 5", "Use a <think> tag: 5"),
        ("a\n<think>b</think>c", "a c"),
        ("<answer>a</answer><think><answer>b</answer></think>", "<answer>a</answer>"),
        (
            'text.replace("<think>", "").split("</think>")',
            'text.replace("<think>", "").split("</think>")',
        ),
        ("Write `</think>` at the end", "Write `</think>` at the end"),
        ('{"a": "x <think>y</think>\\n<think>"}', '{"a": "x <think>y</think>\\n<think>"}'),
    ],
)
def test_reasoning_in_an_answer_is_no_part_of_it(text: str, answer: str) -> None:
    assert len(without_reasoning(text)) == len(text)
    assert without_reasoning(text).strip().split() == answer.split()


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        (f"<think>{TAGGED}</think>I would rather not.", []),
        (f"<think>{TAGGED}", []),
        (f"<think>{CALL}</think>", []),
        (f"<think>Close it.</think>\n{CALL}", ["close"]),
        (f"<think>{OTHER_CALL}?</think>\n{TAGGED}", ["close"]),
        (f"{OTHER_CALL}? No.\n</think>\n```json\n{CALL}\n```", ["close"]),
    ],
)
def test_what_a_model_only_thinks_of_is_no_call(text: str, tools: list[str]) -> None:
    assert [call.tool for call in calls_of(assistant(text))] == tools


def test_all_values_of_a_repeated_name_can_be_seen() -> None:
    assert read_repeated('{"a": 1, "a": {"b": 2, "b": 3}, "c": 4}') == {
        "a": [1, {"b": [2, 3]}],
        "c": 4,
    }


def test_only_the_assistant_makes_calls() -> None:
    for role in ("user", "tool", "system"):
        assert calls_of({"role": role, "content": to_text("close", ARGS)}) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (assistant('{"tool": "close", "args": {'), "broken JSON: the text"),
        (assistant('```json\n{"tool": "close", "args": {\n```'), "broken JSON: the text"),
        (assistant("{'tool': 'close', 'args': {}}"), "broken JSON: the text"),
        (assistant(to_text("close", ARGS) + " Done."), "broken JSON: the text"),
        (assistant('{"tool": "close", "args": {"a": NaN}}'), "broken JSON: the text"),
        (assistant('{"tool": "close", "args": {"a": 1e999}}'), "broken JSON: the text"),
        (assistant('{"tool": "close", "args": [1]}'), "broken call"),
        (assistant('{"tool": "close"}'), "broken call"),
        (assistant('{"tool": 3, "args": {}}'), "broken call"),
        (assistant('{"tool": "close", "args": "{"}'), "broken call"),
        (
            assistant(None, {"function": {"name": "close", "arguments": "{"}}),
            "broken JSON: the arguments of close",
        ),
        (
            assistant(None, {"function": {"name": "close", "arguments": "[1]"}}),
            "broken JSON: the arguments of close",
        ),
        (
            assistant(None, {"function": {"name": "close", "arguments": "null"}}),
            "broken JSON: the arguments of close",
        ),
        (
            assistant(None, {"function": {"name": "close", "arguments": f"```\n{TEXT}\n```"}}),
            "broken JSON: the argum",
        ),
        (
            assistant(None, {"function": {"name": "close", "arguments": [1]}}),
            "broken JSON: the arguments of close",
        ),
        (
            assistant(None, {"function": {"arguments": "{}"}}),
            "broken call: a tool call has no name",
        ),
        (assistant(None, {"function": {"name": 3}}), "broken call: a tool call has no name"),
        (assistant(None, "close"), "broken call: a tool call has no name"),
        (assistant(to_text("close", ARGS), {}), "broken call: a tool call has no name"),
        # Two readers would run two different calls.
        (
            assistant(None, {"function": {"name": "close", "arguments": '{"a": 1, "a": 2}'}}),
            "broken JSON: the arguments",
        ),
        (
            assistant('{"tool": "close", "args": {"a": 1}, "args": {"a": 2}}'),
            "broken JSON: the text",
        ),
        (
            assistant('{"tool": "close", "name": "open", "args": {}}'),
            "broken call: it names two tools",
        ),
        (
            assistant('{"tool": "close", "args": {"a": 1}, "arguments": {"a": 2}}'),
            "broken call: its arguments are given twice",
        ),
        (
            assistant(None, {"name": "close", "arguments": "{}", "parameters": {"a": 2}}),
            "broken call: its arguments",
        ),
        (
            assistant(None, {"name": "open", "function": {"name": "close", "arguments": "{}"}}),
            "broken call: it names two",
        ),
    ],
)
def test_a_call_that_cannot_be_read_says_why_and_keeps_what_came(
    message: dict, problem: str
) -> None:
    [call] = calls_of(message)
    assert call.problem.startswith(problem)
    given = message.get("tool_calls", [{}])[0]
    if isinstance(given, dict) and "arguments" in given.get("function", {}):
        assert call.given == given["function"]["arguments"] and isinstance(call.arguments, str)


def nested(depth: int) -> str:
    return '{"a": ' * (depth - 1) + "{}" + "}" * (depth - 1)


@pytest.mark.parametrize(
    ("given", "args"),
    [
        (None, {}),
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ({}, {}),
        ('{"a": 1}', {"a": 1}),
        ({"a": [1.5, None]}, {"a": [1.5, None]}),
        ('{"a": 1, "a": 2}', None),
        ('{"a": 2, "a": 2}', None),
        ('{"b": {"a": 1, "a": 2}}', None),
        ('{"id": 9007199254740993}', {"id": 9007199254740993}),
        ("null", None),
        ("[1]", None),
        ('"{}"', None),
        ("{'a': 1}", None),
        ('{"a": 1} x', None),
        ('{"a": }', None),
        ('{"a": NaN}', None),
        ('{"a": -Infinity}', None),
        ('{"a": 1e999}', None),
        ({"a": math.nan}, None),
        ({"a": math.inf}, None),
        ([1], None),
        (1, None),
        (True, None),
        ({1: 2}, None),
        ({"a": object()}, None),
        ({"a": (1,)}, None),
        (nested(MAX_DEPTH), json.loads(nested(MAX_DEPTH))),
        (nested(MAX_DEPTH + 1), None),
        (json.loads(nested(MAX_DEPTH)), json.loads(nested(MAX_DEPTH))),
        (json.loads(nested(MAX_DEPTH + 1)), None),
        ('{"a": "' + "{[" * 100 + '"}', {"a": "{[" * 100}),
        ('{"a": ' * 100_000, None),
        ("[" * 100_000, None),
    ],
)
def test_arguments(given: Any, args: dict | None) -> None:
    assert arguments_of(given) == args
    [call] = native_calls(assistant(None, {"function": {"name": "f", "arguments": given}}))
    assert call.args == args and bool(call.problem) == (args is None)


STORABLE = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
)  # what can be stored
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | STORABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STORABLE, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(STORABLE, JSON, max_size=4))
def test_what_is_written_is_read_back_the_same(args: dict) -> None:
    native, text = assistant(None, to_native("f", args, "c")), assistant(to_text("f", args))
    [one], [other] = calls_of(native), calls_of(text)
    assert one.args == other.args == args and same_call(one, other) and one.id == "c"
    assert is_json(args) and arguments_of(args) == args


@given(st.text(), JSON)
def test_no_message_is_too_strange_to_read(text: str, value: Any) -> None:
    fields = (
        "role",
        "content",
        "name",
        "type",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "refusal",
        "reasoning",
    )
    strange = [
        dict.fromkeys(fields, value),
        assistant([{"type": value, "text": value}]),
        {"role": "tool", "tool_call_id": value},
    ]
    strange += [
        assistant(value, {"id": value, "function": {"name": value, "arguments": value}}),
        assistant(text),
        {"content": text},
    ]
    for message in strange:
        assert isinstance(text_of(message), str) and isinstance(reasoning_of(message), str)
        assert all(call.problem or call.args is not None for call in calls_of(message))
        assert all(isinstance(name, str) for name in tool_names(message))
    exchanges(strange)
    assert isinstance(system_prompt(strange), str)
    calls_in(value)
    json_of(text)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], []),
        ({"calls": []}, []),
        ({"tool_calls": []}, []),
        ("[]", []),
        (assistant("Done."), None),
        ("Done.", None),
        (None, None),
        (4, None),
        ({}, None),
        ([{"tool": "a", "args": {}}, 4], None),
        ({"answer": 4}, None),
        ({"tool": "a"}, [("a", None)]),
        (assistant(None, FORMS["flat"]), [("close", ARGS)]),
        ([assistant(None, FORMS["flat"]), assistant(None, FORMS["flat"])], [("close", ARGS)] * 2),
    ],
)
def test_a_value_may_say_that_there_are_no_calls_or_nothing_about_them(
    value: Any, said: list | None
) -> None:
    assert pairs(calls_in(value)) == said


def test_the_names_of_the_tools_that_a_message_calls() -> None:
    message = assistant(None, *FORMS.values(), {"function": {"name": 3}}, "x", {"id": "a"})
    assert tool_names(message) == ["close"] * len(FORMS)
    assert tool_names(FORMS["responses"]) == ["close"] and tool_names(assistant("Done.")) == []


# Text


PARTS = [
    {"type": "text", "text": "Close"},
    {"type": "image_url", "image_url": {"url": "x"}},
    {"type": "text", "text": "12"},
]


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"role": "user", "content": "Close 12"}, "Close 12", ""),
        ({"role": "user", "content": PARTS}, "Close\n12", ""),
        (assistant(PARTS), "Close12", ""),
        (
            assistant([{"type": "output_text", "text": "a"}, {"type": "text", "text": ""}, "b"]),
            "ab",
            "",
        ),
        ({"role": "tool", "content": {"type": "text", "text": "ok"}}, "ok", ""),
        (
            {
                "role": "user",
                "content": [1, None, {"text": 3}, {"type": "input_text", "text": "x"}],
            },
            "x",
            "",
        ),
        (assistant(None), "", ""),
        (assistant(4), "", ""),
        ({}, "", ""),
        ({"content": {"a": 1}}, "", ""),
        (assistant("Yes", reasoning_content="hm"), "Yes", "hm"),
        (assistant("Yes", reasoning="hm"), "Yes", "hm"),
        (assistant("Yes", thinking="hm", reasoning=""), "Yes", "hm"),
        (
            assistant([{"text": "hm", "thought": True}, {"type": "text", "text": "Yes"}]),
            "Yes",
            "hm",
        ),
        (
            assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes"}]),
            "Yes",
            "hm",
        ),
        (
            assistant([{"type": "reasoning", "text": "hm"}, {"type": "reasoning", "text": "so"}]),
            "",
            "hm\nso",
        ),
        (
            assistant(
                [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Yes"}]
            ),
            "Yes",
            "",
        ),
        (assistant(None, refusal="I cannot."), "I cannot.", ""),
        (assistant("Yes", refusal="I cannot."), "Yes", ""),
        (assistant([{"type": "refusal", "refusal": "I cannot."}]), "I cannot.", ""),
    ],
)
def test_the_text_of_a_message_and_its_reasoning_apart(
    message: dict, text: str, reasoning: str
) -> None:
    assert (text_of(message), reasoning_of(message)) == (text, reasoning)


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Use tools."}]},
    {"role": "user", "name": "example_user", "content": "Close 1"},
    {"role": "assistant", "name": "example_assistant", "content": "Done."},
    {"role": "user", "content": "Close 2"},
    {"role": "assistant", "content": "Which?"},
    {"role": "user", "name": "ann", "content": "The second"},
    {"role": "assistant", "content": "Closed."},
    {"role": "user", "name": "example_user", "content": "Close 3"},
]


def test_prompt_examples_and_requests_are_told_apart() -> None:
    assert system_prompt(CONVERSATION) == "Be brief.\n\nUse tools."
    assert [index for index, message in enumerate(CONVERSATION) if is_example(message)] == [2, 3, 8]
    assert last_request(CONVERSATION) == 6 and last_request(CONVERSATION[:4]) is None
    assert last_answer(CONVERSATION)["content"] == "Closed." and last_answer([]) == {}
    assert (
        not is_example({"name": None})
        and not is_example({"name": 4})
        and not is_example({"name": "an example_user"})
    )


# The same call


def call(tool: str, args: Any) -> ToolCall:
    return ToolCall(tool, arguments_of(args), given=args)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": "Blue Hall"}, {"a": " blue  HALL\n"}, True),
        ({"a": "straße"}, {"a": "STRASSE"}, True),
        ({"a": 4}, {"a": 4.0}, True),
        ({"a": 4}, {"a": "4"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 0}, {"a": False}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": ""}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": []}, {"a": {}}, False),
        ({"a": {"b": "X", "c": 1}}, {"a": {"c": 1.0, "b": "x"}}, True),
        ({"A": 1}, {"a": 1}, False),
        (
            {"id": 9007199254740992},
            {"id": 9007199254740993},
            False,
        ),  # two ids that one double stands for
        ({"id": 10**400}, {"id": 10**400}, True),
        ({"id": 10**400}, {"id": 10**400 + 1}, False),
        ({"a": 0.1}, {"a": 0.1}, True),
        ({"a": 0.1}, {"a": 0.2}, False),
        ('{"a": 1}', {"a": 1}, True),
        ("", {}, True),
        ('{"a": 1,"b":2}', '{ "b": 2, "a": 1.0 }', True),
        ("{", "{", True),
        ("{", "[", False),
        ("{", {}, False),
        ('{"a": 1, "a": 2}', {"a": 2}, False),
    ],
)
def test_whether_two_calls_are_the_same(one: Any, other: Any, same: bool) -> None:
    assert (
        same_call(call("f", one), call("f", other))
        is same_call(call("f", other), call("f", one))
        is same
    )
    assert not same_call(call("f", one), call("F", one))


@given(JSON, JSON)
def test_sameness_is_an_equivalence_that_can_be_hashed(one: Any, other: Any) -> None:
    assert normalise(one) == normalise(one) and hash(normalise(one)) == hash(normalise(one))
    assert same_value(one, other) == same_value(other, one) == (normalise(one) == normalise(other))


@pytest.mark.parametrize(
    ("args", "right", "accept", "share"),
    [
        ({}, {}, None, 1.0),
        ({"a": 1}, {"a": 1.0}, None, 1.0),
        ({"a": 1}, {}, None, 0.0),
        ({}, {"a": 1}, None, 0.0),
        ({"a": 1, "b": 2}, {"a": 1}, None, 0.5),
        ({"a": "X"}, {"a": "x"}, {"a": ["y"]}, 0.0),
        ({}, {"a": "x"}, {"a": ["x", ""]}, 1.0),
        ({"a": "z"}, {}, {"a": ["x", "z", None]}, 1.0),
        ({"a": "z", "b": 1}, {"b": 1}, {"a": ["x", None]}, 0.5),
    ],
)
def test_the_share_of_right_arguments(
    args: dict, right: dict, accept: dict | None, share: float
) -> None:
    assert argument_share(args, right, accept) == share


# Results


def result(identity: str | None, text: str, name: str | None = None) -> dict:
    fields = {"tool_call_id": identity, "name": name}
    return {"role": "tool", "content": text} | {
        key: value for key, value in fields.items() if value is not None
    }


def made(*ids: str | None) -> dict:
    """An assistant turn that calls t0, t1, …"""
    return assistant(
        None,
        *(
            ({} if i is None else {"id": i}) | {"function": {"name": f"t{n}"}}
            for n, i in enumerate(ids)
        ),
    )


@pytest.mark.parametrize(
    ("conversation", "answers"),
    [
        ([made("a", "b"), result("b", "B"), result("a", "A")], ["A", "B"]),
        ([made("a", "b"), result("b", "B")], [None, "B"]),
        ([made("a", "a"), result("a", "1"), result("a", "2")], ["1", "2"]),
        ([made(None, None), result(None, "1"), result(None, "2")], ["1", "2"]),
        ([made(None, None), result("x", "1"), result("y", "2"), result("z", "3")], ["1", "2"]),
        ([made("a", "b"), result(None, "1"), result(None, "2"), result(None, "3")], ["1", "2"]),
        ([made("a", "b"), result(None, "B", "t1"), result(None, "A", "t0")], ["A", "B"]),
        ([made("a", "b"), result(None, "1", "other")], ["1", None]),
        ([made("a", "b"), result("a", "A"), result(None, "B")], ["A", "B"]),
        ([made("a"), result("x", "?")], [None]),
        ([made("a"), result("a", "1"), made("a"), result("a", "2")], ["1", "2"]),
        ([made("a"), made("b"), result("a", "A"), result("b", "B")], ["A", "B"]),
        ([made("a"), made("b"), result("b", "B"), result("a", "A")], ["A", "B"]),
        ([made(None), made(None), result(None, "1"), result(None, "2")], ["1", "2"]),
        ([made("a"), made("a"), result("a", "1"), result("a", "2")], ["1", "2"]),
        (
            [made(None), {"role": "user", "content": "No"}, made(None), result(None, "2")],
            [None, "2"],
        ),
        ([made("a", "b"), result("a", "A"), made("c"), result("b", "late")], ["A", None, None]),
        ([made("a"), {"role": "user", "content": "Wait"}, result("a", "A")], ["A"]),
        ([made("a"), {"role": "function", "name": "t0", "content": "A"}], ["A"]),
        ([result("a", "?"), made()], []),
    ],
)
def test_results_belong_to_calls(conversation: list[dict], answers: list[str | None]) -> None:
    found = exchanges(conversation)
    assert [item.result and item.result["content"] for item in found] == answers
    assert all(
        conversation[item.result_index] is item.result
        for item in found
        if item.result_index is not None
    )


def test_ten_thousand_calls_of_one_turn_are_answered_in_any_order() -> None:
    calls = [ToolCall(f"t{n}", {}, f"c{n}") for n in range(10_000)]
    for results in (
        [result(f"c{n}", "") for n in range(9_999, -1, -1)],
        [result(None, "", f"t{n}") for n in range(9_999, -1, -1)],
    ):
        waiting = OpenCalls(calls[:5_000])
        waiting.add(calls[5_000:])
        assert [waiting.take(item) for item in results] == calls[::-1]
        assert waiting.take(result("c1", "")) is waiting.take(result(None, "")) is None


# Tools and JSON


def test_schemas_of_tools_in_either_form() -> None:
    schema = {"type": "object"}
    tools = [
        {"type": "function", "function": {"name": "a", "parameters": schema}},
        {"type": "function", "name": "b", "parameters": schema},
        {"function": {"name": "c", "parameters": 3}},
        {"function": {"parameters": schema}},
        {"function": 3},
        4,
    ]
    assert schemas_of(tools) == {"a": schema, "b": schema, "c": {}}
    assert schemas_of(None) == schemas_of({}) == {}


def test_json_text_is_strict_and_unpacked_only_where_it_is_json() -> None:
    for text in (
        "",
        "{",
        "NaN",
        "[Infinity]",
        "1e400",
        "[-1e999]",
        "1 2",
        "\ufeff{}",
        "9" * 5000,
        "[" * (MAX_DEPTH + 1),
    ):
        assert json_of(text) is None and unpacked(text) == text
        with pytest.raises(ValueError):
            read_json(text)
    assert read_json(' {"a": [1, 2.5, null, "x"]} ') == {"a": [1, 2.5, None, "x"]}
    assert unpacked('{"a": 1}') == {"a": 1} and unpacked(4) == 4 and unpacked("x") == "x"


def test_the_package_needs_only_the_standard_library() -> None:
    """Exported verifiers packages carry it along."""
    program = (
        "import sys; before = set(sys.modules); import workers.lib.messages\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'workers'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert set(messages.__all__) <= set(vars(messages))
