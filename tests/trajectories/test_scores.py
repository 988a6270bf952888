"""Scores of runs and steps: sent, come with runs, given by people; filtered, charted, exported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project, Role
from apps.trajectories import digest, score_rows
from apps.trajectories.actions import deletions, scores, store
from apps.trajectories.importers import langfuse
from apps.trajectories.models import Score, Step, Trajectory
from apps.trajectories.otlp import Event, assemble
from apps.trajectories.score_rows import names_of
from apps.trajectories.scores import of_metadata
from tests.factories import make_member, row
from tests.trajectories.test_steps import agent_spans, ingest

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(project: Project) -> Project:
    """Runs of two versions, each with two steps."""
    for version in "12":
        for n in range(4):
            call = {"tool": "search", "args": {"n": n}}
            agent = {"name": "clerk", "version": version}
            ingest(project, row(f"run-{version}-{n}", agent=agent, call=call))
    return project


def send(agent: Client, body: Any, expect: int = 200) -> dict[str, Any]:
    answer = agent.post("/api/v1/scores/", json.dumps(body), content_type="application/json")
    assert answer.status_code == expect, answer.content
    return answer.json()


def listed(agent: Client, query: str, what: str = "scores") -> list[dict[str, Any]]:
    answer = agent.get(f"/api/v1/{what}/{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()["results"]


def helpful(runs: Project, agent: Client) -> None:
    """Version 2 is more helpful than version 1; each number is the run's."""
    send(
        agent,
        [
            {"run": f"run-{version}-{n}", "name": "helpful", "value": int(version) + n / 10}
            for version in "12"
            for n in range(4)
        ],
    )


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (0.5, "number", 0.5),
        (3, "number", 3),
        (True, "yes_no", True),
        (False, "yes_no", False),
        ("billing", "category", "billing"),
        ("It was\nrude.", "text", "It was\nrude."),
    ],
)
def test_every_kind_of_value(
    runs: Project, agent: Client, value: Any, kind: str, stored: Any
) -> None:
    assert send(agent, {"run": "run-1-0", "name": "a", "value": value})["accepted"] == 1
    (one,) = listed(agent, "?run=run-1-0")
    assert (one["kind"], one["value"], one["source"], one["waiting"]) == (
        kind,
        stored,
        "code",
        False,
    )


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"run": "a", "name": "n"}, "value"),
        ({"run": "a", "name": "", "value": 1}, "name"),
        ({"run": "a", "name": "n", "value": None}, "value"),
        ({"run": "a", "name": "n", "value": 1, "score": 2}, "score"),
        ({"run": "a", "name": "n", "value": "maybe", "kind": "yes_no"}, "yes or no"),
        ({"run": "a", "name": "n", "value": 1e300}, "at most"),
        ([{"run": "a", "name": "n", "value": 1}, {"run": "a", "name": "n"}], "[1]"),
        ([{"run": "a", "name": "n", "value": v} for v in (1, 1e300)], "[1].value"),
        ([{"run": "a", "name": "n", "value": 1}] * 1001, "1,001 scores"),
    ],
)
def test_what_is_no_score_is_refused(agent: Client, body: Any, says: str) -> None:
    assert says in str(send(agent, body, expect=400)) and not Score.objects.exists()


def test_a_score_of_the_same_source_is_replaced(runs: Project, agent: Client) -> None:
    for value, more in (
        (1, {}),
        (2, {}),
        (3, {"by": "other"}),
        (4, {"id": "x"}),
        (5, {"id": "x"}),
        (6, {"step": "2.0"}),
    ):
        send(agent, {"run": "run-1-0", "name": "a", "value": value} | more)
    assert sorted(one["value"] for one in listed(agent, "")) == [2, 3, 5, 6]


