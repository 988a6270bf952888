"""The page that says which tasks of an evaluation teach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.intervals import student
from apps.core.models import Role
from apps.evals.learnability.run import CannotPick, RunLearnability, tasks_of
from apps.evals.models import EvalRun, Sample, Split
from apps.evals.pages.learnability import Options, interval, whole
from apps.evals.stats import mean_interval
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import admin_of, make_eval_set, make_member, make_project, make_user
from tests.shared import copied, once

PASSED = (2, 0, 4, 1, 4)  # of 4 samples: two tasks are mixed


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, lambda folder: evaluated(frozen_set(), PASSED, folder))


@pytest.fixture
def run(kept: Any, db: None, settings: Any) -> EvalRun:
    return copied(kept, settings)


def page(client: Client, run: EvalRun, **query: object) -> str:
    response = client.get(reverse("evals:learnability", args=[run.project.slug, run.pk]), query)
    assert response.status_code == 200
    return response.content.decode()


def keys(run: EvalRun, html: str) -> list[str]:
    """The tasks of the table, in its order."""
    table = html[html.rindex("<tbody>") :]
    found = [
        (table.find(f">{key}</a>"), key) for key in run.eval_set.tasks.values_list("key", flat=True)
    ]
    return [key for place, key in sorted(found) if place >= 0]


def test_it_says_how_many_tasks_teach_and_offers_to_train_on_them(
    client: Client, run: EvalRun
) -> None:
    client.force_login(admin_of(run.project))
    html = page(client, run)
    assert "RL can learn from 2 of 5 tasks." in html and "Train on the 2 informative tasks" in html
    assert "passes in all 4 samples: nothing left to learn" in html
    assert f"picked_by={run.pk}&amp;per_group=1" in page(client, run, cap="1")
    assert (
        "Learnability"
        in client.get(reverse("evals:run", args=[run.project.slug, run.pk])).content.decode()
    )


def test_a_viewer_reads_but_is_not_offered_to_train(client: Client, run: EvalRun) -> None:
    client.force_login(make_member(run.project, Role.VIEWER))
    assert "Train on the" not in page(client, run)


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("kind", "n"), [("mixed", 2), ("all_pass", 2), ("all_fail", 1), ("flat", 3)]
)
def test_the_table_is_filtered_in_the_url(client: Client, run: EvalRun, kind: str, n: int) -> None:
    client.force_login(admin_of(run.project))
    assert len(keys(run, page(client, run, kind=kind))) == n


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("sort", "first"), [("rate", 1), ("-reward", 2), ("task", 0), ("-task", 4), ("-spread", 0)]
)
def test_the_table_is_sorted_in_the_url(
    client: Client, run: EvalRun, sort: str, first: int
) -> None:
    client.force_login(admin_of(run.project))
    assert (
        keys(run, page(client, run, sort=sort))[0]
        == run.eval_set.tasks.filter(split="train")[first].key
    )


@pytest.mark.proof
def test_a_task_shows_its_samples_and_a_strange_one_none(client: Client, run: EvalRun) -> None:
    client.force_login(admin_of(run.project))
    task = run.eval_set.tasks.trainable()[0]
    Sample.objects.filter(task=task, index=0).update(output="<script>alert(1)</script>")
    html = page(client, run, task=str(task.pk))
    assert "Samples of" in html and "<script>alert" not in html and "&lt;script&gt;alert" in html
    strange = make_eval_set(make_project()).tasks.all()[0]
    assert "Samples of" not in page(client, run, task=str(strange.pk))


def test_a_hold_out_is_shown_and_never_picked(client: Client, db: None, data_dir: Path) -> None:
    run = evaluated(make_eval_set(make_project()), (1, 2, 3), data_dir, split=Split.HOLDOUT)
    client.force_login(admin_of(run.project))
    html = page(client, run)
    assert (
        "can never be picked" in html
        and "RL can learn from 3 of 3" in html
        and "Train on the" not in html
    )
    with pytest.raises(CannotPick, match="never"):
        RunLearnability(run).pick()


def test_an_evaluation_without_samples_says_what_to_do(client: Client, run: EvalRun) -> None:
    empty = evaluated(run.eval_set, (), Path())
    client.force_login(admin_of(run.project))
    html = page(client, empty)
    assert "No task has a scored sample yet." in html and "Evaluate the train split" in html
    running = evaluated(run.eval_set, (), Path(), finished=False)
    assert "still running" in page(client, running)


def test_one_sample_of_a_task_is_too_few(client: Client, run: EvalRun) -> None:
    single = evaluated(run.eval_set, (1, 0), Path(), samples=1)
    client.force_login(admin_of(run.project))
    html = page(client, single)
    assert "at least 2 samples per task" in html and "Train on the" not in html


def test_all_masked_samples_leave_nothing_to_learn(client: Client, run: EvalRun) -> None:
    run.samples.update(masked=True, reward=None, success=False)
    client.force_login(admin_of(run.project))
    assert "could not score any sample" in page(client, run)


def test_a_stranger_and_another_project_see_nothing(client: Client, run: EvalRun) -> None:
    url = reverse("evals:learnability", args=[run.project.slug, run.pk])
    client.force_login(make_user())
    assert client.get(url).status_code == 404
    other = make_project()
    client.force_login(admin_of(other))
    assert client.get(reverse("evals:learnability", args=[other.slug, run.pk])).status_code == 404


def test_a_cap_takes_that_many_of_a_group(db: None, data_dir: Path) -> None:
    run = evaluated(frozen_set(group="one"), PASSED, data_dir)
    assert (
        len(RunLearnability(run).pick().chosen) == 2
        and len(RunLearnability(run).pick(per_group=1).chosen) == 1
    )


def test_the_database_sums_as_the_page_does(run: EvalRun) -> None:
    for sample in run.samples.filter(index__gt=1):
        Sample.objects.filter(pk=sample.pk).update(reward=sample.reward * 0.3 + 0.1)
    read = RunLearnability(run)
    summed = {item.task: item for item in tasks_of(run, read.names)}
    assert summed.keys() == {item.task for item in read.found.tasks}
    for item in read.found.tasks:
        other = summed[item.task]
        assert (other.n, other.passed, other.group, other.kind) == (
            item.n,
            item.passed,
            item.group,
            item.kind,
        )
        assert (other.mean_reward, other.spread) == pytest.approx(
            (item.mean_reward, item.spread), abs=1e-9
        )


def test_a_task_without_a_scored_sample_has_its_reason(run: EvalRun) -> None:
    task = run.eval_set.tasks.trainable()[0]
    run.samples.filter(task=task).update(masked=True, reward=None, success=False)
    made = RunLearnability(run).pick()
    assert (
        made.left_out[str(task.pk)] == "none of its samples were scored"
        and len(made.chosen) + len(made.left_out) == 5
    )


def test_the_train_split_can_be_evaluated_from_its_page(client: Client, run: EvalRun) -> None:
    client.force_login(admin_of(run.project))
    url = reverse("evals:new_run", args=[run.project.slug, run.eval_set_id])
    sent = {
        "model_version": run.model_version_id,
        "environment": run.environment_id,
        "split": "train",
        "samples_per_task": 8,
        "seed": 0,
    }
    assert client.post(url, sent).status_code == 302
    assert (
        EvalRun.objects.filter(eval_set=run.eval_set, split=Split.TRAIN, samples_per_task=8).count()
        == 1
    )


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("text", ["", "1", "65", "-3", "2.5", "٣", "9" * 400, "<b>"])
def test_nonsense_in_the_url_is_refused(client: Client, run: EvalRun, text: str) -> None:
    client.force_login(admin_of(run.project))
    address = reverse("evals:learnability", args=[run.project.slug, run.pk])
    assert client.get(address, {"kind": text, "sort": text}).status_code == (400 if text else 200)
    assert whole(text, 2, 64) is None


def test_options_are_read_from_the_url() -> None:
    from django.http import QueryDict

    assert Options.of(QueryDict("g=16&cap=2&kind=flat&sort=rate")) == Options(
        16, 2, "flat", "rate", None
    )
    assert Options.of(QueryDict("")) == Options(8, None, "", "-signal", None)


@pytest.mark.parametrize("df", [1, 2, 3, 5, 10, 149, 5000])
def test_the_quantile_is_students(df: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert student(df) == pytest.approx(stats.t.ppf(0.975, df), rel=2e-3)


@pytest.mark.parametrize(
    "shares", [[0.0, 0.5, 1.0, 0.25], [0.1, 0.9] * 30, [1.0] * 8, [0.0], [0.99, 1.0, 1.0]]
)
def test_the_interval_is_the_runs_own(shares: list[float]) -> None:
    ours, theirs = interval(shares), mean_interval(shares, (0.0, 1.0))
    assert (ours.mean, ours.low, ours.high, ours.n) == pytest.approx(
        (theirs.mean, theirs.low, theirs.high, theirs.n), abs=2e-3
    )
