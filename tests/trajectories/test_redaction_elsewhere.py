"""What is sent beside runs is redacted by the same rules: scores, names of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project
from apps.trajectories import uploads
from apps.trajectories.actions import redaction
from apps.trajectories.actions.redaction import redacted_name
from apps.trajectories.models import Medium, Score
from tests.factories import admin_of, make_key, make_trajectory

pytestmark = pytest.mark.django_db
ANN, BOB = "ann@example.com", "bob@example.com"


@pytest.fixture
def project(project: Project) -> Project:
    redaction.save_builtins(project=project, chosen={"email": False}, by=admin_of(project))
    redaction._kept.clear()
    return project


@pytest.fixture
def agent(project: Project) -> Client:
    return Client(headers={"Authorization": f"Bearer {make_key(project)}"})


def test_scores_of_a_batch_are_redacted(project: Project, agent: Client) -> None:
    run = make_trajectory(project, name=ANN)  # an id is nobody's to change
    sent = [
        {"run": ANN, "name": f"of {ANN}", "value": f"wrote to {ANN}", "source": "person"}
        | {"comment": f"asked {BOB}", "by": by}
        for by in (ANN, BOB, BOB)
    ]
    for body in (sent, sent[0]):
        answer = agent.post("/api/v1/scores/", body, content_type="application/json")
        assert answer.status_code == 200, answer.content
    rows = list(Score.objects.all())
    assert len(rows) == 2 and {row.trajectory_id for row in rows} == {run.pk}
    for row in rows:
        said = (row.name, row.text, row.comment, row.by)
        assert said == ("of [EMAIL]", "wrote to [EMAIL]", "asked [EMAIL]", "[EMAIL]")
        assert "@" not in row.key


def test_a_score_that_a_person_gives_is_redacted(project: Project, client: Client) -> None:
    run = make_trajectory(project, name="run-1")
    client.force_login(admin_of(project))
    given = {"name": "tone", "value": f"as {ANN} said", "comment": BOB}
    client.post(reverse("trajectories:score_give", args=[project.slug, run.pk]), given)
    row = Score.objects.get()
    assert (row.text, row.comment) == ("as [EMAIL] said", "[EMAIL]")
    assert row.by == admin_of(project).get_username()
    assert ANN not in str(AuditEvent.objects.get(action="score.given").__dict__)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("runs.jsonl", "runs.jsonl"),
        (f"of {ANN}.csv", "of [EMAIL].csv"),
        (f"{ANN}.tar.gz", "[EMAIL].gz"),
        (ANN, "[EMAIL]"),
        (f"{ANN} and more", "[EMAIL] and more"),
        ("", ""),
    ],
)
def test_names_of_files_are_redacted(project: Project, name: str, kept: str) -> None:
    assert redacted_name(project, name) == kept


def test_a_medium_is_stored_under_a_redacted_name(project: Project, agent: Client) -> None:
    answer = agent.post(f"/api/v1/media/?name={ANN}.txt", b"abc", content_type="text/plain")
    assert answer.status_code == 201 and answer.json()["name"] == "[EMAIL].txt"
    assert Medium.objects.get().name == "[EMAIL].txt"


def test_an_import_is_listed_under_a_redacted_name(project: Project, data_dir: Path) -> None:
    file = uploads.keep([b"{}"])
    token = {"name": f"{ANN}.jsonl", "format": "flywheel", "total": 1}
    made = uploads.submit(project=project, by=admin_of(project), file=file, token=token)
    assert made.name == "[EMAIL].jsonl"
