"""A rollout opens: what was said, what it earned, what it counted for, and the way to its
neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method, Rollout, TrainingRun
from apps.training.rollouts import Filters, group_of, mask_reasons, neighbours, standing
from tests.amounts import few
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_set,
    make_member,
    make_project,
    make_rollouts,
    override,
)
from tests.shared import copied, once
from tests.test_access import logged_in

pytestmark = pytest.mark.django_db


def made_run(folder: Path) -> TrainingRun:
    project = make_project()
    environment, eval_set, by = make_environment(project), make_eval_set(project), admin_of(project)
    override(environment)
    return submit_training(
        project=project,
        method=Method.GRPO,
        parent=make_base(project, folder),
        environment=environment,
        by=by,
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        config={"steps": 3, "learning_rate": 1e-3},
    )


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[TrainingRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[TrainingRun, Path], db: None, settings: Any) -> TrainingRun:
    return copied(kept, settings)


@pytest.fixture
def client(run: TrainingRun) -> Client:
    return logged_in(make_member(run.project, Role.VIEWER))


def page(client: Client, row: Rollout, query: str = "", **headers: str) -> str:
    url = reverse("training:rollout", args=[row.run.project.slug, row.run_id, row.pk])
    answer = client.get(url + query, **headers)
    assert answer.status_code == 200
    return answer.content.decode()


def updated(run: TrainingRun, step: int) -> None:
    run.metrics.create(step=step, name="train/loss", value=0.25)
    run.metrics.create(step=step, name="train/logp_diff_mean", value=0.0125)


@pytest.mark.proof
def test_it_shows_request_answer_reward_and_advantage_with_its_group(
    run: TrainingRun, client: Client
) -> None:
    rows = make_rollouts(run, [1.0, 0.0])
    updated(run, 1)
    text = page(client, rows[1])
    task = rows[1].task
    assert task.messages[-1]["content"] in text and "wrong tool: mail" in text
    assert "Advantage -0.707" in text and "+0.707" in text and "trained" in text
    assert "mean +0.5" in text and "0.0125" in text  # the step's log-probabilities
    assert reverse("evals:task", args=[run.project.slug, task.pk]) in text


def test_the_advantage_is_the_one_that_trained(run: TrainingRun, client: Client) -> None:
    run.spec["config"] |= {"baseline": "leave_one_out"}
    run.save()
    rows = make_rollouts(run, [1.0, 1.0])
    type(rows[1]).objects.filter(pk=rows[1].pk).update(components={"overlong": -1.0})
    updated(run, 1)
    text = page(client, type(rows[1]).objects.get(pk=rows[1].pk))
    assert "Advantage -1.414" in text and "+1.414" in text and "trained" in text


def test_a_component_may_have_any_name(run: TrainingRun, client: Client) -> None:
    """“items” was looked up in place of the dict's method, and the page failed."""
    row = make_rollouts(run, [1.0, 0.0])[0]
    Rollout.objects.filter(pk=row.pk).update(components={"items": 0.25, "keys": 1.0})
    html = client.get(reverse("training:detail", args=[run.project.slug, run.pk])).content.decode()
    assert re.search(r"items\s+\+0\.25", html) and re.search(r"keys\s+\+1", html)


def test_htmx_gets_only_the_rollout(run: TrainingRun, client: Client) -> None:
    assert "<html" not in page(client, make_rollouts(run, [1.0, 0.0])[0], HTTP_HX_REQUEST="true")


@pytest.mark.more
@pytest.mark.parametrize(
    ("rewards", "config", "phase", "state", "index", "expected"),
    few(
        [
            ([1.0, 0.0], {}, "train", "running", 0, "trained"),
            ([1.0, None, 0.0], {}, "train", "running", 1, "masked"),
            ([1.0, 1.0], {}, "train", "running", 0, "left out"),
            ([1.0, None], {}, "train", "running", 0, "left out"),
            ([1.0, 1.0], {"beta": 0.1}, "train", "running", 0, "no signal"),
            ([1.0, 1.0], {"advantages": "gae"}, "train", "running", 0, "trained"),
            ([1.0, 0.0], {}, "validation", "running", 0, "validation"),
            ([1.0, 0.0], {"mask_truncated": True}, "train", "running", 1, "masked"),
        ],
        3,
    ),
)
def test_what_a_rollout_counted_for(
    run: TrainingRun, rewards: list, config: dict, phase: str, state: str, index: int, expected: str
) -> None:
    run.spec["config"] |= config
    rows = make_rollouts(run, rewards, phase=phase)
    for row in rows:
        row.run = run
    if expected == "masked" and config:
        Rollout.objects.filter(pk=rows[index].pk).update(truncated=True)
        rows[index].truncated = True
    group = group_of(rows[index])
    assert standing(rows[index], group, updated=True).state == expected
    assert (group[index].advantage is None) is (expected in ("masked", "validation"))


def test_before_its_update_a_rollout_is_pending_and_after_an_ended_run_not_trained(
    run: TrainingRun,
) -> None:
    row = make_rollouts(run, [1.0, 0.0])[0]
    row.run = run
    assert standing(row, group_of(row), updated=False).state == "pending"
    run.state = "cancelled"
    assert standing(row, group_of(row), updated=False).state == "not trained"


