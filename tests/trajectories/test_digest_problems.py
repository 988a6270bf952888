"""One batch that cannot be digested stops nobody, says why, and waits for a person."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project, Role
from apps.trajectories import digest
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Arrival, HourlyCount, SearchText
from tests.factories import make_member, make_project, row

pytestmark = pytest.mark.django_db


def member_of(project: Project, role: Role = Role.ENGINEER) -> Client:
    client = Client()
    client.force_login(make_member(project, role))
    return client


def poison(project: Project) -> Arrival:
    """What two latencies of 1.7e308 in one hour left: a sum that JSON has no number for."""
    ingest(project=project, rows=[row(name="poison")])
    arrival = Arrival.objects.get(project=project)
    arrival.counts["hours"][0][-2] = None
    arrival.save()
    return arrival


def test_a_poison_batch_is_set_aside_and_the_others_go_on(project: Project) -> None:
    bad, other = poison(project), make_project()
    ingest(project=other, rows=[row(name="good")])
    ingest(project=project, rows=[row(name="later")])
    assert digest.run() == 3
    assert list(Arrival.objects.all()) == [bad]
    bad.refresh_from_db()
    assert "TypeError" in bad.problem
    assert HourlyCount.objects.get(project=other).trajectories == 1
    assert HourlyCount.objects.get(project=project).trajectories == 1, (
        "nothing of the poison batch is counted"
    )
    assert SearchText.objects.count() == 2 and digest.run() == 0


def test_trouble_of_the_database_sets_nothing_aside(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("the connection is lost")

    ingest(project=project, rows=[row()])
    with monkeypatch.context() as patched:
        patched.setattr(digest, "_add_hours", away)
        with pytest.raises(OperationalError):
            digest.run()
    assert not Arrival.objects.set_aside().exists() and digest.run() == 1


def test_more_words_than_an_index_holds_are_cut(project: Project) -> None:
    """200,000 characters of words that all differ need more than the 1 MiB of a tsvector."""
    letters = [chr(0x4E00 + number) for number in range(400)]
    words = " ".join(f"{a}{b}-{b}{a}" for a in letters for b in letters)[:200_000]
    ingest(
        project=project,
        rows=[row(name="many", request=words), row(name="few", request="harpsichord")],
    )
    with pytest.raises(OperationalError, match="too long for tsvector"), transaction.atomic():
        connection.cursor().execute("SELECT to_tsvector('simple', %s)", [words])
    assert digest.run() == 1 and not Arrival.objects.exists() and SearchText.objects.count() == 2


def test_people_see_why_and_try_again(project: Project) -> None:
    bad = poison(project)
    digest.run()
    member, viewer = member_of(project), member_of(project, Role.VIEWER)
    assert (
        b"could not be indexed"
        in viewer.get(reverse("trajectories:list", args=[project.slug])).content
    )
    shown = viewer.get(reverse("trajectories:arrivals", args=[project.slug])).content.decode()
    assert "TypeError" in shown and "<button>Retry" not in shown
    other = make_project()
    elsewhere = member_of(other).get(reverse("trajectories:arrivals", args=[other.slug]))
    assert "TypeError" not in elsewhere.content.decode()

    counts = Arrival.objects.get().counts
    counts["hours"][0][-2] = 120.5
    Arrival.objects.update(counts=counts)
    assert (
        member.post(reverse("trajectories:arrival_retry", args=[project.slug, bad.pk])).status_code
        == 302
    )
    assert digest.run() == 1 and not Arrival.objects.exists()
    assert HourlyCount.objects.get().trajectories == 1
    assert AuditEvent.objects.filter(action="arrival.retried").exists()
    assert (
        b"could not be indexed"
        not in viewer.get(reverse("trajectories:list", args=[project.slug])).content
    )


def test_people_discard_what_cannot_be_mended(project: Project) -> None:
    bad = poison(project)
    digest.run()
    stranger, member = member_of(make_project()), member_of(project)
    url = reverse("trajectories:arrival_discard", args=[project.slug, bad.pk])
    assert stranger.post(url).status_code == 404 and Arrival.objects.exists()
    assert member.post(url).status_code == 302 and not Arrival.objects.exists()
    assert project.trajectories.count() == 1
    event = AuditEvent.objects.get(action="arrival.discarded")
    assert event.detail["n"] == 1 and json.dumps(event.detail)
    assert member.post(url).status_code == 404
