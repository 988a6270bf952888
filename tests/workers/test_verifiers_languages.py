"""BFCL's Java and JavaScript values, and tasks for which any call will do."""

from __future__ import annotations

from typing import Any

import pytest

from apps.evals.formats.bfcl import read
from apps.evals.formats.rows import TaskRow
from tests.workers.cpu import processor_time
from tests.workers.hostile import TEXTS
from workers.lib.checks import score as checked
from workers.lib.messages import to_native
from workers.lib.verifiers import Rollout, build
from workers.lib.verifiers.languages import value_of


@pytest.mark.parametrize(
    ("language", "kind", "items", "text", "value"),
    [
        ("java", "long", None, "100L", 100),
        ("java", "long", None, "100", "100"),
        ("java", "integer", None, "-3", -3),
        ("java", "integer", None, "3.0", "3.0"),
        ("java", "float", None, "3e-3F", 0.003),
        ("java", "float", None, "3.0", "3.0"),
        ("java", "double", None, "0.5", 0.5),
        ("java", "double", None, "0.5f", "0.5f"),
        ("java", "boolean", None, "true", True),
        ("java", "boolean", None, "True", "True"),
        ("java", "String", None, "abc", "abc"),
        ("java", "any", None, "5", "5"),
        ("java", "Array", "integer", "new int[] { 1, 2 }", [1, 2]),
        ("java", "Array", "long", "new long[]{1L, 2}", [1, "2"]),
        ("java", "Array", "any", "durations", "durations"),
        (
            "java",
            "ArrayList",
            "any",
            'new ArrayList<>(Arrays.asList(1, "a, b", true))',
            [1, "a, b", True],
        ),
        ("java", "ArrayList", None, "new ArrayList<>()", []),
        (
            "java",
            "ArrayList",
            "String",
            'new ArrayList<String>() {{ add("a;b"); add("c"); }}',
            ["a;b", "c"],
        ),
        (
            "java",
            "HashMap",
            None,
            'new HashMap<String, Object>() {{ put("a", 123); put("b", "x y"); put("c", true); }}',
            {"a": 123, "b": "x y", "c": True},
        ),
        ("java", "HashMap", None, "new HashMap<>()", {}),
        ("java", "HashMap", None, "envVariables", "envVariables"),
        ("javascript", "String", None, "'a'", "a"),
        ("javascript", "String", None, "variable", "variable"),
        ("javascript", "Bigint", None, "123n", 123),
        ("javascript", "float", None, "3.14", 3.14),
        ("javascript", "Boolean", None, "false", False),
        ("javascript", "integer", None, "12.5", "12.5"),
        ("javascript", "array", None, "[1, 'two', true]", [1, "two", True]),
        ("javascript", "array", "float", "new Array([1, 2], [3, 4])", ["[1, 2]", "[3, 4]"]),
        ("javascript", "array", None, " [[1, 2], [3]] ", [[1, 2], [3]]),
        (
            "javascript",
            "dict",
            None,
            "{'a': [1, {'b': 'c:d'}], \"e\": 5}",
            {"a": [1, {"b": "c:d"}], "e": 5},
        ),
        ("javascript", "dict", None, "{}", {}),
        ("javascript", "dict", None, "responseData", "responseData"),
        ("javascript", "any", None, "f(1)", "f(1)"),
    ],
)
def test_a_text_is_read_as_its_language_has_it(
    language: str, kind: str, items: str | None, text: str, value: Any
) -> None:
    found = value_of(text, {"language": language, "type": kind, "items": items})
    assert found == value and type(found) is type(value)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "kind", ["HashMap", "ArrayList", "Array", "float", "String", "dict", "array"]
)
def test_hostile_texts_are_read_in_no_time(kind: str) -> None:
    bombs = [
        "[" * 20_000,
        "{a:" * 6000,
        "new ArrayList<" * 1000,
        "new HashMap<>() {{ " * 900,
        "[" * 9000 + "]" * 9000,
        '"' * 20_000,
        "new HashMap<" + ">" * 19_000,
    ]
    for text in [*TEXTS.values(), *(text[:20_000] for text in TEXTS.values()), *bombs]:
        with processor_time():
            for language in ("java", "javascript"):
                value_of(text, {"language": language, "type": kind, "items": None})


JAVA = (
    '{"id": "simple_java_1", "question": [[{"role": "user", "content": "Go."}]], "function":'
    ' [{"name": "f", "parameters": {"type": "dict", "properties": {"n": {"type": "long",'
    ' "description": "Count."}, "m": {"type": "ArrayList", "items": {"type": "String"},'
    ' "description": ""}}, "required": ["n"]}}]}'
)
KEY = '{"id": "simple_java_1", "ground_truth": [{"f": {"n": [42], "m": [["a", "b"], ""]}}]}'
ANY = (
    '{"id": "live_relevance_0", "question": [[{"role": "user", "content": "Go."}]], "function":'
    ' [{"name": "f", "parameters": {}}]}'
)


def task(question: str, *answers: str) -> TaskRow:
    [row] = read([question], answers)
    assert isinstance(row, TaskRow)
    return row


def message(*calls: tuple[str, dict]) -> dict:
    return {
        "role": "assistant",
        "content": "Hm.",
        "tool_calls": [to_native(*call) for call in calls],
    }


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"n": "42L"}, True),
        ({"n": "42L", "m": 'new ArrayList<>(Arrays.asList("A", "b"))'}, True),
        ({"n": "42"}, False),
        ({"n": 42}, False),
        ({"n": "42L", "m": ["a", "b"]}, False),
        ({"n": "43L"}, False),
        ({"n": "42L", "m": 'new ArrayList<>(Arrays.asList("b", "a"))'}, False),
    ],
)
def test_java_arguments_import_and_score(arguments: dict, right: bool) -> None:
    row = task(JAVA, KEY)
    number = row.tools[0]["function"]["parameters"]["properties"]["n"]
    assert (
        number["type"] == "string"
        and number["description"] == "Count. (Java long, written as in the language)"
    )
    score = build({"kind": "calls"}).score(
        Rollout({"expected": row.expected}, [message(("f", arguments))], row.tools)
    )
    assert score.success is right and not score.masked


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (message(("f", {})), True),
        (message(("g", {"a": 1}), ("f", {})), True),
        ({"role": "assistant", "content": "I cannot."}, False),
    ],
)
def test_live_relevance_expects_any_call(said: dict, right: bool) -> None:
    row = task(ANY)
    assert row.expected == {"any_call": True}
    for kind in ("calls", "expected"):
        score = build({"kind": kind}).score(Rollout({"expected": row.expected}, [said], row.tools))
        assert (score.success, score.masked, score.reward) == (right, False, 1.0 if right else -1.0)
    assert checked(row.expected, said) == {"success": float(right)}
