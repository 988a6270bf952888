"""What people say of a run stays, whatever its agent sends afterwards, and may come first."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project, Role
from apps.trajectories import digest, retention
from apps.trajectories.actions import bulk, feedback, store
from apps.trajectories.models import Feedback, HourlyCount, Trajectory
from apps.trajectories.schema import Feedback as News
from apps.trajectories.schema import OutcomeChange
from tests.factories import admin_of, make_member, make_project, make_trajectory, row

pytestmark = pytest.mark.django_db
ONE, BATCH = "/api/v1/trajectories/", "/api/v1/trajectories/batch/"


def post(agent: Client, path: str, body: Any) -> Any:
    answer = agent.post(path, json.dumps(body), content_type="application/json")
    assert answer.status_code < 300, answer.content
    return answer.json()


def tell(agent: Client, name: str, **news: Any) -> Any:
    return post(agent, f"{ONE}{name}/feedback/", news)


def get(agent: Client, name: str) -> Any:
    return agent.get(f"{ONE}{name}/").json()


def test_an_updated_row_keeps_what_people_said(agent: Client, project: Project) -> None:
    post(
        agent,
        ONE,
        row(
            name="r",
            model="one",
            outcome={"status": "unknown", "reason": "not asked"},
            tags=["mine"],
        ),
    )
    tell(agent, "r", outcome={"status": "failure", "label": "rude"}, comment="Not so", by="ann")
    by = make_member(project)
    client = Client()
    client.force_login(by)
    pk = project.trajectories.get().pk
    ticked = {"ids": [str(pk)], "do": "tag", "tag": "theirs"}
    assert client.post(reverse("trajectories:bulk", args=[project.slug]), ticked).status_code == 302
    assert post(agent, ONE, row(name="r", model="two", tags=["mine", "new"]))["updated"] == 1
    stored = get(agent, "r")
    assert stored["model"] == "two"
    assert stored["outcome"] == {"status": "failure", "label": "rude", "reward": None, "reason": ""}
    assert [item["note"] for item in stored["interventions"]] == ["Not so"]
    assert stored["tags"] == ["mine", "new", "theirs"]
    assert "label:rude" in project.trajectories.get().terms
    digest.run()
    counted = HourlyCount.objects.filter(project=project, trajectories__gt=0)
    assert [(item.model, item.outcome_status, item.trajectories) for item in counted] == [
        ("two", "failure", 1)
    ]


def test_a_late_copy_is_a_duplicate_after_feedback_and_after_an_update(agent: Client) -> None:
    first = row(name="r", started_at="2026-01-01T00:00:00Z")
    post(agent, ONE, first)
    tell(agent, "r", outcome={"status": "failure"})
    assert post(agent, ONE, first)["duplicates"] == 1
    post(agent, ONE, first | {"model": "two"})
    assert post(agent, ONE, first)["duplicates"] == 1
    assert post(agent, ONE, first | {"model": "two"})["duplicates"] == 1
    assert (get(agent, "r")["model"], get(agent, "r")["outcome"]["status"]) == ("two", "failure")


def test_a_partial_outcome_leaves_the_rest(agent: Client) -> None:
    post(
        agent,
        ONE,
        row(
            name="r",
            outcome={"status": "failure", "reward": 0.5, "label": "slow", "reason": "timeout"},
        ),
    )
    tell(agent, "r", outcome={"label": "rude"})
    assert get(agent, "r")["outcome"] == {
        "status": "failure",
        "reward": 0.5,
        "label": "rude",
        "reason": "timeout",
    }
    tell(agent, "r", outcome={"reward": None, "success": True})
    assert get(agent, "r")["outcome"] == {
        "status": "success",
        "reward": None,
        "label": "rude",
        "reason": "timeout",
    }


def test_the_same_feedback_twice_is_one(agent: Client, project: Project) -> None:
    post(agent, ONE, row(name="r"))
    for _ in range(2):
        tell(agent, "r", comment="Not so", score=0)
    assert len(get(agent, "r")["interventions"]) == 1
    tell(agent, "r", comment="Not so", score=0, id="c1")
    tell(agent, "r", comment="Quite so", score=1, id="c1")
    stored = get(agent, "r")
    assert [item["note"] for item in stored["interventions"]] == ["Not so", "Quite so"]
    assert stored["outcome"]["reward"] == 1 and Feedback.objects.count() == 2


def test_the_last_word_counts(agent: Client) -> None:
    post(agent, ONE, row(name="r"))
    for status in ("success", "failure", "success"):
        tell(agent, "r", outcome={"status": status})
    assert get(agent, "r")["outcome"]["status"] == "success"


def test_feedback_may_come_before_its_run(agent: Client, project: Project) -> None:
    assert tell(agent, "a/b", outcome={"status": "failure"}, comment="No", by="ann") == {
        "id": "a/b",
        "waiting": True,
    }
    assert agent.get(f"{ONE}a/b/").status_code == 404
    post(agent, BATCH, [row(name="a/b", model="one"), row(name="c"), row(name="a/b", model="two")])
    stored = get(agent, "a/b")
    assert (stored["model"], stored["outcome"]["status"]) == ("two", "failure")
    assert [item["note"] for item in stored["interventions"]] == ["No"]
    assert get(agent, "c")["outcome"]["status"] == "unknown"


def test_what_was_read_may_be_sent_again(agent: Client) -> None:
    post(agent, ONE, row(name="r"))
    tell(agent, "r", comment="Not so")
    post(agent, ONE, get(agent, "r") | {"model": "two"})
    assert len(get(agent, "r")["interventions"]) == 1


def test_a_bulk_change_taken_back_is_not_said_any_more(agent: Client, project: Project) -> None:
    post(agent, ONE, row(name="r"))
    by, pk = admin_of(project), project.trajectories.get().pk
    change = bulk.set_outcome(project=project, ids=[pk], outcome="failure", by=by)
    post(agent, ONE, row(name="r", model="two"))
    assert get(agent, "r")["outcome"]["status"] == "failure"
    assert bulk.undo(project=project, change=change, by=by) == 1
    assert get(agent, "r")["outcome"]["status"] == "unknown"
    post(agent, ONE, row(name="r", model="three"))
    assert get(agent, "r")["outcome"]["status"] == "unknown" and not Feedback.objects.exists()


def test_deleting_a_run_deletes_what_was_said_of_it(agent: Client) -> None:
    post(agent, ONE, row(name="r"))
    tell(agent, "r", comment="Not so")
    agent.delete(f"{ONE}r/")
    assert not Feedback.objects.exists()


def test_feedback_without_a_run_is_kept_as_long_as_runs_are(
    agent: Client, project: Project
) -> None:
    post(agent, ONE, row(name="r"))
    tell(agent, "r", comment="kept with its run")
    tell(agent, "never", comment="old")
    retention.set_retention(project=project, days=10, by=admin_of(project))
    retention.enforce()
    assert Feedback.objects.count() == 2
    Feedback.objects.update(given_at=timezone.now() - timedelta(days=11))
    retention.enforce()
    assert [item.external_id for item in Feedback.objects.all()] == ["r"]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("news", "path"),
    [
        ({"outcome": {"status": "great"}}, "outcome.status"),
        ({"outcome": {"score": 1}}, "outcome.score"),
        ({"outcome": {"success": True, "status": "failure"}}, "outcome.success"),
        ({"score": 1e300}, "score"),
        ({"message_index": 10**9}, "message_index"),
        ({"coment": "x"}, "coment"),
        ({"id": "x" * 101}, "id"),
    ],
)
def test_wrong_feedback_is_400_with_the_path(agent: Client, news: dict, path: str) -> None:
    answer = agent.post(f"{ONE}r/feedback/", json.dumps(news), content_type="application/json")
    assert answer.status_code == 400 and answer.json()["path"] == path, answer.json()


def test_an_id_that_no_run_can_have_is_400(agent: Client) -> None:
    answer = agent.post(f"{ONE}{'x' * 201}/feedback/", "{}", content_type="application/json")
    assert answer.status_code == 400 and answer.json()["path"] == "id"


def test_people_say_the_outcome_on_the_page(agent: Client, project: Project) -> None:
    post(
        agent,
        ONE,
        row(name="r", outcome={"status": "failure", "reason": "timeout", "label": "slow"}),
    )
    client = Client()
    client.force_login(make_member(project, Role.ENGINEER))
    url = reverse("trajectories:feedback", args=[project.slug, project.trajectories.get().pk])
    client.post(url, {"outcome": "failure", "comment": "So it was"})
    assert get(agent, "r")["outcome"]["reason"] == "timeout"
    client.post(url, {"outcome": "success", "comment": "After all"})
    assert get(agent, "r")["outcome"] == {
        "status": "success",
        "reward": None,
        "label": "",
        "reason": "",
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", ["run", "feedback"])
def test_a_run_and_its_feedback_that_cross_find_each_other(first: str) -> None:
    """One is not committed yet when the other looks for it: the other waits."""
    project = make_project()
    begun, waiting = threading.Event(), threading.Event()
    news = News(outcome=OutcomeChange(status="failure"))

    def send(_: Any = None) -> None:
        assert not store.ingest(project=project, rows=[row(name="r")]).rejected

    def say(_: Any = None) -> None:
        feedback.receive(project=project, external_id="r", news=news)

    mine, theirs = (send, say) if first == "run" else (say, send)

    def other() -> None:
        begun.wait(300)
        try:
            theirs()
        finally:
            connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    with transaction.atomic():
        mine()
        begun.set()
        while not waiting.is_set() and thread.is_alive():
            with connection.cursor() as cursor:  # until the other one stands before our lock
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                if cursor.fetchone()[0]:
                    waiting.set()
        assert waiting.is_set(), "the other one did not wait"
    thread.join(300)
    assert Trajectory.objects.get(project=project).outcome_status == "failure"


def test_a_digest_of_what_is_known_changes_with_every_word(project: Project) -> None:
    run = make_trajectory(project, name="r")
    seen: set[str | UUID] = {run.content_digest}
    for comment in ("one", "two"):
        said = feedback.receive(project=project, external_id="r", news=News(comment=comment))
        assert said and said.content_digest not in seen
        seen.add(said.content_digest)
