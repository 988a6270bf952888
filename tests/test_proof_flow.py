"""A flow turns the whole wheel by itself under `manage.py up`, while every process of it is killed
once at each step.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.flywheel.machine import Machine, eventually, free_port, up
from tests.test_proof import DemoRun
from tests.workers.conftest import make_tiny_model

pytestmark = pytest.mark.proof
PATIENCE_S = 5400.0
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
   config: {steps: 4, learning_rate: 0.001, batch_size: 2, save_every: 1}, if: baseline.success < \
0.9}
- {do: evaluate, name: candidate, set: "step:freeze_set", environment: workplace, model: \
"step:train", samples: 2}
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
    make_failed(project, request=f"Close ticket {{ticket}} of {{['Ada', 'Bo', 'Cy', 'Di'][number % \
4]}} please.")
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
print(json.dumps({{"state": run.state, "error": run.error, "note": run.note, "jobs": jobs, \
"steps": [
    [step.key, step.state, step.said, step.outputs, step.attempt] for step in run.steps.all()]}}, \
default=str))
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
print(json.dumps([kind.objects.count() for kind in (Classification, EvalRun, TrainingRun, \
LatencyMeasurement)]))
"""


def until_it_asks(machine: Machine, run: str) -> tuple[dict[str, Any], set[str]]:
    """The run as it waits for a person, and the steps at whose beginning every worker was
    killed.
    """
    killed: set[str] = set()

    def look() -> dict[str, Any]:
        time.sleep(2)  # each look is a process of its own, and takes time from the workers
        found: dict[str, Any] = json.loads(machine.python(LOOK.format(run=run)))
        assert found["state"] not in ("failed", "cancelled"), found
        going = next(
            (key for key, state, *_ in found["steps"] if state in ("running", "pending")), ""
        )
        if going and going not in killed:
            killed.add(going)
            workers = [machine.part(part) for part in ("default", "ingest", "judge", "light")]
            for pid in chain.from_iterable(workers):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return found

    found = eventually(lambda: done if (done := look())["state"] == "waiting" else None, PATIENCE_S)
    assert found is not None
    print(json.dumps(found, indent=1), sorted(killed))
    assert all(attempt == 0 for *_, attempt in found["steps"])  # deaths are no failures of a step
    return found, killed


def test_a_whole_turn_survives_the_death_of_every_process_at_each_step(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "data")
    machine.data.mkdir()
    folder = make_tiny_model(tmp_path / "tiny")
    try:
        up(machine, free_port())
        run = machine.python(WORLD.format(folder=str(folder), text=WHOLE)).splitlines()[-1]
        predicted = json.loads(machine.python(DRY.format(run=run)))
        found, killed = until_it_asks(machine, run)
        states = {key: state for key, state, *_ in found["steps"]}
        assert states.pop("ask") == "waiting"
        assert set(states.values()) <= {"done", "skipped"} and states["gate"] == "done"
        assert len(killed) >= 5
        # What a dry run said before is what there was to do, and nothing was done twice.
        assert [key for key, problem in predicted] == [key for key, *_ in found["steps"]]
        assert not any(problem for _, problem in predicted)
        classified, evaluated, trained, measured = json.loads(machine.python(COUNT))
        assert (classified, trained, measured) == (1, 1, 1) and evaluated == 3
    finally:
        machine.kill_everything()


