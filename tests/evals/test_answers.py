"""An agent that answers elsewhere: its tasks, its answers, and their scores, against clients that
mean no good.
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

from apps.core import jobs, runner
from apps.core.models import JobState
from apps.evals.answers import MOST_BYTES
from apps.evals.models import Answer, EvalRun, HoldoutView, Sample
from apps.promotion.actions import PromotionError, make_gate_report, set_initial
from apps.promotion.policies import channel_of
from tests.evals.test_runs_api import Api
from tests.factories import admin_of, make_environment, make_eval_set, make_project
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
LINES = "application/x-ndjson"


class Agent(Api):
    """An agent in CI, with its evaluation."""

    def __init__(
        self, project: Any, eval_set: Any, environment: Any, version: str = "3f2a9c1", **given: Any
    ) -> None:
        super().__init__(project)
        self.version = version
        self.asked = {
            "eval_set": str(eval_set),
            "environment": str(environment),
            "samples_per_task": 2,
            "agent": {"name": "support-agent", "version": version},
            **given,
        }
        self.started = self.post("evals_api:runs", body=self.asked)
        self.run = EvalRun.objects.get(pk=self.started.json()["id"])

    def tasks(self, **query: Any) -> list[dict]:
        found, cursor = [], "0"
        while cursor is not None:
            page = self.get("evals_api:run_tasks", self.run.pk, cursor=cursor, **query).json()
            found, cursor = found + page["results"], page["next"]
        return found

    def send(self, rows: list[Any] | bytes, version: str | None = None, lines: bool = True) -> Any:
        url = (
            reverse("evals_api:run_samples", args=[self.run.pk])
            + f"?agent_version={version or self.version}"
        )
        body = (
            rows
            if isinstance(rows, bytes)
            else b"\n".join(json.dumps(row).encode() for row in rows)
        )
        return Client().post(
            url, body, content_type=LINES if lines else "application/json", **self.headers
        )

    def rows(self, **changes: Any) -> list[dict]:
        return [
            {"task": task["id"], "index": index, "output": "no"} | changes
            for task in self.tasks()
            for index in task["missing"]
        ]

    def state(self, **query: Any) -> dict:
        return self.get("evals_api:run", self.run.pk, **query).json()


def work(run: EvalRun) -> EvalRun:
    """What a worker does with it."""
    run.refresh_from_db()
    runner.run(run)
    run.refresh_from_db()
    return run


def made_agent(_: Path) -> Agent:
    project = make_project()
    return Agent(project, make_eval_set(project), make_environment(project))


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_agent)


@pytest.fixture
def agent(kept: Any, data_dir: Path, settings: Any) -> Agent:
    agent = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR = data_dir
    return agent


def right(agent: Agent, task: str) -> dict:
    return agent.run.eval_set.tasks.get(pk=task).expected


def test_tasks_come_without_what_is_right_and_are_looks(agent: Agent) -> None:
    started = json.loads(agent.started.content)
    assert agent.started.status_code == 201 and started["answers"]["expected"] == 6
    kinds = list(HoldoutView.objects.values_list("kind", flat=True))
    assert kinds == ["evaluation"]
    page = agent.get("evals_api:run_tasks", agent.run.pk, limit=2).json()
    assert len(page["results"]) == 2 and page["next"] == "2"
    assert set(page["results"][0]) == {"id", "messages", "tools", "missing", "rollouts"} and page[
        "results"
    ][0]["missing"] == [0, 1]
    assert page["results"][0]["tools"] and "expected" not in json.dumps(page)
    assert sorted(len(view.tasks) for view in HoldoutView.objects.filter(kind="view")) == [2]
    agent.tasks()
    agent.tasks()
    seen = [len(view.tasks) for view in HoldoutView.objects.filter(kind="view")]
    assert sum(seen) == 3  # each once


def test_a_held_out_set_needs_the_right(agent: Agent) -> None:
    plain = Api(agent.run.project, may_see_holdout=False)
    assert plain.post("evals_api:runs", body=agent.asked).status_code == 403
    assert plain.get("evals_api:run_tasks", agent.run.pk).status_code == 403
    rows = agent.rows()
    agent.headers = plain.headers
    assert agent.send(rows).status_code == 403 and not Answer.objects.exists()
    stranger = Api(make_project())
    agent.headers = stranger.headers
    assert agent.send(rows).status_code == 404
    for name in ("run_tasks", "run", "run_samples"):
        assert stranger.get(f"evals_api:{name}", agent.run.pk).status_code == 404
    for name in ("run_finish", "run_cancel"):
        assert stranger.post(f"evals_api:{name}", agent.run.pk).status_code == 404
    assert agent.run.project.api_keys.count() == 2


@pytest.mark.parametrize("name", ["run_finish", "run_cancel"])
def test_who_may_not_start_a_held_out_evaluation_may_not_end_it(agent: Agent, name: str) -> None:
    plain = Api(agent.run.project, may_see_holdout=False)
    refused = plain.post(f"evals_api:{name}", agent.run.pk)
    assert refused.status_code == 403 and "has no access to hold-outs" in refused.json()["detail"]
    agent.run.refresh_from_db()
    assert agent.run.takes_answers and agent.run.state == JobState.QUEUED
    assert agent.post(f"evals_api:{name}", agent.run.pk).status_code in (200, 202)


def test_answers_of_all_forms_are_scored_by_the_environments_verifier(agent: Agent) -> None:
    tasks = agent.tasks()
    one, two, three = (task["id"] for task in tasks)
    call = {"name": right(agent, one)["tool"], "arguments": right(agent, one)["args"]}
    whole = [
        {"role": "system", "content": "You are the helpdesk."},
        *tasks[1]["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {
                        "name": right(agent, two)["tool"],
                        "arguments": json.dumps(right(agent, two)["args"]),
                    },
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Done."},
        {"role": "assistant", "content": "It is closed."},
    ]
    rows = [
        {
            "task": one,
            "index": 0,
            "output": json.dumps(right(agent, one)),
            "latency_ms": 12.5,
            "output_tokens": 7,
        },
        {"task": one, "index": 1, "tool_calls": [call]},
        {"task": two, "index": 0, "messages": whole},
        {"task": two, "index": 1, "messages": whole[2:3]},
        {"task": three, "index": 0, "output": "I will not."},
        {"task": three, "index": 1, "error": "TimeoutError: search"},
    ]
    answer = agent.send(rows).json()
    assert (answer["accepted"], answer["duplicates"], answer["rejected"]) == (6, 0, [])
    assert answer["answers"] | {"until": 0} == {
        "received": 6,
        "expected": 6,
        "open": False,
        "until": 0,
    }
    run = work(agent.run)
    assert (run.state, run.error) == (JobState.SUCCEEDED, "")
    scored = {(str(s.task_id), s.index): s for s in run.samples.all()}
    assert [scored[row["task"], row["index"]].success for row in rows] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert not any(sample.masked for sample in scored.values())
    failed = scored[three, 1]
    assert failed.stop_reason == "agent error" and any(
        "TimeoutError" in line for line in failed.details
    )
    assert (scored[one, 0].latency_ms, scored[one, 0].output_tokens) == (12.5, 7)
    assert scored[one, 1].latency_ms is None
    metrics = agent.state()["metrics"]
    assert metrics["success"]["mean"] == pytest.approx(2 / 3) and metrics["counts"]["masked"] == 0


def test_the_same_answer_twice_is_one_and_another_does_not_replace_it(agent: Agent) -> None:
    rows = agent.rows()[:3]
    assert agent.send(rows).json()["accepted"] == 3
    again = agent.send([*reversed(rows), rows[0]]).json()
    assert (again["accepted"], again["duplicates"], again["rejected"]) == (0, 4, [])
    other = agent.send([rows[0] | {"output": "yes"}, {**rows[1], "latency_ms": 3}]).json()
    assert other["accepted"] == 0 and [row["path"] for row in other["rejected"]] == [
        "index",
        "index",
    ]
    assert Answer.objects.count() == 3 and set(
        Answer.objects.values_list("turns", flat=True)[0][0]
    ) == {
        "role",
        "content",
    }
    assert len([index for task in agent.tasks(missing="1") for index in task["missing"]]) == 3


def test_after_the_end_only_what_was_acknowledged_may_come_again(agent: Agent) -> None:
    rows = agent.rows()
    assert agent.send(rows).json()["accepted"] == 6
    assert (
        agent.send(rows).json()["duplicates"] == 6
    )  # the answer to the last batch was lost on the way
    assert work(agent.run).state == JobState.SUCCEEDED
    assert agent.send(rows[:2]).json()["duplicates"] == 2
    late = agent.send([rows[0] | {"output": "better"}]).json()
    assert late["accepted"] == 0 and late["rejected"] and agent.run.samples.count() == 6
    assert agent.post("evals_api:run_finish", agent.run.pk).json()["closed_now"] is False


BAD_ROWS: list[tuple[Any, str]] = [
    (b"not json", ""),
    (b'{"task": NaN}', ""),
    (b"[]", ""),
    (b"7", ""),
    (b"null", ""),
    (b'{"output": "x"}', "task"),
    (b'{"task": "7", "output": "x"}', "task"),
    (b'{"task": "@", "output": "x", "index": 2}', "index"),
    (b'{"task": "@", "output": "x", "index": -1}', "index"),
    (b'{"task": "@", "output": "x", "index": 1e400}', ""),
    (b'{"task": "@", "output": "x", "index": 99999999999999999999999999999999999}', ""),
    (b'{"task": "@", "output": "x", "reward": 1}', "reward"),
    (b'{"task": "@", "output": 7}', "output"),
    (b'{"task": "@"}', ""),
    (b'{"task": "@", "error": ""}', ""),
    (b'{"task": "@", "messages": []}', "messages"),
    (b'{"task": "@", "messages": [{"content": "x"}]}', "messages[0].role"),
    (b'{"task": "@", "messages": [7]}', "messages[0]"),
    (b'{"task": "@", "messages": [{"role": "user", "content": "x"}]}', "messages"),
    (
        b'{"task": "@", "output": "x", "messages": [{"role": "assistant", "content": "x"}]}',
        "messages",
    ),
    (b'{"task": "@", "output": "x", "latency_ms": -1}', "latency_ms"),
    (b'{"task": "@", "output": "x", "latency_ms": Infinity}', ""),
    (b'{"task": "@", "output": "x", "latency_ms": 1e300}', "latency_ms"),
    (b'{"task": "@", "output": "x", "input_tokens": 4294967296}', "input_tokens"),
    (b'{"task": "@", "tool_calls": "x"}', "tool_calls"),
    (b'{"task": "@", "output": ' + b"[" * 5000 + b"]" * 5000 + b"}", ""),
]


def test_a_row_that_cannot_be_kept_costs_no_other(agent: Agent) -> None:
    tasks = agent.tasks()
    good = [{"task": tasks[1]["id"], "output": "a"}, {"task": tasks[2]["id"], "output": "b"}]
    lines = [row.replace(b"@", tasks[0]["id"].encode()) for row, _ in BAD_ROWS]
    lines += [json.dumps({"task": str(uuid4()), "output": "x"}).encode()]
    lines += [
        b'{"task": "%s", "output": "%s"}' % (tasks[0]["id"].encode(), b"x" * (5 * MOST_BYTES))
    ]
    body = b"\n".join([json.dumps(good[0]).encode(), *lines, json.dumps(good[1]).encode()])
    answer = agent.send(body)
    told = answer.json()
    assert answer.status_code == 200 and told["accepted"] == 2, told
    assert [row["index"] for row in told["rejected"]] == list(range(1, len(lines) + 1))
    for row, (line, path) in zip(told["rejected"], BAD_ROWS, strict=False):
        assert row["error"] and (not path or row["path"] == path), (line, row)
    assert (
        "task of this evaluation" in told["rejected"][-2]["error"]
        and "MiB" in told["rejected"][-1]["error"]
    )


@pytest.mark.proof
def test_a_batch_of_too_many_rows_is_refused_whole_and_says_how_many(agent: Agent) -> None:
    rows = [{"task": agent.tasks()[0]["id"], "output": "x"}] * 10_000
    for lines in (True, False):
        answer = agent.send(json.dumps(rows).encode() if not lines else rows, lines=lines)
        assert (
            answer.status_code == 413
            and "5000" in answer.json()["detail"]
            and not Answer.objects.exists()
        )
    done = agent.send(rows[:5000]).json()
    assert (done["accepted"], done["duplicates"]) == (1, 4999)


def test_what_cannot_be_evaluated_is_not_registered(agent: Agent) -> None:
    before = agent.run.project.model_versions.count()
    body = agent.asked | {
        "split": "validation",
        "agent": {"name": "support-agent", "version": "never"},
    }
    assert agent.post("evals_api:runs", body=body).status_code == 409
    assert agent.run.project.model_versions.count() == before


def test_characters_that_no_database_keeps_are_replaced_and_the_answer_is_kept(
    agent: Agent,
) -> None:
    task = agent.tasks()[0]["id"].encode()
    row = b'{"task": "%s", "output": "a\\ud800b\\u0000c", "messages": null}' % task
    assert agent.send(row).json()["accepted"] == 1
    assert agent.send(row).json()["duplicates"] == 1
    assert "\ufffd" in Answer.objects.get().turns[0]["content"]
    calls = (
        b'{"task": "%s", "index": 1, "tool_calls": [{"name": "a\\ud800", "arguments": {"\\u0000":'
        b' "\\udfff"}}]}' % task
    )
    assert agent.send(b"[" + calls + b"]", lines=False).json()["accepted"] == 1


@pytest.mark.proof
def test_calls_and_messages_of_strange_forms_are_answers_that_fail_not_crashes(
    agent: Agent,
) -> None:
    strange: list[dict] = [
        {"tool_calls": [{}]},
        {"tool_calls": [{"function": 7}]},
        {"tool_calls": [{"function": {"name": 7, "arguments": [1]}}] * 200},
        {"messages": [{"role": "assistant", "content": {"a": [{"b": 1}]}, "tool_calls": 7}]},
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "text", "text": 7}], "function_call": []}
            ]
        },
        {"messages": [{"role": "assistant"}], "error": "x" * 5000},
    ]
    rows = [row | change for row, change in zip(agent.rows(), strange, strict=True)]
    for row in rows:
        row.pop("output")
    assert agent.send(rows).json()["rejected"] == []
    run = work(agent.run)
    assert run.state == JobState.SUCCEEDED, run.error
    assert run.samples.count() == 6 and not run.samples.filter(success=True).exists()


def test_an_error_fails_the_sample_whatever_the_agent_said_before(agent: Agent) -> None:
    """In an environment of one turn the episode is over before the agent's failure is reached."""
    rows = [
        row | {"output": json.dumps(right(agent, row["task"])), "error": "crashed in the end"}
        for row in agent.rows()
    ]
    assert agent.send(rows).json()["accepted"] == 6
    run = work(agent.run)
    for sample in run.samples.all():
        assert (sample.success, sample.masked, sample.stop_reason) == (False, False, "agent error")
        assert sample.reward <= 0 and "crashed in the end" in sample.details[-1]


