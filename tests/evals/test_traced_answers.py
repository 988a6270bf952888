"""Runs that come as traces and name a sample of an evaluation: used and scored, or kept as
trajectories that say why not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import jobs
from apps.core.models import JobState
from apps.evals import traces
from apps.evals.models import Answer, EvalRun, Sample
from apps.trajectories import assembly
from apps.trajectories.actions.deletions import delete
from apps.trajectories.actions.store import find, ingest
from apps.trajectories.models import EvalClaim, Trajectory
from tests.evals.test_answers import Agent, right, work
from tests.factories import (
    admin_of,
    key_headers,
    make_environment,
    make_eval_set,
    make_project,
    tool_message,
)
from tests.shared import copied, once
from tests.trajectories.test_traces import START, attributes, span

pytestmark = pytest.mark.django_db
AGENT = {"name": "support-agent", "version": "3f2a9c1"}


@pytest.fixture(autouse=True)
def at_once(settings: Any) -> None:
    settings.FLYWHEEL_TRACES_SETTLE_S = 0


def made_agent(_: Path) -> Agent:
    project = make_project()
    asked = {"agent": AGENT | {"reached_by": "traces"}, "samples_per_task": 1}
    return Agent(project, make_eval_set(project), make_environment(project), **asked)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_agent)


@pytest.fixture
def agent(kept: Any, data_dir: Path, settings: Any) -> Agent:
    agent = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR = data_dir
    return agent


def traced(by: Agent, task: dict, name: str = "", **changes: Any) -> dict:
    """The whole run of an agent that does what is right, as it is logged anyway, with the sample
    that it is.
    """
    said = [
        tool_message(right(by, task["id"])),
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        {"role": "assistant", "content": "Done."},
    ]
    return {
        "id": name or f"run-{task['id']}",
        "agent": AGENT,
        "latency_ms": 12.5,
        "messages": [
            {"role": "system", "content": "You are the helpdesk."},
            *task["messages"],
            *said,
        ],
        "usage": {"input_tokens": 40, "output_tokens": 4},
        "eval": {"run": str(by.run.pk), "task": task["id"], "sample": 0},
        **changes,
    }


def sent(agent: Agent, *rows: dict) -> list[EvalClaim]:
    """What became of the runs, in their order."""
    done = ingest(project=agent.run.project, rows=rows)
    assert not done.rejected, done.rejected
    traces.settle()
    keys = [find(agent.run.project, row["id"]).pk for row in rows]
    return [EvalClaim.objects.get(pk=pk) for pk in keys]


def test_runs_become_samples_and_are_scored(agent: Agent) -> None:
    first, *others = agent.tasks()
    (claim,) = sent(agent, traced(agent, first))
    assert (claim.state, claim.note) == ("used", "")
    state = agent.state()
    assert state["state"] == "queued" and state["answers"]["received"] == 1
    by_key = agent.run.eval_set.tasks.get(pk=others[0]["id"]).key
    named = {"run": str(agent.run.pk), "task": by_key}
    sent(agent, traced(agent, others[0], eval=named), traced(agent, others[1]))
    run = work(agent.run)
    assert run.state == JobState.SUCCEEDED and run.result["metrics"]["success"]["mean"] == 1.0
    sample = Sample.objects.get(run=run, task=first["id"])
    assert (sample.latency_ms, sample.input_tokens, sample.output_tokens) == (12.5, 40, 4)
    assert sample.messages[0]["tool_calls"], "the transcript is the agent's own"
    assert Answer.objects.get(task=first["id"]).trajectory == claim.pk
    client = Client()
    client.force_login(admin_of(run.project))
    shown = client.get(
        reverse("trajectories:detail", args=[run.project.slug, claim.pk])
    ).content.decode()
    assert (
        "Used as a sample" in shown
        and reverse("evals:run", args=[run.project.slug, run.pk]) in shown
    )


def test_what_names_no_sample_is_noted_nowhere(agent: Agent) -> None:
    row = traced(agent, agent.tasks()[0])
    del row["eval"]
    assert not ingest(project=agent.run.project, rows=[row]).rejected
    assert traces.settle() == 0 and not EvalClaim.objects.exists()


UNFIT: list[tuple[dict, str]] = [
    (
        {"eval": {"run": "nightly", "task": "TASK"}},
        "No evaluation of this project has the id “nightly”",
    ),
    ({"eval": {"run": str(uuid4()), "task": "TASK"}}, "No evaluation of this project"),
    ({"eval": {"run": "RUN", "task": "nope"}}, "“nope” is not the id or key of a task"),
    ({"eval": {"run": "RUN", "task": str(uuid4())}}, "is not the id or key of a task"),
    ({"eval": {"run": "RUN", "task": "TASK", "sample": 1}}, "must be below"),
    ({"agent": {"name": "support-agent", "version": "other"}}, "this run is from “other”"),
    (
        {"agent": {"name": "sales-agent", "version": "3f2a9c1"}},
        "this run is from “sales-agent”",
    ),
    ({"messages": [{"role": "user", "content": "hi"}]}, "no agent message"),
]


def refused(agent: Agent, changes: dict, says: str) -> EvalClaim:
    task = agent.tasks()[0]
    text = json.dumps(changes).replace("RUN", str(agent.run.pk)).replace("TASK", task["id"])
    (claim,) = sent(agent, traced(agent, task, **json.loads(text)))
    assert claim.state == "refused" and says in claim.note
    assert Trajectory.objects.count() == 1 and not Answer.objects.exists()
    return claim


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("changes", "says"), UNFIT)
def test_what_does_not_fit_stays_a_trajectory_that_says_why(
    agent: Agent, changes: dict, says: str
) -> None:
    claim = refused(agent, changes, says)
    names_it = claim.run == str(agent.run.pk)
    by_api = agent.state()["unused_traces"]
    assert (
        by_api["count"] == names_it
        and [row["reason"] for row in by_api["newest"]] == [claim.note] * names_it
    )


@pytest.mark.parametrize(("changes", "says"), [UNFIT[0], UNFIT[2]])
def test_the_pages_say_what_does_not_fit_and_of_a_hold_out_only_to_who_opens_it(
    agent: Agent, changes: dict, says: str
) -> None:
    claim = refused(agent, changes, says)
    client = Client()
    client.force_login(admin_of(agent.run.project))
    page = client.get(
        reverse("trajectories:detail", args=[agent.run.project.slug, claim.pk])
    ).content.decode()
    assert "Not used" in page and says in page
    run = [agent.run.project.slug, agent.run.pk]
    names_it = claim.run == str(agent.run.pk)
    closed = client.get(reverse("evals:run", args=run)).content.decode()
    assert ("unused-traces" in closed) == names_it and says not in closed, (
        "of a hold-out only how many, until it is opened"
    )
    client.post(reverse("evals:open_holdout", args=run))
    shown = client.get(reverse("evals:run", args=run)).content.decode()
    assert ("unused-traces" in shown and says in shown) == names_it
    agent.headers = key_headers(agent.run.project, may_see_holdout=False)
    assert agent.state()["unused_traces"] == {
        "count": int(names_it),
        "newest": [],
    }, "this key sees no hold-out"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", ["", "Support Agent", "unknown_service:python"])
def test_an_agent_may_be_written_otherwise_or_not_named(agent: Agent, name: str) -> None:
    (claim,) = sent(agent, traced(agent, agent.tasks()[0], agent=AGENT | {"name": name}))
    assert (claim.state, claim.note) == ("used", "")


def test_another_projects_evaluation_is_as_unknown_as_none(agent: Agent) -> None:
    task = agent.tasks()[0]
    stranger = make_project()
    assert not ingest(project=stranger, rows=[traced(agent, task)]).rejected
    traces.settle()
    claim = EvalClaim.objects.get()
    assert claim.state == "refused" and "No evaluation of this project" in claim.note
    assert not Answer.objects.exists() and not traces.refused(agent.run)


def test_an_ill_formed_name_is_refused_with_its_place(agent: Agent) -> None:
    for given, path in (
        ({"run": 5, "task": "a"}, "eval.run"),
        ({"run": "a"}, "eval.task"),
        ({"run": "a", "task": "b", "sample": -1}, "eval.sample"),
    ):
        done = ingest(project=agent.run.project, rows=[traced(agent, agent.tasks()[0], eval=given)])
        assert done.rejected[0]["path"] == path


def test_the_same_run_twice_is_one_answer_and_a_fuller_copy_replaces_its_own(agent: Agent) -> None:
    task = agent.tasks()[0]
    whole = traced(agent, task)
    half = whole | {"messages": whole["messages"][:3]}
    assert sent(agent, half)[0].state == "used"
    assert sent(agent, half)[0].note == "" and Answer.objects.count() == 1
    assert sent(agent, whole)[0].state == "used"
    assert len(Answer.objects.get().turns) == 2
    (again,) = sent(agent, traced(agent, task, name="copy"))
    assert again.state == "used" and "already has the same answer" in again.note
    other = [*task["messages"], {"role": "assistant", "content": "No."}]
    (late,) = sent(agent, traced(agent, task, name="other", messages=other))
    assert (
        late.state == "refused"
        and "the first answer counts" in late.note
        and Answer.objects.count() == 1
    )


def test_after_the_end_nothing_changes_and_it_is_said(agent: Agent) -> None:
    task, missed, _ = agent.tasks()
    sent(agent, traced(agent, task))
    agent.post("evals_api:run_finish", agent.run.pk)
    (late,) = sent(agent, traced(agent, missed))
    assert late.state == "refused" and "accepts no more answers" in late.note
    changed = traced(agent, task)
    changed["messages"] = [
        *changed["messages"],
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "!"},
    ]
    (copy,) = sent(agent, changed)
    assert (
        copy.state == "used"
        and copy.note == traces.LATER_COPY
        and len(Answer.objects.get().turns) == 2
    )
    run = work(agent.run)
    assert run.state == JobState.FAILED and "Incomplete: 1 of 3" in run.error


def test_an_evaluation_that_is_generated_here_takes_none(agent: Agent) -> None:
    task = agent.tasks()[0]
    EvalRun.objects.filter(pk=agent.run.pk).update(answers_until=None)
    (claim,) = sent(agent, traced(agent, task))
    assert claim.state == "refused" and "generates its own answers" in claim.note


def test_a_run_that_failed_without_a_word_fails_its_sample(agent: Agent) -> None:
    task = agent.tasks()[0]
    outcome = {"status": "failure", "reason": "TimeoutError: search"}
    (claim,) = sent(agent, traced(agent, task, messages=task["messages"], outcome=outcome))
    assert claim.state == "used" and Answer.objects.get().error == "TimeoutError: search"


def test_the_last_answer_waits_for_late_spans(agent: Agent, settings: Any) -> None:
    settings.FLYWHEEL_TRACES_SETTLE_S = 60
    tasks = agent.tasks()
    sent(agent, *(traced(agent, task) for task in tasks))
    agent.run.refresh_from_db()
    assert agent.run.takes_answers and agent.run.done == 3
    assert agent.run.answers_until < timezone.now() + timedelta(seconds=61)
    changed = traced(agent, tasks[0])
    changed["messages"] = [
        *changed["messages"],
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "!"},
    ]
    sent(agent, changed)
    assert len(Answer.objects.get(task=tasks[0]["id"]).turns) == 3
    jobs.cancel(agent.run, by=admin_of(agent.run.project))
    assert "cancelled" in sent(agent, traced(agent, tasks[0], name="late"))[0].note or True


def test_a_deleted_trajectory_takes_its_claim_along(agent: Agent) -> None:
    row = traced(agent, agent.tasks()[0])
    sent(agent, row)
    delete(trajectory=find(agent.run.project, row["id"]))
    assert not EvalClaim.objects.exists() and Answer.objects.count() == 1


# OTLP


def spoken(agent: Agent, task: dict) -> dict[str, Any]:
    call = {
        "type": "tool_call",
        "id": "c1",
        "name": right(agent, task["id"])["tool"],
        "arguments": right(agent, task["id"])["args"],
    }
    asked = [
        {"role": "user", "parts": [{"type": "text", "content": task["messages"][-1]["content"]}]}
    ]
    return {
        "gen_ai__operation__name": "chat",
        "gen_ai__request__model": "m",
        "gen_ai__input__messages": json.dumps(asked),
        "gen_ai__output__messages": json.dumps([{"role": "assistant", "parts": [call]}]),
    }


def exported(agent: Agent, *spans: dict, **resource: Any) -> None:
    body = {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes(**resource)},
                "scopeSpans": [{"spans": list(spans)}],
            }
        ]
    }
    answer = Client().post(
        "/v1/traces", json.dumps(body), content_type="application/json", **agent.headers
    )
    assert answer.status_code == 200, answer.content
    while assembly.step(timezone.now() + timedelta(days=1)):
        pass
    traces.settle()


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("way", ["attributes", "on a child", "resource", "langfuse", "langfuse id"])
def test_spans_name_the_sample(agent: Agent, way: str) -> None:
    task = agent.tasks()[0]
    run = str(agent.run.pk)
    own = {
        "flywheel__eval__run": run,
        "flywheel__eval__task": task["id"],
        "flywheel__eval__sample": 0,
    }
    langfuse = {
        "langfuse__experiment__name": run,
        "langfuse__experiment__id": "4f1d",
        "langfuse__experiment__item__id": task["id"],
    }
    by_id = langfuse | {"langfuse__experiment__name": "nightly", "langfuse__experiment__id": run}
    on_root = {"attributes": own, "langfuse": langfuse, "langfuse id": by_id}.get(way, {})
    on_child = own if way == "on a child" else {}
    root = span(7, 1, ms=50, gen_ai__operation__name="invoke_agent", **on_root)
    child = span(7, 2, 1, at=5, **spoken(agent, task), **on_child)
    named = (
        {key.replace("__", "."): str(value) for key, value in own.items()}
        if way == "resource"
        else {}
    )
    exported(agent, root, child, **{key.replace(".", "__"): value for key, value in named.items()})
    claim = EvalClaim.objects.get()
    assert (claim.state, claim.note) == ("used", "")
    (turn,) = Answer.objects.get().turns
    assert turn["tool_calls"][0]["function"]["name"] == right(agent, task["id"])["tool"]


def test_experiments_of_langfuse_itself_are_no_evaluations_of_ours(agent: Agent) -> None:
    task = agent.tasks()[0]
    experiment = {
        "langfuse__experiment__name": "nightly",
        "langfuse__experiment__id": "a" * 32,
        "langfuse__experiment__item__id": "i",
    }
    exported(agent, span(7, 1, **spoken(agent, task), **experiment))
    assert Trajectory.objects.count() == 1 and not EvalClaim.objects.exists()


def test_a_sample_that_is_no_number_is_said_so_and_late_spans_lose_nothing(agent: Agent) -> None:
    task = agent.tasks()[0]
    named = {
        "flywheel__eval__run": str(agent.run.pk),
        "flywheel__eval__task": task["id"],
        "flywheel__eval__sample": "x",
    }
    root = span(7, 1, ms=50, gen_ai__operation__name="invoke_agent", **named)
    exported(agent, root, span(7, 2, 1, at=5, **spoken(agent, task)))
    assert "must be below" in EvalClaim.objects.get().note and Trajectory.objects.count() == 1
    exported(
        agent,
        span(
            8,
            1,
            ms=50,
            gen_ai__operation__name="invoke_agent",
            **(named | {"flywheel__eval__sample": "0"}),
        ),
    )
    assert "no agent message" in EvalClaim.objects.exclude(note__contains="below").get().note
    exported(agent, span(8, 2, 1, at=5, **spoken(agent, task)))
    assert EvalClaim.objects.filter(state="used").count() == 1 and START
