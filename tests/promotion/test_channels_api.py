"""Channels by API: what is live, every change, promotion and rollback, by the rules of the
pages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse
from drf_spectacular.generators import SchemaGenerator
from msgspec import structs

from apps.core.actions import create_api_key
from apps.core.models import AuditEvent, Project, Role
from apps.core.scopes import Scope
from apps.promotion import actions, policies
from apps.promotion.models import Channel, GateReport, Promotion
from apps.registry.models import ModelVersion
from tests.factories import admin_of, make_member, make_project
from tests.promotion.made import Pair, signed_again

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair_kept")]
CHANNELS = "/api/v1/channels/"


def key_of(project: Project, role: Role = Role.ENGINEER, scopes: Any = Scope.values) -> str:
    by = admin_of(project) if role == Role.OWNER else make_member(project, role)
    return create_api_key(project=project, name="release", by=by, scopes=scopes)[1]


def call(secret: str, path: str = "", body: Any = None, method: str = "") -> Any:
    method = method or ("GET" if body is None else "POST")
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    sent = json.dumps(body) if body is not None else ""
    return Client().generic(
        method, CHANNELS + path, sent, content_type="application/json", headers=headers
    )


class World(Pair):
    """With a report that the channel's policy, which lets API keys change it, would promote."""

    holdout = 3

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        policy = structs.replace(policies.policy_of(self.channel)[0], api_keys=True)
        policies.save_policy(channel=self.channel, policy=policy, reason="CI releases", by=None)
        self.reported = self.report()
        signed_again(self.reported, "promote")


@pytest.fixture
def report(pair: World) -> GateReport:
    return pair.reported


def test_a_version_is_promoted_and_rolled_back(
    project: Project, base: ModelVersion, report: GateReport
) -> None:
    secret, candidate = key_of(project), report.candidate.model_version
    made = call(
        secret, "production/promote/", {"report": str(report.pk), "reason": "12 points better"}
    )
    assert made.status_code == 200, made.content
    said = made.json()
    assert (said["kind"], said["from_version"], said["to_version"]) == (
        "promote",
        str(base),
        str(candidate),
    )
    assert said["gate_report"] == str(report.pk) and said["reason"] == "12 points better"
    (listed,) = call(secret).json()["results"]
    assert (listed["model"], listed["previous"], listed["policy_version"]) == (
        str(candidate),
        str(base),
        1,
    )
    back = call(secret, "production/rollback/", {"reason": "refunds fail"})
    assert back.status_code == 200 and back.json()["to_version"] == str(base)
    assert call(secret, "production/").json()["model"] == str(base)
    assert AuditEvent.objects.get(action="channel.rollback").actor_label == "API key “release”"
    assert call(secret, "production/rollback/", {}).status_code == 409  # nothing ran before


def test_a_rollback_that_names_what_is_live_is_done_once(
    project: Project, base: ModelVersion, report: GateReport
) -> None:
    """Also from two pages: the second would go back further than its button says."""
    secret, candidate, owner = key_of(project), str(report.candidate.model_version), Client()
    owner.force_login(admin_of(project))
    call(secret, "production/promote/", {"report": str(report.pk), "reason": "better"})
    shown = owner.get(reverse("promotion:models", args=[project.slug])).content.decode()
    assert f'name="from_version" value="{candidate}"' in shown
    assert call(secret, "production/rollback/", {"from_version": candidate}).json()[
        "to_version"
    ] == str(base)
    again = call(secret, "production/rollback/", {"from_version": candidate})
    assert again.status_code == 409 and str(base) in again.json()["detail"]
    address = reverse("promotion:rollback", args=[project.slug, "production"])
    assert (
        "Check the current state"
        in owner.post(address, {"from_version": candidate}, follow=True).content.decode()
    )
    assert call(secret, "production/history/").json()["results"][0]["kind"] == "rollback"


def test_the_history_is_read_in_pages(
    project: Project, base: ModelVersion, report: GateReport
) -> None:
    secret = key_of(project)
    call(secret, "production/promote/", {"report": str(report.pk), "reason": "better"})
    call(secret, "production/rollback/", {})
    whole = call(secret, "production/history/").json()
    assert [move["kind"] for move in whole["results"]] == [
        "rollback",
        "promote",
        "initial",
    ] and whole["next"] is None
    first = call(secret, "production/history/?limit=2").json()
    assert first["results"] == whole["results"][:2]
    assert (
        call(secret, f"production/history/?cursor={first['next']}").json()["results"]
        == whole["results"][2:]
    )
    assert call(secret, "production/history/?cursor=x").status_code == 400
    assert call(secret, "nothing/history/").status_code == 404


