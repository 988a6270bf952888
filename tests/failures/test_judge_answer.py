"""From what a judge wrote to a verdict, or to a sentence that helps it to do better."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.judge.answer import MAX_QUOTE, AnswerError, Verdict, extract, read
from apps.failures.judge.precedence import Label, choose
from tests.failures.judge_server import says

SLUGS = {"bad_planning", "wrong_tool_choice"}
BODIES = ["Close ticket 7.", 'I close\n  it.\ncalls tickets.close({"id": 8})', ""]
GOOD = says(mode="wrong_tool_choice", message_index=1, quote="I close it.", reason="It was 7.")
VERDICT = Verdict("wrong_tool_choice", 1, "I close it.", "It was 7.")


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Here is what I think: {{it}} failed.\n\n{GOOD}\nI hope that helps {{a}}!",
        f'<think>{{"failed": false}} or rather not</think>{GOOD}',
        f'{GOOD} {{"note": 1}}',
        "{" * 50 + GOOD,
        GOOD.replace('"message_index": 1', '"message_index": "#1"'),
        GOOD.replace('"message_index": 1', '"message_index": 1.0'),
        GOOD.replace("I close it.", "“I  close\\nit.”"),
    ],
)
def test_a_verdict_is_found_in_what_is_around_it(text: str) -> None:
    assert read(text, SLUGS, BODIES) == VERDICT


def test_no_failure() -> None:
    assert read(says(failed=False, reason="Fine."), SLUGS, BODIES) == Verdict(reason="Fine.")


def test_no_step_to_blame() -> None:
    given = says(mode="bad_planning", quote="ticket 7", reason="x")
    assert read(given, SLUGS, BODIES) == Verdict("bad_planning", None, "ticket 7", "x")
    assert (
        read(says(mode="bad_planning", message_index=2), SLUGS, BODIES).message_index == 2
    )  # it says nothing


@pytest.mark.parametrize(
    ("text", "says_why"),
    [
        ("", "no JSON object"),
        ("It failed.", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('{"failed": tru', "no JSON object"),
        ('{"mode": null}', "no “failed”"),
        (says(failed="yes"), "“failed” must be true or false, not 'yes'"),
        (says(failed=False, mode="bad_planning"), "“failed” is false, but"),
        (says(), "“mode” is None, which is none of bad_planning, wrong_tool_choice"),
        (says(mode="laziness"), "“mode” is 'laziness'"),
        (says(mode=["bad_planning"]), "“mode” is"),
        (says(mode="bad_planning", message_index=3), "the messages are #0 to #2"),
        (says(mode="bad_planning", message_index=-1), "the messages are"),
        (says(mode="bad_planning", message_index=True), "must be a number or null"),
        (says(mode="bad_planning", message_index="first"), "must be a number or null"),
        (says(mode="bad_planning", message_index=float("inf")), "must be a number or null"),
        (
            says(mode="bad_planning", message_index=0, quote="ticket 8"),
            "does not occur in message #0",
        ),
        (
            says(mode="bad_planning", message_index=0, quote="I close it."),
            "does not occur in message #0",
        ),
        (says(mode="bad_planning", quote="nobody said this"), "does not occur in any message"),
        (says(mode="bad_planning", message_index=0), "“quote” is empty"),
        (says(mode="bad_planning", message_index=0, quote="  '' "), "does not occur"),
        (says(mode="bad_planning", quote=5), "“quote” must be a string"),
        (says(mode="bad_planning", reason=["a"]), "“reason” must be a string"),
    ],
)
def test_what_is_wrong_is_said(text: str, says_why: str) -> None:
    with pytest.raises(AnswerError, match=says_why.replace("(", r"\(")):
        read(text, SLUGS, BODIES)


def test_only_the_agents_own_steps_are_to_blame() -> None:
    blames_user = says(mode="bad_planning", message_index=0, quote="ticket 7")
    with pytest.raises(AnswerError, match="not a message of the agent"):
        read(blames_user, SLUGS, BODIES, {1})
    assert read(GOOD, SLUGS, BODIES, {1}) == VERDICT
    assert (
        read(says(mode="bad_planning", quote="ticket 7"), SLUGS, BODIES, {1}).message_index is None
    )


def test_what_is_stored_has_limits_and_no_odd_characters() -> None:
    body = "word " * 400
    text = json.dumps(
        {
            "failed": True,
            "mode": "bad_planning",
            "message_index": 0,
            "quote": body,
            "reason": "\ud800\0x" * 999,
        }
    )
    verdict = read(text, SLUGS, [body])
    assert (
        len(verdict.quote) == MAX_QUOTE
        and len(verdict.reason) == 1000
        and "\0" not in verdict.reason
    )
    verdict.reason.encode()


@given(st.text(max_size=300))
def test_any_text_is_a_verdict_or_a_sentence(text: str) -> None:
    try:
        verdict = read(text, SLUGS, BODIES)
    except AnswerError as error:
        str(error).encode()
    else:
        assert not verdict.mode or verdict.mode in SLUGS


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "failed": st.booleans() | JSON,
            "mode": st.sampled_from(sorted(SLUGS)) | JSON,
            "message_index": st.integers(-2, 4) | JSON,
            "quote": st.sampled_from(["Close", "I close it.", ""]) | JSON,
            "reason": JSON,
        },
    )
)
def test_any_object_is_a_verdict_that_holds_or_a_sentence(given_: dict) -> None:
    try:
        verdict = read(json.dumps(given_), SLUGS, BODIES)
    except AnswerError as error:
        str(error).encode()
        return
    assert given_["failed"] is verdict.failed
    assert verdict.message_index is None or 0 <= verdict.message_index < len(BODIES)
    among = BODIES if verdict.message_index is None else [BODIES[verdict.message_index]]
    assert not verdict.quote or any(verdict.quote in " ".join(body.split()) for body in among)


@given(
    st.text(alphabet=st.characters(exclude_characters="{}"), max_size=80),
    st.text(alphabet=st.characters(exclude_characters="{}"), max_size=80),
)
def test_prose_around_an_object_does_not_matter(before: str, after: str) -> None:
    assert extract(before + GOOD + after) == json.loads(GOOD)


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(AnswerError):
        extract('{"a":' * 5_000)
    with pytest.raises(AnswerError):
        extract('{"failed": ' + "9" * 6_000 + "}")


# Whose word counts


def word(mode: str, *confidences: str) -> Label:
    return Label(
        mode, 3, [{"rule": f"r{i}", "confidence": sure} for i, sure in enumerate(confidences)]
    )


@pytest.mark.parametrize(
    ("rules", "by_judge"),
    [
        (Label(), True),
        (word("bad_planning", "hint"), True),
        (word("bad_planning", "hint", "likely"), True),
        (word("incomplete_execution", "likely"), True),
        (word("incomplete_execution", "hint"), True),
        (word("incomplete_execution"), True),
        (word("incomplete_execution", "certain"), False),
        (word("bad_planning", "likely"), False),
        (word("bad_planning", "certain"), False),
        (word("bad_planning", "likely", "certain"), False),
        (word("bad_planning", "hint", "certain"), False),
    ],
)
def test_the_judge_wins_over_what_rules_are_not_sure_of(rules: Label, by_judge: bool) -> None:
    chosen = choose(rules, VERDICT)
    assert chosen.by_judge is by_judge
    assert (chosen.mode, chosen.blamed) == (
        ("wrong_tool_choice", 1) if by_judge else (rules.mode, 3)
    )
    judge = chosen.evidence[0 if by_judge else -1]
    assert judge == {
        "rule": "judge",
        "message_index": 1,
        "text": "It was 7.",
        "quote": "I close it.",
        "mode": "wrong_tool_choice",
        "confidence": "likely",
        "sure": None,
    }
    assert len(chosen.evidence) == len(rules.evidence) + 1


def test_a_judge_that_sees_no_failure_removes_nothing() -> None:
    assert choose(word("bad_planning", "hint"), Verdict(reason="Fine.")) == word(
        "bad_planning", "hint"
    )
    assert choose(Label(), Verdict()) == Label()


@pytest.mark.parametrize(
    ("given", "kept"),
    [("0.8", 0.8), ("1", 1.0), ("0", 0.0), ("80", None), ("true", None), ('"high"', None)],
)
def test_how_sure_the_judge_says_it_is(given: str, kept: float | None) -> None:
    """Anything but a share is left out: the verdict counts all the same."""
    fine = f'{{"failed": false, "confidence": {given}, "reason": ""}}'
    assert read(fine, SLUGS, BODIES) == Verdict(confidence=kept)
    failed = GOOD.replace('"mode"', f'"confidence": {given}, "mode"')
    assert read(failed, SLUGS, BODIES).confidence == kept
