"""Evaluations side by side: which tasks changed, the numbers, and a hold-out's tasks only after
they were opened.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.environments.actions import save_environment, save_verifier
from apps.evals import drafts
from apps.evals.comparison.report import as_json
from apps.evals.comparison.report import compare as compared
from apps.evals.comparison.tasks import Filters, TaskTable, changes_of, drops_of
from apps.evals.models import EvalRun, HoldoutView
from apps.evals.pages import compare
from apps.evals.paired import corrected, difference, mean_of, pass_at, pass_hat
from tests.evals.evaluated import evaluated, frozen_set
from tests.evals.test_sample_pages import evaluate, login, make_run
from tests.factories import (
    admin_of,
    key_headers,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)
from tests.shared import copied, once

NAN = float("nan")


@pytest.mark.parametrize(
    ("rates", "change", "drop"),
    [
        ([0.5, 0.5], "same", 0.0),
        ([0.5, 0.75], "improved", -0.25),
        ([0.5, 0.25], "regressed", 0.25),
        ([0.5, 0.75, 0.25], "regressed", 0.25),  # the worst of all
        ([0.5, 0.75, NAN], "missing", -0.25),
        ([0.5, 0.25, NAN], "regressed", 0.25),
        ([NAN, 0.5], "missing", 0.0),
        ([0.5, NAN], "missing", 0.0),
    ],
)
def test_a_task_changed_by_its_share_of_passes(
    rates: list[float], change: str, drop: float
) -> None:
    table = np.array(rates)[:, None]
    assert changes_of(table).tolist() == [change] and drops_of(table).tolist() == [drop]


@pytest.mark.proof
def test_no_effect_is_claimed_in_at_most_one_made_table_of_twenty() -> None:
    """All intervals of a table together: 30 measures of two equal models on 60 tasks of 15 groups,
    and of half the tasks.
    """
    rng, claimed, tables = np.random.default_rng(14), 0, 400
    groups, level = np.repeat(np.arange(15), 4), corrected(30)
    for _ in range(tables):
        chances = np.clip(np.repeat(rng.beta(1, 1, 15), 4) + rng.normal(0, 0.2, 60), 0, 1)
        shift = np.repeat(
            rng.normal(0, 0.05, (30, 15)), 4, axis=1
        )  # what a group does to one of the two
        sides = (
            rng.binomial(8, np.clip(chances + shift, 0, 1)) / 8,
            rng.binomial(8, chances, (30, 60)) / 8,
        )
        claimed += any(
            difference(one, two, groups, level=level, span=1.0).sign
            for one, two in zip(*sides, strict=True)
        )
    assert claimed / tables < 0.05 + 3 * (0.05 * 0.95 / tables) ** 0.5


def test_a_planted_improvement_is_found_among_thirty_measures() -> None:
    rng, found = np.random.default_rng(15), 0
    for _ in range(40):
        chances = rng.beta(1, 1, 300)
        before, after = (
            rng.binomial(8, chances) / 8,
            rng.binomial(8, np.clip(chances + 0.08, 0, 1)) / 8,
        )
        gap = difference(before, after, level=corrected(30), span=1.0)
        found += gap.sign == 1 and gap.low < 0.08 * 1.2
    assert found >= 36


def test_tasks_of_one_group_are_one_observation() -> None:
    """Ten tasks that are copies of each other say no more than one."""
    rng = np.random.default_rng(1)
    single = rng.normal(0.1, 0.2, 12)
    alone, copied = mean_of(single), mean_of(np.repeat(single, 10), np.repeat(np.arange(12), 10))
    assert copied.mean == pytest.approx(alone.mean) and copied.n == 120
    assert copied.high - copied.low == pytest.approx(alone.high - alone.low)
    assert (found := mean_of(np.repeat(single, 10))).high - found.low < 0.5 * (
        alone.high - alone.low
    )


def test_equal_differences_and_few_tasks_are_not_certain() -> None:
    before, after = np.zeros(40), np.ones(40)
    gap = difference(before, after, span=1.0)
    assert gap.mean == gap.high == 1.0 and 0.7 < gap.low < 1.0 and gap.sign == 1
    same = difference(before, before, span=1.0)
    assert same.low < 0 < same.high and same.sign == 0
    assert difference(before[:9], after[:9], span=1.0).low is None  # nine tasks
    assert difference(np.full(40, np.nan), after).as_dict() == {
        "mean": None,
        "low": None,
        "high": None,
        "n": 0,
    }
    assert difference(np.full(40, np.inf), after).n == 0


@pytest.mark.parametrize(("n", "c", "k"), [(8, 3, 1), (8, 3, 4), (8, 8, 8), (8, 0, 2), (4, 2, 4)])
def test_pass_at_and_pass_hat_count_the_draws(n: int, c: int, k: int) -> None:
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at(np.array([n]), np.array([c]), k)[0] == pytest.approx(
        np.mean([any(draw) for draw in draws])
    )
    assert pass_hat(np.array([n]), np.array([c]), k)[0] == pytest.approx(
        np.mean([all(draw) for draw in draws])
    )
    assert np.isnan(pass_at(np.array([k - 1]), np.array([0]), k)).all()


def address(*runs: EvalRun) -> str:
    return (
        reverse("evals:compare", args=[runs[0].project.slug])
        + "?"
        + "&".join(f"run={run.pk}" for run in runs)
    )


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
    lines = {line.measure.key: line.cells for line in page.context["found"].lines}
    assert [cell.value.mean for cell in lines["success"]] == [0.5, 0.0, 1.0]
    assert [cell.difference and cell.difference.mean for cell in lines["success"]] == [
        None,
        -0.5,
        0.5,
    ]
    assert [cell.value.mean for cell in lines["pass_at_2"]] == [1.0, 0.0, 1.0]
    assert [cell.value.mean for cell in lines["pass_hat_2"]] == [0.0, 0.0, 1.0]
    html = page.content.decode()
    assert "3 tasks in common with the baseline; intervals require at least" in html
    assert rows[0].key in html and "1 of 2" in html
    assert not list(client.get(address(*runs) + "&change=improved").context["page"].rows)
    fragment = client.get(
        address(first, runs[2]) + "&change=improved&q=" + rows[0].key,
        headers={"HX-Request": "true"},
    )
    assert [row.key for row in fragment.context["page"].rows] == [rows[0].key]
    assert "<html" not in fragment.content.decode()


@pytest.mark.more(rows=1)
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
        run.samples.create(
            task=first, task_key=first.key, index=0, output="x", reward=float(good), success=good
        )
    last = client.get(f"{where}&{urlencode({'after': page.after})}").context["page"]
    assert (
        not set(seen) & {row.key for row in last.rows}
        and len(last.rows) == 1
        and (last.start, last.after) == (4, "")
    )
    back = client.get(f"{where}&{urlencode({'before': last.before})}").context["page"]
    assert [row.key for row in back.rows] == seen and back.before
    answer = client.get(f"{where}&after=x_y")
    assert answer.status_code == 400 and "“after” is not a cursor" in answer.content.decode()
    html = client.get(f"{where}&{urlencode({'after': page.after})}").content.decode()
    assert "4–4 of 4" in html and "Previous" in html


@pytest.mark.django_db
def test_the_same_request_in_another_version_of_the_set_is_the_same_task(
    client: Client, tmp_path: Path
) -> None:
    first = make_run(folder=tmp_path)
    newer = drafts.new_version(eval_set=first.eval_set, by=admin_of(first.project))
    newer.tasks.filter(split="train").first().delete()
    second = evaluate(drafts.freeze(eval_set=newer, by=None), tmp_path, passes=(True, True))
    login(client, first)
    page = client.get(address(first, second))
    assert sorted(row.change for row in page.context["page"].rows) == [
        "improved",
        "improved",
        "missing",
    ]
    assert any("different sets" in note for note in page.context["notes"])


@pytest.mark.django_db
def test_a_cell_leads_to_a_failed_sample(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    login(client, run)
    failed = run.samples.filter(success=False).first()
    found = client.get(
        reverse("evals:task_samples", args=[run.project.slug, run.pk, failed.task_id])
    )
    assert found["Location"].endswith(f"/samples/{failed.pk}/")
    assert (
        client.get(
            reverse("evals:task_samples", args=[run.project.slug, run.pk, UUID(int=1)])
        ).status_code
        == 404
    )


@pytest.mark.django_db
def test_held_out_tasks_are_compared_once_they_are_opened(client: Client, tmp_path: Path) -> None:
    project = make_project()
    eval_set, base, environment = (
        make_eval_set(project),
        make_base(project, tmp_path),
        make_environment(project),
    )
    runs = [make_eval_run(eval_set, base, environment, success=share) for share in (0.5, 1.0)]
    views, key = (
        eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW),
        eval_set.tasks.holdout().first().key,
    )
    user = login(client, runs[0])
    page = client.get(address(*runs)).content.decode()
    assert (
        key not in page
        and "counts as 2 views" in page
        and "+50.0 pp" in page
        and not views.exists()
    )
    client.post(
        reverse("evals:open_compared", args=[project.slug]), {"run": [str(run.pk) for run in runs]}
    )
    assert [view.by for view in views.all()] == [user, user]
    assert key in client.get(address(*runs)).content.decode()
    login(client, runs[0], Role.VIEWER)
    assert key not in client.get(address(*runs)).content.decode()


@pytest.mark.django_db
def test_evaluations_of_others_and_nonsense_are_left_out(client: Client, tmp_path: Path) -> None:
    run, foreign = make_run(folder=tmp_path), make_run(folder=tmp_path / "other")
    client.force_login(make_member(run.project))
    assert client.get(address(run, foreign) + "&run=x").status_code == 400
    page = client.get(address(run, foreign))
    assert (
        page.status_code == 200
        and page.context["chosen"] == [run]
        and foreign.name not in page.content.decode()
    )
    assert (
        "1 of the evaluations in the link is missing: deleted, or in another project."
        in page.content.decode()
    )


# What cannot be compared


Pair = tuple[EvalRun, EvalRun]


def made_pair(folder: Path) -> Pair:
    eval_set = frozen_set(train=12)
    return evaluated(eval_set, [2] * 12, folder), evaluated(eval_set, [3, 1] * 6, folder)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, Path]]:
    yield from once(request, made_pair)


@pytest.fixture
def pair(kept: tuple[Pair, Path], db: None, settings: Any) -> Pair:
    return copied(kept, settings)


def problem_of(*runs: EvalRun) -> tuple[str, list[int]]:
    """The sentences, and which evaluations are compared."""
    found = compared([EvalRun.objects.get(pk=run.pk) for run in runs])
    return " ".join(problem.text for problem in found.problems), found.comparable


@pytest.mark.django_db
def test_comparable_evaluations_have_no_problems(pair: tuple[EvalRun, EvalRun]) -> None:
    assert problem_of(*pair) == ("", [1])


@pytest.mark.django_db
@pytest.mark.parametrize("at", [0, 1])
def test_rewards_that_are_no_numbers_are_said_and_not_compared(
    pair: tuple[EvalRun, EvalRun], at: int
) -> None:
    sample = pair[at].samples.first()
    pair[at].samples.filter(pk=sample.pk).update(reward=NAN)
    said, shown = problem_of(*pair)
    assert (
        "NaN or infinite rewards or latencies on 1 tasks" in said
        and f"{at + 1}. " in said
        and shown == []
    )


@pytest.mark.django_db
def test_an_evaluation_without_a_scored_sample_is_not_compared(
    pair: tuple[EvalRun, EvalRun],
) -> None:
    pair[1].samples.update(masked=True, reward=None, success=False)
    said, shown = problem_of(*pair)
    assert "has no scored samples: all 48 are masked" in said and shown == []
    pair[1].samples.all().delete()
    assert "has no samples" in problem_of(*pair)[0]


@pytest.mark.django_db
def test_a_running_evaluation_is_not_compared_yet(
    pair: tuple[EvalRun, EvalRun], data_dir: Path
) -> None:
    running = evaluated(pair[0].eval_set, [4] * 3, data_dir, finished=False)
    said, shown = problem_of(*pair, running)
    assert "3. " in said and "is still running" in said and shown == [1]


@pytest.mark.proof
@pytest.mark.django_db
def test_other_verifiers_sets_and_samples_are_named(
    pair: tuple[EvalRun, EvalRun], data_dir: Path, client: Client
) -> None:
    project = pair[0].project
    verifier = save_verifier(
        project=project, name="answers", spec={"kind": "exact"}, by=admin_of(project)
    )
    other = save_environment(
        project=project,
        slug="other",
        builtin="workplace",
        harness={"system_prompt": "x"},
        verifier=verifier,
        by=admin_of(project),
    )
    third = evaluated(pair[0].eval_set, [4] * 12, data_dir, samples=2)
    EvalRun.objects.filter(pk=third.pk).update(environment=other)
    said, shown = problem_of(*pair, third)
    assert (
        "different numbers of samples per task (1. " in said
        and "was scored by answers" in said
        and shown == [1]
    )
    login(client, third)
    page = client.get(address(*pair, third))
    assert page.status_code == 200 and "was scored by answers" in page.content.decode()
    assert client.get(address(third, *pair)).status_code == 200  # the baseline is the odd one


@pytest.mark.proof
@pytest.mark.django_db
def test_everything_is_shown_exported_and_told_by_api(
    pair: tuple[EvalRun, EvalRun], client: Client
) -> None:
    for run, mode in zip(pair, ("bad_planning", "format_error"), strict=True):
        run.samples.filter(success=False).update(
            mode=mode,
            tools=["tickets.close", "email.send"],
            tags=["vip"],
            components={"tools": 0.25, "odd": "text"},
        )
    login(client, pair[0])
    query = address(*pair).partition("?")[2]
    page = client.get(
        reverse("evals:compared_breakdown", args=[pair[0].project.slug]) + f"?{query}"
    )
    text = page.content.decode()
    for words in (
        "Success by tool",
        "tickets.close",
        "Success by tag",
        "vip",
        "Success by difficulty",
        "Components of the reward",
        "appeared 0 · disappeared 12",
    ):
        assert words in text, words
    with_mode = client.get(address(*pair) + "&mode=format_error")
    assert (
        with_mode.context["page"].count == 12
        and "appeared or disappeared" in with_mode.content.decode()
    )
    export = reverse("evals:export_compared", args=[pair[0].project.slug])
    rows = list(
        csv.reader(
            io.StringIO(
                b"".join(client.get(f"{export}?{query}&change=improved").streaming_content).decode()
            )
        )
    )
    assert (
        rows[0][:3] == ["task", "change", f"1. {pair[0].model_version}: passed"] and len(rows) == 7
    )
    whole = client.get(f"{export}?{query}&format=json").json()
    assert [one["key"] for one in whole["components"]] == ["component:tools"]  # “odd” is no number
    assert {kind["key"] for kind in whole["groups"]} == {"tool", "tag", "difficulty"} and len(
        whole["results"]
    ) == 12
    groups = {
        kind["key"]: [(one["value"], one["tasks"]) for one in kind["groups"]]
        for kind in whole["groups"]
    }
    assert groups["tool"] == [("email.send", 12), ("tickets.close", 12)] and groups["tag"] == [
        ("vip", 12)
    ]
    assert whole["correction"]["measures"] == len(whole["measures"])


@pytest.mark.proof
@pytest.mark.django_db
def test_a_filter_with_a_value_that_is_not_known_is_refused_by_api_and_named_on_the_page(
    pair: tuple[EvalRun, EvalRun], client: Client
) -> None:
    login(client, pair[0])
    api, headers = reverse("evals_api:runs_compare"), key_headers(pair[0].project)
    for query, choices in (
        ("sort=x", "one of drop, gain"),
        ("of=x", "a whole number"),
        ("of=3", "a number from 2 to 2"),
        ("change=x", "one of regressed"),
    ):
        refused = client.get(f"{api}?run={pair[0].pk}&run={pair[1].pk}&{query}", **headers)
        assert refused.status_code == 400 and refused.json()["error"].startswith(
            f"must be {choices}"
        ), query
        page = client.get(f"{address(*pair)}&{query}")
        if query == "of=3":  # bounded by what is compared
            assert "The filter of=3 is ignored: it must be" in page.content.decode()
        else:
            assert page.status_code == 400 and f"must be {choices}" in page.content.decode()
    assert (
        client.get(f"{api}?run={pair[0].pk}&run={pair[1].pk}&sort=drop&of=2", **headers).status_code
        == 200
    )
    assert "is ignored" not in client.get(f"{address(*pair)}&sort=gain&of=2").content.decode()


@pytest.mark.django_db
def test_wins_and_losses_of_one_of_several(pair: tuple[EvalRun, EvalRun], data_dir: Path) -> None:
    third = evaluated(pair[0].eval_set, [4] * 12, data_dir)
    found = compared([*pair, third]).tables
    assert TaskTable(found, Filters()).counts()["regressed"] == 6
    assert TaskTable(found, Filters(of="3")).counts()["improved"] == 12
    gains = TaskTable(found, Filters(of="2", sort="gain")).rows()
    assert [row.cells[1].passed for row in gains] == [3] * 6 + [1] * 6
    assert TaskTable(found, Filters(of="2", change="improved")).page(4).count == 6


@pytest.mark.django_db
def test_a_held_out_comparison_is_exported_by_post_and_counts(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    eval_set, base, environment = (
        make_eval_set(project),
        make_base(project, tmp_path),
        make_environment(project),
    )
    runs = [make_eval_run(eval_set, base, environment, success=share) for share in (0.5, 1.0)]
    login(client, runs[0])
    url, body = (
        reverse("evals:export_compared", args=[project.slug]),
        {"run": [str(run.pk) for run in runs]},
    )
    views = eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW)
    assert client.post(url, body).status_code == 302 and not views.exists()
    breakdown = client.get(
        reverse("evals:compared_breakdown", args=[project.slug]), body
    ).content.decode()
    assert "Open the hold-out below" in breakdown and "Success by" not in breakdown
    client.post(reverse("evals:open_compared", args=[project.slug]), body)
    assert client.get(url, body).status_code == 302 and views.count() == 2
    assert client.post(url, body).status_code == 200 and views.count() == 4


@pytest.mark.django_db
def test_what_is_read_in_one_query_is_what_the_samples_say(data_dir: Path) -> None:
    """Against sums by hand, and whether it is read at once or when it is asked for."""
    facts = {"metadata": {"difficulty": "hard", "mode": "bad_planning"}}
    eval_set = frozen_set(train=12, **facts)
    pair = evaluated(eval_set, [2] * 12, data_dir), evaluated(eval_set, [3, 1] * 6, data_dir)
    for at, run in enumerate(pair):
        for sample in run.samples.all():
            n = sample.pk % 5
            sample.components = (
                {"tools": n / 4 + at, "odd": "text", "whole": n, "said": True} if n else {}
            )
            sample.mode = "" if sample.success else ["format_error", "", "bad_planning"][n % 3]
            sample.tools, sample.tags = [f"tool {n}", "all"][: n % 3], ["vip"] if n == 4 else []
            sample.save()
        run.samples.filter(pk=run.samples.first().pk).update(
            masked=True, reward=None, success=False
        )
    later, once = compared(pair), compared(pair, details=True)
    assert as_json(once) == as_json(later)
    scored = list(pair[1].samples.filter(masked=False))
    by_task: dict[UUID, list] = {}
    for sample in scored:
        by_task.setdefault(sample.task_id, []).append(sample)
    found = {line.measure.key: line.cells[1].value.mean for line in once.components}
    assert set(found) == {"component:tools", "component:whole"}, "neither texts nor booleans"
    given = [
        [sample.components["tools"] for sample in of if sample.components]
        for of in by_task.values()
    ]
    assert found["component:tools"] == pytest.approx(
        np.mean([np.mean(values) for values in given if values])
    )
    shares = [
        np.mean([not one.success and one.mode == "format_error" for one in of])
        for of in by_task.values()
    ]
    modes = {line.slug: line.cells[1].value.mean for line in once.modes}
    assert modes["format_error"] == pytest.approx(np.mean(shares)) and set(modes) == {
        "format_error",
        "bad_planning",
        "none",
    }
    groups = {kind.key: {one.value: one.n for one in kind.groups} for kind in once.kinds}
    assert groups["difficulty"] == {"hard": 12} and groups["bucket"] == {"bad_planning": 12}
    both = scored + list(pair[0].samples.filter(masked=False))
    assert groups["tool"] == {
        name: len({one.task_id for one in both if name in one.tools}) for name in groups["tool"]
    }
    assert groups["tag"] == {"vip": len({one.task_id for one in both if "vip" in one.tags})}


@pytest.mark.proof
@pytest.mark.django_db
def test_evaluations_to_compare_with_name_another_environment(
    client: Client, tmp_path: Path
) -> None:
    run = make_run(folder=tmp_path)
    project, here, second = run.project, run.environment, evaluate(run.eval_set, tmp_path)
    other = save_environment(
        project=project,
        slug="elsewhere",
        builtin="workplace",
        harness=here.harness,
        verifier=here.verifier,
        by=None,
    )
    login(client, run)
    page, choose = (
        reverse("evals:run", args=[project.slug, run.pk]),
        reverse("evals:compare", args=[project.slug]),
    )
    assert str(other) not in client.get(page).content.decode()
    EvalRun.objects.filter(pk=second.pk).update(environment=other)
    text = client.get(page).content.decode()
    assert text.count(f"in {other}") == 3  # the button, the list, and the filter of the samples
    assert str(other) in client.get(choose).content.decode()