MOVES = ["promote", "rollback"]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    ("who", "status"),
    [
        ("not allowed", 403),
        ("engineer", 200),
    ],
)
def test_who_may_move_a_channel(
    project: Project, channel: Channel, report: GateReport, move: str, who: str, status: int
) -> None:
    if move == "rollback":
        actions.promote(channel=channel, report=report, by=admin_of(project), reason="better")
    if who == "not allowed":
        policy = structs.replace(policies.policy_of(channel)[0], api_keys=False)
        policies.save_policy(channel=channel, policy=policy, reason="people only", by=None)
        signed_again(report, "promote", policy_version=2)
    before = Promotion.objects.count()
    answer = call(
        key_of(project),
        f"production/{move}/",
        {"reason": "test"} | ({"report": str(report.pk)} if move == "promote" else {}),
    )
    assert answer.status_code == status, answer.content
    assert Promotion.objects.count() == before + (status == 200)
    if who == "not allowed":
        assert "api_keys" in answer.json()["detail"]


def test_a_key_overrides_nothing_not_even_an_owners(project: Project, report: GateReport) -> None:
    signed_again(report, "inconclusive")
    answer = call(
        key_of(project, Role.OWNER),
        "production/promote/",
        {"report": str(report.pk), "reason": "I know better"},
    )
    assert answer.status_code == 403 and "This requires an owner" in answer.json()["detail"]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("production/promote/", {"reason": "no report"}, "report"),
        ("production/promote/", {"report": "x", "reason": " "}, "reason"),
        ("production/rollback/", {"reason": "\ud800"}, "reason"),
        ("production/rollback/", {"reason": 3}, "reason"),
        ("production/rollback/", {"to": "support-v1"}, "to"),
        ("production/rollback/", [], ""),
    ],
)
def test_what_makes_no_sense_is_refused(
    project: Project, report: GateReport, path: str, body: Any, field: str
) -> None:
    answer = call(key_of(project), path, body)
    assert answer.status_code == 400 and answer.json()["path"] == field and answer.json()["error"]


def test_a_rollback_has_the_reason_that_the_policy_asks_for(
    project: Project, channel: Channel, report: GateReport
) -> None:
    actions.promote(channel=channel, report=report, by=admin_of(project), reason="better")
    policy = structs.replace(policies.policy_of(channel)[0], rollback_needs_reason=True)
    policies.save_policy(channel=channel, policy=policy, reason="say why", by=None)
    secret = key_of(project)
    refused = call(secret, "production/rollback/", {})
    assert refused.status_code == 409 and "Enter a reason" in refused.json()["detail"]
    assert call(secret, "production/rollback/", {"reason": "refunds fail"}).status_code == 200


def test_an_owners_key_makes_a_channel(project: Project) -> None:
    for secret, status in (
        ("", 401),
        (key_of(project, Role.VIEWER), 403),
        (key_of(project), 403),
        (key_of(project, Role.OWNER, [Scope.READ]), 403),
        (key_of(project, Role.OWNER), 201),
        (key_of(project, Role.OWNER), 200),
    ):
        assert call(secret, "", {"name": "staging"}).status_code == status
    assert [
        row["channel"] for row in call(key_of(project, Role.VIEWER, [Scope.READ])).json()["results"]
    ] == ["production", "staging"]
    assert call(key_of(make_project(), Role.OWNER)).json()["results"] == []
    for name in ("", "a b", "x" * 61, None):
        assert call(key_of(project, Role.OWNER), "", {"name": name}).status_code == 400


def test_who_changed_the_policy_when_and_why_is_read(project: Project, report: GateReport) -> None:
    secret = key_of(project, Role.OWNER)
    changed = call(
        secret,
        "production/policy/",
        {"policy": {"min_tasks": 60}, "reason": "more certainty"},
        "PUT",
    )
    assert changed.status_code == 200 and changed.json()["version"] == 2
    newest, first = changed.json()["versions"]
    assert (newest["version"], newest["reason"]) == (2, "more certainty") and newest["by"] == str(
        admin_of(project)
    )
    assert (first["version"], first["by"]) == (1, None)
    earlier = call(secret, "production/policy/?version=1").json()
    assert earlier["version"] == 1 and earlier["policy"]["api_keys"]
    assert call(secret, "production/policy/?version=9").status_code == 404
    assert call(secret, "production/policy/?version=x").status_code == 400


@pytest.mark.proof
def test_the_schema_has_an_example_of_each() -> None:
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    operations = {
        f"{method} {path}": operation
        for path, methods in paths.items()
        if path.startswith(CHANNELS)
        for method, operation in methods.items()
    }
    assert len(operations) == 29
    for name, operation in operations.items():
        good = [given for status, given in operation["responses"].items() if status.startswith("2")]
        assert all("examples" in given["content"]["application/json"] for given in good), name
        if "requestBody" in operation:
            assert "examples" in operation["requestBody"]["content"]["application/json"], name