@pytest.mark.parametrize(
    "limit",
    [{"most_usd": 1}, {"most_tokens": 5}, {"timeout_s": 5}, {"at_once": 2}, {"engine": "gpu-1"}],
)
def test_what_could_not_hold_for_an_agent_elsewhere_is_refused(agent: Agent, limit: dict) -> None:
    answer = agent.post("evals_api:runs", body=agent.asked | {"seed": 3} | limit)
    assert answer.status_code == 400 and answer.json()["path"] == next(iter(limit))


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("version", ["3f2a9c2", "3F2A9C1", "3f2a9c1 ", "x" * 5000])
def test_an_agents_version_must_not_change(agent: Agent, version: str) -> None:
    assert agent.send(agent.rows()[:2]).json()["accepted"] == 2
    answer = agent.send(agent.rows(), version=version)
    assert answer.status_code == 409 and "must not change" in answer.json()["detail"]
    assert Answer.objects.count() == 2


def test_the_version_must_be_sent(agent: Agent) -> None:
    url = reverse("evals_api:run_samples", args=[agent.run.pk])
    answer = Client().post(url, b"[]", content_type="application/json", **agent.headers)
    assert answer.status_code == 400 and answer.json()["path"] == "agent_version"


def test_a_cancelled_evaluation_takes_no_more(agent: Agent) -> None:
    rows = agent.rows()
    agent.send(rows[:2])
    assert agent.post("evals_api:run_cancel", agent.run.pk).json()["state"] == "cancelled"
    answer = agent.send(rows[2:])
    assert (
        answer.status_code == 409
        and "cancelled" in answer.json()["detail"]
        and Answer.objects.count() == 2
    )
    assert agent.post("evals_api:runs", body=agent.asked).json()["id"] != str(agent.run.pk)


