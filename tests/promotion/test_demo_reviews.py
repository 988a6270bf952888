"""The demo opens the training lock as a person does. No model runs here: answers are written, and
scored by the real verifier.
"""

from __future__ import annotations

import random
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from apps.demo import wheel
from apps.demo.recipes import FAST
from apps.evals.models import EvalRun
from apps.reviews.evidence import lock_of
from apps.reviews.models import Judgement, LockOverride, ReviewPolicy
from tests.e2e.seed import answer_all
from tests.factories import admin_of, make_base, make_environment, make_eval_set, make_project
from tests.reviews.made import pass_probes

pytestmark = pytest.mark.django_db


@pytest.mark.proof
@pytest.mark.parametrize(
    ("skill", "overridden"),
    [(0.5, False), (0.0, True)],
    ids=["answers of both kinds", "no success to judge"],
)
def test_the_reward_is_reviewed_before_grpo(skill: float, overridden: bool, data_dir: Path) -> None:
    project = make_project()
    demo = wheel.Demo(url="", recipe=FAST, seed=0, console=Console(file=StringIO(), width=400))
    demo.project, demo.user = project, admin_of(project)
    demo.environment, demo.eval_set = (
        make_environment(project),
        make_eval_set(project, train=40, holdout=4),
    )
    pass_probes(demo.environment)
    rng = random.Random(0)

    def answered(*stations: Any) -> None:
        for station in stations:
            assert isinstance(station.job, EvalRun) and station.job.split == "train"
            answer_all(station.job, skill, rng)

    demo.wait = answered  # type: ignore[method-assign]
    demo.review(demo.samples_to_review(make_base(project, data_dir)))
    lock = lock_of(environment=demo.environment, tasks=demo.training_tasks(), by=demo.user)
    assert not lock.locked and lock.state == ("override" if overridden else "unlocked"), (
        lock.reasons
    )
    assert LockOverride.objects.exists() is overridden and not ReviewPolicy.objects.exists()
    assert set(Judgement.objects.values_list("note", flat=True)) == {wheel.JUDGED_BY_SCRIPT}
    again = demo.samples_to_review(demo.project.model_versions.get())
    assert again is None  # a second demo finds it open
    assert EvalRun.objects.count() == 1


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ('{"tool": "tickets.close", "args": {"id": 4}}', True),
        ('{"args": {"id": 4}, "tool": "tickets.close"}', True),
        ('{"tool": "tickets.close", "args": {"id": 5}}', False),
        ('{"tool": "tickets.open", "args": {"id": 4}}', False),
        ("Sure!", False),
        ("[1]", False),
    ],
)
def test_what_the_demo_knows_to_be_right(output: str, right: bool) -> None:
    assert wheel.is_right(output, {"tool": "tickets.close", "args": {"id": 4}}) is right