def test_a_rollback_goes_to_any_earlier_version_and_back_only_by_an_owner(
    project: Project, channel: Channel, base: ModelVersion, report: GateReport
) -> None:
    secret, candidate = key_of(project), str(report.candidate.model_version)
    call(secret, "production/promote/", {"report": str(report.pk), "reason": "better"})
    unknown = call(secret, "production/rollback/", {"to_version": "nothing@9"})
    assert unknown.status_code == 409 and "has never run nothing@9" in unknown.json()["detail"]
    assert call(secret, "production/rollback/", {"to_version": candidate}).status_code == 409, (
        "it runs that already"
    )
    assert call(secret, "production/rollback/", {"to_version": str(base)}).json()[
        "to_version"
    ] == str(base)
    refused = call(key_of(project, Role.OWNER), "production/rollback/", {"to_version": candidate})
    assert refused.status_code == 403 and "was rolled back" in refused.json()["detail"], (
        "not even an owner's key"
    )
    with pytest.raises(PermissionDenied):
        actions.rollback(
            channel=channel, by=make_member(project, Role.OPERATOR), to_version=candidate
        )
    assert (
        actions.rollback(channel=channel, by=admin_of(project), to_version=candidate).to_name
        == candidate
    )


@pytest.mark.parametrize(
    ("role", "put", "promote"),
    [(Role.ENGINEER, 403, 200), (Role.OPERATOR, 200, 409), (Role.OWNER, 200, 409)],
)
def test_an_operators_key_freezes_and_lifts(
    project: Project, report: GateReport, role: Role, put: int, promote: int
) -> None:
    secret, asked = key_of(project, role), {"report": str(report.pk), "reason": "better"}
    frozen = call(secret, "production/freeze/", {"reason": "release week"}, "PUT")
    assert frozen.status_code == put
    if put == 200:
        assert frozen.json() == call(secret, "production/freeze/").json() and "release week" in str(
            frozen.json()
        )
        assert call(secret, "production/freeze/", {"reason": " "}, "PUT").status_code in (400, 409)
        past = call(
            secret, "production/freeze/", {"reason": "x", "until": "2020-01-01T00:00:00Z"}, "PUT"
        )
        assert past.status_code == 409 and "in the future" in past.json()["detail"]
    answer = call(secret, "production/promote/", asked)
    assert answer.status_code == promote and (
        "release week" in answer.json().get("detail", "")
    ) == (promote == 409)
    if put == 200:
        assert call(secret, "production/freeze/", method="DELETE").status_code == 200
        assert call(secret, "production/freeze/", method="DELETE").status_code == 409, (
            "it is not frozen"
        )
        assert call(secret, "production/promote/", asked).status_code == 200


def test_a_channel_is_labelled_with_its_segment(
    project: Project, channel: Channel, report: GateReport
) -> None:
    assert (
        call(
            key_of(project, Role.VIEWER), "production/segment/", {"segment": "eu"}, "PUT"
        ).status_code
        == 403
    )
    secret = key_of(project, Role.OWNER)
    assert call(secret, "production/segment/", {"segment": " eu "}, "PUT").json()["segment"] == "eu"
    channel.refresh_from_db()
    assert (
        channel.segment == "eu"
        and AuditEvent.objects.filter(action="channel.labelled").count() == 1
    )
    assert call(secret, "production/segment/", {"segment": "a\nb"}, "PUT").status_code == 400
    assert call(secret, "nothing/segment/", {"segment": "eu"}, "PUT").status_code == 404


@pytest.mark.parametrize(
    "until", ["9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z", "2000-01-01T00:00:00Z"]
)
def test_a_freeze_ends_at_a_time_that_can_be_stored(
    project: Project, report: GateReport, until: str
) -> None:
    """PostgreSQL stores the year 10000, and nothing could read the channel again."""
    secret = key_of(project, Role.OPERATOR)
    refused = call(secret, "production/freeze/", {"reason": "holidays", "until": until}, "PUT")
    assert refused.status_code == 409 and "freeze" in refused.json()["detail"]
    assert call(secret, "production/freeze/").json()["frozen"] is False


def test_who_may_not_promote_reads_why(
    project: Project, channel: Channel, report: GateReport
) -> None:
    by = admin_of(project)
    actions.promote(channel=channel, report=report, by=by, reason="better")
    actions.rollback(channel=channel, by=by, reason="worse")
    again = call(
        key_of(project), "production/promote/", {"report": str(report.pk), "reason": "once more"}
    )
    candidate = report.candidate.model_version
    assert (
        again.status_code == 403
        and f"production was rolled back from {candidate} before." in again.json()["detail"]
    )
    page = Client()
    page.force_login(by)
    assert f"rolled back from {candidate} before." in page.get(report.get_absolute_url()).text