def test_who_starts_again_goes_on_where_it_stopped(agent: Agent) -> None:
    agent.send(agent.rows()[:4])
    again = agent.post("evals_api:runs", body=agent.asked)
    assert again.status_code == 200 and again.json()["id"] == str(agent.run.pk)
    assert HoldoutView.objects.filter(kind="evaluation").count() == 1
    left = agent.tasks(missing="1")
    assert sum(len(task["missing"]) for task in left) == 2 and len(left) < 3
    other = agent.asked | {"agent": {"name": "support-agent", "version": "other"}}
    assert agent.post("evals_api:runs", body=other).status_code == 201
    for name, status in (("3f2a9c1", 200), ("3f", 200), ("", 404), ("3f2a9c1x", 404)):
        listed = agent.get("evals_api:runs", model_version=f"support-agent@{name}")
        assert listed.status_code == status, name
        assert status == 404 or [row["id"] for row in listed.json()["results"]] == [
            str(agent.run.pk)
        ]


@pytest.mark.proof
def test_it_waits_for_answers_then_ends_as_incomplete(agent: Agent) -> None:
    agent.send(agent.rows()[:2])
    jobs.reap()
    agent.run.refresh_from_db()
    assert (
        agent.run.sends == 0 and agent.state()["answers"]["open"]
    )  # not due: no worker hears of it
    EvalRun.objects.filter(pk=agent.run.pk).update(
        answers_until=timezone.now() - timedelta(seconds=1),
        resend_at=timezone.now() - timedelta(seconds=1),
    )
    late = agent.send(agent.rows())
    assert late.status_code == 409 and "timed out waiting for answers" in late.json()["detail"]
    jobs.reap()
    agent.run.refresh_from_db()
    assert agent.run.sends == 1
    run = work(agent.run)
    assert run.state == JobState.FAILED and run.error.startswith("Incomplete: 2 of 6")
    told = agent.state()
    assert run.samples.count() == 2 and told["metrics"]["counts"]["samples"] == 2


