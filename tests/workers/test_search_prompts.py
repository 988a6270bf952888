"""Prompt search with GEPA itself: a scripted agent that needs a rule, and a scripted reflecting
model that finds it in the feedback; what ends a search, and what a killed one asks again."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from apps.demo.recipes import VERIFIER
from tests.registry.model_server import ModelServer, serving
from tests.registry.model_server import chat as scripted
from tests.workers.conftest import Recorder
from workers import search_prompts
from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import load
from workers.lib.errors import JobError
from workers.lib.program import Stop, StopFlag
from workers.lib.rollouts import NO_LIMITS, stream
from workers.lib.specs.engines import Server
from workers.lib.specs.job import checked
from workers.lib.specs.search_prompts import SearchPrompts, UsedBefore

ROOT = Path(__file__).resolve().parent.parent.parent
GEPA = ROOT / ".venv-gepa" / "bin" / "python"
pytestmark = pytest.mark.skipif(not GEPA.exists(), reason="no .venv-gepa: run `make gepa`")
RULE = "Answer with one JSON object {tool, args}, and nothing else."
REASON = "components: invalid -1"


def chat(message: dict) -> tuple[int, Any]:
    """With a count of the answer's tokens that its text can have."""
    status, answer = scripted(message)
    return status, answer | {"usage": {"prompt_tokens": 5, "completion_tokens": 5}}


def task(number: int) -> dict:
    return {
        "id": f"task-{number}",
        "messages": [{"role": "user", "content": f"Close ticket {number}."}],
        "expected": {"tool": "tickets.close", "args": {"id": number}},
    }


def agent(body: dict) -> tuple[int, Any]:
    """Right only where the system prompt has the rule."""
    number = int(re.findall(r"\d+", body["messages"][-1]["content"])[0])
    ruled = body["messages"][0]["role"] == "system" and RULE in body["messages"][0]["content"]
    return chat(
        {
            "content": (
                json.dumps({"tool": "tickets.close", "args": {"id": number}})
                if ruled
                else "I closed it."
            )
        }
    )


def reflecting(body: dict) -> tuple[int, Any]:
    """Writes the rule only where it reads why the verifier refused the answers."""
    asked = body["messages"][0]["content"]
    return chat(
        {"content": f"```\nBe nice. {RULE}\n```" if REASON in asked else "```\nBe nicer.\n```"}
    )


@contextmanager
def servers(reflect: Any = reflecting) -> Iterator[tuple[ModelServer, ModelServer]]:
    path = ("POST", "/v1/chat/completions")
    with serving({path: agent}) as policy, serving({path: reflect}) as writer:
        yield policy, writer


def spec_of(policy: ModelServer, writer: ModelServer, out: Path, **config: Any) -> SearchPrompts:
    given = {
        "out_dir": str(out),
        "model": {"base": "m"},
        "engine": {
            "kind": "openai",
            "base_url": policy.base,
            "model": "m",
            "allow_private": True,
            "concurrency": 4,
            "price": {"input": 1, "output": 1},
        },
        "server": {
            "base_url": writer.base,
            "model": "w",
            "allow_private": True,
            "price": {"input": 10, "output": 10},
        },
        "environment": {
            "kind": "builtin",
            "name": "workplace",
            "harness": {"max_new_tokens": 20},
            "verifier": VERIFIER,
        },
        "prompt": "Be nice.",
        "tasks": [task(number) for number in range(1000, 1004)],
        "validation_tasks": [task(number) for number in range(2000, 2004)],
        "evidence": {f"task-{number}": "Seen last week." for number in range(1000, 1004)},
        "python": str(GEPA),
        "config": {"most_calls": 60, "most_proposals": 4} | config,
    }
    return checked(given, SearchPrompts)


def run(spec: SearchPrompts, events: Recorder) -> dict:
    search_prompts.main(spec, events, StopFlag())
    return events.rows("result")[-1]