def test_a_score_may_come_before_its_run_and_goes_with_it(project: Project, agent: Client) -> None:
    assert send(agent, {"run": "late", "name": "a", "value": 1})["waiting"] == 1
    assert listed(agent, "")[0]["waiting"]
    ingest(project, row("late"))
    assert not listed(agent, "")[0]["waiting"]
    assert listed(agent, "?score=a&score_value_min=1", "trajectories")[0]["id"] == "late"
    deletions.purge(project, list(Trajectory.objects.all()))
    assert not Score.objects.exists()
    assert send(agent, {"run": "late", "name": "a", "value": 1})["deleted"] == 1
    assert not Score.objects.exists()


def test_runs_and_steps_are_filtered_by_their_scores(runs: Project, agent: Client) -> None:
    helpful(runs, agent)
    step = Step.objects.filter(kind="tool").first()
    run = Trajectory.objects.get(pk=step.trajectory_id).external_id
    send(agent, {"run": run, "step": step.key, "name": "right tool", "value": False})

    def of(query: str, what: str = "trajectories") -> set[str]:
        return {one.get("id") or one["run"] for one in listed(agent, query, what)}

    assert of("?score=helpful&score_value_min=2.2") == {"run-2-2", "run-2-3"}
    assert of("?score=right+tool") == set()
    assert of("?score=right+tool&score_is=no", "steps") == {run}
    assert len(listed(agent, "?score=right+tool&score_is=no", "steps")) == 1
    assert of("?score=right+tool&score_is=yes", "steps") == set()
    assert of("?score=helpful", "steps") == set()
    refused = agent.get("/api/v1/steps/?score_min=2")
    assert refused.status_code == 400 and "score_min" in str(refused.json())


@pytest.mark.proof
def test_figures_and_files(runs: Project, agent: Client, client: Client) -> None:
    helpful(runs, agent)
    groups = agent.get("/api/v1/scores/metrics/?by=agent_version").json()["groups"]
    assert [(one["value"], round(one["mean"], 3), one["scores"]) for one in groups] == [
        ("1", 1.15, 4),
        ("2", 2.15, 4),
    ]
    assert groups[0]["low"] < 1.15 < groups[0]["high"]
    lines = b"".join(agent.get("/api/v1/scores/export/?score_value_min=2").streaming_content)
    assert len(lines.splitlines()) == 4 and json.loads(lines.splitlines()[0])["name"] == "helpful"
    client.force_login(make_member(runs))
    chart = client.get(reverse("trajectories:scores_chart", args=[runs.slug]))
    assert "Mean score by version" in chart.content.decode()
    send(agent, {"run": "run-1-0", "name": "cents", "value": 900})
    for by, axis in (("agent_version", "x"), ("day", "y")):
        figures = score_rows.figures(score_rows.ask(runs, {"by": by}))
        drawn = {figure["layout"]["title"]["text"]: figure for _, figure in figures}
        assert drawn["cents"]["data"][0][axis] == [900]  # with an axis of its own
        assert max(drawn["helpful"]["data"][0][axis]) < 3
    page = client.get(reverse("trajectories:scores", args=[runs.slug]) + "?score_value_min=2.3")
    assert b"run-2-3" in page.content and b"run-2-2" not in page.content


def test_a_key_cannot_change_what_a_person_said(
    runs: Project, agent: Client, client: Client
) -> None:
    run = Trajectory.objects.get(external_id="run-1-0")
    person = make_member(runs, Role.REVIEWER)
    client.force_login(person)
    client.post(
        reverse("trajectories:score_give", args=[runs.slug, run.pk]),
        {"name": "tone", "value": "yes"},
    )
    ours = Score.objects.get()
    as_person = {"run": "run-1-0", "name": "tone", "value": False, "source": "person"}
    send(agent, as_person | {"by": person.username})
    send(agent, as_person | {"by": person.username, "id": ours.key})
    ours.refresh_from_db()
    assert ours.value == 1 and Score.objects.filter(name="tone", value=0).count() == 2


