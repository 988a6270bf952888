"""Evaluations side by side: which tasks changed, the numbers, and a hold-out's tasks only after they were opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.intervals import mean_difference
from apps.core.models import Role
from apps.evals import actions
from apps.evals.models import EvalRun, HoldoutView
from apps.evals.pages import compare
from apps.evals.samples.comparison import TaskScore, change_of, rows_of, success_difference
from tests.evals.evaluated import evaluated, frozen_set
from tests.evals.test_sample_pages import evaluate, login, make_run
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)


def score(passed: int, n: int = 4, key: str = "a") -> TaskScore:
    return TaskScore(UUID(int=1), key, n, passed)


@pytest.mark.parametrize(
    ("baseline", "others", "change"),
    [
        (score(2), [score(2)], "same"),
        (score(2), [score(3)], "improved"),
        (score(2), [score(1)], "regressed"),
        (score(2), [score(3), score(1)], "regressed"),  # the worst of all
        (score(2), [score(3), None], "missing"),
        (score(2), [score(1), None], "regressed"),
        (score(1, 2), [score(2, 4)], "same"),  # a share, not a count
        (None, [score(2)], "missing"),
        (score(0, 0), [score(2)], "missing"),  # all masked
        (score(2), [score(0, 0)], "missing"),
    ],
)
def test_a_task_changed_by_its_share_of_passes(baseline: Any, others: list, change: str) -> None:
    assert change_of(baseline, others) == change


def test_rows_have_every_task_of_any_evaluation_in_order() -> None:
    one, two = {1: score(4, key="b"), 2: score(1, key="c")}, {1: score(0, key="b"), 3: score(1, key="a")}
    assert [(row.key, row.change) for row in rows_of([one, two])] == [
        ("a", "missing"),
        ("b", "regressed"),
        ("c", "missing"),
    ]
    assert rows_of([one, two])[1].drop == 1.0


def test_the_difference_is_paired_over_the_tasks_that_both_have() -> None:
    before = {n: score(passed) for n, passed in enumerate((4, 2, 0, 4))}
    after = {n: score(passed) for n, passed in enumerate((4, 4, 1))}
    found = success_difference(before, after)
    assert found["mean"] == pytest.approx(0.25) and found["n"] == 3 and found["low"] < 0.25 < found["high"]
    assert success_difference(before, {}) == {"mean": None, "low": None, "high": None, "n": 0}


def test_an_interval_of_differences_says_nothing_where_it_knows_nothing() -> None:
    assert mean_difference([]) == (None, None, None)
    assert mean_difference([0.5]) == (0.5, None, None) and mean_difference([0.0, 0.0]) == (0.0, None, None)
    mean, low, high = mean_difference([1.0, -1.0])
    assert (mean, low, high) == (0.0, -1.0, 1.0)


def address(*runs: EvalRun) -> str:
    return reverse("evals:compare", args=[runs[0].project.slug]) + "?" + "&".join(f"run={run.pk}" for run in runs)


@pytest.mark.django_db
def test_any_number_of_evaluations_stand_side_by_side(client: Client, tmp_path: Path) -> None:
    first = make_run(folder=tmp_path)
    runs = [
        first,
        evaluate(first.eval_set, tmp_path, passes=(False, False)),
        evaluate(first.eval_set, tmp_path, passes=(True, True)),
    ]
    login(client, first, Role.VIEWER)
    page = client.get(address(*runs))
    rows = list(page.context["page"].rows)
    assert [[cell.passed for cell in row.cells] for row in rows] == [[1, 0, 2]] * 3
    assert {row.change for row in rows} == {"regressed"}
    lines = dict(page.context["lines"])
    assert [cell.text for cell in lines["Success (pass@1)"]] == ["50.0%", "0.0%", "100.0%"]
    assert [cell.text for cell in lines["Success, difference from the baseline"]] == ["–", "-50.0%", "+50.0%"]
    html = page.content.decode()
    assert rows[0].key in html and "1 of 2" in html
    assert not list(client.get(address(*runs) + "&change=improved").context["page"].rows)
    fragment = client.get(address(first, runs[2]) + "&change=improved&q=" + rows[0].key, headers={"HX-Request": "true"})
    assert [row.key for row in fragment.context["page"].rows] == [rows[0].key]
    assert "<html" not in fragment.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("sort", ["", "drop"])
def test_a_task_that_comes_in_meanwhile_moves_no_row_to_another_page(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr(compare, "SIZE", 2)
    eval_set = frozen_set(train=5)
    one, two = (evaluated(eval_set, passed, tmp_path) for passed in ((4, 3, 2, 1), (0, 0, 0, 0)))
    first = eval_set.tasks.filter(split="train").order_by("key").first()
    for run in (one, two):  # the first task is not evaluated yet
        run.samples.filter(task=first).delete()
    login(client, one)
    where = f"{address(one, two)}&sort={sort}"
    page = client.get(where).context["page"]
    seen = [row.key for row in page.rows]
    assert (page.start, page.end, page.count, page.before) == (1, 2, 3, "")
    for run, good in ((one, True), (two, False)):
        run.samples.create(task=first, task_key=first.key, index=0, output="x", reward=float(good), success=good)
    last = client.get(f"{where}&{urlencode({'after': page.after})}").context["page"]
    assert (
        not set(seen) & {row.key for row in last.rows} and len(last.rows) == 1 and (last.start, last.after) == (4, "")
    )
    back = client.get(f"{where}&{urlencode({'before': last.before})}").context["page"]
    assert [row.key for row in back.rows] == seen and back.before
    assert client.get(f"{where}&after=x_y").context["page"].start == 1
    html = client.get(f"{where}&{urlencode({'after': page.after})}").content.decode()
    assert "4–4 of 4" in html and "Previous" in html


@pytest.mark.django_db
def test_the_same_request_in_another_version_of_the_set_is_the_same_task(client: Client, tmp_path: Path) -> None:
    first = make_run(folder=tmp_path)
    newer = actions.new_version(eval_set=first.eval_set, by=admin_of(first.project))
    newer.tasks.filter(split="train").first().delete()
    second = evaluate(actions.freeze(eval_set=newer, by=None), tmp_path, passes=(True, True))
    login(client, first)
    page = client.get(address(first, second))
    assert sorted(row.change for row in page.context["page"].rows) == ["improved", "improved", "missing"]
    assert any("different sets" in note for note in page.context["notes"])


@pytest.mark.django_db
def test_a_cell_leads_to_a_failed_sample(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    login(client, run)
    failed = run.samples.filter(success=False).first()
    found = client.get(reverse("evals:task_samples", args=[run.project.slug, run.pk, failed.task_id]))
    assert found["Location"].endswith(f"/samples/{failed.pk}/")
    assert client.get(reverse("evals:task_samples", args=[run.project.slug, run.pk, UUID(int=1)])).status_code == 404


@pytest.mark.django_db
def test_held_out_tasks_are_compared_once_they_are_opened(client: Client, tmp_path: Path) -> None:
    project = make_project()
    eval_set, base, environment = make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    runs = [make_eval_run(eval_set, base, environment, success=share) for share in (0.5, 1.0)]
    views, key = eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW), eval_set.tasks.holdout().first().key
    user = login(client, runs[0])
    page = client.get(address(*runs)).content.decode()
    assert key not in page and "counts as 2 views" in page and "+50.0%" in page and not views.exists()
    client.post(reverse("evals:open_compared", args=[project.slug]), {"run": [str(run.pk) for run in runs]})
    assert [view.by for view in views.all()] == [user, user]
    assert key in client.get(address(*runs)).content.decode()
    login(client, runs[0], Role.VIEWER)
    assert key not in client.get(address(*runs)).content.decode()


@pytest.mark.django_db
def test_evaluations_of_others_and_nonsense_are_left_out(client: Client, tmp_path: Path) -> None:
    run, foreign = make_run(folder=tmp_path), make_run(folder=tmp_path / "other")
    client.force_login(make_member(run.project))
    page = client.get(address(run, foreign) + "&run=x")
    assert page.status_code == 200 and page.context["chosen"] == [run] and foreign.name not in page.content.decode()
    assert "2 of the evaluations in the link are missing: deleted, or of another project." in page.content.decode()
