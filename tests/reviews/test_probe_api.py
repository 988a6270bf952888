"""Hack probes by API: start, follow, read, cancel, accept a finding; and who may."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import ApiKey, AuditEvent, Role
from apps.reviews.actions import lock_state
from apps.reviews.models import ProbeRun
from apps.reviews.rescoring import CheatingModel, RescoringError, complete_probe, probe_spec
from tests.factories import (
    admin_of,
    make_eval_set,
    make_key,
    make_member,
    make_project,
    make_server,
)
from tests.forms import as_read
from tests.reviews.made import Made, pass_probes
from workers.lib.clients import chat_server
from workers.lib.specs.engines import ModelServer

pytestmark = pytest.mark.django_db
FINDING = {
    "probe": "filler",
    "severity": "medium",
    "task": "t",
    "what": "filler",
    "shown": "very very",
    "reason": "Paid 40%",
    "reward": 0.4,
    "gold_reward": 1.0,
    "plain_reward": 0.0,
    "path": [],
}


def key_of(made: Made, by: Any = None) -> str:
    secret = make_key(made.project)
    ApiKey.objects.filter(project=made.project).update(created_by=by or made.admin)
    return secret


def logged_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def ask(key: str, name: str, *args: Any, body: Any = None) -> Any:
    url, headers = (
        reverse(f"reviews_api:{name}", args=args),
        {"HTTP_AUTHORIZATION": f"Bearer {key}"},
    )
    if body is None:
        return Client().get(url, **headers)
    return Client().post(url, json.dumps(body), content_type="application/json", **headers)


def found(made: Made, *findings: dict, locks: int) -> ProbeRun:
    run = pass_probes(made.environment)
    report = {"failed": list(findings), "probes": [], "notes": [], "locks": locks, "many_medium": 5}
    report |= {
        "golds": {"mean": 1.0, "n": 1},
        "attacks": {"mean": 0.0, "n": 1, "high": 0.4},
        "unequal": 0,
        "repeated": 1,
    }
    report |= {"speed": {"median_us": 1.0, "p95_us": 2.0}}
    ProbeRun.objects.filter(pk=run.pk).update(result=complete_probe(run, {"report": report}))
    run.refresh_from_db()
    return run


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("masked", "scored", "says_something"),
    [(0, 4, True), (5, 4, True), (6, 4, False), (10, 0, False), (0, 0, False)],
)
def test_probes_of_which_most_could_not_be_scored_say_nothing(
    masked: int, scored: int, says_something: bool, made: Made
) -> None:
    """The judge is away while they run: nothing is found, and nothing is opened."""
    run = pass_probes(made.environment)
    ProbeRun.objects.filter(pk=run.pk).update(failed=None)
    spread = {"n": scored, "mean": 0.0}
    report = {
        "probes": [{"n": 10, "masked": masked}],
        "golds": spread,
        "attacks": spread,
        "locks": 0,
    }
    with (
        nullcontext()
        if says_something
        else pytest.raises(ValueError, match="probes are inconclusive")
    ):
        complete_probe(run, {"report": report})
    run.refresh_from_db()
    assert (run.failed == 0) == says_something


def test_probes_are_started_followed_and_cancelled(made: Made) -> None:
    key, eval_set = key_of(made), make_eval_set(made.project)
    started = ask(
        key,
        "probes",
        body={"environment": str(made.environment), "eval_set": str(eval_set), "tasks": 2},
    )
    assert started.status_code == 201, started.json()
    run = ProbeRun.objects.get()
    assert (
        started.json()["id"] == str(run.pk)
        and started.json()["locks"] is None
        and len(run.spec["tasks"]) == 2
    )
    assert run.created_by == made.admin
    told = ask(key, "probe", run.pk).json()
    assert (told["state"], told["findings"], told["waivers"]) == ("queued", [], [])
    assert [row["id"] for row in ask(key, "probes").json()["results"]] == [str(run.pk)]
    assert ask(key, "probe_cancel", run.pk, body={}).json()["state"] == "cancelled"
    assert ask(key, "probe_cancel", run.pk, body={}).status_code == 409


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("change", "status", "path"),
    [
        ({"environment": None}, 400, "environment"),
        ({"environment": "x"}, 404, ""),
        ({"environment": "none@1"}, 404, ""),
        ({"eval_set": "x"}, 404, ""),
        ({"eval_set": 5}, 400, "eval_set"),
        ({"eval_set": "00000000-0000-0000-0000-000000000001"}, 404, ""),
        ({"tasks": 0}, 400, "tasks"),
        ({"tasks": True}, 400, "tasks"),
        ({"tasks": 1e9}, 400, "tasks"),
    ],
)
def test_what_cannot_be_started_says_why(made: Made, change: dict, status: int, path: str) -> None:
    body = {
        "environment": str(made.environment),
        "eval_set": str(make_eval_set(made.project).pk),
    } | change
    refused = ask(key_of(made), "probes", body=body)
    assert refused.status_code == status and refused.json().get("path", "") == path
    assert not ProbeRun.objects.exists()


def test_a_set_of_another_project_cannot_be_used_nor_its_probes_seen(made: Made) -> None:
    foreign = make_eval_set(make_project())
    key, run = key_of(made), found(made, locks=0)
    body = {"environment": str(made.environment), "eval_set": str(foreign.pk)}
    assert ask(key, "probes", body=body).status_code == 404
    other = make_key(foreign.project)
    assert ask(other, "probes").json()["results"] == []
    for name, sent in (
        ("probe", None),
        ("probe_cancel", {}),
        ("probe_waive", {"probe": "filler", "reason": "x"}),
    ):
        assert ask(other, name, run.pk, body=sent).status_code == 404


def test_an_accepted_finding_no_longer_locks_and_is_audited(made: Made) -> None:
    high = FINDING | {"probe": "echo", "severity": "high"}
    run = found(made, *[FINDING] * 5, high, locks=6)
    key, reasons = (
        key_of(made),
        lambda: [reason.what for reason in lock_state(made.environment.verifier).reasons],
    )
    assert ask(key, "probe", run.pk).json()["locks"] == 6
    assert any("Its probes found 6 holes: echo, filler" in what for what in reasons())
    done = ask(
        key, "probe_waive", run.pk, body={"probe": "filler", "reason": "Length is wanted here."}
    ).json()
    assert done["locks"] == 1 and done["waivers"][0]["reason"] == "Length is wanted here."
    assert len(done["findings"]) == 6, "what was accepted is still shown"
    assert (
        ask(key, "probe_waive", run.pk, body={"probe": "echo", "reason": "Known."}).json()["locks"]
        == 0
    )
    assert not any("holes" in what for what in reasons())
    detail = AuditEvent.objects.filter(action="probes.waived").first().detail
    assert detail["probe"] in ("echo", "filler") and detail["reason"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"probe": "filler"}, 400),
        ({"probe": "filler", "reason": " "}, 400),
        ({"probe": 1, "reason": "x"}, 400),
        ({"probe": "nothing", "reason": "x"}, 409),
        ([], 400),
    ],
)
def test_an_acceptance_needs_a_finding_and_a_reason(made: Made, body: Any, status: int) -> None:
    run = found(made, FINDING, locks=0)
    assert ask(key_of(made), "probe_waive", run.pk, body=body).status_code == status
    assert not run.waivers.exists()


def test_only_an_owner_accepts_by_key_and_by_page(made: Made) -> None:
    run, member = found(made, FINDING, locks=1), make_member(made.project, Role.ENGINEER)
    body = {"probe": "filler", "reason": "x"}
    assert ask(key_of(made, member), "probe_waive", run.pk, body=body).status_code == 403
    url = reverse("reviews:probe_waive", args=[made.project.slug, run.pk])
    assert logged_in(member).post(url, body).status_code == 403 and not run.waivers.exists()
    page = logged_in(admin_of(made.project))
    shown = page.get(reverse("reviews:probe", args=[made.project.slug, run.pk])).content.decode()
    assert "Accept these findings" in shown and "an honest wrong answer at most" in shown
    assert page.post(url, body).status_code == 302 and run.waivers.get().reason == "x"
    again = ask(key_of(made), "probe_waive", run.pk, body=body)
    assert again.status_code == 409 and "accepted before" in again.json()["detail"]


# A model that is told to cheat


@pytest.fixture
def cheat(made: Made, settings: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_OUTGOING_KEYS = ["CHEAT_KEY"]
    monkeypatch.setenv("CHEAT_KEY", "secret")
    server = make_server(made.project, name="cheats", key_variable="CHEAT_KEY")
    return {"server": server.name, "model": "sly", "tokens": 5000}


def started(made: Made, cheat: Any) -> Any:
    body = {"environment": str(made.environment), "eval_set": str(made.eval_set.pk), "cheat": cheat}
    return ask(key_of(made), "probes", body=body)


def test_a_probe_run_names_the_model_that_is_told_to_cheat(
    made: Made, cheat: dict, settings: Any
) -> None:
    answer = started(made, cheat)
    assert answer.status_code == 201, answer.content
    run = ProbeRun.objects.get(pk=answer.json()["id"])
    spec = probe_spec(run)
    assert spec.server == ModelServer(
        base_url="http://127.0.0.1:8123/v1",
        model="sly",
        api_key_env="CHEAT_KEY",
        allow_private=True,
    )
    assert spec.cheat_tokens == 5000 and "secret" not in str(spec)
    assert as_read(spec).server.model == "sly"
    settings.FLYWHEEL_OUTGOING_KEYS = []  # no longer allowed: the job says so and asks nobody
    with pytest.raises(RescoringError, match="CHEAT_KEY"):
        probe_spec(run)
    settings.FLYWHEEL_OUTGOING_KEYS, settings.FLYWHEEL_ALLOW_PRIVATE_URLS = ["CHEAT_KEY"], False
    with pytest.raises(RescoringError, match="cheating model"):
        probe_spec(run)
    made.project.servers.all().delete()
    with pytest.raises(RescoringError, match="removed"):
        probe_spec(run)


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"server": "elsewhere"}, 404),
        ({"model": ""}, 400),
        ({"model": " "}, 400),
        ({"tokens": 0}, 400),
        ({"tokens": 10**9}, 400),
        ({"tokens": "5"}, 400),
        ({"base_url": "http://evil.example"}, 400),
        ({"server": None}, 400),
    ],
)
def test_a_wrong_cheating_model_is_refused(
    made: Made, cheat: dict, change: dict, status: int
) -> None:
    make_server(make_project(), name="elsewhere", base_url="http://127.0.0.1:8124/v1")
    assert started(made, cheat | change).status_code == status
    assert not ProbeRun.objects.exists()


def test_a_server_that_may_not_be_called_any_more_starts_nothing(
    made: Made, cheat: dict, settings: Any
) -> None:
    settings.FLYWHEEL_OUTGOING_KEYS = []
    answer = started(made, cheat)
    assert (
        answer.status_code == 409
        and "CHEAT_KEY" in answer.json()["detail"]
        and not ProbeRun.objects.exists()
    )


def test_a_cheating_model_is_asked_as_its_server_is(made: Made, cheat: dict) -> None:
    server = made.project.servers.get()
    server.dialect = "responses"
    spec = CheatingModel(server, "sly").as_spec()
    assert chat_server(spec, "server").protocol == "responses"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("fields", "model", "said"),
    [
        ({"cheat_server": True, "cheat_model": "sly"}, "sly", ""),
        ({}, None, ""),
        ({"cheat_server": True}, None, "Enter the name of the cheating model"),
        ({"cheat_model": "sly"}, None, "Choose the server"),
    ],
)
def test_the_page_starts_probes_with_a_cheating_model(
    made: Made, cheat: dict, fields: dict, model: str | None, said: str
) -> None:
    client = logged_in(made.admin)
    verifier = made.environment.verifier
    page = client.get(reverse("reviews:verifier", args=(made.project.slug, verifier.pk)))
    assert "cheats</option>" in page.content.decode()
    if fields.get("cheat_server"):
        fields = fields | {"cheat_server": made.project.servers.get().pk}
    url = reverse("reviews:probe_run", args=(made.project.slug, verifier.pk))
    answer = client.post(
        url,
        {"environment": made.environment.pk, "eval_set": made.eval_set.pk, **fields},
        follow=True,
    )
    runs = list(ProbeRun.objects.all())
    assert said in answer.content.decode()
    assert [run.spec.get("cheat", {}).get("model") for run in runs] == ([] if said else [model])
