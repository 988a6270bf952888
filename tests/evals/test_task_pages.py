"""The page of a task, and a task of a comparison with both versions' samples side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.evals.comparison import tables
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Sample, Split, Task
from apps.evals.pages import compared_task
from apps.promotion import actions as promotion
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import make_adapter, make_member
from tests.shared import copied, once
from tests.test_access import logged_in

pytestmark = pytest.mark.django_db


def made_runs(folder: Path) -> tuple[EvalRun, EvalRun]:
    """Of three training tasks the first regressed, the second improved and the third is the
    same.
    """
    found = frozen_set(train=3)
    return evaluated(found, [4, 1, 2], folder), evaluated(found, [1, 4, 2], folder)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_runs)


@pytest.fixture
def runs(kept: Any, db: None, settings: Any) -> tuple[EvalRun, EvalRun]:
    return copied(kept, settings)


def client_of(run: EvalRun, role: Role = Role.VIEWER) -> Client:
    return logged_in(make_member(run.project, role))


def task_at(run: EvalRun, at: int) -> Task:
    return run.eval_set.tasks.filter(split=run.split)[at]


def url_of(runs: Any, task: Task, **query: Any) -> str:
    asked = "&".join(
        [*(f"run={run.pk}" for run in runs), *(f"{name}={value}" for name, value in query.items())]
    )
    return f"{reverse('evals:compared_task', args=[task.project.slug, task.pk])}?{asked}"


def test_a_task_opens_with_its_results_in_every_evaluation(runs: tuple[EvalRun, EvalRun]) -> None:
    task = task_at(runs[0], 0)
    text = (
        client_of(runs[0])
        .get(reverse("evals:task", args=[task.project.slug, task.pk]))
        .content.decode()
    )
    assert task.messages[-1]["content"] in text and task.key in text
    for run, said in zip(runs, ("4 of 4", "1 of 4"), strict=True):
        assert (
            reverse("evals:task_samples", args=[task.project.slug, run.pk, task.pk]) in text
            and said in text
        )


def held_task(eval_set: EvalSet) -> Task:
    return eval_set.tasks.holdout().first()


def test_a_held_out_task_opens_to_engineers_and_counts_once(
    runs: tuple[EvalRun, EvalRun], data_dir: Path
) -> None:
    run = evaluated(runs[0].eval_set, [2, 3, 4], data_dir, split=Split.HOLDOUT)
    task = held_task(run.eval_set)
    page, opens = (
        reverse(f"evals:{name}", args=[task.project.slug, task.pk])
        for name in ("task", "open_task")
    )
    secret = task.messages[-1]["content"]
    viewer, engineer = client_of(run), client_of(run, Role.ENGINEER)
    assert secret not in viewer.get(page).content.decode() and viewer.post(opens).status_code == 403
    closed = engineer.get(page).content.decode()
    assert secret not in closed and task.key not in closed and "counts as a view" in closed
    before = HoldoutView.objects.count()
    for _ in range(2):
        assert engineer.post(opens).status_code == 302
    text = engineer.get(page).content.decode()
    assert secret in text and HoldoutView.objects.count() == before + 1
    assert "open that evaluation’s samples first" in text and "2 of 4" not in text
    assert (
        secret not in client_of(run, Role.ENGINEER).get(page).content.decode()
    )  # a look is a person's own


def test_a_moved_task_shows_what_passed_beside_what_failed(runs: tuple[EvalRun, EvalRun]) -> None:
    task = task_at(runs[0], 0)
    Sample.objects.filter(run=runs[0], task=task).update(output="<i>right</i>")
    Sample.objects.filter(run=runs[1], task=task, success=False).update(output="wrong")
    text = client_of(runs[0]).get(url_of(runs, task)).content.decode()
    assert "regressed" in text and "&lt;i&gt;right&lt;/i&gt;" in text and "<i>right" not in text
    assert '<span class="gone">− &lt;i&gt;right' in text and '<span class="new">+ wrong' in text
    shown = {
        run: run.samples.filter(task=task, success=run == runs[0]).order_by("index").first()
        for run in runs
    }
    for run, sample in shown.items():
        assert reverse("evals:sample", args=[run.project.slug, run.pk, sample.pk]) in text


@pytest.mark.proof
def test_other_samples_and_evaluations_can_be_chosen(
    runs: tuple[EvalRun, EvalRun], data_dir: Path
) -> None:
    third = evaluated(runs[0].eval_set, [0, 0, 0], data_dir)
    task, asked = task_at(runs[0], 0), runs[1].samples.filter(task=task_at(runs[0], 0)).last()
    Sample.objects.filter(run=third).update(output="third")
    Sample.objects.filter(pk=asked.pk).update(output="asked for")
    client = client_of(third)
    assert "+ third" in client.get(url_of([*runs, third], task)).content.decode()  # it changed most
    text = client.get(url_of([*runs, third], task, **{"with": 2, "b": asked.pk})).content.decode()
    assert "+ asked for" in text and "+ third" not in text
    for query, status in (
        ({"with": "9"}, 200),
        ({"with": "1"}, 200),
        ({"a": "x"}, 400),
        ({"b": "9" * 40}, 400),
    ):
        assert client.get(url_of([*runs, third], task, **query)).status_code == status


@pytest.mark.proof
def test_j_and_k_walk_the_tasks_of_the_filters(runs: tuple[EvalRun, EvalRun]) -> None:
    client = client_of(runs[0])
    text = client.get(
        url_of(runs, task_at(runs[0], 0), change="changed"), HTTP_HX_REQUEST="true"
    ).content.decode()
    assert "<html" not in text and str(task_at(runs[0], 1).pk) in text and "1 of 2" in text
    last = client.get(url_of(runs, task_at(runs[0], 1), change="changed")).content.decode()
    assert "last of these filters" in last and str(task_at(runs[0], 2).pk) not in last
    assert 'data-key="j"' in client.get(url_of(runs, task_at(runs[0], 1))).content.decode()


def test_a_held_out_task_is_opened_before_it_is_compared(
    runs: tuple[EvalRun, EvalRun], data_dir: Path
) -> None:
    held = [
        evaluated(runs[0].eval_set, passed, data_dir, split=Split.HOLDOUT)
        for passed in ([4, 4, 4], [0, 4, 4])
    ]
    task, engineer, viewer = (
        held_task(held[0].eval_set),
        client_of(held[0], Role.ENGINEER),
        client_of(held[0]),
    )
    Sample.objects.filter(run__in=held).update(output="a secret output")
    for client in (engineer, viewer):
        closed = client.get(url_of(held, task, change="changed")).content.decode()
        assert task.messages[-1]["content"] not in closed and "a secret output" not in closed
    before = HoldoutView.objects.count()
    body = {"run": [str(run.pk) for run in held], "task": str(task.pk), "change": "changed"}
    answer = engineer.post(reverse("evals:open_compared", args=[task.project.slug]), body)
    assert answer["Location"].endswith("change=changed") and str(task.pk) in answer["Location"]
    assert "a secret output" in engineer.get(answer["Location"]).content.decode()
    assert HoldoutView.objects.count() == before + 2  # one for each evaluation
    assert (
        viewer.post(reverse("evals:open_compared", args=[task.project.slug]), body).status_code
        == 403
    )


@pytest.mark.parametrize("at", [0, 1])
def test_an_evaluation_that_is_deleted_while_its_task_is_shown_is_not_found(
    runs: tuple[EvalRun, EvalRun], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    def read(given: Any) -> Any:
        found = tables.read(given)
        runs[at].samples.all().delete()
        return found

    monkeypatch.setattr(compared_task, "read", read)
    assert client_of(runs[0]).get(url_of(runs, task_at(runs[0], 0))).status_code == 404


def test_a_task_of_other_evaluations_or_none_is_not_found(
    runs: tuple[EvalRun, EvalRun], data_dir: Path
) -> None:
    client, strange = client_of(runs[0]), frozen_set(train=1).tasks.first()
    assert client.get(url_of(runs, strange)).status_code == 404
    url = reverse("evals:compared_task", args=[runs[0].project.slug, strange.pk])
    assert client.get(f"{url}?run={runs[0].pk}&run={runs[1].pk}").status_code == 404
    assert (
        client.get(url_of(runs, held_task(runs[0].eval_set))).status_code == 404
    )  # in neither evaluation
    assert (
        client.get(url_of(runs[:1], task_at(runs[0], 0))).status_code == 302
    )  # choose another one first


def test_the_gate_report_leads_to_the_moved_task(data_dir: Path) -> None:
    found = frozen_set(train=2)
    runs = [
        evaluated(found, passed, data_dir, split=Split.HOLDOUT) for passed in ([4, 4, 4], [0, 4, 4])
    ]
    EvalRun.objects.filter(pk=runs[1].pk).update(
        model_version=make_adapter(found.project, runs[0].model_version, data_dir)
    )
    runs[1].refresh_from_db()
    report = promotion.make_gate_report(
        baseline=runs[0], candidate=runs[1], by=make_member(found.project)
    )
    page = (
        client_of(runs[0])
        .get(reverse("promotion:report", args=[found.project.slug, report.pk]))
        .content.decode()
    )
    assert (
        reverse(
            "evals:compared_task",
            args=[found.project.slug, found.tasks.get(key=report.report["regressed"][0]).pk],
        )
        in page
    )
