"""What Ctrl-K finds: the project's own, by rank, for the reader's role, and nothing that is held
out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import resolve, reverse

from apps.core.models import Project, Role
from apps.core.timeouts import TooLong
from apps.dashboard import search as module
from apps.dashboard.search import ACTIONS, PAGES, Found, best, rank, search
from apps.evals.models import EvalSet, Split
from apps.trajectories import digest
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
    make_trajectory,
)
from tests.test_access import ROLES

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("text", "title", "place"),
    [
        ("triage", "Triage", 0),
        ("tri", "Triage", 1),
        ("comp mod", "Compare models", 2),
        ("mod comp", "Compare models", 2),
        ("pare", "Compare models", 3),
        ("sft", "base-sft-v1", 2),
        ("zebra", "Triage", None),
        ("", "Triage", 1),
    ],
)
def test_what_begins_with_it_comes_before_what_contains_it(
    text: str, title: str, place: int | None
) -> None:
    assert rank(text, Found(title, "/")) == place


def test_equal_ranks_keep_their_order_and_few_are_shown() -> None:
    found = [Found(f"run {n}", "/") for n in range(20)]
    assert best("run", found) == found[:5] and best("run 7", found) == [found[7], found[17]]


def titles(
    project: Project, text: str, role: Role = Role.OWNER, user: Any = None
) -> dict[str, list[str]]:
    member = project.memberships.get(
        user=user or (admin_of(project) if role == Role.OWNER else make_member(project, role))
    )
    return {
        group.title: [item.title for item in group.found] for group in search(project, member, text)
    }


def test_pages_and_actions_are_those_of_the_role() -> None:
    project = make_project()
    for place in (*PAGES, *ACTIONS):
        assert ROLES[place.page] == place.role or place.role.rank > ROLES[place.page].rank, place
    assert "Actions" not in titles(project, "invite", Role.OPERATOR) and "Actions" in titles(
        project, "invite"
    )
    assert titles(project, "webhooks", Role.VIEWER) == {}
    every = titles(project, "", Role.VIEWER)
    assert (
        "Actions" not in every and "Overview" in every["Pages"] and "API keys" not in every["Pages"]
    )


def test_rows_of_every_kind_are_found_in_their_own_project(data_dir: Path) -> None:
    project, other = make_project(), make_project()
    for one in (project, other):
        base, environment, frozen = (
            make_base(one, data_dir),
            make_environment(one),
            make_eval_set(one),
        )
        make_eval_run(frozen, make_adapter(one, base, data_dir, name="helpdesk-lora"), environment)
    row = make_trajectory(project, name="order-4711", request="Where is my parcel?")
    make_trajectory(other, name="order-4712", request="Where is my parcel?")
    digest.run()
    assert titles(project, "helpdesk")["Models"] == ["helpdesk-lora-v1"]
    assert (
        titles(project, "order-47")["Trajectories"]
        == titles(project, "PARCEL")["Trajectories"]
        == ["Where is my parcel?"]
    )
    assert titles(project, str(row.pk))["Trajectories"] == ["Where is my parcel?"]
    frozen = project.eval_sets.get()
    assert titles(project, str(frozen))["Eval sets"] == [str(frozen)]
    run = project.evalruns.get()
    assert titles(project, str(run.pk))["Runs"] == [run.name]
    assert titles(project, "workplace")["Environments, clusters, flows"] == ["workplace@1"]
    admin = admin_of(project)
    assert titles(project, admin.username)["People"] == [admin.username]
    assert "People" not in titles(project, admin.username, Role.ENGINEER)
    assert "Projects" not in titles(project, other.name)


def test_held_out_tasks_are_found_by_nobody() -> None:
    frozen: EvalSet = make_eval_set(make_project())
    held = frozen.tasks.filter(split=Split.HOLDOUT).first()
    open_one = frozen.tasks.filter(split=Split.TRAIN).first()
    for text in (held.key, str(held.pk)):
        assert "Tasks" not in titles(frozen.project, text)
    assert (
        titles(frozen.project, open_one.key)["Tasks"]
        == titles(frozen.project, str(open_one.pk))["Tasks"]
        == [open_one.key]
    )


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    "text",
    ["%", "_", "' or 1=1 --", "a" * 5000, "((", "& | !", "\\", "🦊 é", "-", '"', "*", "<script>"],
)
def test_hostile_texts_find_nothing_and_break_nothing(client: Client, text: str) -> None:
    project = make_project()
    make_trajectory(project, name="plain")
    client.force_login(admin_of(project))
    answer = client.get(reverse("dashboard:search", args=[project.slug]), {"q": text})
    assert answer.status_code == 200 and "<script>" not in answer.content.decode()
    assert "Trajectories" not in titles(project, text)


def test_a_source_that_takes_too_long_says_so_and_the_others_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(*args: Any) -> list:
        raise TooLong

    monkeypatch.setitem(module.SOURCES, "Tasks", slow)
    project = make_project()
    groups = {group.title: group for group in search(project, project.memberships.get(), "triage")}
    assert groups["Tasks"].incomplete and groups["Pages"].found


def test_every_line_leads_to_a_page(client: Client) -> None:
    project = make_project()
    for group in search(project, project.memberships.get(), ""):
        for item in group.found:
            assert resolve(item.url.partition("?")[0]).view_name in ROLES