def test_a_person_scores_a_run(runs: Project, client: Client) -> None:
    run = Trajectory.objects.get(external_id="run-1-0")
    address = reverse("trajectories:score_give", args=[runs.slug, run.pk])
    client.force_login(make_member(runs, Role.VIEWER))
    assert client.post(address, {"name": "tone", "value": "4"}).status_code == 403
    person = make_member(runs, Role.REVIEWER)
    client.force_login(person)
    for value in ("yes", "4"):
        client.post(address, {"name": "tone", "value": value, "comment": "Polite."})
    score = Score.objects.get()
    assert (score.value, score.kind, score.by, score.source) == (
        4,
        "number",
        person.username,
        "person",
    )
    assert AuditEvent.objects.filter(action="score.given").count() == 2
    page = client.get(run.get_absolute_url()).content.decode()
    assert "tone" in page and "Polite." in page


def test_a_person_scores_a_step(runs: Project, client: Client) -> None:
    step = Step.objects.filter(kind="tool").first()
    run = Trajectory.objects.get(pk=step.trajectory_id)
    address = reverse("trajectories:score_give", args=[runs.slug, run.pk])
    client.force_login(make_member(runs, Role.REVIEWER))
    offered = client.get(run.get_absolute_url()).context["score_form"].fields["step"].choices
    assert offered[0] == ("", "The whole run") and step.key in dict(offered)
    client.post(address, {"name": "right tool", "value": "no", "step": "of no run"})
    assert not Score.objects.exists()
    client.post(address, {"name": "right tool", "value": "no", "step": step.key})
    assert Score.objects.get().step == step.key
    page = client.get(run.get_absolute_url())
    assert [name for _, name in page.context["scores"]] == [step.name]


# That come with their runs


def test_evaluation_events_of_spans_are_scores_of_their_steps(project: Project) -> None:
    spans = agent_spans()
    spans[1].events = [
        Event(
            "gen_ai.evaluation.result",
            attributes={
                "gen_ai.evaluation.name": "Relevance",
                "gen_ai.evaluation.score.value": 0.25,
                "gen_ai.evaluation.score.label": "off topic",
                "gen_ai.evaluation.explanation": "Beside the point.",
            },
        ),
        Event(
            "gen_ai.evaluation.result",
            attributes={
                "gen_ai.evaluation.name": "Verdict",
                "gen_ai.evaluation.score.label": "fail",
            },
        ),
    ]
    (run,) = assemble(spans, [])
    store.ingest(project=project, rows=[run.row])
    digest.run()
    kept = {score.name: score for score in Score.objects.all()}
    assert kept["Relevance"].value == 0.25 and kept["Relevance"].comment == "Beside the point."
    assert kept["Verdict"].text == "fail" and kept["Verdict"].source == "otlp"
    assert kept["Relevance"].said == "0.25 (off topic)"
    shown = score_rows.as_json(kept["Relevance"])
    assert (shown["kind"], shown["value"], shown["label"]) == ("number", 0.25, "off topic")
    step = Step.objects.get(key=kept["Relevance"].step)
    assert step.kind == "model" and step.trajectory_id == kept["Relevance"].trajectory_id
    run.row["metadata"]["evaluations"][0]["score.value"] = 0.5
    store.ingest(project=project, rows=[run.row])
    digest.run()
    assert Score.objects.get(name="Relevance").value == 0.5 and Score.objects.count() == 2


def test_scores_of_langfuse(project: Project) -> None:
    trace = {
        "id": "t",
        "input": "Hello",
        "output": "Hi",
        "scores": [
            {"name": "tone", "value": 0.7, "source": "EVAL", "dataType": "NUMERIC"},
            {"name": "kind", "stringValue": "billing", "dataType": "CATEGORICAL"},
            {"name": "ok", "value": 1, "stringValue": "True", "dataType": "BOOLEAN"},
        ],
    }
    ingest(project, langfuse._trace(trace))
    found = {(one.name, one.kind, one.said) for one in Score.objects.all()}
    assert found == {
        ("tone", "number", "0.7"),
        ("kind", "category", "billing"),
        ("ok", "yes_no", "yes"),
    }


