"""The failure mode of a sample: production's rules, on what the evaluated model did and on nothing
else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.core.models import JobState
from apps.evals import drafts
from apps.evals.jobs import store_events
from apps.evals.models import EvalRun, Sample, Split
from apps.evals.pages.samples import scored_output
from apps.evals.samples.diagnosis import diagnose
from tests.evals.test_sample_pages import evaluate, make_run, said
from tests.factories import make_eval_set, make_project, tool_message
from workers.lib.environments.episodes import crashed

pytestmark = pytest.mark.django_db


def stored(run: EvalRun, **fields: Any) -> Sample:
    """One more sample of the first task, as a worker would report it."""
    task = run.eval_set.tasks.filter(split=Split.TRAIN).first()
    right = (
        [task.expected] if fields.pop("right", False) else [{"tool": "tickets.reopen", "args": {}}]
    )
    store_events(run, [said(calls=right, **fields) | {"task_id": str(task.pk), "index": 9}])
    return run.samples.get(index=9)


def test_rules_name_the_mode_and_the_tools(tmp_path: Path) -> None:
    sample = stored(make_run(folder=tmp_path))
    assert sample.mode == "hallucinated_api" and sample.tools == ["tickets.reopen"]


def test_a_success_and_a_masked_sample_have_none(tmp_path: Path) -> None:
    assert stored(make_run(folder=tmp_path), right=True, success=True, reward=1.0).mode == ""
    masked = stored(
        make_run(folder=tmp_path / "2"),
        masked=True,
        reward=None,
        mask_reason="The judge timed out.",
    )
    assert masked.mode == "" and masked.tools == ["tickets.reopen"]


def test_what_the_verifier_calls_unsafe_is_an_unsafe_action(tmp_path: Path) -> None:
    assert stored(make_run(folder=tmp_path), unsafe=True).mode == "unsafe_action"


def test_steps_that_a_task_begins_with_are_nobodys_fault(tmp_path: Path) -> None:
    eval_set = make_eval_set(make_project(), train=1, frozen=False)
    task = eval_set.tasks.get(split=Split.TRAIN)
    earlier = [
        tool_message({"tool": "no.such", "args": {}}),
        {"role": "tool", "tool_call_id": "call_1", "content": "Error: unknown tool"},
    ]
    task.messages = [*task.messages, *earlier]
    task.save()
    run = evaluate(drafts.freeze(eval_set=eval_set, by=None), tmp_path)
    assert {sample.index: sample.mode for sample in run.samples.all()} == {
        0: "",
        1: "hallucinated_api",
    }


def test_an_output_that_the_rules_fail_on_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: dict) -> None:
        raise RecursionError

    monkeypatch.setattr("apps.evals.samples.diagnosis.classify_run", broken)
    run = make_run(folder=tmp_path)
    assert run.state == JobState.SUCCEEDED and {sample.mode for sample in run.samples.all()} == {""}


def test_a_tool_whose_own_code_fails_is_not_the_agents_fault(tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    call = tool_message(run.eval_set.tasks.filter(split=Split.TRAIN).first().expected)
    for reply, mode, title in (
        (crashed("KeyError"), "", "The environment failed"),
        ("no such ticket", "unexplained", "unexplained"),
    ):
        answer = {"role": "tool", "tool_call_id": "call_1", "content": f"Error: {reply}"}
        messages = [call, answer, {"role": "assistant", "content": "I could not close it."}]
        run.samples.filter(index=9).delete()
        sample = stored(run, messages=messages)
        found = diagnose(sample)
        assert found and (sample.mode, found.mode) == (mode, mode)
        assert found.blamed_message is None
        assert scored_output(sample)["bucket"] == title
