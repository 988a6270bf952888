"""What models and users write is looked at in the web process, too: none of it may hold the
process.
"""

from __future__ import annotations

import pytest

from tests.workers.cpu import processor_time
from tests.workers.hostile import TEXTS
from workers.lib.environments.customer_service.user import ScriptedUser
from workers.lib.errors import SpecError
from workers.lib.graders import run, sample_of, validate
from workers.lib.graders.similarity import LONGEST, METRICS
from workers.lib.messages import unfenced
from workers.lib.patterns import MAX_PATTERN, PatternError, compiled
from workers.lib.verifiers import Rollout, build


def said(text: str, task: dict | None = None) -> Rollout:
    return Rollout(task=task or {}, messages=[{"role": "assistant", "content": text}])


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("name", [*TEXTS][::1])
def test_a_grader_is_bounded_for_every_answer(name: str) -> None:
    """Each metric against the same text, backwards, and as a template of its own."""
    text = TEXTS[name]
    for metric in METRICS:
        grader = {
            "type": "text_similarity",
            "evaluation_metric": metric,
            "input": "{{sample.output_text}}",
            "reference": "{{item.reference}}",
        }
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
    bomb = {
        "type": "string_check",
        "operation": "eq",
        "input": "{{sample.output_text}}" * 1000,
        "reference": "",
    }
    result = run(bomb, {}, sample_of("a" * 100_000))
    assert result["metadata"]["errors"]["other_error"] and "4,000,000" in result["details"]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("```json\n{}\n```", "{}"),
        ("```\n\n\n  a\n\n```", "  a"),
        ("```\n```", ""),
        (" ```\na``` ", "a"),
        ("```a b\nc\n```", None),
        ("```\na", None),
        ("a\n```", None),
        ("```", None),
        ("", None),
        ("```x```", None),
        ("```\n\n```", ""),
        ("```py  \na\n```", "a"),
    ],
)
def test_a_fence_is_taken_off(text: str, inside: str | None) -> None:
    assert unfenced(text) == (text if inside is None else inside)


# Patterns


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "not an RE2 pattern"),
        (r"(a)\1", "not an RE2 pattern"),
        ("(", "not an RE2 pattern"),
        ("a" * (MAX_PATTERN + 1), "2,001 characters; 2,000 are allowed"),
        ("(a|b)*a(a|b){900}(a|b){900}(a|b){900}(a|b){900}c", "10,000 are allowed"),
        ("a{1001}", "not an RE2 pattern"),
    ],
)
def test_a_pattern_that_is_not_run_is_refused_when_it_is_saved(pattern: str, words: str) -> None:
    for spec in (
        {"kind": "regex", "pattern": pattern},
        {"kind": "exact", "pattern": pattern},
    ):
        with pytest.raises(SpecError, match=words):
            build(spec)
    with pytest.raises(PatternError, match=words):
        compiled(pattern)


def test_the_worst_pattern_is_bounded() -> None:
    pattern = "(a|b)*a(a|b){300}c"  # as many states as it has letters to remember
    text = "ab" * 100_000
    with processor_time():
        assert build({"kind": "regex", "pattern": pattern}).score(said(text)).reward == 0
    for spec in ({}, {"absent": True}):
        failed = build({"kind": "regex", "pattern": pattern.replace("300", "900")} | spec).score(
            said(text)
        )
        assert failed.reward == 0 and "too large for a text of 200,000 bytes" in failed.details[0]


def test_a_users_pattern_is_re2() -> None:
    user = ScriptedUser({"email": "a@b.c", "facts": [{"asks": "^(a+)+$", "says": "Yes."}]})
    with processor_time():
        user.reply("a" * 4000 + "?")
    with pytest.raises(SpecError, match=r"metadata\.user\.facts\[0\]\.asks.*RE2"):
        ScriptedUser({"facts": [{"asks": "(?=x)", "says": ""}]})
