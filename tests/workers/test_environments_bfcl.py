"""BFCL's conversations of several turns, with a package of the same shape as the real one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from apps.evals.formats.bfcl import read
from apps.evals.formats.rows import RowProblem, TaskRow
from tests.workers.test_workplace_assistant import assistant
from workers.lib.environments import bfcl, load
from workers.lib.errors import SpecError
from workers.lib.policies import RecordedPolicy
from workers.lib.rollouts import NO_LIMITS, Finished, rollout

SPEC: dict = {
    "kind": "builtin",
    "name": "bfcl_turns",
    "harness": {},
    "verifier": {"kind": "bfcl_turns"},
}
TOOLS = """
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context import MORE

class Note:
    def __init__(self, text): self.text = text
    def __eq__(self, other): return isinstance(other, Note) and self.text == other.text

class TicketAPI:
    def __init__(self): self.tickets, self._seen = [], 0
    def _load_scenario(self, config, long_context=False): self.tickets = [Note(text) for text in \
config["tickets"]] + MORE * long_context
    def open(self, text, urgent=False):
        self.tickets.append(Note(text + "!" * urgent))
        return {"id": len(self.tickets)}
    def count(self):
        self._seen += 1
        return len(self.tickets)
    def hang(self):
        import time
        time.sleep(600)
"""
QUESTION = {
    "id": "multi_turn_miss_func_0",
    "initial_config": {"TicketAPI": {"tickets": ["old"]}},
    "involved_classes": ["TicketAPI"],
    "path": [],
    "question": [
        [{"role": "user", "content": "Open “a”."}],
        [{"role": "user", "content": "How many?"}],
        [],
        [{"role": "user", "content": "Thanks."}],
    ],
    "missed_function": {"2": ["count"]},
    "excluded_function": ["close"],
}
TRUTH = {"id": "multi_turn_miss_func_0", "ground_truth": [["open('a')"], [], ["count()"], []]}
OPEN, COUNT, SAY = (
    assistant(("open", {"text": "a"})),
    assistant(("count", {})),
    assistant(text="Done."),
)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        f"{bfcl.CODE}/ticket_api.py": TOOLS,
        f"{bfcl.CODE}/long_context.py": "MORE = [1]",
        f"{bfcl.DOCS}/ticket_api.json": "\n".join(
            json.dumps(
                {"name": name, "description": "", "parameters": {"type": "dict", "properties": {}}}
            )
            for name in ("open", "count", "close", "hang")
        ),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(bfcl, "package", lambda: tmp_path)
    bfcl.modules_of.cache_clear()
    bfcl.tools_of.cache_clear()


def task() -> dict:
    [row] = read([json.dumps(QUESTION)], [json.dumps(TRUTH)])
    assert isinstance(row, TaskRow)
    return {
        "id": row.key,
        "messages": row.messages,
        "expected": row.expected,
        "metadata": row.metadata,
    }


def play(*said: dict) -> Finished:
    return asyncio.run(rollout(RecordedPolicy([list(said)]), load(SPEC).open(task()), NO_LIMITS))


URGENT = assistant(("open", {"text": "a", "urgent": True}))
HANG = assistant(("hang", {}))
RIGHT = (OPEN, SAY, SAY, COUNT, SAY, SAY)


@pytest.mark.parametrize(
    ("said", "reward", "why"),
    [
        (RIGHT, 1.0, ""),
        ((COUNT, *RIGHT), 1.0, ""),
        ((URGENT, *RIGHT[1:]), 0.0, "turn 1: the state of TicketAPI differs: tickets"),
        ((SAY, SAY, COUNT, SAY, SAY), 0.0, "turn 1: no call"),
        ((OPEN, OPEN, *RIGHT[1:]), 0.0, "turn 1: the state"),
        ((OPEN, SAY, COUNT, SAY, SAY, SAY), 0.0, "turn 3: no call"),
        (RIGHT[:-1], 0.0, "ended before"),
        ((*[COUNT] * 30,), 0.0, "more turns than it may"),
        ((OPEN, SAY, SAY, URGENT, SAY, SAY), 0.0, "turn 3: the state"),
        ((OPEN, SAY, SAY, OPEN, SAY, SAY), 0.0, "turn 3"),
        ((HANG, *RIGHT), 1.0, ""),
    ],
)
def test_turns_are_right_by_their_state_and_answers(
    said: tuple, reward: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfcl, "LIMITS", bfcl.Limits(seconds=4.0 if HANG in said else 60.0))
    done = play(*said)
    assert (done.score.reward, done.score.masked) == (reward, False), done.score
    assert why in " ".join(done.score.details)


def test_tools_come_with_their_turn_and_a_session_goes_on_from_its_state() -> None:
    async def run() -> Any:
        episode = load(SPEC).open(task())
        names = [[tool["function"]["name"] for tool in episode.offered]]
        for message in (OPEN, SAY, SAY):
            await episode.step(message)
            names.append([tool["function"]["name"] for tool in episode.offered])
        again = load(SPEC).open(task(), json.loads(json.dumps(episode.state)))
        return names, episode.messages[-1]["content"], (await again.call("count", {})).observation

    names, said, counted = asyncio.run(run())
    assert (
        names == [["open", "hang"]] * 3 + [["open", "count", "hang"]]
        and counted == "2"
        and said == bfcl.MORE_TOOLS
    )


def test_it_needs_the_package_and_has_its_own_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="bfcl_turns"):
        load(SPEC | {"verifier": {"kind": "calls"}})
    monkeypatch.undo()
    monkeypatch.setattr(bfcl, "find_spec", lambda name: None)
    bfcl.package.cache_clear()
    with pytest.raises(SpecError, match="pip install --no-deps bfcl-eval"):
        load(SPEC)


@pytest.mark.parametrize(
    "call", ["open(x)", "a.open()", "open(1", "open(**x)", "1", "open(float('nan'))", "f(g())"]
)
def test_an_expected_call_that_is_no_call_is_a_problem(call: str) -> None:
    [row] = read(
        [json.dumps(QUESTION)], [json.dumps(TRUTH | {"ground_truth": [[call], [], [], []]})]
    )
    assert isinstance(row, RowProblem) and "literal arguments" in row.message
