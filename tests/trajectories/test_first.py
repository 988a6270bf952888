"""The page that waits for the first trajectory, and the checklist of a new project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project, Role
from apps.dashboard.checklist import Item, checklist
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure, PolicyRule, ReplyForm, Rubric
from apps.trajectories import digest
from apps.trajectories.models import Upload
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_key,
    make_member,
    make_project,
    make_trajectory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def project(client: Client) -> Project:
    made = make_project()
    client.force_login(admin_of(made))
    return made


def shown(client: Client, project: Project, name: str = "first") -> Any:
    return client.get(
        reverse(f"trajectories:{name}", args=[project.slug]), headers={"HX-Request": "true"}
    )


def test_it_waits_until_one_is_there_and_then_says_so(client: Client, project: Project) -> None:
    make_trajectory(make_project())  # somebody else's
    html = shown(client, project).content.decode()
    assert (
        "Waiting for the first trajectory" in html
        and reverse("trajectories:first_status", args=[project.slug]) in html
    )
    assert "HX-Refresh" not in shown(client, project, "first_status").headers
    make_trajectory(project, session_id="<b>s1</b>")
    assert shown(client, project, "first_status").headers["HX-Refresh"] == "true"
    html = shown(client, project).content.decode()
    assert (
        "&lt;b&gt;s1&lt;/b&gt;" in html
        and "hx-trigger" not in html.split('id="first"')[1].split(">")[0]
    )


def test_it_says_what_arrived_and_what_is_missing(client: Client, project: Project) -> None:
    make_trajectory(project, call={"tool": "tickets.close", "args": {"id": 1}})
    parts = {part.name: part for part in shown(client, project).context["parts"]}
    assert {name for name, part in parts.items() if not part.arrived} == {
        "Outcome",
        "Model",
        "Cost",
        "Session",
    }
    assert parts["Tool calls"].value == "1, 1 with a result" and parts["Tokens"].value == "120"
    assert "outcome.status" in parts["Outcome"].todo
    make_trajectory(project, agent={}, tools=[], usage={}, latency_ms=None)
    assert {part.name for part in shown(client, project).context["parts"] if part.arrived} == {
        "Messages",
        "Text",
    }


def test_what_is_missing_is_said_in_the_words_of_the_way_it_was_sent(
    client: Client, project: Project
) -> None:
    make_trajectory(project)
    by_spans = {"source": "otlp", "scope": ["acme 1"], "format": "acme"}
    make_trajectory(project, metadata=by_spans, usage={})
    endpoint = by_spans | {"scope": ["flywheel.endpoint 1"]}
    make_trajectory(project, metadata=endpoint)
    of_file = make_trajectory(project, usage={})
    upload = Upload.objects.create(project=project, name="a.csv", format="mapped", size=1)
    upload.trajectories.create(trajectory_id=of_file.pk)
    sources = shown(client, project).context["sources"]
    todo = {source.name: {part.name: part.todo for part in source.parts} for source in sources}
    assert list(todo) == ["Import: mapped", "flywheel.endpoint 1", "acme 1", "REST"]
    assert "Map the columns" in todo["Import: mapped"]["Tokens"]
    assert "gen_ai.usage.input_tokens" in todo["acme 1"]["Tokens"]
    assert "gen_ai.conversation.id" in todo["acme 1"]["Session"]
    assert "X-Session-Id" in todo["flywheel.endpoint 1"]["Session"]
    assert "session_id" in todo["REST"]["Session"] and "gen_ai" not in str(todo["REST"])


def test_it_says_which_keys_were_used_and_how_content_is_turned_on(
    client: Client, project: Project
) -> None:
    make_key(project)
    assert "never used" in " ".join(shown(client, project).content.decode().split())
    project.api_keys.update(last_used_at=timezone.now())
    html = shown(client, project).content.decode()
    assert "last used" in html and "never used" not in html and "Bearer%20" in html
    project.api_keys.update(scopes=["read"])
    assert "Keys with the scope “ingest”" not in shown(client, project).content.decode()
    make_trajectory(
        project,
        messages=[{"role": "user", "content": None}],
        metadata={"content_captured": False, "format": "traceloop"},
    )
    assert "TRACELOOP_TRACE_CONTENT" in shown(client, project).content.decode()


def done(project: Project) -> list[str]:
    return [item.title for item in checklist(project) if item.done]


@pytest.mark.proof
def test_the_checklist_follows_the_project(
    client: Client, project: Project, data_dir: Path
) -> None:
    assert done(project) == [] and len(checklist(project)) == 10
    home = client.get(reverse("dashboard:home", args=[project.slug])).content.decode()
    assert "Get started" in home and "workplace" not in home.lower()
    make_key(project)
    make_failed(project)
    digest.run()
    classify_project(project=project)
    assert done(project) == ["Create an API key", "Send the first trajectory", "Report outcomes"]
    Failure.objects.filter(project=project).update(state="confirmed", decided_by=admin_of(project))
    environment, base, frozen = (
        make_environment(project),
        make_base(project, data_dir),
        make_eval_set(project),
    )
    assert len(done(project)) == 7
    make_eval_run(frozen, base, environment)
    assert checklist(project) == []
    assert (
        "Get started"
        not in client.get(reverse("dashboard:home", args=[project.slug])).content.decode()
    )


def test_a_step_that_a_role_may_not_do_is_no_link(client: Client, project: Project) -> None:
    client.force_login(make_member(project, Role.VIEWER))
    html = (
        client.get(reverse("dashboard:home", args=[project.slug]))
        .content.decode()
        .split('id="get-started"')[1]
        .split("</ol>")[0]
    )
    assert (
        reverse("core:keys", args=[project.slug]) not in html and "Needs the role operator." in html
    )
    assert reverse("trajectories:first", args=[project.slug]) in html


def test_the_checklist_leads_to_what_waits_to_be_confirmed(
    project: Project, client: Client
) -> None:
    def item() -> Item:
        return next(item for item in checklist(project) if item.title.startswith("Confirm"))

    Rubric.objects.create(project=project, version=1, is_on=True, base_url="http://j/v1", model="j")
    assert not item().done
    made = {"project": project, "tool": "t", "kind": "text", "read_at": timezone.now()}
    form = ReplyForm.objects.create(digest="a", structure="E-417", state="proposed", **made)
    assert (item().title, item().page, item().query, item().done) == (
        "Confirm 1 form of tool replies",
        "failures:replies",
        "?state=proposed",
        False,
    )
    home = client.get(reverse("dashboard:home", args=[project.slug])).content.decode()
    assert reverse("failures:replies", args=[project.slug]) + "?state=proposed" in home
    PolicyRule.objects.create(project=project, sentence="Ask first.")
    assert (item().title, item().page) == (
        "Confirm 1 policy rule and 1 form of tool replies",
        "failures:policy",
    )
    project.policy_rules.all().delete()
    ReplyForm.objects.filter(pk=form.pk).update(state="dismissed", decided_at=timezone.now())
    assert item().done
