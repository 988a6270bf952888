"""Several votes of a judge are several draws; one vote is its likeliest answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.workers.test_chat_client import Server, server  # noqa: F401
from workers.lib.clients import VOTING_TEMPERATURE, clients_of
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.environment import Clients
from workers.lib.verifiers import Rollout, build

TASK = {"messages": [{"role": "user", "content": "Say hello."}], "expected": {"answer": "Hello."}}
PARTS = {
    "score": ({"score": 8, "reason": "kind"}, {}),
    "pairwise": ({"better": "tie"}, {"reference": "Good day."}),
    "group": ({"scores": {"W1": 0.5, "W2": 0.5}}, {}),
}


def asked(mode: str, votes: int) -> list[int | None]:
    """Which sample each question asked for; None where it named none."""
    answer, more = PARTS[mode]
    seen: list[int | None] = []

    def ask(messages: list[dict], *, sample: int | None = None) -> str:
        seen.append(sample)
        return json.dumps(answer)

    spec = {"kind": "judge", "rubric": "Is it kind?", "mode": mode, "votes": votes} | more
    judge = build(spec, clients={"ask": ask})
    rollouts = [Rollout.of_text(TASK, text) for text in ("Hello!", "Hi!")]
    scores = judge.score_group(rollouts) if mode == "group" else [judge.score(rollouts[0])]
    assert not any(score.masked for score in scores), scores
    return seen


@pytest.mark.parametrize(
    ("mode", "votes", "samples"),
    [
        ("score", 1, [None]),
        ("score", 3, [1, 2, 3]),
        ("pairwise", 1, [None, None]),
        ("pairwise", 2, [1, 1, 2, 2]),
        ("group", 1, [None]),
        ("group", 3, [1, 2, 3]),
    ],
)
def test_each_vote_is_a_draw_of_its_own(mode: str, votes: int, samples: list) -> None:
    assert asked(mode, votes) == samples


def test_a_client_that_cannot_draw_is_asked_plainly() -> None:
    judge = build(
        {"kind": "judge", "rubric": "Is it kind?", "votes": 3},
        clients={"ask": lambda messages: '{"score": 6}'},
    )
    assert judge.score(Rollout.of_text(TASK, "Hello!")).reward == pytest.approx(0.6)


def test_a_job_s_client_asks_the_server_for_different_draws(server: Server) -> None:  # noqa: F811
    server.raw = json.dumps({"choices": [{"message": {"content": '{"score": 8}'}}]}).encode()
    for votes, wanted in ((1, [(0.0, 0)]), (3, [(VOTING_TEMPERATURE, seed) for seed in (1, 2, 3)])):
        server.seen.clear()
        spec: dict[str, Any] = {"kind": "judge", "rubric": "Is it kind?", "votes": votes}
        judge = ModelServer(base_url=server.url, model="m", allow_private=True)
        clients = clients_of(Clients(judge=judge))
        build(spec, clients=clients).score(Rollout.of_text(TASK, "Hello!"))
        bodies = [body for body, _, _ in server.seen]
        assert [body["temperature"] for body in bodies] == [
            temperature for temperature, _ in wanted
        ]
        assert len({body["seed"] for body in bodies}) == votes