def held_out_success(spec: SearchPrompts, prompt: str) -> float:
    """On tasks that the search never saw."""
    environment = load(
        structs.replace(
            spec.environment,
            harness=structs.replace(spec.environment.harness, system_prompt=prompt),
        )
    )
    assert isinstance(spec.engine, Server)

    async def play() -> list[bool]:
        async with ChatPolicy(spec.engine, Sampling(max_new_tokens=20)) as policy:  # type: ignore[arg-type]
            tasks = [task(number) for number in range(3000, 3005)]
            return [
                done.score.success
                async for _, _, done in stream(policy, environment, tasks, NO_LIMITS)
            ]

    return sum(asyncio.run(play())) / 5


def test_a_bad_prompt_gets_better_on_held_out_tasks(tmp_path: Path, events: Recorder) -> None:
    with servers() as (policy, writer):
        spec = spec_of(policy, writer, tmp_path)
        found = run(spec, events)
        assert RULE in found["prompt"] and (found["start_score"], found["score"]) == (0.0, 1.0)
        assert (
            held_out_success(spec, spec.prompt) == 0.0
            and held_out_success(spec, found["prompt"]) == 1.0
        )
        asked = json.loads(writer.asked[0][3])["messages"][0]["content"]
    assert REASON in asked and "Close ticket 100" in asked and '"args": {"id": 100' in asked
    assert "Seen last week." in asked, "what was known of the failure in production"
    assert "2000" not in asked, "of validation tasks the reflecting model sees nothing"
    rows = events.rows("candidate")
    assert [(row["state"], row["number"], row["parent"]) for row in rows] == [
        ("start", 0, None),
        ("kept", 1, 0),
    ]
    assert rows[-1]["calls"] == found["used"]["calls"] == 4 + 3 + 3 + 4


def test_a_reflecting_model_that_reads_nothing_finds_nothing(
    tmp_path: Path, events: Recorder
) -> None:
    def blind(body: dict) -> tuple[int, Any]:
        return chat({"content": "```\nBe nicer.\n```"})

    with servers(blind) as (policy, writer):
        found = run(spec_of(policy, writer, tmp_path), events)
    assert (found["best"], found["prompt"], found["score"], found["proposals"]) == (
        0,
        "Be nice.",
        0.0,
        4,
    )
    assert {row["state"] for row in events.rows("candidate")} == {"start", "rejected"}


def cost(policy: ModelServer, writer: ModelServer) -> float:
    """In USD, by what the scripted servers count: 5 tokens in and 1 out for each answer."""
    return 10e-6 * len(policy.asked) + 100e-6 * len(writer.asked)


def test_the_limit_on_money_holds(tmp_path: Path, events: Recorder) -> None:
    """The reflecting model may write 4,096 tokens at $10 a million: the question could cost $0.04,
    so it is never asked.
    """
    with servers() as (policy, writer):
        found = run(spec_of(policy, writer, tmp_path, most_usd=0.001), events)
        assert "limit of $0.001 allows no further question" in found["stopped"] and not writer.asked
        assert (
            found["used"]["usd"] == pytest.approx(cost(policy, writer))
            and found["used"]["usd"] <= 0.001
        )
        assert (found["best"], found["score"]) == (0, 0.0)


def test_a_limit_below_one_question_asks_nothing(tmp_path: Path, events: Recorder) -> None:
    """One question of the agent can cost 67 millionths of a dollar."""
    with servers() as (policy, writer):
        with pytest.raises(JobError, match=r"could not be scored.* limit of \$6e-05"):
            run(spec_of(policy, writer, tmp_path, most_usd=0.00006), events)
        assert not policy.asked and not writer.asked


def test_what_a_limit_left_is_the_result(tmp_path: Path, events: Recorder) -> None:
    """One proposal is affordable: it is found, scored and kept, the next one is not asked for."""
    never_right = task(2000) | {
        "id": "task-odd",
        "expected": {"tool": "tickets.close", "args": {"id": 1}},
    }
    with servers() as (policy, writer):
        spec = spec_of(
            policy, writer, tmp_path, most_usd=0.0475, most_proposals=50, reflection_tokens=4000
        )
        spec.validation_tasks.append(never_right)  # so that there is always something to improve
        spec.tasks.append(never_right | {"id": "task-odd-train"})
        found = run(spec, events)
        assert (
            RULE in found["prompt"]
            and found["score"] == 0.8
            and "limit of $0.0475" in found["stopped"]
        )
        assert (
            cost(policy, writer) == pytest.approx(found["used"]["usd"])
            and found["used"]["usd"] <= 0.0475
        )