def test_the_reason_of_a_mask_is_said(run: TrainingRun, client: Client) -> None:
    text = page(client, make_rollouts(run, [None, 1.0])[0])
    assert (
        "The judge did not answer." in text
        and "Advantage –" in text
        and '<td class="num">masked</td>' in text
    )
    answer = client.get(
        reverse("training:detail", args=[run.project.slug, run.pk])
    ).content.decode()
    assert '<td class="num" data-of="Advantage">masked</td>' in answer


def test_the_runs_page_counts_the_reasons(run: TrainingRun, client: Client) -> None:
    rows = make_rollouts(run, [None, None, None, 1.0])
    for row, quoted in zip(rows[:2], ("12", "<b>34</b>"), strict=True):
        Rollout.objects.filter(pk=row.pk).update(mask_reason=f"The agent wrote “{quoted}”.")
    assert mask_reasons(run) == [("The agent wrote “…”.", 2), ("The judge did not answer.", 1)]
    url = reverse("training:detail", args=[run.project.slug, run.pk])
    text = " ".join(client.get(url).content.decode().split())
    assert "Masked rollouts" in text and "?outcome=masked#rollouts" in text
    assert 'The agent wrote “…”.</span> <span class="muted small">2</span>' in text
    Rollout.objects.filter(masked=True).delete()
    assert "Masked rollouts" not in client.get(url).content.decode()


def test_j_and_k_walk_the_list_over_steps_within_its_filters(
    run: TrainingRun, client: Client
) -> None:
    first, second = make_rollouts(run, [1.0, 0.0]), make_rollouts(run, [0.0, 1.0], step=3)
    checked = make_rollouts(run, [1.0], step=3, phase="validation", task=1)
    keys = sorted([(second[0].task.key, 0, second), (checked[0].task.key, 1, checked)])
    expected = [row.pk for _, _, rows in keys for row in rows] + [row.pk for row in first]
    walked = [expected[0]]
    while (
        following := neighbours(Filters(), run, Rollout.objects.get(pk=walked[-1]))[1]
    ) is not None:
        walked.append(following)
    assert walked == expected
    for before, after in pairwise(walked):
        assert neighbours(Filters(), run, Rollout.objects.get(pk=after))[0] == before
    passed = Filters(phase="train", outcome="passed")
    assert neighbours(passed, run, second[1]) == (None, first[0].pk)
    assert neighbours(passed, run, second[0]) == (None, None)  # it is not in that list
    text = page(client, second[1], "?phase=train&outcome=passed")
    assert f"{first[0].pk}/?phase=train&amp;outcome=passed" in text


def test_the_list_filters_and_keeps_its_address(run: TrainingRun, client: Client) -> None:
    rows = make_rollouts(run, [1.0, 0.0]) + make_rollouts(run, [None, 1.0], step=2)
    url = reverse("training:rollouts", args=[run.project.slug, run.pk])
    answer = client.get(
        url, {"outcome": "masked", "step": "", "phase": "train"}, HTTP_HX_REQUEST="true"
    )
    assert answer["HX-Push-Url"].endswith("?phase=train&outcome=masked")
    text = answer.content.decode()
    assert [row.pk for row in rows if f"/rollouts/{row.pk}/" in text] == [rows[2].pk]
    assert (
        client.get(url, {"step": "2"}).status_code == 302
    )  # a link to the fragment leads to the page
    whole = client.get(
        reverse("training:detail", args=[run.project.slug, run.pk]), {"step": "1"}
    ).content.decode()
    assert "+0.707" in whole and f"/rollouts/{rows[2].pk}/" not in whole


def test_hostile_output_is_escaped(run: TrainingRun, client: Client) -> None:
    row = make_rollouts(run, [1.0, 0.0])[0]
    Rollout.objects.filter(pk=row.pk).update(
        output="<script>alert(1)</script>", details=["<b>x</b>"]
    )
    text = page(client, row)
    assert (
        "<script>alert" not in text and "<b>x</b>" not in text and "&lt;script&gt;alert(1)" in text
    )


def test_another_runs_rollout_is_not_found_here(run: TrainingRun, client: Client) -> None:
    row = make_rollouts(run, [1.0, 0.0])[0]
    other: Any = submit_training(
        project=run.project,
        method=Method.GRPO,
        parent=run.parent,
        environment=run.environment,
        dataset=run.dataset,
        config={"steps": 1, "learning_rate": 1e-3},
        by=run.created_by,
    )
    assert (
        client.get(
            reverse("training:rollout", args=[run.project.slug, other.pk, row.pk])
        ).status_code
        == 404
    )


def test_each_turns_advantage_is_shown_where_turns_are_compared(
    run: TrainingRun, client: Client
) -> None:
    """Equal rewards, earned in different turns: the first turn's advantage is 0, the second's is
    not.
    """
    run.spec["config"] |= {"advantages": "turn"}
    run.save()
    rows = make_rollouts(run, [1.0, 1.0])
    for row, earned in zip(rows, ([1.0, 0.0], [0.0, 1.0]), strict=True):
        components = {f"turn_{at}": value for at, value in enumerate(earned, 1)}
        Rollout.objects.filter(pk=row.pk).update(components=components, turns=2)
    updated(run, 1)
    text = page(client, Rollout.objects.get(pk=rows[1].pk))
    assert "By turn:" in text and "+0.000, +0.707" in " ".join(text.split()) and "trained" in text
