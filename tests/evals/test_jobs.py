"""What an evaluation keeps of its child's events."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.core.events import parse_event
from apps.evals.jobs import store_events
from apps.evals.models import Sample
from tests.factories import make_base, make_environment, make_eval_run, make_eval_set, make_project

pytestmark = pytest.mark.django_db


def test_one_reward_that_is_no_number_masks_its_sample_alone(data_dir: Path) -> None:
    project = make_project()
    eval_set = make_eval_set(project)
    run = make_eval_run(eval_set, make_base(project, data_dir), make_environment(project), success=1.0)
    task = run.samples.first().task
    run.samples.all().delete()
    line = '{"type": "sample", "seq": %d, "task_id": "%s", "index": %d, "output": "x", "reward": %s, "masked": false}'
    rewards = ["1.0", "NaN", "1e400", "0.0"]
    events = [parse_event((line % (n, task.pk, n, reward)).encode()) for n, reward in enumerate(rewards, 1)]
    store_events(run, [event for event in events if event])
    found = list(Sample.objects.filter(run=run).order_by("index").values_list("reward", "masked"))
    assert found == [(1.0, False), (None, True), (None, True), (0.0, False)]
    assert "finite" in Sample.objects.filter(masked=True).first().mask_reason