def test_an_incomplete_one_cannot_pass_the_gate_under_any_policy(agent: Agent) -> None:
    assert agent.send(agent.rows()).json()["accepted"] == 6
    before = work(agent.run)
    channel = channel_of(before.project)
    set_initial(channel=channel, version=before.model_version, by=admin_of(before.project))
    newer = Agent(before.project, before.eval_set, before.environment, version="next")
    rows = [row | {"output": json.dumps(right(newer, row["task"]))} for row in newer.rows()]
    newer.send(rows[:4])
    assert newer.post("evals_api:run_finish", newer.run.pk).status_code == 202
    run = work(newer.run)
    for sequential in (False, True):
        channel.policies.create(
            version=1 + sequential, values={"sequential": sequential}, reason="test"
        )
        with pytest.raises(PromotionError, match="is incomplete"):
            make_gate_report(baseline=before, candidate=run, by=None, channel=channel)
        gate = newer.state(against="production")["gate"]
        assert gate["verdict"] is None and "incomplete" in gate["summary"]


def test_a_complete_one_is_compared_with_what_is_live(agent: Agent) -> None:
    agent.send(agent.rows())
    before = work(agent.run)
    set_initial(
        channel=channel_of(before.project),
        version=before.model_version,
        by=admin_of(before.project),
    )
    newer = Agent(before.project, before.eval_set, before.environment, version="next")
    newer.send([row | {"output": json.dumps(right(newer, row["task"]))} for row in newer.rows()])
    work(newer.run)
    gate = newer.state(against="production")["gate"]
    assert (
        gate["verdict"] == "inconclusive"
        and gate["improved"] == 3
        and "3 tasks are too few" in gate["summary"]
    )


