"""An agent for each way to misbehave, at a rollout's address: what it is told, why its rollout does
not count, and that nothing is learned but what was sampled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_harness_tools import SPEC, Playing, call, task
from workers.lib.adapter_serving import CompletionAsker, asked_at, text_logprobs
from workers.lib.engines import Sampling, SoFar
from workers.lib.environments import load
from workers.lib.errors import JobError
from workers.lib.harness import gateway, open_rollout, tools
from workers.lib.harness.playing import HarnessPlayer
from workers.lib.policies import PolicyError, Reply
from workers.lib.rollouts import EXCEEDED, Finished, Limits, play
from workers.lib.specs.harness import AgentCommand, AgentHarness
from workers.lib.specs.rollouts import RolloutServer
from workers.lib.storable import is_storable
from workers.lib.token_policy import completion_body
from workers.lib.token_rows import rows_of

AGENT = Path(__file__).parent / "agents" / "bad_agent.py"
NO_TOOL = tools.UNKNOWN_TOOL.partition(" It has")[0].format("launch_rocket")
TOO_LARGE = "The body is larger than 16 MiB."
SEVERAL = "n must be 1: each rollout samples one answer at a time."
LOOKED = ("stop", "policy error")  # stop reasons of an agent that kept to its limits
HELD_S = 60  # so that what is never said fails a test
BUSY = "32 requests of this rollout are being answered; wait for one."


def refused(why: str) -> str:
    return f"{open_rollout.NO_CALL} {open_rollout.REFUSED.format(why)}"


@dataclass
class Row:
    """`masks`: the reasons for which its rollouts do not count, {""} if they do. `failed`: what
    they failed for. `told`: what it was refused. `facts`: of its rollout. `hold`: what its model
    waits for before the first answers, a file or a line of the log. `fails`: the model's server
    fails at first.
    """

    way: str
    masks: set[str] = field(default_factory=lambda: {""})
    failed: str = ""
    told: tuple[int, str] | None = None
    facts: dict[str, float] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    rollouts: int = 1
    calls: int = 200
    seconds: float = 120
    hold: str = ""
    fails: bool = False


ROWS = [
    Row("never_calls", {open_rollout.NO_CALL}, facts={"bypassed": 1}),
    Row("calls_after_its_end", told=(410, open_rollout.ENDED)),
    Row(
        "uses_another_address",
        {gateway.OTHERS, refused(gateway.OTHERS)},
        told=(403, gateway.OTHERS),
        rollouts=2,
    ),
    Row(
        "asks_all_the_time",
        failed=EXCEEDED["turns"],
        told=(400, open_rollout.EXCEEDED["turns"]),
        calls=5,
    ),
    Row("asks_all_at_once", told=(429, BUSY), hold="told"),
    Row(
        "floods_a_tool",
        {open_rollout.REPEATED.format("email_delete_email")},
        told=(429, tools.TOO_MANY),
        answers=[call(1)],
    ),
    Row("sends_100_mb", told=(413, TOO_LARGE)),
    Row("sends_only_100_mb", {refused(TOO_LARGE)}, told=(413, TOO_LARGE)),
    Row("hangs", failed=EXCEEDED["time"], seconds=5),
    Row("forks_sub_agents", facts={"branches": 3}),
    Row("retries_hotter", told=(503, "the server hung"), facts={"ignored": 2}, fails=True),
    Row("edits_earlier_turns", facts={"branches": 2}),
    Row("asks_for_eight", {refused(SEVERAL)}, told=(400, SEVERAL)),
    Row("closes_a_stream", {open_rollout.CUT}, hold="the agent closed the connection"),
    Row("reports_the_half", {open_rollout.NOT_SAMPLED.format("[1] ")}, facts={"bypassed": 1}),
    Row("dies", failed=EXCEEDED["agent error"]),
    Row("calls_a_tool_of_another_task", told=(404, NO_TOOL)),
    Row("asks_for_a_held_out_task", told=(404, "A rollout's address has no “tasks/held-out-7”.")),
    Row("alters_results", facts={"altered": 1}, answers=[call(1), "Done."]),
    Row("passes_results_on", facts={"altered": 0}, answers=[call(1), "Done."]),
    Row("writes_what_cannot_be_stored", facts={"branches": 1}),
]


class Logging(Playing):
    """A sampler with a log of all that it sampled."""

    def __init__(self, row: Row, shared: Path, seen: pytest.LogCaptureFixture) -> None:
        super().__init__(*row.answers)
        self.row, self.shared, self.seen, self.log = row, shared, seen, list[Reply]()
        self.failing, self.waiting = row.fails, 0

    async def sample(self, *given: Any, **more: Any) -> tuple[Reply, SoFar]:
        (self.shared / "asked").touch()
        self.waiting += 1
        async with asyncio.timeout(HELD_S):
            while self.row.hold and not self.is_free():
                await asyncio.sleep(0.01)
        if self.failing:
            self.failing = False
            raise PolicyError("the server hung")
        reply, so_far = await super().sample(*given, **more)
        self.log.append(reply)
        return reply, so_far

    def is_free(self) -> bool:
        is_told = (self.shared / self.row.hold).exists() or self.row.hold in self.seen.messages
        return is_told or self.waiting > open_rollout.AT_ONCE


@pytest.mark.parametrize("row", ROWS, ids=[row.way for row in ROWS])
def test_what_an_agent_does_wrong_gets_its_sentence_and_teaches_nothing_else(
    row: Row, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, gateway.__name__)
    monkeypatch.setattr(open_rollout, "MOST_CALLS", 3)
    sampler, found = Logging(row, tmp_path, caplog), list[Finished]()
    command = AgentCommand(
        argv=[sys.executable, str(AGENT), row.way], variables={"SHARED": str(tmp_path)}
    )
    player = HarnessPlayer(AgentHarness(name="bad", version="1", command=command, calls=row.calls))
    player.start()
    try:
        play(
            sampler,
            load(SPEC),
            [task(1)],
            Limits(seconds=row.seconds),
            lambda index, sample, done: found.append(done),
            n=row.rollouts,
            player=player,
        )
        while row.way == "calls_after_its_end" and not (tmp_path / "late").exists():
            threading.Event().wait(0.01)
    finally:
        player.close()
    assert {done.score.mask_reason for done in found} == row.masks
    told = tmp_path / "told"
    sentences = [json.loads(line) for line in told.read_text().splitlines()] if row.told else []
    if row.told is None:
        assert not told.exists()
    else:
        status, says = row.told
        assert sentences and all(
            (status, True) == (code, says in sentence) for code, sentence in sentences
        )
    for done in found:
        assert row.facts.items() <= done.rollout.stats.items()
        assert (row.failed in done.score.details) if row.failed else done.stop_reason in LOOKED
        assert is_storable(json.dumps(done.score.messages, ensure_ascii=False))
        learned_from(done, sampler.log)


def learned_from(done: Finished, log: list[Reply]) -> None:
    """That what a rollout teaches is in the sampler's log, once each, with its log-probabilities;
    nothing, if it is masked.
    """
    assert all(reply in log for reply in done.replies)
    if done.score.masked:
        assert done.score.reward is None
        return
    assert done.replies
    learned = [
        [
            (id, value)
            for id, value, is_learned in zip(row.ids, row.logprobs, row.learnt, strict=True)
            if is_learned
        ]
        for row in rows_of(done)
    ]
    sampled = [
        pair for reply in done.replies for pair in zip(reply.token_ids, reply.logprobs, strict=True)
    ]
    assert [pair for row in learned for pair in row] == sampled


class WithoutIds(BaseHTTPRequestHandler):
    """A model server that answers a prompt of three tokens, and returns text only."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        rows = [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -1.0}}]
        choice = {"index": 0, "text": "Yes.", "prompt_logprobs": rows, "logprobs": None}
        data = json.dumps({"model": "base", "choices": [choice], "usage": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def without_ids() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), WithoutIds)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def test_a_model_server_without_token_ids_is_refused_before_the_first_step(
    without_ids: str,
) -> None:
    """The first question of a run, by which its base is compared."""
    server = RolloutServer(base_url=without_ids, model="base", allow_private=True)
    body = completion_body([1, 2, 3], Sampling(), [0], 0, 1)
    with CompletionAsker(asked_at(server)) as client, pytest.raises(JobError) as refusal:
        text_logprobs(client, [1, 2, 3], body)
    assert str(refusal.value) == (
        f"The rollout server at {without_ids[7:-3]} returned no token ids with its answer."
        " Rollouts need a server that returns exact tokens: vLLM 0.10.2 or later, SGLang 0.5 or"
        " later."
    )
