"""What models and users write is looked at in the web process, too: none of it may hold the process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.workers.cpu import processor_time
from tests.workers.hostile import TEXTS, N
from workers.lib.environments.customer_service.user import ScriptedUser
from workers.lib.errors import SpecError
from workers.lib.graders import run, sample_of, validate
from workers.lib.graders.similarity import LONGEST, METRICS
from workers.lib.json_schema import JsonSchema, TooMuch
from workers.lib.messages import unfenced
from workers.lib.patterns import MAX_PATTERN, PatternError, compiled
from workers.lib.verifiers import Rollout, build


def said(text: str, task: dict | None = None) -> Rollout:
    return Rollout(task=task or {}, messages=[{"role": "assistant", "content": text}])


@pytest.mark.parametrize("name", TEXTS)
def test_a_grader_is_bounded_for_every_answer(name: str) -> None:
    """Each metric against the same text, backwards, and as a template of its own."""
    text = TEXTS[name]
    for metric in METRICS:
        grader = {
            "type": "text_similarity", "evaluation_metric": metric, "input": "{{sample.output_text}}",
            "reference": "{{item.reference}}",
        }  # fmt: skip
        with processor_time():
            run(grader, {"reference": text[:LONGEST][::-1]}, sample_of(text[:LONGEST]))
    with processor_time():
        try:
            validate({"type": "string_check", "operation": "eq", "input": text, "reference": ""})
        except SpecError:
            return


def test_what_is_too_long_to_compare_is_said() -> None:
    grader = {
        "type": "text_similarity",
        "evaluation_metric": "meteor",
        "input": "{{sample.output_text}}",
        "reference": "a",
    }
    result = run(grader, {}, sample_of("a" * (LONGEST + 1)))
    assert result["metadata"]["errors"]["other_error"] and "20,000 characters" in result["details"]
    bomb = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}" * 1000, "reference": ""}
    result = run(bomb, {}, sample_of("a" * 100_000))
    assert result["metadata"]["errors"]["other_error"] and "4,000,000" in result["details"]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("```json\n{}\n```", "{}"), ("```\n\n\n  a\n\n```", "  a"), ("```\n```", ""), (" ```\na``` ", "a"), ("```a b\nc\n```", None),
        ("```\na", None), ("a\n```", None), ("```", None), ("", None), ("```x```", None), ("```\n\n```", ""), ("```py  \na\n```", "a"),
    ],
)  # fmt: skip
def test_a_fence_is_taken_off(text: str, inside: str | None) -> None:
    assert unfenced(text) == (text if inside is None else inside)


# Patterns


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "not an RE2 pattern"), (r"(a)\1", "not an RE2 pattern"), ("(", "not an RE2 pattern"),
        ("a" * (MAX_PATTERN + 1), "2,001 characters; 2,000 are allowed"), ("(a|b)*a(a|b){900}(a|b){900}(a|b){900}(a|b){900}c", "10,000 are allowed"),
        ("a{1001}", "not an RE2 pattern"),
    ],
)  # fmt: skip
def test_a_pattern_that_is_not_run_is_refused_when_it_is_saved(pattern: str, words: str) -> None:
    for spec in (
        {"kind": "regex", "pattern": pattern},
        {"kind": "exact", "pattern": pattern},
        {"kind": "json", "schema": {"properties": {"a": {"pattern": pattern}}}},
        {"kind": "json", "schema": {"patternProperties": {pattern: {}}}},
    ):
        with pytest.raises(SpecError, match=words):
            build(spec)
    with pytest.raises(PatternError, match=words):
        compiled(pattern)


def test_the_worst_pattern_is_bounded() -> None:
    pattern = "(a|b)*a(a|b){300}c"  # as many states as it has letters to remember
    text = "ab" * (N // 2)
    with processor_time():
        assert build({"kind": "regex", "pattern": pattern}).score(said(text)).reward == 0
    for spec in ({}, {"absent": True}):
        failed = build({"kind": "regex", "pattern": pattern.replace("300", "900")} | spec).score(said(text))
        assert failed.reward == 0 and "too large for a text of 200,000 bytes" in failed.details[0]


def test_a_users_pattern_is_re2() -> None:
    user = ScriptedUser({"email": "a@b.c", "facts": [{"asks": "^(a+)+$", "says": "Yes."}]})
    with processor_time():
        user.reply("a" * 4000 + "?")
    with pytest.raises(SpecError, match=r"metadata\.user\.facts\[0\]\.asks.*RE2"):
        ScriptedUser({"facts": [{"asks": "(?=x)", "says": ""}]})


# JSON Schema


DOUBLING = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)} | {"d40": {"type": "null"}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$defs": DOUBLING, "$ref": "#/$defs/d0"}, 3),
        ({"$ref": "#"}, 3),
        ({"items": {"$ref": "#"}}, json.loads("[" * 400 + "]" * 400)),
        ({"uniqueItems": True}, [[at] for at in range(N)]),
        ({"items": {"enum": [{"a": at} for at in range(5000)]}}, list(range(50_000))),
        ({"anyOf": [{"type": "string"}] * 4000}, list(range(60_000))),
        ({"patternProperties": {f"a{at}": {} for at in range(200)}}, {f"k{at}": 1 for at in range(5000)}),
        ({"contains": {"const": ["x" * 90] * 1000}}, [["x" * 90] * 1000] * 200),
    ],
    ids=["doubling", "itself", "deep", "unique", "enum", "messages", "patterns", "const"],
)
def test_a_schema_that_unfolds_ends_in_a_sentence(schema: dict, value: Any) -> None:
    with processor_time():
        try:
            assert JsonSchema(schema).problems(value) is not None
        except TooMuch as error:
            assert "too many steps" in str(error)
    text = json.dumps(value)[:N]
    with processor_time():
        score = build({"kind": "json", "schema": schema}).score(said(text))
    assert score.mask_reason or score.reward is not None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "http://127.0.0.1/schema"}, "Only references inside"), ({"type": "strin"}, "not a JSON Schema"),
        ({"unevaluatedProperties": False}, "not supported"), ({"enum": ["x"] * 30_000}, "100,000 are allowed"),
        (json.loads('{"not":' * 70 + "{}" + "}" * 70), "deeper than 64"), ([], "must be a JSON Schema"),
        ({"properties": {"a": {"items": {"$dynamicRef": "#x"}}}}, "not supported"),
        ({"patternProperties": {f"a{at}": {} for at in range(201)}}, "200 are allowed"),
    ],
)  # fmt: skip
def test_a_schema_that_is_not_run_is_refused_when_it_is_saved(schema: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        build({"kind": "json", "schema": schema})


@pytest.mark.parametrize(
    ("schema", "value", "problems"),
    [
        ({"uniqueItems": True}, [1, 1.0], ["non-unique"]), ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], []),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], ["non-unique"]),
        ({"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^x-": {}}}, {"a": 1, "x-b": 2}, []),
        ({"additionalProperties": False, "properties": {"a": {}}}, {"b": 1, "c": 2}, ["'b', 'c' were unexpected"]),
        ({"additionalProperties": {"type": "string"}}, {"b": 1}, ["not of type 'string'"]),
        ({"patternProperties": {"^n": {"type": "number"}}}, {"n1": "x", "m": "x"}, ["not of type 'number'"]),
        ({"pattern": r"^\p{L}+$"}, "é", []), ({"pattern": "^a$"}, "ab", ["does not match"]), ({"pattern": "a"}, 3, []),
        ({"properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}}}, {"pattern": "(?=", "$ref": "x"}, []),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}, {}, []), (False, 1, ["False schema"]),
        ({"$defs": {"a": {"type": "integer"}}, "items": {"$ref": "#/$defs/a"}}, [1, "x"], ["not of type 'integer'"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_value(schema: Any, value: Any, problems: list[str]) -> None:
    found = JsonSchema(schema).problems(value)
    assert len(found) == len(problems)
    assert all(part in words for (_, words), part in zip(found, problems, strict=True))


def test_a_schema_that_came_with_data_is_used_as_far_as_it_goes() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "(?=x)"}, "b": {"$ref": "http://x/y"}}}
    tolerant = JsonSchema(schema, tolerant=True)
    assert tolerant.problems({"a": "anything"}) == [] and tolerant.problem({"a": 1}).startswith("1 is not of type")
    assert tolerant.problems({"b": 1}) == []
