"""No answer hangs a verifier, breaks it, or escapes it: always a score, or a failed answer with a
reason.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings

from tests.amounts import amount
from tests.workers.cpu import processor_time
from tests.workers.hostile import ANSWERS, CLIENTS, IN_SANDBOX, KINDS, messages, texts
from workers.lib.chat_client import ChatError
from workers.lib.sandbox.server import Server
from workers.lib.verifiers import KINDS as REGISTRY
from workers.lib.verifiers import Rollout, Score, Verifier, build
from workers.lib.verifiers.base import Guarded

SPECS = [(kind, options, expected) for kind, made in KINDS.items() for options, expected in made]
LIGHT = [spec for spec in SPECS if spec[0] not in IN_SANDBOX]
TOLD = "could not be judged: "


def verifier(kind: str, options: dict) -> Verifier:
    return build({"kind": kind} | options, clients=CLIENTS)


def rollout(said: Any, expected: dict) -> Rollout:
    task = {"id": "t", "messages": [{"role": "user", "content": "Do it."}], "expected": expected}
    task |= {name: expected[name] for name in expected if name == "demonstration"}
    return Rollout(task=task, messages=said, state={"rows": []} if "state" in expected else None)


def check(score: Score) -> None:
    assert not score.masked, score.mask_reason
    assert score.reward is not None and math.isfinite(score.reward)
    if score.details and score.details[0].startswith(TOLD):
        assert score.reward <= 0 and not score.success


def test_every_kind_of_the_registry_is_fuzzed() -> None:
    assert set(KINDS) == set(REGISTRY)


@pytest.mark.more
@pytest.mark.parametrize("number", range(len(LIGHT)))
def test_a_hostile_answer_gets_a_score(number: int) -> None:
    """In the suite each verifier gets a twelfth of the answers, the next one the next twelfth."""
    kind, options, expected = LIGHT[number]
    judged = verifier(kind, options)
    for name, said in [*messages()][number % amount(12, 1) :: amount(12, 1)]:
        with processor_time():
            score = judged.score(rollout(said, expected))
        try:
            check(score)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


IN_CODE = [name for name in texts() if name.startswith("code")] + [
    "nothing",
    "NUL",
    "lone surrogates",
    "deep JSON",
    "10 MB",
]


@pytest.mark.parametrize("kind", IN_SANDBOX)
def test_a_hostile_program_or_text_gets_a_score_from_the_sandbox(kind: str) -> None:
    [(options, expected)] = KINDS[kind]
    judged = verifier(kind, options)
    for name in IN_CODE:
        check(judged.score(rollout([{"role": "assistant", "content": texts()[name]}], expected)))


@pytest.mark.proof
@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_any_answer_of_any_types_gets_a_score(said: list) -> None:
    for kind, options, expected in LIGHT:
        check(verifier(kind, options).score(rollout(said, expected)))


# Whose doing it is


class Moody(Guarded):
    """Cannot judge what has “x” in it, and nothing at all where the task is broken."""

    def judge(self, rollout: Rollout) -> Score:
        if rollout.task.get("broken") or "x" in rollout.output:
            raise ZeroDivisionError("boom")
        return Score(reward=1.0 if rollout.output == "a" else -1.0, success=rollout.output == "a")


@pytest.mark.parametrize(
    ("output", "task", "reward"),
    [
        ("x", {}, -1.0),
        ("x", {"expected": {"answer": "a"}}, 0.0),
        ("x", {"broken": 1}, None),
        ("y", {"broken": 1}, None),
        ("a", {}, 1.0),
    ],
)
def test_what_breaks_a_verifier_that_works_for_others_has_failed(
    output: str, task: dict, reward: float | None
) -> None:
    score = Moody().score(Rollout.of_text(task, output))
    assert (
        score.reward == reward
        and score.masked is (reward is None)
        and score.success is (output == "a")
    )
    assert "ZeroDivisionError: boom" in score.mask_reason + "".join(score.details) or reward == 1


def fails_for(marked: str, answer: Any, instead: Any) -> Any:
    def ask(messages: Any) -> Any:
        found = instead if marked in str(messages) else answer
        if isinstance(found, Exception):
            raise found
        return found

    return ask


REFUSED, KEY = (
    ChatError("HTTP 400: content filter", limit="refused"),
    ChatError("HTTP 401", final=True),
)


@pytest.mark.parametrize(
    ("spec", "clients", "masks"),
    [
        (
            {"kind": "judge", "rubric": "Good?"},
            {"ask": fails_for("BOMB", '{"score": 3}', "no JSON")},
            False,
        ),
        ({"kind": "judge", "rubric": "Good?"}, {"ask": lambda messages: "no JSON"}, True),
        ({"kind": "judge", "rubric": "Good?"}, {"ask": lambda messages: 1 / 0}, True),
        *(
            (
                {"kind": "judge", "rubric": "Good?", **mode},
                {"ask": fails_for("BOMB", said, error)},
                masks,
            )
            for error, masks in ((REFUSED, False), (ConnectionError("413"), False), (KEY, True))
            for mode, said in (
                ({}, '{"score": 3}'),
                ({"votes": 3}, '{"score": 3}'),
                ({"mode": "pairwise", "reference": "x"}, '{"better": "A"}'),
            )
        ),
        *(
            ({"kind": "reward_model"}, {"reward_model": fails_for("BOMB", said, instead)}, masks)
            for said, masks in (
                ({"rewards": [1.0]}, False),
                ({}, True),
                (ConnectionError("gone"), True),
            )
            for instead in (
                {},
                {"rewards": []},
                {"rewards": [1.0, 2.0]},
                "1",
                None,
                ConnectionError("500"),
            )
        ),
        ({"kind": "reward_model"}, {"reward_model": fails_for("BOMB", [1.0], [math.nan])}, False),
        ({"kind": "reward_model"}, {"reward_model": lambda query: [math.nan]}, True),
        ({"kind": "reward_model"}, {"reward_model": lambda query: 1 / 0}, True),
        (
            {
                "kind": "python",
                "source": (
                    "def grade(sample, item): return 1 / ('BOMB' not in sample['output_text'])"
                ),
            },
            {},
            False,
        ),
        ({"kind": "python", "source": "def grade(sample, item): return item['missing']"}, {}, True),
        ({"kind": "human"}, {"labels": lambda key: None}, True),
    ],
)
def test_a_judge_or_grader_that_fails_for_one_answer_only(
    spec: dict, clients: dict, masks: bool
) -> None:
    for task in ({"messages": []}, {"messages": [], "demonstration": "Fine."}):
        rollouts = [Rollout.of_text(task, "BOMB")]
        verifier = build(spec, clients=clients)
        for score in (verifier.score(rollouts[0]), *verifier.score_group(rollouts)):
            assert score.masked is masks and score.success is False and (masks or score.reward == 0)


@pytest.mark.parametrize(
    ("spec", "client", "said"),
    [
        ({"kind": "judge", "rubric": "Good?"}, "ask", '{"score": 9}'),
        ({"kind": "reward_model"}, "reward_model", [0.9]),
    ],
)
def test_an_answer_that_came_while_the_server_was_away_is_judged_later(
    spec: dict, client: str, said: Any
) -> None:
    asked: list[Any] = []

    def away_at_first(query: Any) -> Any:
        asked.append(query)
        if len(asked) == 1:
            raise ConnectionError("gone")
        return said

    assert (
        build(spec, clients={client: away_at_first})
        .score(Rollout.of_text({"messages": []}, "Fine."))
        .reward
        == 0.9
    )
    assert len(asked) == 3 and asked[0] == asked[2]


def test_the_tests_of_one_answer_have_a_budget_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that takes nearly all of each test's time holds the sandbox for as long as twenty tests
    may take.
    """
    asked: list[dict] = []
    ask = Server.ask
    monkeypatch.setattr(
        Server, "ask", lambda server, request: (asked.append(request), ask(server, request))[1]
    )
    tests = [{"call": "f()", "expected": 1}] * 200
    spec = {"kind": "unit_tests", "tests": tests, "seconds": 0.1, "credit": "partial"}
    score = build(spec).score(Rollout.of_text({}, "import time\ndef f():\n    time.sleep(0.09)"))
    assert score.reward == 0 and not score.masked and 0 < len(asked) <= 23
