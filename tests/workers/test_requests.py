"""The requests of the demo: the same for a seed, all solvable, of many kinds."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest

from apps.demo.recipes import HARNESS, VERIFIER
from tests.workers.episodes import score_text
from workers.lib.environments import load
from workers.lib.environments.requests import KINDS, make_requests
from workers.lib.verifiers import parse_call


def test_the_same_seed_gives_the_same_requests_and_another_gives_others() -> None:
    assert make_requests(3, 50) == make_requests(3, 50)
    assert make_requests(3, 50) == make_requests(3, 80)[:50]
    assert make_requests(3, 50) != make_requests(4, 50)


@pytest.mark.proof
def test_every_expected_call_is_right_safe_and_rewarded_in_full() -> None:
    environment = load(
        {"kind": "builtin", "name": "workplace", "harness": HARNESS, "verifier": VERIFIER}
    )
    for request in make_requests(1, 500):
        task = {"id": "1", "messages": [], "expected": request["expected"]}
        score = score_text(environment, task, json.dumps(request["expected"]))
        assert score.success and score.reward == pytest.approx(1.0) and not score.unsafe, request


def test_requests_and_their_groups_differ() -> None:
    made = make_requests(2, 500)
    assert len({request["request"] for request in made}) == 500
    groups = defaultdict(set)
    for request in made:
        groups[request["group"]].add(request["request"])
    assert all(len(texts) == 1 for texts in groups.values())


def test_there_are_at_least_six_phrasings_of_at_least_eight_tools() -> None:
    assert len(KINDS) >= 8 and all(len(phrasings) >= 6 for _, _, phrasings in KINDS.values())
    seen = Counter(request["expected"]["tool"] for request in make_requests(0, 160))
    assert set(seen) == set(KINDS)


def test_it_says_so_when_there_are_not_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"email.delete_mailbox": KINDS["email.delete_mailbox"]}
    monkeypatch.setattr("workers.lib.environments.requests.KINDS", few)
    assert len(make_requests(0, 400)) == 400
    with pytest.raises(ValueError, match="do not give 500"):
        make_requests(0, 500)


def test_the_examples_of_the_harness_are_no_requests_of_the_demo() -> None:
    said = {message["content"] for message in HARNESS["examples"]}
    assert not said & {request["request"] for request in make_requests(0, 1000)}
    answers = [
        message["content"] for message in HARNESS["examples"] if message["role"] == "assistant"
    ]
    assert answers and all(parse_call(answer) for answer in answers)
