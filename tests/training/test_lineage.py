"""Back from a version to the very trajectories that it learned from, and forward from these to what
learned from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import JobState, Role
from apps.evals import actions as evals
from apps.evals.models import Split, Task
from apps.registry.models import ModelVersion
from apps.training.actions import freeze_dataset, submit_training
from apps.training.lineage import COUNTED, count, heirs_of, learners_of_task, learners_of_trajectory
from apps.training.models import Method, PromptSearch, TrainingRun
from tests.factories import (
    admin_of,
    freeze_set,
    key_headers,
    make_adapter,
    make_base,
    make_environment,
    make_failed,
    make_member,
    make_project,
    override,
    task_from_trajectory,
)
from tests.shared import copied, once
from tests.test_access import logged_in

pytestmark = pytest.mark.django_db


def trained(
    world: Any, rows: list[Any], parent: ModelVersion, slug: str, folder: Path
) -> TrainingRun:
    """A run on tasks that were made from these trajectories, which made an adapter."""
    draft = evals.create_eval_set(project=world.project, slug=slug, by=world.by)
    for row in rows:
        task_from_trajectory(eval_set=draft, trajectory=row, split=Split.TRAIN, by=world.by)
    frozen = freeze_set(draft, world.by)
    run = submit_training(
        project=world.project,
        method=Method.GRPO,
        parent=parent,
        environment=world.environment,
        by=world.by,
        dataset=freeze_dataset(eval_set=frozen, by=world.by),
        config={"steps": 1, "learning_rate": 1e-3},
        name=f"on {slug}",
    )
    run.claim("test")
    run.finish(JobState.SUCCEEDED, result={})
    TrainingRun.objects.filter(pk=run.pk).update(
        model_version=make_adapter(world.project, parent, folder, name=slug)
    )
    run.refresh_from_db()
    return run


def made_world(folder: Path) -> Any:
    """Two generations: the second was trained from the first's output, on other trajectories; a
    third was never trained on.
    """
    project = make_project()
    found = SimpleNamespace(
        project=project,
        by=admin_of(project),
        environment=make_environment(project),
        folder=folder,
    )
    override(found.environment)
    found.rows = [make_failed(project, request=f"Close ticket {9000 + n}.") for n in range(4)]
    base = make_base(project, folder)
    found.first = trained(found, found.rows[:2], base, "first", folder)
    found.second = trained(found, found.rows[2:3], found.first.model_version, "second", folder)
    return found


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Path]]:
    yield from once(request, made_world)


@pytest.fixture
def world(kept: tuple[Any, Path], db: None, settings: Any) -> Any:
    return copied(kept, settings)


@pytest.fixture
def client(world: Any) -> Client:
    return logged_in(make_member(world.project, Role.VIEWER))


def listed(client: Client, world: Any, value: Any) -> set[str]:
    page = client.get(
        reverse("trajectories:list", args=[world.project.slug]), {"trained": str(value)}
    )
    return {row.external_id for row in page.context["page"]["rows"]}


def names(rows: list[Any]) -> set[str]:
    return {row.external_id for row in rows}


def test_a_version_leads_to_the_very_trajectories_of_all_generations(
    client: Client, world: Any
) -> None:
    assert listed(client, world, world.first.model_version) == names(world.rows[:2])
    assert listed(client, world, world.second.model_version) == names(world.rows[:3])
    assert listed(client, world, world.second.pk) == names(world.rows[2:3])  # of one run
    for strange in ("nobody-v1", "x", "9" * 400, "first-v99999999999999", world.first.parent):
        assert listed(client, world, strange) == set()


@pytest.mark.proof
def test_the_page_of_a_version_counts_and_links_them(client: Client, world: Any) -> None:
    version = world.second.model_version
    page = client.get(
        reverse("promotion:model", args=[world.project.slug, version.pk])
    ).content.decode()
    assert "?trained=second-v1" in page and "<b>3 trajectories</b>" in page.replace(
        "\n          ", " "
    )
    for run in (world.first, world.second):
        assert reverse("training:detail", args=[world.project.slug, run.pk]) in page
    base = client.get(
        reverse("promotion:model", args=[world.project.slug, world.first.parent_id])
    ).content.decode()
    assert (
        "No production trajectories" in base and "second-v1" in base and "through first-v1" in base
    )


def test_a_prompt_version_has_the_lineage_of_its_model_and_its_search(
    client: Client, world: Any
) -> None:
    prompt = ModelVersion.objects.create(
        project=world.project,
        name="polite",
        version=1,
        kind="prompt",
        parent=world.first.model_version,
        digest="d" * 64,
        base=world.first.parent.base,
        prompt={"system_prompt": "Be polite."},
    )
    PromptSearch.objects.create(
        project=world.project,
        name="search",
        version=world.first.model_version,
        dataset=world.second.dataset,
        environment=world.environment,
        model_version=prompt,
    )
    assert listed(client, world, prompt) == names(world.rows[:3])
    assert {one.kind for one in learners_of_trajectory(world.rows[2].pk)} == {
        "prompt search",
        "GRPO",
    }


def test_a_trajectory_leads_to_what_learned_from_it(client: Client, world: Any) -> None:
    (found,) = learners_of_trajectory(world.rows[0].pk)
    assert (found.job, found.version, found.heirs) == (
        world.first,
        world.first.model_version,
        [world.second.model_version],
    )
    url = reverse("training:learned_from_trajectory", args=[world.project.slug, world.rows[0].pk])
    page = client.get(url).content.decode()
    assert "on first" in page and "first-v1" in page and "second-v1" in page
    untouched = reverse(
        "training:learned_from_trajectory", args=[world.project.slug, world.rows[3].pk]
    )
    assert "No training run" in client.get(untouched).content.decode()
    assert logged_in(make_member(make_project())).get(url).status_code == 404
    whole = client.get(
        reverse("trajectories:detail", args=[world.project.slug, world.rows[0].pk])
    ).content.decode()
    assert url in whole


def test_a_task_and_a_variant_of_it_lead_forward_too(client: Client, world: Any) -> None:
    task = world.first.dataset.tasks()[0]
    assert [one.job for one in learners_of_task(task.pk)] == [world.first]
    page = client.get(
        reverse("training:learned_from_task", args=[world.project.slug, task.pk])
    ).content.decode()
    assert f"?q={task.key}" in page
    draft = evals.create_eval_set(project=world.project, slug="variants", by=world.by)
    seed = Task.objects.filter(trajectory=world.rows[0]).first()
    Task.objects.create(
        project=world.project,
        eval_set=draft,
        key="v",
        group=seed.group,
        canonical_hash="f" * 64,
        messages=seed.messages,
        expected=seed.expected,
        origin="synthetic",
        variant_of=seed,
    )
    dataset = freeze_dataset(eval_set=freeze_set(draft, world.by), by=world.by)
    assert count([dataset.pk]) == (1, False)
    run = TrainingRun.objects.get(pk=world.second.pk)
    TrainingRun.objects.filter(pk=run.pk).update(dataset=dataset)
    assert {one.job for one in learners_of_trajectory(world.rows[0].pk)} == {world.first, run}
    assert listed(client, world, run.pk) == names(world.rows[:1])


def test_another_projects_version_of_the_same_name_finds_nothing_here(world: Any) -> None:
    other = SimpleNamespace(project=make_project())
    member = logged_in(make_member(other.project))
    make_failed(other.project)
    assert (
        listed(member, other, world.first.model_version)
        == set()
        == listed(member, other, world.first.pk)
    )


def test_counts_end_at_the_cap_and_questions_do_not_grow(
    world: Any, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    monkeypatch.setattr("apps.training.lineage.COUNTED", 1)
    assert count([world.first.dataset_id]) == (1, True) and COUNTED > 1
    with django_assert_max_num_queries(8):
        learners_of_trajectory(world.rows[0].pk)


def test_heirs_over_generations_and_two_roots(world: Any) -> None:
    first, second = world.first.model_version, world.second.model_version
    third = make_adapter(world.project, second, world.folder, name="third")
    assert heirs_of({first.pk, second.pk}) == {first.pk: [second, third], second.pk: [third]}
    assert heirs_of(set()) == {}


def test_the_same_by_api(world: Any) -> None:
    headers = key_headers(world.project)

    def get(**query: str) -> Any:
        return Client().get(reverse("training_api:lineage"), query, **headers)

    found = get(version="second-v1").json()
    assert [(one["version"], (one["made_by"] or {}).get("name")) for one in found["chain"]] == [
        ("second-v1", "on second"),
        ("first-v1", "on first"),
        ("base-v1", None),
    ]
    assert found["trajectories"]["n"] == 3 and found["trajectories"]["url"].endswith(
        "?trained=second-v1"
    )
    learned = get(trajectory=world.rows[0].external_id).json()["learned_by"]
    assert learned[0]["model_version"] == "first-v1" and learned[0]["derived"] == ["second-v1"]
    assert (
        get(task=str(world.first.dataset.tasks()[0].pk)).json()["learned_by"][0]["name"]
        == "on first"
    )
    assert get().status_code == get(version="a", task="b").status_code == 400
    assert (
        get(version="nobody-v1").status_code
        == get(trajectory="x").status_code
        == get(task="x").status_code
        == 404
    )
    rows = (
        Client()
        .get(reverse("api:trajectories"), {"trained": "first-v1"}, **headers)
        .json()["results"]
    )
    assert {row["id"] for row in rows} == names(world.rows[:2])