def test_the_limit_on_calls_holds(tmp_path: Path, events: Recorder) -> None:
    with servers() as (policy, writer):
        found = run(spec_of(policy, writer, tmp_path, most_calls=9), events)
        assert (
            len(policy.asked) == found["used"]["calls"] == 7
            and "limit of 9 calls" in found["stopped"]
        )


def test_a_killed_search_asks_nothing_twice(tmp_path: Path, events: Recorder) -> None:
    """The first attempt is stopped at its reflection; the second finds its answers and gets as far
    as one that ran through.
    """
    stop = StopFlag()

    def stopping(body: dict) -> tuple[int, Any]:
        stop.is_set = True
        return 429, {}

    with servers(stopping) as (policy, writer):
        spec = spec_of(policy, writer, tmp_path)
        with pytest.raises(Stop):
            search_prompts.main(spec, events, stop)
        assert len(policy.asked) == 7
        journal = tmp_path / "journal.jsonl"
        journal.write_text(journal.read_text() + '{"booked": [1, 1000, 0.01]}\n{"key": "cut o')
    with servers() as (policy, writer):
        engine = structs.replace(spec.engine, base_url=policy.base)
        server = structs.replace(spec.server, base_url=writer.base)
        found = run(structs.replace(spec, engine=engine, server=server), events)
        assert RULE in found["prompt"] and len(policy.asked) == 7 and len(writer.asked) == 1
    assert found["used"]["calls"] == 14
    assert found["used"]["usd"] > 0.01, "what was open when it was killed counts as spent"


def test_another_machine_without_the_journal_keeps_to_the_limit(
    tmp_path: Path, events: Recorder
) -> None:
    with servers() as (policy, writer):
        spec = spec_of(policy, writer, tmp_path, most_calls=20)
        used = UsedBefore(calls=18, usd=0.01)
        with pytest.raises(JobError, match="limit of 20 calls"):
            run(structs.replace(spec, used=used), events)
        assert not policy.asked


@pytest.mark.parametrize(
    ("answer", "proposals", "says"),
    [((401, {}), 0, "wants a key"), ((400, {"error": "no"}), 0, "refused the request")],
)
def test_a_reflecting_server_that_does_not_answer_ends_it(
    answer: tuple[int, Any], proposals: int, says: str, tmp_path: Path, events: Recorder
) -> None:
    with servers(lambda body: answer) as (policy, writer):
        found = run(spec_of(policy, writer, tmp_path), events)
    assert says in found["stopped"] and (found["best"], found["proposals"]) == (0, proposals)


def test_a_proposal_without_end_is_not_tried(tmp_path: Path, events: Recorder) -> None:
    with servers(lambda body: chat({"content": "x" * 5000})) as (policy, writer):
        found = run(
            spec_of(policy, writer, tmp_path, most_characters=4000, most_proposals=1), events
        )
        assert found["best"] == 0 and len(policy.asked) == 7


def test_an_agent_that_cannot_be_asked_is_an_error_in_words(
    tmp_path: Path, events: Recorder
) -> None:
    with servers() as (policy, writer):
        spec = spec_of(policy, writer, tmp_path)
        policy.script = {}
        with pytest.raises(JobError, match=r"could not be scored.* has no model"):
            run(spec, events)


def test_without_gepa_it_says_how_to_get_it(tmp_path: Path, events: Recorder) -> None:
    with servers() as (policy, writer):
        spec = structs.replace(spec_of(policy, writer, tmp_path), python="/nowhere/python")
        with pytest.raises(JobError, match="make gepa"):
            run(spec, events)
