"""The demo's decision: the best by success, on a quiet and on a busy machine, and why. No model
runs here.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from apps.demo import wheel
from apps.demo.recipes import FAST
from apps.evals.models import EvalRun, LatencyMeasurement
from apps.promotion.actions import set_initial
from apps.promotion.models import Promotion
from apps.promotion.policies import channel_of
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_measurement,
    make_project,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(data_dir: Path) -> list[EvalRun]:
    """Baseline, SFT and GRPO, which is the best; evaluated at times when the machine was ever
    busier.
    """
    project = make_project()
    base, environment, eval_set = (
        make_base(project, data_dir),
        make_environment(project),
        make_eval_set(project, holdout=60),
    )
    sft, grpo = (make_adapter(project, base, data_dir, name=name) for name in ("sft", "grpo"))
    found = [
        make_eval_run(eval_set, model, environment, success)
        for model, success in ((base, 0.0), (sft, 0.5), (grpo, 1.0))
    ]
    for run, ms in zip(found, (100, 400, 1600), strict=True):
        run.samples.update(latency_ms=ms)
    return found


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("busy", [1.0, 8.0], ids=["quiet", "busy"])
def test_it_promotes_the_best_by_success_and_says_why(
    busy: float, runs: list[EvalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, by, said = runs[0].project, admin_of(runs[0].project), StringIO()
    demo = wheel.Demo(url="", recipe=FAST, seed=0, console=Console(file=said, width=400))
    demo.project, demo.user, demo.channel = project, by, channel_of(project)
    demo.eval_set, demo.environment = runs[0].eval_set, runs[0].environment
    set_initial(channel=demo.channel, version=runs[0].model_version, by=by)

    def submit(**given: Any) -> LatencyMeasurement:
        assert given["runs"] == runs and given["tasks"] == FAST.timed_tasks
        return make_measurement(runs, [100 * busy, 101 * busy, 102 * busy])

    monkeypatch.setattr(wheel, "submit_measurement", submit)
    report = demo.decide(runs)
    assert (
        report["promoted"] == "grpo-v1"
        and Promotion.objects.latest("pk").to_version == runs[2].model_version
    )
    assert {name: gate["verdict"] for name, gate in report["gate"].items()} == dict.fromkeys(
        report["gate"], "promote"
    )
    promoted = next(line for line in said.getvalue().splitlines() if "was promoted" in line)
    assert (
        "Success is higher: +100.0 pp" in promoted and "measured in turns on 40 tasks" in promoted
    )
