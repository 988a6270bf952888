"""A flow turns the whole wheel by itself under `manage.py up`, while every process of it is killed once at each step."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.flywheel.machine import Machine, eventually, free_port, up
from tests.workers.conftest import make_tiny_model

pytestmark = pytest.mark.proof
PATIENCE_S = 1500.0
WHOLE = """
retries: 2
steps:
- do: classify
- do: cluster
- {do: collect_tasks, into: support, days: 30}
- {do: freeze_set, set: support, holdout: 12}
- {do: review, set: "step:freeze_set", environment: workplace}
- {do: evaluate, name: baseline, set: "step:freeze_set", environment: workplace, samples: 2}
- {do: learnability, set: "step:freeze_set", environment: workplace, samples: 2}
- {do: train, method: sft, set: "step:freeze_set", environment: workplace,
   config: {steps: 4, learning_rate: 0.001, batch_size: 2, save_every: 1}, if: baseline.success < 0.9}
- {do: evaluate, name: candidate, set: "step:freeze_set", environment: workplace, model: "step:train", samples: 2}
- {do: gate, baseline: baseline, candidate: candidate}
- {do: promote, if: gate.verdict == promote}
- {do: ask, question: "Is it good?"}
"""
WORLD = """
from pathlib import Path
from django.contrib.auth import get_user_model
from apps.automation import actions
from apps.automation.specs import read_yaml
from apps.core.models import Project
from apps.promotion import actions as promotion
from apps.registry.actions import register_base
from apps.trajectories import digest
from tests.factories import admin_of, make_environment, make_failed, make_project, override
project = make_project()
by = admin_of(project)
base = register_base(project=project, name="tiny", folder=Path({folder!r}), by=by)
promotion.set_initial(channel=promotion.channel_of(project), version=base, by=by)
environment = make_environment(project)
environment = __import__("apps.environments.actions", fromlist=["x"]).save_environment(
    project=project, slug="workplace", builtin="workplace", by=by, verifier=environment.verifier,
    harness=dict(environment.harness, max_new_tokens=8))
for number in range(40):
    ticket = 5000 + 37 * number
    make_failed(project, request=f"Close ticket {{ticket}} of {{['Ada', 'Bo', 'Cy', 'Di'][number % 4]}} please.")
digest.run()
override(environment)
flow = actions.save_flow(project=project, name="whole", spec=read_yaml({text!r}), by=by)
print(actions.run_now(flow=flow, by=by).pk)
"""
LOOK = """
import json
from apps.automation.models import FlowRun
run = FlowRun.objects.get(pk={run!r})
jobs = [job for step in run.steps.all() for job in step.jobs.values()]
print(json.dumps({{"state": run.state, "error": run.error, "note": run.note, "jobs": jobs, "steps": [
    [step.key, step.state, step.said, step.outputs, step.attempt] for step in run.steps.all()]}}, default=str))
"""
DRY = """
import json
from apps.automation.dry_run import forecast
from apps.automation.models import FlowRun
run = FlowRun.objects.get(pk={run!r})
print(json.dumps([[one.key, one.problem] for one in forecast(run.project, run.version.form)]))
"""
COUNT = """
import json
from apps.evals.models import EvalRun, LatencyMeasurement
from apps.failures.models import Classification
from apps.training.models import TrainingRun
print(json.dumps([kind.objects.count() for kind in (Classification, EvalRun, TrainingRun, LatencyMeasurement)]))
"""


def test_a_whole_turn_survives_the_death_of_every_process_at_each_step(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "data")
    machine.data.mkdir()
    folder = make_tiny_model(tmp_path / "tiny")
    try:
        up(machine, free_port())
        run = machine.python(WORLD.format(folder=str(folder), text=WHOLE)).splitlines()[-1]
        predicted = json.loads(machine.python(DRY.format(run=run)))
        killed: set[str] = set()

        def look() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(machine.python(LOOK.format(run=run)))
            assert found["state"] != "failed", found
            going = next((key for key, state, *_ in found["steps"] if state in ("running", "pending")), "")
            if going and going not in killed:
                killed.add(going)
                for pid in machine.processes("celery"):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            return found

        found = eventually(lambda: done if (done := look())["state"] == "waiting" else None, PATIENCE_S)
        assert found is not None
        print(json.dumps(found, indent=1), sorted(killed))
        states = {key: state for key, state, *_ in found["steps"]}
        assert states.pop("ask") == "waiting"
        assert set(states.values()) <= {"done", "skipped"} and states["gate"] == "done"
        assert all(attempt == 0 for *_, attempt in found["steps"])  # deaths are no failures of a step
        assert len(killed) >= 5
        # What a dry run said before is what there was to do, and nothing was done twice.
        assert [key for key, problem in predicted] == [key for key, *_ in found["steps"]]
        assert not any(problem for _, problem in predicted)
        classified, evaluated, trained, measured = json.loads(machine.python(COUNT))
        assert (classified, trained, measured) == (1, 1, 1) and evaluated == 3
    finally:
        machine.kill_everything()