CLASSIFY = """
starts: [{by: cron, when: "* * * * *"}]
steps: [{do: classify}]
"""
IMPROVE = """
starts: [{by: new_failures, at_least: 20}]
budget: {hours_a_run: 5}
retries: 1
steps:
- do: classify
- do: cluster
- {do: collect_tasks, into: SET, days: 30, successes: true}
- {do: freeze_set, set: SET, holdout: 64, validation: 6}
- {do: review, set: "step:freeze_set", environment: workplace}
- {do: evaluate, name: baseline, set: "step:freeze_set", environment: workplace, samples: 2}
- {do: train, method: sft, set: "step:freeze_set", environment: workplace, if: baseline.success < \
0.9, config:
   {steps: 12, batch_size: 8, learning_rate: 0.001, warmup_steps: 2, save_every: 4, lora_rank: 16, \
lora_alpha: 32}}
- {do: evaluate, name: candidate, set: "step:freeze_set", environment: workplace, model: \
"step:train", samples: 2}
- {do: gate, baseline: baseline, candidate: candidate}
- {do: promote, if: gate.verdict == promote}
- {do: ask, question: "It runs in staging. Does it go to production?"}
"""
DEMO = """
import json
from django.contrib.auth import get_user_model
from apps.core.actions import create_api_key
from apps.core.models import Project
from apps.demo.wheel import PROJECT
from apps.promotion import actions as promotion
from apps.promotion.deployment.actions import remove_target
from apps.registry.models import ModelVersion
project = Project.objects.get(slug=PROJECT[0])
by = get_user_model().objects.filter(is_superuser=True).order_by("pk").first()
channel, base = promotion.channel_of(project), ModelVersion.objects.get(project=project, \
name="smollm2-135m")
for target in channel.targets.current():
    remove_target(target=target, by=by)
while channel.current != base:
    promotion.rollback(channel=channel, by=by, reason="What was promoted is taken back")
    channel.refresh_from_db()
key = create_api_key(project=project, name="flows", by=by, scopes=["manage", "read"])[1]
print(json.dumps([key, project.eval_sets.order_by("pk").first().slug]))
"""
TRAFFIC = """
from django.contrib.auth import get_user_model
from apps.demo.wheel import PROJECT
from apps.core.models import Project
from apps.demo.recipes import FAST
from apps.demo.wheel import Demo
from apps.registry.models import ModelVersion
demo = Demo({url!r}, FAST, seed=2)
demo.user = get_user_model().objects.filter(is_superuser=True).order_by("pk").first()
demo.project = Project.objects.get(slug=PROJECT[0])
demo.base = ModelVersion.objects.get(project=demo.project, name="smollm2-135m")
demo.environment = demo.project.environments.order_by("-version").first()
demo.produce()
"""


def finished_demo(folder: Path) -> Path:
    """The data folder of a demo that has turned its wheel once; FLYWHEEL_PROOF_DEMO names one that
    is there, and is changed.
    """
    if there := os.environ.get("FLYWHEEL_PROOF_DEMO"):
        return Path(there)
    folder.mkdir()
    with DemoRun(folder) as demo:
        demo.report()
    return folder


def test_failures_on_the_project_of_the_demo_turn_the_wheel_and_a_dry_run_said_so(
    tmp_path: Path,
) -> None:
    """Nobody starts anything: production fails, and in the end a better version runs in staging and
    a person is asked.
    """
    machine = Machine(finished_demo(tmp_path / "data"))
    try:
        port = free_port()
        up(machine, port)
        key, slug = json.loads(machine.python(DEMO).splitlines()[-1])
        api = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=300,
        )

        def save(name: str, text: str) -> str:
            answer = api.post("/flows/", json={"name": name, "yaml": text})
            assert answer.status_code == 201, answer.text
            return str(answer.json()["id"])

        flow = save("Improve", IMPROVE.replace("SET", slug))
        predicted = api.get(f"/flows/{flow}/dry-run/").json()
        assert not any(step["problem"] for step in predicted["steps"]), predicted
        save("Classify", CLASSIFY)
        machine.python(TRAFFIC.format(url=f"http://127.0.0.1:{port}"), timeout=PATIENCE_S)
        run = eventually(lambda: api.get(f"/flows/{flow}/runs/").json()["results"], PATIENCE_S)[0]
        assert run["cause"]["by"] == "new_failures", run
        found, killed = until_it_asks(machine, run["id"])

        states = {key: state for key, state, *_ in found["steps"]}
        assert states.pop("ask") == "waiting" and set(states.values()) == {"done"}, states
        assert len(killed) >= 6
        assert [step["key"] for step in predicted["steps"]] == [key for key, *_ in found["steps"]]
        made = {key: outputs for key, _, _, outputs, _ in found["steps"]}
        assert made["collect_tasks"]["made"] > 0 and made["freeze_set"]["train"] > 0
        assert made["gate"]["verdict"] == "promote" and made["promote"]["channel"] == "staging"
        assert made["candidate"]["success"] > made["baseline"]["success"]
        # From what is stored, a dry run finds the same start.
        again = api.get(f"/flows/{flow}/dry-run/").json()
        assert [one["cause"]["by"] for one in again["runs"]] == ["new_failures"] * len(
            again["runs"]
        ) and again["runs"]
    finally:
        machine.kill_everything()