def test_nothing_sent_and_finished_says_so(agent: Agent) -> None:
    assert agent.post("evals_api:run_finish", agent.run.pk).json()["closed_now"] is True
    run = work(agent.run)
    assert run.state == JobState.FAILED and "no answer was sent" in run.error


def test_an_evaluation_that_runs_here_takes_no_answers_and_gives_no_tasks(
    agent: Agent, data_dir: Path
) -> None:
    from tests.factories import make_base, make_eval_run

    run = agent.run
    here = make_eval_run(run.eval_set, make_base(run.project, data_dir), run.environment)
    rows = agent.rows()
    agent.run = here
    assert agent.send(rows).status_code == 409
    assert agent.get("evals_api:run_tasks", here.pk).status_code == 409
    assert agent.post("evals_api:run_finish", here.pk).status_code == 409
    assert agent.state()["answers"] is None and Sample.objects.filter(run=here).count() == 12


def test_an_agent_elsewhere_is_not_evaluated_here(agent: Agent) -> None:
    body = {name: value for name, value in agent.asked.items() if name != "agent"}
    answer = agent.post(
        "evals_api:runs", body=body | {"model_version": str(agent.run.model_version)}
    )
    assert answer.status_code == 409 and "elsewhere" in answer.json()["detail"]
    assert agent.post("evals_api:runs", body=body).status_code == 400
    for wrong in (
        {"name": "a b", "version": "1"},
        {"name": "a", "version": "\n"},
        {"name": "a"},
        "a",
    ):
        assert agent.post("evals_api:runs", body=body | {"agent": wrong}).status_code == 400, wrong


def test_the_page_says_who_answers_and_until_when(agent: Agent) -> None:
    client = Client()
    client.force_login(admin_of(agent.run.project))
    page = client.get(
        reverse("evals:run", args=[agent.run.project.slug, agent.run.pk])
    ).content.decode()
    assert "3f2a9c1" in page and "Waiting for answers until" in page
