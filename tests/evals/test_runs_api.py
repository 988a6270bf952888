"""Evaluations and gate reports over REST: the same actions and rules as the pages, and the key
decides the project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import JobState
from apps.evals.models import EvalRun, HoldoutView, LatencyMeasurement, Split
from apps.promotion.actions import set_initial
from apps.promotion.models import GateReport
from apps.promotion.policies import channel_of
from tests.factories import (
    admin_of,
    key_headers,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_project,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


class Api:
    """A key of a project, and what it is answered."""

    def __init__(self, project: Any, may_see_holdout: bool = True) -> None:
        self.headers = key_headers(project, may_see_holdout=may_see_holdout)

    def get(self, name: str, *args: Any, **query: Any) -> Any:
        return Client().get(reverse(name, args=args), query, **self.headers)

    def post(self, name: str, *args: Any, body: Any = None) -> Any:
        sent = body if isinstance(body, bytes | str) else json.dumps(body or {})
        return Client().post(
            reverse(name, args=args), sent, content_type="application/json", **self.headers
        )


def made_scene(folder: Path) -> dict[str, Any]:
    project = make_project()
    base, environment, eval_set = (
        make_base(project, folder),
        make_environment(project),
        make_eval_set(project),
    )
    return {
        "project": project,
        "set": eval_set,
        "environment": environment,
        "base": base,
        "candidate": make_adapter(project, base, folder),
        "api": Api(project),
    }


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_scene)


@pytest.fixture
def scene(kept: Any, db: None, settings: Any) -> dict[str, Any]:
    return copied(kept, settings)


def asked(scene: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "eval_set": str(scene["set"]),
        "environment": str(scene["environment"]),
        "model_version": str(scene["base"]),
        "samples_per_task": 2,
    } | changes


def test_an_evaluation_is_started_followed_and_cancelled(scene: dict[str, Any]) -> None:
    api = scene["api"]
    made = api.post("evals_api:runs", body=asked(scene))
    run = EvalRun.objects.get()
    assert made.status_code == 201 and made.json()["id"] == str(run.pk)
    assert (run.total, run.split, run.samples_per_task) == (6, "holdout", 2)
    assert HoldoutView.objects.get(kind="evaluation").api_key is not None
    read = api.get("evals_api:run", run.pk).json()
    assert (
        read["state"] == "queued"
        and read["metrics"] is None
        and f"/evals/runs/{run.pk}/" in read["url"]
    )
    again = api.post("evals_api:runs", body=asked(scene, eval_set=str(scene["set"].pk)))
    assert again.status_code == 409 and "already" in again.json()["detail"]
    assert api.post("evals_api:run_cancel", run.pk).json()["state"] == "cancelled"
    assert api.post("evals_api:run_cancel", run.pk).status_code == 409


@pytest.mark.more(rows=6)
@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"split": "hold-out"}, 400, "split"),
        ({"samples_per_task": 0}, 400, "samples_per_task"),
        ({"samples_per_task": 65}, 400, "samples_per_task"),
        ({"samples_per_task": True}, 400, "samples_per_task"),
        ({"seed": -1}, 400, "seed"),
        ({"nothing": 1}, 400, "nothing"),
        ({"eval_set": 7}, 400, "eval_set"),
        ({"eval_set": ""}, 400, "eval_set"),
        ({"eval_set": "none@1"}, 404, "eval set"),
        ({"eval_set": "x@" + "9" * 9}, 404, "eval set"),
        ({"environment": "workplace"}, 404, "environment"),
        ({"model_version": "base-v2"}, 404, "model version"),
        ({"model_version": 2**70}, 404, "model version"),
        ({"model_version": "9" * 5000}, 404, "model version"),
        ({"split": "validation"}, 409, "no tasks"),
        ({"stop_against": "x"}, 404, "evaluation"),
    ],
)
def test_what_cannot_be_started_says_why(
    scene: dict[str, Any], changes: dict, status: int, said: str
) -> None:
    answer = scene["api"].post("evals_api:runs", body=asked(scene, **changes))
    assert answer.status_code == status and said in answer.content.decode()
    assert not EvalRun.objects.exists() and not HoldoutView.objects.exists()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"seed": NaN}', b'{"eval_set": "\\ud800"}', b"[" * 100_000, b"\xff"],
)
def test_a_body_that_is_no_form_is_refused(scene: dict[str, Any], body: bytes) -> None:
    assert scene["api"].post("evals_api:runs", body=body).status_code in (400, 413)
    assert scene["api"].post("promotion_api:gate_reports", body=body).status_code in (400, 413)


def test_a_hold_out_needs_the_right(scene: dict[str, Any]) -> None:
    plain, run = (
        Api(scene["project"], may_see_holdout=False),
        make_eval_run(scene["set"], scene["base"], scene["environment"]),
    )
    assert plain.post("evals_api:runs", body=asked(scene, seed=9)).status_code == 403
    assert plain.post("evals_api:runs", body=asked(scene, seed=9, split="train")).status_code == 201
    refused = plain.get("evals_api:run_samples", run.pk)
    assert refused.status_code == 403 and not HoldoutView.objects.exists()
    text = scene["set"].tasks.holdout().first().demonstration
    assert (
        text not in refused.content.decode() + plain.get("evals_api:run", run.pk).content.decode()
    )
    assert plain.get("evals_api:run", run.pk).json()["metrics"]["success"]["n"] == 3


def test_samples_come_in_pages_and_count_as_one_look(scene: dict[str, Any]) -> None:
    run = make_eval_run(scene["set"], scene["base"], scene["environment"], success=0.5, samples=4)
    api, seen, cursor = scene["api"], [], ""
    for _ in range(3):
        page = api.get("evals_api:run_samples", run.pk, limit=5, cursor=cursor or 0).json()
        seen += [(row["task"], row["index"]) for row in page["results"]]
        cursor = page["next"]
    assert cursor is None and len(set(seen)) == 12 == len(seen)
    assert HoldoutView.objects.count() == 1
    passed = api.get("evals_api:run_samples", run.pk, outcome="passed").json()["results"]
    assert len(passed) == 6 and all(
        row["success"] and row["output"] and row["key"] for row in passed
    )
    assert api.get("evals_api:run_samples", run.pk, outcome="good").status_code == 400
    assert api.get("evals_api:run_samples", run.pk, cursor="x").status_code == 400


def test_the_list_is_filtered_and_paged_by_a_cursor(scene: dict[str, Any]) -> None:
    runs = [make_eval_run(scene["set"], scene["base"], scene["environment"]) for _ in range(3)]
    same = timezone.now()
    EvalRun.objects.filter(pk__in=[run.pk for run in runs]).update(
        created_at=same
    )  # at the same moment
    other = make_eval_run(scene["set"], scene["candidate"], scene["environment"])
    api = scene["api"]
    first = api.get("evals_api:runs", limit=2).json()
    second = api.get("evals_api:runs", limit=2, cursor=first["next"]).json()
    names = [row["id"] for row in first["results"] + second["results"]]
    assert len(set(names)) == 4 and names[0] == str(other.pk) and second["next"] is None
    assert len(api.get("evals_api:runs", model_version=str(scene["base"])).json()["results"]) == 3
    assert (
        len(
            api.get("evals_api:runs", state="succeeded", eval_set=str(scene["set"])).json()[
                "results"
            ]
        )
        == 4
    )
    assert api.get("evals_api:runs", state="queued").json()["results"] == []
    for bad in (
        {"state": "x"},
        {"split": "x"},
        {"cursor": "x"},
        {"cursor": "9" * 40 + "_x"},
        {"limit": "x"},
    ):
        assert api.get("evals_api:runs", **bad).status_code == 400, bad
    assert api.get("evals_api:runs", cursor=f"{'9' * 30}_{other.pk}").status_code == 400
    assert api.get("evals_api:runs", environment="x").status_code == 404


def test_another_projects_key_finds_nothing(scene: dict[str, Any]) -> None:
    run = make_eval_run(scene["set"], scene["base"], scene["environment"])
    stranger = Api(make_project())
    for name in ("run", "run_samples"):
        assert stranger.get(f"evals_api:{name}", run.pk).status_code == 404
    assert stranger.post("evals_api:run_cancel", run.pk).status_code == 404
    assert stranger.post("evals_api:runs", body=asked(scene)).status_code == 404
    assert (
        stranger.post("promotion_api:gate_reports", body={"candidate": str(run.pk)}).status_code
        == 404
    )
    assert stranger.get("evals_api:runs").json()["results"] == []
    assert stranger.get("promotion_api:gate_reports").json()["results"] == []


def test_a_gate_report_is_asked_for_listed_and_read(scene: dict[str, Any]) -> None:
    before = make_eval_run(scene["set"], scene["base"], scene["environment"], success=0.25)
    after = make_eval_run(scene["set"], scene["candidate"], scene["environment"], success=1.0)
    api = scene["api"]
    made = api.post(
        "promotion_api:gate_reports", body={"baseline": str(before.pk), "candidate": str(after.pk)}
    )
    told = made.json()
    assert (
        made.status_code == 201
        and told["verdict"] == "inconclusive"
        and "3 tasks are too few" in told["summary"]
    )
    assert told["improved"] == 3 and not HoldoutView.objects.exists()  # how many, not which
    success = next(check for check in told["checks"] if check["name"] == "success")
    assert (
        success["baseline"] == 0.25 and success["candidate"] == 1.0 and success["low"] is not None
    )
    assert [row["id"] for row in api.get("promotion_api:gate_reports").json()["results"]] == [
        told["id"]
    ]
    assert api.get("promotion_api:gate_reports", verdict="promote").json()["results"] == []
    assert api.get("promotion_api:gate_reports", verdict="x").status_code == 400
    assert api.get("promotion_api:gate_reports", channel="none").status_code == 404
    whole = api.get("promotion_api:gate_report", told["id"]).json()
    assert (
        whole["verdict"] == told["verdict"]
        and whole["signature"]
        and len(whole["document"]["report"]["improved"]) == 3
    )
    assert HoldoutView.objects.count() == 1


def test_a_key_without_the_right_gets_a_comparisons_counts_and_nothing_of_held_out_tasks(
    scene: dict[str, Any],
) -> None:
    before = make_eval_run(scene["set"], scene["base"], scene["environment"], success=0.25)
    after = make_eval_run(scene["set"], scene["candidate"], scene["environment"], success=1.0)
    plain, held = Api(scene["project"], may_see_holdout=False), list(scene["set"].tasks.holdout())
    set_initial(
        channel=channel_of(scene["project"]), version=scene["base"], by=admin_of(scene["project"])
    )

    def told(answer: Any) -> Any:
        text = answer.content.decode()
        secrets = [
            secret
            for task in held
            for secret in (task.key, str(task.pk), task.messages[0]["content"])
        ]
        assert not [secret for secret in secrets if secret in text]
        return answer.json()

    two = {"baseline": str(before.pk), "candidate": str(after.pk)}
    made = told(plain.post("promotion_api:gate_reports", body=two))
    whole = told(plain.get("promotion_api:gate_report", made["id"]))
    assert (whole["improved"], whole["regressed"], whole["document"], whole["signature"]) == (
        3,
        0,
        None,
        None,
    )
    assert [check["name"] for check in whole["checks"]] == [
        check["name"] for check in made["checks"]
    ]
    told(plain.get("promotion_api:gate_reports"))
    assert told(plain.get("evals_api:run", after.pk, against="production"))["gate"]["improved"] == 3
    assert plain.get("evals_api:runs_compare", run=[before.pk, after.pk]).status_code == 403
    assert not HoldoutView.objects.exists()
    after.samples.filter(pk=after.samples.first().pk).delete()
    refused = plain.post("promotion_api:gate_reports", body=two)
    assert refused.status_code == 409 and "samples of a task" in told(refused)["detail"]
    EvalRun.objects.filter(pk=before.pk).update(error=f"HTTP 400: {held[0].messages[0]['content']}")
    assert "may quote a held-out task" in told(plain.get("evals_api:run", before.pk))["error"]
    assert "HTTP 400" in scene["api"].get("evals_api:run", before.pk).json()["error"]
    LatencyMeasurement.objects.create(project=scene["project"], error=held[0].key).runs.set(
        [before, after]
    )
    told(plain.get("promotion_api:preparation", **two))


def test_the_verdict_is_against_what_is_live(scene: dict[str, Any]) -> None:
    after = make_eval_run(scene["set"], scene["candidate"], scene["environment"], success=1.0)
    api, channel = scene["api"], channel_of(scene["project"])
    refused = api.post("promotion_api:gate_reports", body={"candidate": str(after.pk)})
    assert refused.status_code == 409 and "Nothing is live" in refused.json()["detail"]
    set_initial(channel=channel, version=scene["base"], by=admin_of(scene["project"]))
    gate = api.get("evals_api:run", after.pk, against="production").json()["gate"]
    assert gate["verdict"] is None and "no finished evaluation" in gate["summary"]
    make_eval_run(
        scene["set"], scene["base"], scene["environment"], success=0.5, samples=2
    )  # not comparable
    before = make_eval_run(scene["set"], scene["base"], scene["environment"], success=0.5)
    gate = api.get("evals_api:run", after.pk, against="production").json()["gate"]
    assert (
        gate["verdict"] == "inconclusive"
        and gate["baseline"] == str(before.pk)
        and gate["id"] is None
    )
    assert not GateReport.objects.exists()  # reading stores nothing
    made = api.post("promotion_api:gate_reports", body={"candidate": str(after.pk)}).json()
    assert made["baseline"] == str(before.pk)
    assert (
        api.get("evals_api:run", after.pk, against="production").json()["gate"]["id"] == made["id"]
    )
    assert api.get("evals_api:run", after.pk, against="none").status_code == 404
    assert api.get("evals_api:run", after.pk, against="a\x00").status_code == 400


def test_what_has_not_succeeded_is_not_compared(scene: dict[str, Any]) -> None:
    before = make_eval_run(scene["set"], scene["base"], scene["environment"])
    after = make_eval_run(scene["set"], scene["candidate"], scene["environment"])
    EvalRun.objects.filter(pk=after.pk).update(state=JobState.FAILED)
    body = {"baseline": str(before.pk), "candidate": str(after.pk)}
    answer = scene["api"].post("promotion_api:gate_reports", body=body)
    assert answer.status_code == 409 and "did not succeed" in answer.json()["detail"]
    assert (
        scene["api"].post("promotion_api:gate_reports", body=body | {"candidate": "x"}).status_code
        == 404
    )


def test_an_evaluation_stops_early_only_against_a_finished_one_on_the_same_set(
    scene: dict[str, Any],
) -> None:
    other = make_eval_run(make_eval_set(scene["project"]), scene["base"], scene["environment"])
    answer = scene["api"].post("evals_api:runs", body=asked(scene, stop_against=str(other.pk)))
    assert answer.status_code == 409 and "finished one" in answer.json()["detail"]


@pytest.mark.proof
def test_the_schema_describes_the_routes_with_examples() -> None:
    described = Client().get(reverse("api:schema"), HTTP_ACCEPT="application/json").json()["paths"]
    start = described["/api/v1/eval-runs/"]["post"]["requestBody"]["content"]["application/json"]
    assert start["examples"] and "samples_per_task" in start["schema"]["properties"]
    assert {"get", "post"} == set(described["/api/v1/gate-reports/"])
    assert Split.HOLDOUT in json.dumps(start)


@pytest.mark.proof
def test_the_page_has_the_bounds_of_the_api_and_the_rows_of_its_project(
    scene: dict[str, Any],
) -> None:
    project, eval_set = scene["project"], scene["set"]
    client = Client()
    client.force_login(admin_of(project))
    page = reverse("evals:new_run", args=[project.slug, eval_set.pk])
    sent = {
        "model_version": scene["base"].pk,
        "environment": scene["environment"].pk,
        "split": "train",
        "samples_per_task": 1,
        "seed": 3,
    }
    refused = client.post(page, sent | {"seed": -1}).context["form"]
    assert "greater than or equal to 0" in refused.errors["seed"][0]
    elsewhere = make_environment(make_project())
    refused = client.post(page, sent | {"environment": elsewhere.pk}).context["form"]
    assert list(refused.errors) == ["environment"]
    assert not EvalRun.objects.exists()
    started = client.post(page, sent)
    run = EvalRun.objects.get()
    assert started.url == reverse("evals:run", args=[project.slug, run.pk])
    assert (run.spec["seed"], run.environment, run.created_by) == (
        3,
        scene["environment"],
        admin_of(project),
    )
