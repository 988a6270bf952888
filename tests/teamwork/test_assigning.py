"""Assignments: to who may act on it, told to them, found by “mine”, and gone with their role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse

from apps.automation.actions import run_now, save_flow
from apps.automation.engine import advance, answer
from apps.automation.specs import read_yaml
from apps.core.actions import create_api_key, remove_member, set_member
from apps.core.models import AuditEvent, Project, Role
from apps.failures.actions import bulk, decisions
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure
from apps.notifications.models import Notification
from apps.reviews.actions import open_review
from apps.teamwork.assigning import AssignmentError, assign, assigned_to, assignees
from apps.teamwork.models import Assignment
from apps.teamwork.targets import kind_named
from tests.factories import (
    admin_of,
    make_base,
    make_cluster,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_member,
)

pytestmark = pytest.mark.django_db


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def failure(project: Project) -> Failure:
    run = make_failed(project)
    classify_project(project=project)
    found: Failure = run.failure
    return found


@pytest.fixture
def cluster(failure: Failure) -> Any:
    return make_cluster(failure)


def told(user: Any) -> list[tuple[str, str]]:
    return [
        (row.topic, row.subject)
        for row in Notification.objects.filter(user=user).order_by("created_at")
    ]


def test_a_cluster_is_assigned_found_and_taken_back(project: Project, cluster: Any) -> None:
    owner, ada = admin_of(project), make_member(project, Role.REVIEWER)
    url = reverse("teamwork:assign", args=[project.slug, "cluster", cluster.pk])
    page = cluster.get_absolute_url()
    assert client_of(owner).post(url, {"user": ada.pk, "on": "1", "back": page})["Location"] == page
    assert told(ada) == [("assignment.made", f"{owner} assigned you the cluster “{cluster.name}”")]
    clusters = reverse("failures:clusters", args=[project.slug])
    for person, there in ((ada, True), (owner, False)):
        assert (page in client_of(person).get(clusters, {"mine": 1}).content.decode()) is there
    client_of(owner).post(url, {"user": ada.pk, "on": ""})
    assert not Assignment.objects.exists() and len(told(ada)) == 1
    actions = AuditEvent.objects.filter(action__startswith="assignment.").order_by("id")
    assert [row.action for row in actions] == ["assignment.made", "assignment.ended"]


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\evil"]
)
def test_the_way_back_is_ours(project: Project, cluster: Any, back: str) -> None:
    owner = admin_of(project)
    url = reverse("teamwork:assign", args=[project.slug, "cluster", cluster.pk])
    answer = client_of(owner).post(url, {"user": owner.pk, "on": "1", "back": back})
    assert answer["Location"] == cluster.get_absolute_url()


def test_only_who_may_act_on_it_is_given_it(project: Project, cluster: Any) -> None:
    viewer, owner = make_member(project, Role.VIEWER), admin_of(project)
    kind = kind_named("cluster")
    with pytest.raises(AssignmentError, match="Reviewer"):
        assign(project=project, kind=kind, target=cluster, to=viewer, by=owner)
    with pytest.raises(PermissionDenied):
        assign(project=project, kind=kind, target=cluster, to=owner, by=viewer)
    assert not Assignment.objects.exists()


@pytest.mark.parametrize("how", ["removed", "demoted"])
def test_whoever_may_no_longer_loses_what_they_were_given(
    project: Project, failure: Failure, cluster: Any, how: str
) -> None:
    owner, ada, bob = (
        admin_of(project),
        make_member(project, Role.REVIEWER),
        make_member(project, Role.REVIEWER),
    )
    for person in (ada, bob):
        assign(project=project, kind=kind_named("cluster"), target=cluster, to=person, by=owner)
    decisions.assign(failure=failure, by=owner, to=ada)
    if how == "removed":
        remove_member(membership=project.memberships.get(user=ada), by=owner)
    else:
        set_member(project=project, user=ada, role=Role.VIEWER, by=owner)
    failure.refresh_from_db()
    assert failure.assigned_to is None and [*assignees(cluster)] == [bob]


def test_undoing_gives_nothing_back_to_who_may_no_longer(
    project: Project, failure: Failure
) -> None:
    owner, ada = admin_of(project), make_member(project, Role.REVIEWER)
    decisions.assign(failure=failure, by=owner, to=ada)
    decisions.assign(failure=failure, by=owner, to=None)
    remove_member(membership=project.memberships.get(user=ada), by=owner)
    assert decisions.undo(project=project, by=owner)
    failure.refresh_from_db()
    assert failure.assigned_to is None


def test_failures_are_assigned_one_by_one_and_many_at_once(
    project: Project, failure: Failure
) -> None:
    owner, ada = admin_of(project), make_member(project, Role.REVIEWER)
    decisions.assign(failure=failure, by=owner, to=ada)
    decisions.assign(failure=failure, by=ada, to=ada)
    others = [make_failed(project, f"run-{n}") for n in range(2)]
    classify_project(project=project)
    bulk.assign_many(project=project, ids=[run.failure.pk for run in others], by=owner, to=ada)
    assert [subject for _, subject in told(ada)] == [
        f"{owner} assigned you a failure ({failure.mode})",
        f"{owner} assigned you 2 failures",
    ]
    found = (
        client_of(ada)
        .get(reverse("failures:list", args=[project.slug]), {"mine": 1})
        .content.decode()
    )
    assert found.count("data-row") >= 3


def test_a_review_is_asked_of_people(project: Project, data_dir: Path) -> None:
    owner, ada = admin_of(project), make_member(project, Role.REVIEWER)
    run = make_eval_run(
        make_eval_set(project), make_base(project, data_dir), make_environment(project)
    )
    review = open_review(runs=[run], by=owner)
    assign(project=project, kind=kind_named("review"), target=review, to=ada, by=owner)
    assert told(ada) == [
        ("review.asked", f"{owner} asks you to judge the reward review of {review.verifier}")
    ]
    url = reverse("reviews:list", args=[project.slug])
    assert review.get_absolute_url() in client_of(ada).get(url, {"mine": 1}).content.decode()
    assert "Nothing assigned to you" in client_of(owner).get(url, {"mine": 1}).content.decode()
    assert str(ada) in client_of(owner).get(review.get_absolute_url()).content.decode()


def test_a_flow_that_waits_tells_who_may_answer_or_whom_it_is_assigned_to(project: Project) -> None:
    owner, ada, bob, viewer = (
        admin_of(project),
        *(make_member(project, role) for role in (Role.ENGINEER, Role.ENGINEER, Role.VIEWER)),
    )
    spec = read_yaml(
        'steps: [{do: ask, question: "Have you looked?"}, {do: ask, name: again, question: "And'
        ' now?"}]'
    )
    run = run_now(flow=save_flow(project=project, name="asks", spec=spec, by=owner), by=owner)
    advance(run)
    page = run.get_absolute_url()
    for person in (owner, ada, bob):
        assert [(row.topic, row.page) for row in Notification.objects.filter(user=person)] == [
            ("flow.waiting", page)
        ]
    assert told(ada)[0][1] == "asks is waiting: Have you looked?" and told(viewer) == []
    advance(run)
    assert len(told(ada)) == 1
    assign(project=project, kind=kind_named("flow"), target=run, to=bob, by=ada)
    answer(run=run, yes=True, by=ada)
    advance(run)
    assert [topic for topic, _ in told(bob)] == [
        "flow.waiting",
        "assignment.made",
        "flow.waiting",
    ] and len(told(ada)) == 1
    assert assigned_to(bob, type(run)) == [run.pk]


def test_assignments_by_api(project: Project, cluster: Any) -> None:
    owner, ada = admin_of(project), make_member(project, Role.REVIEWER)
    headers = {"Authorization": f"Bearer {create_api_key(project=project, name='k', by=owner)[1]}"}
    url, on = reverse("teamwork_api:assignments"), f"cluster:{cluster.pk}"

    def put(**body: Any) -> Any:
        return Client().put(
            url, json.dumps({"on": on} | body), content_type="application/json", headers=headers
        )

    assert put(users=[str(ada), str(owner)]).json()["users"] == sorted([str(ada), str(owner)])
    assert put(users=[str(ada)]).json()["users"] == [str(ada)]
    assert Client().get(url, {"on": on}, headers=headers).json() == {"on": on, "users": [str(ada)]}
    assert put(users=["nobody"]).status_code == 400
    assert put(users=[str(make_member(project, Role.VIEWER))]).status_code in (400, 409)
    assert put(on="trajectory:1", users=[]).status_code == 404