@pytest.mark.parametrize("source", ["langfuse", "langsmith", "promptfoo", "openai-evals"])
def test_imported_scores_are_scores(source: str) -> None:
    (score,) = of_metadata({"source": source, "scores": [{"name": "tone", "value": 0.7}]})
    assert (score.name, score.value.value, score.source) == ("tone", 0.7, "import")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"source": "otlp", "evaluations": {"a": 1}},
        {"source": "otlp", "evaluations": [3, {"name": 4}, {"name": "a", "score.value": 10**400}]},
        {"source": "langfuse", "scores": [{"name": "a", "value": [1]}, {"name": "", "value": 1}]},
        {"source": "rest", "scores": [{"name": "a", "value": 1}]},
    ],
)
def test_any_metadata_is_tolerated(metadata: Any) -> None:
    assert of_metadata(metadata) == []


@pytest.mark.proof
def test_scores_move_with_their_spans(runs: Project, agent: Client) -> None:
    for name, value in (("run-1-0", 1), ("run-1-1", 2)):
        send(agent, {"run": name, "name": "a", "value": value})
    send(agent, {"run": "run-1-0", "name": "b", "value": 3})
    scores.move(runs, {"run-1-0": "run-1-1"})
    left = {(one.external_id, one.name, one.value) for one in Score.objects.all()}
    assert left == {("run-1-1", "a", 2), ("run-1-1", "b", 3)}


@pytest.mark.proof
def test_scores_are_columns_of_the_list(runs: Project, agent: Client, client: Client) -> None:
    helpful(runs, agent)
    send(agent, {"run": "run-1-0", "name": "tone", "value": "calm"})
    send(agent, {"run": "run-1-0", "name": "of a, b", "value": 1})
    assert names_of(runs, 9) == ["helpful", "of a, b", "tone"] and names_of(runs, 1) == ["helpful"]
    client.force_login(make_member(runs))
    address = reverse("trajectories:list", args=[runs.slug])
    page = client.get(f"{address}?cols=version,score.helpful,score.tone,score.none").context
    assert [column.title for column in page["columns"]] == ["Version", "helpful", "tone"]
    cells = {row.external_id: [cell for _, cell in cells] for row, cells in page["table"]}
    assert cells["run-1-0"] == ["1", "1", "calm"] and cells["run-2-3"] == ["2", "2.3", ""]


@pytest.mark.proof
def test_a_name_of_two_kinds_is_two_scores(runs: Project, agent: Client) -> None:
    for value in (True, True, False, 40, 60, "good"):
        send(agent, {"run": "run-1-0", "name": "ok", "value": value, "id": str(value)})
    send(agent, {"run": "run-1-0", "name": "ok", "value": True, "id": "again"})
    groups = agent.get("/api/v1/scores/metrics/?by=source").json()["groups"]
    assert [(one["kind"], one["scores"], one["mean"]) for one in groups] == [
        ("category", 1, None),
        ("number", 2, 50.0),
        ("yes_no", 3, pytest.approx(2 / 3)),
    ]
    figures = score_rows.figures(score_rows.ask(runs, {"by": "source"}))
    titles = [figure["layout"]["title"]["text"] for _, figure in figures]
    assert titles == ["ok (number)", "ok (yes or no)"]
    assert score_rows.whole(runs, {"name": "ok"}).scores == 3


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("value", "text"), [(True, "yes"), (3, "3"), (0.25, "0.25"), ("a", "a")])
def test_a_category_of_another_type_is_written_as_people_do(
    runs: Project, agent: Client, value: Any, text: str
) -> None:
    send(agent, {"run": "run-1-0", "name": "a", "value": value, "kind": "category"})
    assert [one["value"] for one in listed(agent, "?run=run-1-0")] == [text]


@pytest.mark.proof
def test_of_more_scores_than_are_read_each_is_counted_once(
    runs: Project, agent: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        send(agent, {"run": "run-1-0", "name": "a", "value": n, "id": str(n)})
    for newest, n, mean in ((3, 3, 3.0), (4, 4, 2.5), (5, 5, 2.0)):
        monkeypatch.setattr(score_rows, "NEWEST", newest)
        answer = score_rows.ask(runs, {"by": "source"})
        assert [(group.scores, group.mean) for group in answer.groups] == [(n, mean)]
        assert answer.scores == n and answer.more == (newest < 5)
