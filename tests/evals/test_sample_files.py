"""Samples as files, as charts, over the API, and as new tasks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from apps.core.actions import create_api_key
from apps.core.models import Role
from apps.core.scopes import Scope
from apps.evals import actions, drafts
from apps.evals.models import EvalRun, HoldoutView, Split
from apps.evals.samples.components import explained
from apps.evals.samples.distributions import counted, edges_of
from apps.evals.samples.exporting import cell
from apps.evals.samples.to_tasks import make_tasks
from apps.evals.samples.transcript import difference
from tests.evals.test_sample_pages import evaluate, login, make_run, url
from tests.factories import (
    admin_of,
    key_headers,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_project,
)

# Pure


@pytest.mark.parametrize(
    ("values", "details", "reasons", "rest"),
    [
        (
            {"tools": 0.0, "arguments": 0.2},
            ["wrong tool: a", "wrong value: b"],
            {"tools": ["wrong tool: a"], "arguments": ["wrong value: b"]},
            [],
        ),
        ({"exact": 0.0}, ["missing call: a"], {"exact": ["missing call: a"]}, []),
        ({"short": 0.0, "polite": 1.0}, ["not held: short"], {"short": ["not held: short"]}, []),
        (
            {"form": 0.0, "form.right": 0.0, "judge": 0.5},
            ["form: no JSON", "judge: too terse"],
            {"form": ["no JSON"], "judge": ["too terse"]},
            [],
        ),
        (
            {"call": 0.0, "call.tools": 0.0},
            ["call: wrong tool: a"],
            {"call.tools": ["wrong tool: a"]},
            [],
        ),
        ({"judge": 0.2}, ["It is rude."], {"judge": ["It is rude."]}, []),
        ({"a": 0.2, "b": 0.1}, ["Something else."], {}, ["Something else."]),
        (
            {"unsafe": -1.0, "outcome": 0.0},
            ["unsafe: mail.delete"],
            {"unsafe": ["unsafe: mail.delete"]},
            [],
        ),
        ({}, ["could not be judged: x"], {}, ["could not be judged: x"]),
    ],
)
def test_each_component_has_its_reasons(
    values: dict, details: list, reasons: dict, rest: list
) -> None:
    components, others = explained(values, details)
    assert {
        part.name: part.reasons for part in components if part.reasons
    } == reasons and others == rest


CALL = {"tool": "a", "args": {"x": 1}}


@pytest.mark.parametrize(
    ("expected", "message", "gone", "new"),
    [
        (CALL, {"content": json.dumps(CALL)}, "", ""),
        (CALL, {"content": json.dumps({"tool": "a", "args": {"x": 2}})}, '"x": 1', '"x": 2'),
        (CALL, {"content": "Sure!"}, '"tool": "a"', "Sure!"),
        ({"calls": []}, {"content": json.dumps(CALL)}, "[]", '"tool": "a"'),
        ({"answer": "Oslo"}, {"content": "Rome"}, "Oslo", "Rome"),
        ({"answer": "Oslo"}, {"content": "Oslo"}, "", ""),
    ],
)
def test_expected_against_actual(expected: dict, message: dict, gone: str, new: str) -> None:
    lines = difference(expected, [{"role": "assistant"} | message])
    assert lines is not None
    for kind, text in (("gone", gone), ("new", new)):
        found = "\n".join(line for what, line in lines if what == kind)
        assert text in found and bool(text) == bool(found)


def test_a_constraint_is_no_value_to_compare_with() -> None:
    assert (
        difference({"constraint": {"contains": ["a"]}}, []) is None
        and difference("nonsense", []) is None
    )


def test_a_histogram_counts_every_value() -> None:
    values = np.array([1.0] * 500 + [2.0] * 500 + [1e9])
    edges = edges_of(values)
    assert edges[-1] < 1e9 and sum(counted(values, edges)) == len(values)
    assert sum(counted(np.array([5.0, 5.0]), edges_of(np.array([5.0, 5.0])))) == 2
    assert sum(counted(np.zeros(3), edges_of(np.zeros(3)))) == 3


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("-x", "'-x"),
        ("plain", "plain"),
        (-1.5, -1.5),
        (None, ""),
        (["a", "b"], "a; b"),
        ("a" * 40_000, "a" * 32_000 + "…"),
    ],
)
def test_a_cell_of_a_spreadsheet_is_no_formula(value: Any, shown: Any) -> None:
    assert cell(value) == shown


# Files and charts


@pytest.mark.django_db
def test_an_export_has_what_the_filters_find(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    login(client, run, Role.VIEWER)
    answer = client.get(url(run, "export_samples"), {"outcome": "failed"})
    rows = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]
    failed = list(run.samples.filter(success=False))
    assert [(row["task"], row["index"]) for row in rows] == [
        (sample.task_key, sample.index) for sample in failed
    ]
    assert rows[0]["expected"] == failed[0].task.expected and rows[0]["bucket"] == failed[0].mode
    assert answer["Content-Disposition"].endswith('.jsonl"')
    table = b"".join(
        client.get(url(run, "export_samples"), {"format": "csv"}).streaming_content
    ).decode()
    lines = list(csv.DictReader(io.StringIO(table)))
    assert len(lines) == run.samples.count() and {line["outcome"] for line in lines} == {
        "passed",
        "failed",
    }


@pytest.mark.django_db
def test_an_export_of_a_hold_out_is_asked_for_and_counted_each_time(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    views = run.eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW)
    login(client, run)
    for ask in (client.get, client.post):
        assert ask(url(run, "export_samples")).status_code == 302 and not views.exists()
    client.post(url(run, "open_holdout"))
    assert client.get(url(run, "export_samples")).status_code == 302
    for n in (2, 3):
        answer = client.post(url(run, "export_samples"), {"format": "csv"})
        assert (
            b"".join(answer.streaming_content).count(b"\n") > run.samples.count()
            and views.count() == n
        )


@pytest.mark.proof
@pytest.mark.django_db
def test_latency_tokens_and_money_are_drawn(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    login(client, run, Role.VIEWER)
    titles = lambda page: [  # noqa: E731
        figure["layout"]["title"]["text"] for _, figure in page.context["figures"]
    ]
    assert [title.split(":")[0] for title in titles(client.get(url(run, "distributions")))] == [
        "Latency, ms",
        "Tokens in",
        "Tokens out",
    ]
    EvalRun.objects.filter(pk=run.pk).update(
        spec={
            "engine": {
                "kind": "openai",
                "server_name": "s",
                "base_url": "u",
                "model": "m",
                "price": {"input": 100.0, "output": 200.0},
            }
        }
    )
    priced = client.get(url(run, "distributions"))
    assert (
        titles(priced)[-1] == "Cost, US cents: median 0.2, p95 0.2, total $0.0120"
    )  # 10 tokens in, 5 out
    named = {trace["name"]: sum(trace["y"]) for trace in priced.context["figures"][0][1]["data"]}
    assert named == {"passed": 3, "failed": 3}
    failed = client.get(url(run, "distributions"), {"outcome": "failed"}).context["figures"][0][1]
    assert failed["layout"]["yaxis"]["title"]["text"] == "samples (n = 3)"
    several = client.get(
        reverse("evals:compared_distributions", args=[run.project.slug]) + f"?run={run.pk}"
    )
    assert sum(several.context["figures"][0][1]["data"][0]["y"]) == pytest.approx(100)
    run.samples.all().delete()
    assert "Nothing measured" in client.get(url(run, "distributions")).content.decode()


# The API


def ask(of: EvalRun, name: str, *args: Any, holdout: bool = False, **query: Any) -> Any:
    headers = key_headers(of.project, may_see_holdout=holdout)
    return Client().get(reverse(f"evals_api:{name}", args=args), query, **headers)


@pytest.mark.proof
@pytest.mark.django_db
def test_the_api_has_the_filters_of_the_page(tmp_path: Path) -> None:
    first = make_run(folder=tmp_path)
    run = evaluate(first.eval_set, tmp_path, passes=(False, False))
    found = ask(run, "run_samples", run.pk, outcome="failed", tool="tickets.reopen").json()[
        "results"
    ]
    assert len(found) == 6 and found[0]["bucket"] and found[0]["tools"] == ["tickets.reopen"]
    assert len(ask(run, "run_samples", run.pk, against=first.pk).json()["results"]) == 6
    assert not ask(run, "run_samples", run.pk, against=first.pk, change="improved").json()[
        "results"
    ]
    assert not ask(run, "run_samples", run.pk, tag="x").json()["results"]
    for wrong in ({"outcome": "x"}, {"change": "x"}):
        assert ask(run, "run_samples", run.pk, **wrong).status_code == 400
    assert ask(run, "run_samples", run.pk, against="x").status_code == 404


@pytest.mark.django_db
def test_one_sample_by_api_is_whole(tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    sample = run.samples.filter(success=False).first()
    found = ask(run, "run_sample", run.pk, sample.pk).json()
    assert found["request"] == sample.task.messages and found["expected"] == sample.task.expected
    assert (
        found["reasons"] == {"tools": ["wrong tool: tickets.reopen"]}
        and found["offered_tools"]
        and found["evidence"]
    )
    assert ask(run, "run_sample", run.pk, 2**62).status_code == 404


@pytest.mark.proof
@pytest.mark.django_db
def test_evaluations_are_compared_by_api(tmp_path: Path) -> None:
    first = make_run(folder=tmp_path)
    second = evaluate(first.eval_set, tmp_path, passes=(True, True))
    found = ask(first, "runs_compare", run=[first.pk, second.pk], limit=2).json()
    assert (
        found["runs"][1]["success_difference"]["mean"] == 0.5
        and found["runs"][0]["success_difference"] is None
    )
    assert [row["change"] for row in found["results"]] == ["improved"] * 2
    assert [cell["passed"] for cell in found["results"][0]["cells"]] == [1, 2]
    rest = ask(first, "runs_compare", run=[first.pk, second.pk], cursor=found["next"]).json()
    assert len(rest["results"]) == 1 and rest["next"] is None
    assert ask(first, "runs_compare", run=[first.pk]).status_code == 400


@pytest.mark.django_db
def test_held_out_samples_by_api_need_the_right_and_count(tmp_path: Path) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    views = run.eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW)
    for name, args, query in (
        ("run_sample", [run.pk, run.samples.first().pk], {}),
        ("runs_compare", [], {"run": [run.pk, run.pk]}),
    ):
        assert ask(run, name, *args, **query).status_code in (400, 403) and not views.exists()
    assert (
        ask(run, "run_sample", run.pk, run.samples.first().pk, holdout=True).status_code == 200
        and views.count() == 1
    )


@pytest.mark.django_db
def test_samples_are_a_file_by_api_as_on_the_page(tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    answer = ask(run, "export_samples", run.pk, outcome="failed")
    rows = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]
    failed = list(run.samples.filter(success=False))
    assert [(row["task"], row["index"]) for row in rows] == [
        (sample.task_key, sample.index) for sample in failed
    ]
    assert answer["Content-Disposition"].endswith('.jsonl"')
    table = b"".join(ask(run, "export_samples", run.pk, **{"as": "csv"}).streaming_content).decode()
    assert len(list(csv.DictReader(io.StringIO(table)))) == run.samples.count()
    for wrong in ({"as": "xls"}, {"outcome": "x"}):
        assert ask(run, "export_samples", run.pk, **wrong).status_code == 400


@pytest.mark.django_db
def test_who_may_have_the_samples_as_a_file(tmp_path: Path) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    views = run.eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW)
    url = reverse("evals_api:export_samples", args=[run.pk])
    sends = create_api_key(project=project, name="s", by=admin_of(project), scopes=[Scope.INGEST])[
        1
    ]
    for headers, status in (
        ({}, 401),
        (key_headers(make_project(), may_see_holdout=True), 404),
        ({"HTTP_AUTHORIZATION": f"Bearer {sends}"}, 403),
        (key_headers(project), 403),
    ):
        assert Client().get(url, **headers).status_code == status and not views.exists()
    for n in (1, 2):  # each file is a view
        assert (
            ask(run, "export_samples", run.pk, holdout=True).status_code == 200
            and views.count() == n
        )


# New tasks


@pytest.mark.django_db
def test_failures_of_an_evaluation_become_tasks_of_a_draft(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    draft = actions.create_eval_set(project=run.project, slug="hard", by=admin_of(run.project))
    login(client, run)
    page = client.get(url(run, "to_tasks")).content.decode()
    assert "3 tasks of the train split failed" in page
    client.post(url(run, "to_tasks"), {"eval_set": draft.pk, "cut": "step"})
    made = list(draft.tasks.order_by("key"))
    sources = list(run.eval_set.tasks.filter(split=Split.TRAIN).order_by("key"))
    assert [(t.messages, t.expected, t.split, t.groups) for t in made] == [
        (s.messages, s.expected, s.split, s.groups) for s in sources
    ]
    assert made[0].metadata["mode"] == run.samples.filter(success=False).first().mode
    client.post(url(run, "to_tasks"), {"eval_set": draft.pk, "cut": "step"})
    assert draft.tasks.count() == 3  # the same requests again


@pytest.mark.django_db
def test_one_sample_becomes_one_task_and_a_passed_one_none(client: Client, tmp_path: Path) -> None:
    run = make_run(folder=tmp_path)
    draft = actions.create_eval_set(project=run.project, slug="hard", by=admin_of(run.project))
    login(client, run)
    good, bad = run.samples.filter(success=True).first(), run.samples.filter(success=False).first()
    assert "No failures" in client.get(url(run, "to_tasks"), {"sample": good.pk}).content.decode()
    client.post(url(run, "to_tasks"), {"eval_set": draft.pk, "cut": "whole", "sample": bad.pk})
    assert [task.messages for task in draft.tasks.all()] == [bad.task.messages]


def turn(call: dict, number: str) -> dict:
    function = {"name": call["tool"], "arguments": json.dumps(call["args"])}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": number, "type": "function", "function": function}],
    }


@pytest.mark.django_db
def test_a_late_mistake_becomes_a_task_that_begins_there(tmp_path: Path) -> None:
    eval_set = make_eval_set(make_project(), train=1, frozen=False)
    task = eval_set.tasks.get(split=Split.TRAIN)
    calls = [{"tool": "tickets.close", "args": {"id": number}} for number in (1, 2)]
    task.expected = {"calls": calls}
    task.save()
    run = evaluate(drafts.freeze(eval_set=eval_set, by=None), tmp_path, passes=())
    wrong = {"tool": "tickets.close", "args": {"id": 9}}
    said = [
        turn(calls[0], "c1"),
        {"role": "tool", "tool_call_id": "c1", "content": "Done."},
        turn(wrong, "c2"),
        {"role": "tool", "tool_call_id": "c2", "content": "Done."},
    ]
    sample = run.samples.create(task=task, index=0, output="", messages=said, reward=0.0)
    draft = actions.create_eval_set(project=run.project, slug="hard", by=None)
    assert make_tasks(run=run, samples=[sample], eval_set=draft, by=None).made == 1
    made = draft.tasks.get()
    assert (
        made.expected == {"calls": calls[1:], "lookups": []} and made.messages[-1]["role"] == "tool"
    )
    assert made.messages[0] == task.messages[0] and len(made.messages) == 3


@pytest.mark.more(rows=2)
@pytest.mark.django_db
@pytest.mark.parametrize("split", [Split.HOLDOUT, Split.REGRESSION, Split.GENERAL])
def test_nothing_that_measures_becomes_a_task(client: Client, tmp_path: Path, split: Split) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    EvalRun.objects.filter(pk=run.pk).update(split=split)
    run.refresh_from_db()
    draft = actions.create_eval_set(project=project, slug="hard", by=None)
    login(client, run)
    client.post(url(run, "to_tasks"), {"eval_set": draft.pk, "cut": "step"})
    with pytest.raises(actions.EvalSetError, match="reach its training"):
        make_tasks(run=run, samples=run.samples.all(), eval_set=draft, by=None)
    assert not draft.tasks.exists()
