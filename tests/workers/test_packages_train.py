"""GRPO in an environment that is a package: its verifier is the reward, and no server is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.factories import PACKAGE, write_package
from tests.workers.conftest import TALK, Recorder, typed
from tests.workers.test_evaluate import answering
from workers import evaluate, grpo
from workers.lib.environments.packages import checking, config_of, runners
from workers.lib.environments.packages.discovery import discover
from workers.lib.program import StopFlag

CODE = """
from flywheel_sdk import Environment

class Letters(Environment):
    def tasks(self):
        return [{"id": f"t{n}", "prompt": f"Letters {n}."} for n in range(2)]
    def verify(self, attempt):
        return {"reward": sum(letter < "n" for letter in attempt.answer) / 40, "components": \
{"long": len(attempt.answer)}}
"""


def test_an_evaluation_shows_people_where_a_tool_raised(
    make_spec: Callable[..., dict],
    events: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_package(tmp_path, "counter", PACKAGE.replace('self.state["value"] += amount', "1 / 0"))
    (found,) = [one for one in discover(tmp_path) if one.name == "counter"]
    config: dict[str, Any] = config_of(
        "counter", found.digest, checking.describe(found), trusted=True
    )
    answering(monkeypatch, '{"tool": "add", "args": {"amount": 2}}')
    spec = make_spec(tasks=checking.tasks_of(found.runner), samples_per_task=1)
    spec["environment"] = {
        "kind": "package",
        "config": config | {"files": found.files},
        "harness": {"max_turns": 2},
        "verifier": {},
    }
    try:
        evaluate.main(typed(spec, "evaluate"), events, StopFlag())
    finally:
        runners.close_all()
    (sample,) = events.rows("sample")
    raised = [line for line in sample["details"] if "raised" in line]
    assert raised == [
        "The tool add raised ZeroDivisionError: division by zero (__init__.py:11 1 / 0)"
    ]
    assert "ZeroDivision" not in str(sample["messages"]) and "The tool failed (crash)." in str(
        sample["messages"]
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("trusted", [True, False])
def test_grpo_learns_from_a_packages_verifier(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path, trusted: bool
) -> None:
    write_package(tmp_path / "packages", "letters", CODE)
    (found,) = discover(tmp_path / "packages")
    config: dict[str, Any] = config_of(
        "letters", found.digest, checking.describe(found), trusted=trusted
    )
    spec = make_spec(tasks=checking.tasks_of(found.runner), config=TALK)
    spec["environment"] = {
        "kind": "package",
        "config": config | {"files": found.files},
        "harness": {"max_new_tokens": 6},
        "verifier": {},
    }
    try:
        trainer = grpo.Trainer(typed(spec, "grpo"), events, StopFlag())
        adapter = trainer.train()
    finally:
        runners.close_all()
    metrics = [row["values"] for row in events.rows("metric")]
    assert trainer.done == 2 and any(
        value > 0
        for values in metrics
        for name, value in values.items()
        if name.endswith("reward_std")
    )
    assert any(
        value.abs().max() > 0
        for name, value in load_file(adapter / "adapter_model.safetensors").items()
        if "lora_B" in name
    )
