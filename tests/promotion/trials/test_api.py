"""Trials by API and on their pages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import create_api_key
from apps.core.models import AuditEvent, Role
from apps.promotion.gate.policy import Policy
from apps.promotion.models import Channel, Trial
from apps.promotion.policies import save_policy
from apps.promotion.trials import running
from apps.promotion.trials.sessions import settle
from apps.registry.models import ModelVersion
from tests.factories import admin_of, make_endpoint, make_key, make_member, make_project
from tests.promotion.trials.made import STEPS, add_sessions, answer, asked, make_trial

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate(channel: Channel, base: ModelVersion) -> ModelVersion:
    policy = Policy(api_keys=True)
    save_policy(channel=channel, policy=policy, reason="keys", by=admin_of(channel.project))
    return make_endpoint(channel.project, served_as="tuned", parent=base, name="tuned")


def sent(
    channel: Channel,
    route: str,
    body: dict | None,
    headers: dict[str, str] | None = None,
    *args: Any,
) -> Any:
    url = reverse(f"promotion_api:{route}", args=[channel.name, *args])
    headers = headers or {"Authorization": f"Bearer {make_key(channel.project)}"}
    if body is None:
        return Client().get(url, headers=headers)
    return Client().post(url, json.dumps(body), content_type="application/json", headers=headers)


SHADOW = {"kind": "shadow", "version": "tuned-v1", "reason": "see"}


def test_a_shadow_is_begun_read_and_stopped(channel: Channel, candidate: ModelVersion) -> None:
    made = sent(channel, "trials", SHADOW | {"version": str(candidate)})
    assert made.status_code == 201, made.json()
    pk = made.json()["id"]
    assert made.json()["state"] == "running" and made.json()["by"].startswith("API key")
    assert AuditEvent.objects.get(action="trial.started").actor_label == made.json()["by"]
    running.look(pk)
    one = sent(channel, "trial", None, None, pk).json()
    assert one["report"]["measures"]["success"]["gap"] is None and one["report"]["sessions"] == 0
    assert [row["id"] for row in sent(channel, "trials", None).json()["results"]] == [pk]
    assert sent(channel, "trial_stop", {"reason": "enough"}, None, pk).json()["state"] == "stopped"
    assert sent(channel, "trial_stop", {"reason": "again"}, None, pk).status_code == 409


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"kind": "canary"}, 409),
        ({"kind": "other"}, 400),
        ({"reason": " "}, 400),
        ({"version": "nobody-v1"}, 404),
        ({"report": "6b0c66f7-47a5-4c1c-8f1c-0d6b2e9a5b30"}, 404),
        ({"then": "promote"}, 409),
        ({"plan": {"steps": [{"share": 0}]}}, 400),
        ({"plan": {"steps": [{"share": 1}]}}, 400),
        ({"plan": {"steps": [{"share": "NaN"}]}}, 400),
        ({"plan": {"alpha": 1}}, 400),
        ({"plan": {"steps": []}}, 400),
        ({"plan": {"steps": [{"share": 0.1}, {"share": 0.2}]}}, 409),
    ],
)
def test_what_is_wrong_is_refused(
    channel: Channel, candidate: ModelVersion, change: dict[str, Any], status: int
) -> None:
    answer = sent(channel, "trials", SHADOW | {"version": str(candidate)} | change)
    assert answer.status_code == status, answer.json()
    assert not Trial.objects.exists()


def test_who_may_what(channel: Channel, candidate: ModelVersion, adapter: ModelVersion) -> None:
    trial = make_trial(channel, adapter)
    viewer = create_api_key(
        project=channel.project, name="all", by=make_member(channel.project, Role.VIEWER)
    )[1]
    other = make_key(make_project())
    for secret, reads, writes in ((viewer, 200, 403), (other, 404, 404), ("fw_wrong", 401, 401)):
        headers = {"Authorization": f"Bearer {secret}"}
        assert sent(channel, "trial", None, headers, trial.pk).status_code == reads
        for route in ("trial_stop", "trial_advance"):
            assert sent(channel, route, {"reason": "x"}, headers, trial.pk).status_code == writes
    save_policy(channel=channel, policy=Policy(), reason="no keys", by=admin_of(channel.project))
    assert sent(channel, "trials", SHADOW | {"version": str(candidate)}).status_code == 403
    assert sent(channel, "trial_stop", {"reason": "x"}, None, trial.pk).status_code == 403
    trial.refresh_from_db()
    assert trial.state == "running" and trial.step == 0


def shown(client: Client, trial: Trial, **headers: str) -> str:
    client.force_login(admin_of(trial.project))
    answer = client.get(trial.get_absolute_url(), headers=headers)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.proof
def test_its_page_is_live_while_it_runs_and_still_afterwards(
    client: Client, channel: Channel, adapter: ModelVersion
) -> None:
    trial = make_trial(channel, adapter, steps=[step | {"centre": {}} for step in STEPS])
    assert 'hx-trigger="every 5s"' in shown(client, trial) and "0 of 10 sessions" in shown(
        client, trial
    )
    failed = asked(trial, "angry customer", "canary", failed="bad_planning")
    add_sessions(trial, "current", 90, 10)
    running.look(trial.pk)
    page = shown(client, trial, **{"HX-Request": "true"})
    assert (
        "angry customer" in page
        and "/trajectories/" in page
        and "90 of 100" in page
        and "<html" not in page
    )
    assert failed.unit in page
    assert "Close ticket 1234." in page and "bad_planning" in page, (
        "what was asked, and why it failed"
    )
    Trial.objects.filter(pk=trial.pk).update(
        state="rolled_back", ended_at=trial.created_at, ended_because="The candidate is worse."
    )
    page = shown(client, trial)
    assert "every 5s" not in page and "The candidate is worse." in page and "End it" not in page


def test_a_person_begins_and_ends_on_pages(
    client: Client, channel: Channel, candidate: ModelVersion
) -> None:
    client.force_login(admin_of(channel.project))
    begin = reverse("promotion:trial_begin", args=[channel.project.slug, channel.name])
    answer = client.post(
        begin, {"kind": "shadow", "version": candidate.pk, "share": "30", "reason": "see"}
    )
    trial = Trial.objects.get()
    assert answer.headers["Location"] == trial.get_absolute_url() and trial.share == 0.3
    channel_page = client.get(
        reverse("promotion:channel", args=[channel.project.slug, channel.name])
    ).content.decode()
    assert trial.get_absolute_url() in channel_page and "Start a shadow" not in channel_page
    client.post(f"{trial.get_absolute_url()}stop/", {"reason": "enough"})
    trial.refresh_from_db()
    assert trial.state == "stopped" and "enough" in trial.ended_because


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "share", ["0", "91", "00000009012345", "1e9", "NaN", "-1", "", "30,5", "\uff15"]
)
def test_a_share_that_is_none_begins_nothing(
    client: Client, channel: Channel, candidate: ModelVersion, share: str
) -> None:
    client.force_login(admin_of(channel.project))
    begin = reverse("promotion:trial_begin", args=[channel.project.slug, channel.name])
    asked = {"kind": "shadow", "version": candidate.pk, "share": share, "reason": "see"}
    assert "whole percentage" in client.post(begin, asked, follow=True).content.decode()
    assert not Trial.objects.exists()


def test_a_version_that_is_none_begins_nothing(
    client: Client, channel: Channel, candidate: ModelVersion
) -> None:
    client.force_login(admin_of(channel.project))
    begin = reverse("promotion:trial_begin", args=[channel.project.slug, channel.name])
    for version in ("", "\u00b2", "9" * 5000, "tuned-v1"):
        asked_for = {"kind": "shadow", "version": version, "share": "25", "reason": "see"}
        assert (
            "Choose a model version" in client.post(begin, asked_for, follow=True).content.decode()
        )
    assert not Trial.objects.exists()


def test_what_a_shadow_said_is_read_on_its_page(
    client: Client, channel: Channel, adapter: ModelVersion
) -> None:
    """Its answers are runs of nobody, so no run can be opened."""
    trial = make_trial(channel, adapter, kind="shadow", steps=[STEPS[0] | {"centre": {}}])
    given = asked(trial, "u1")
    said = {
        "messages": [
            {"role": "assistant", "content": "I have <b>deleted</b> it"},
            {"role": "assistant", "tool_calls": [{"id": "c7"}]},
        ],
        "modes": ["bad_planning"],
        "problem": "",
    }
    answer(
        trial, "u1", "shadow", shadow_of=given.span_id, failed=True, unsafe=False, said=said
    ).save()
    lost = asked(trial, "u2")
    said = {"messages": [], "modes": [], "problem": "HTTP 500: CUDA"}
    answer(
        trial, "u2", "shadow", shadow_of=lost.span_id, failed=True, answered=False, said=said
    ).save()
    settle(trial, timezone.now())
    page = shown(client, trial)
    assert (
        "I have &lt;b&gt;deleted&lt;/b&gt; it" in page and "c7" in page and "(bad_planning)" in page
    )
    assert "HTTP 500: CUDA" in page
