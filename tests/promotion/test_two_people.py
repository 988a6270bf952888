"""Two people promote: who the second may be, and what neither of them can do alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.utils import timezone
from msgspec import structs

from apps.core.actions import create_api_key
from apps.core.auditing.words import sentence
from apps.core.models import AuditEvent, Membership, Project, Role
from apps.promotion import actions, policies
from apps.promotion.conditions import PromotionError
from apps.promotion.gate import Policy
from apps.promotion.models import Approval, Channel, GateReport, Promotion
from apps.registry.models import ModelVersion
from apps.teamwork.models import Proposal
from apps.teamwork.proposals import ProposalError
from tests.factories import (
    admin_of,
    make_member,
)
from tests.promotion.made import Pair, signed_again

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair_kept")]


class World(Pair):
    holdout = 3


def report_of(pair: Pair, verdict: str, **policy: Any) -> GateReport:
    channel = pair.channel
    changed = structs.replace(policies.policy_of(channel)[0], two_people=True, **policy)
    policies.save_policy(channel=channel, policy=changed, reason="two pairs of eyes", by=None)
    found = pair.report()
    signed_again(found, verdict)
    return found


def person(project: Project, role: Role) -> Any:
    return admin_of(project) if role == Role.OWNER else make_member(project, role)


@pytest.fixture
def make_report(pair: Pair) -> Any:
    return lambda verdict="promote", **policy: report_of(pair, verdict, **policy)


def promote(report: GateReport, by: Any) -> Promotion | Approval:
    made = actions.promote(channel=report.channel, report=report, by=by, reason="better")
    assert isinstance(made, Promotion | Approval)
    return made


E, OP, W = Role.ENGINEER, Role.OPERATOR, Role.OWNER


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("approvers", "first", "second", "moves"),
    [
        ("engineer", E, E, True),
        ("operator", E, E, False),
        ("operator", E, OP, True),
        ("operator", OP, E, True),  # whichever of the two comes first
        ("operator", E, W, True),
        ("owner", OP, OP, False),
        ("owner", W, E, True),
    ],
)
def test_one_of_the_two_has_the_role(
    make_report: Any, project: Project, approvers: str, first: Role, second: Role, moves: bool
) -> None:
    report = make_report(approvers=approvers)
    assert isinstance(promote(report, person(project, first)), Approval)
    made = promote(report, person(project, second))
    assert isinstance(made, Promotion) == moves
    report.channel.refresh_from_db()
    assert (report.channel.current == report.candidate.model_version) == moves


def test_the_same_person_twice_is_one(make_report: Any, project: Project) -> None:
    report, by = make_report(), make_member(project, Role.ENGINEER)
    promote(report, by)
    with pytest.raises(PromotionError, match="another person"):
        promote(report, by)
    with pytest.raises(PromotionError, match="an owner"):
        strict = make_report(approvers="owner")
        promote(strict, by)
        promote(strict, make_member(project, Role.ENGINEER))
        promote(strict, by)
    assert Promotion.objects.filter(kind="promote").count() == 0


@pytest.mark.parametrize("how", ["left", "smaller role", "deactivated"])
def test_who_may_not_promote_any_more_counts_no_more(
    make_report: Any, project: Project, how: str
) -> None:
    report, gone = make_report(), make_member(project, Role.ENGINEER)
    promote(report, gone)
    if how == "left":
        Membership.objects.filter(user=gone).delete()
    elif how == "smaller role":
        Membership.objects.filter(user=gone).update(role=Role.VIEWER)
    else:
        type(gone).objects.filter(pk=gone.pk).update(is_active=False)
    second = make_member(project, Role.ENGINEER)
    assert isinstance(promote(report, second), Approval), "the second is the first one now"
    assert isinstance(promote(report, make_member(project, Role.ENGINEER)), Promotion)


def test_an_override_needs_two_who_may_override(make_report: Any, project: Project) -> None:
    report = make_report("inconclusive")
    assert isinstance(promote(report, admin_of(project)), Approval)
    with pytest.raises(PermissionDenied, match=r"This requires an owner of .*; you are operator"):
        promote(report, make_member(project, Role.OPERATOR))
    assert isinstance(promote(report, make_member(project, Role.OWNER)), Promotion)
    assert Promotion.objects.get(kind="promote").overridden


def test_a_rollback_needs_one(make_report: Any, project: Project, base: ModelVersion) -> None:
    report = make_report()
    for _ in range(2):
        promote(report, make_member(project, Role.ENGINEER))
    actions.rollback(channel=report.channel, by=make_member(project, Role.ENGINEER), reason="worse")
    report.channel.refresh_from_db()
    assert report.channel.current == base


LOOSER = [
    {"two_people": False},
    {"two_people": False, "min_tasks": 60},
    {"promoters": "engineer"},
    {"approvers": "operator"},
    {"api_keys": True},
]
STRICT = {"two_people": True, "promoters": "operator", "approvers": "owner", "api_keys": False}


@pytest.mark.parametrize("change", LOOSER)
def test_what_loosens_a_policy_of_two_waits_for_a_second_person(
    project: Project, channel: Channel, change: dict[str, Any]
) -> None:
    strict, one, other = Policy(**STRICT), admin_of(project), make_member(project, Role.OPERATOR)
    policies.save_policy(channel=channel, policy=strict, reason="two pairs of eyes", by=one)
    wanted = structs.replace(strict, **change)
    row = policies.save_policy(channel=channel, policy=wanted, reason="easier", by=one)
    assert isinstance(row, Proposal) and policies.policy_of(channel) == (strict, 1)
    for who in (one, make_member(project, Role.ENGINEER)):
        with pytest.raises((ProposalError, PermissionDenied)):
            policies.approve_policy(channel=channel, proposal=row.pk, by=who)
    saved = policies.approve_policy(channel=channel, proposal=row.pk, by=other)
    assert policies.policy_of(channel) == (wanted, 2)
    assert (saved.by, saved.approved_by) == (one, other.username)
    event = AuditEvent.objects.filter(action="channel.policy_changed").latest("pk")
    assert event.actor == other and event.detail["proposed_by"] == one.username


@pytest.mark.parametrize("change", [{"min_tasks": 90}, {"approvers": "owner"}, {"alpha": 0.1}])
def test_other_changes_of_a_policy_of_two_need_one_person(
    project: Project, channel: Channel, change: dict[str, Any]
) -> None:
    policies.save_policy(channel=channel, policy=Policy(two_people=True), reason="x", by=None)
    wanted = Policy(two_people=True, **change)
    policies.save_policy(channel=channel, policy=wanted, reason="x", by=admin_of(project))
    assert policies.policy_of(channel) == (wanted, 2)


@pytest.mark.parametrize(
    "event", ["another version", "a newer proposal", "withdrawn", "left", "late"]
)
def test_a_proposal_is_open_for_what_was_proposed_by_who_may(
    project: Project, channel: Channel, event: str
) -> None:
    one, other = make_member(project, Role.OWNER), admin_of(project)
    given = {"channel": channel, "reason": "x"}
    policies.save_policy(policy=Policy(two_people=True), by=one, **given)
    row = policies.save_policy(policy=Policy(), by=one, **given)
    assert isinstance(row, Proposal)
    if event == "another version":
        policies.save_policy(policy=Policy(two_people=True, min_tasks=50), by=other, **given)
    elif event == "a newer proposal":
        policies.save_policy(policy=Policy(min_tasks=20), by=one, **given)
    elif event == "withdrawn":
        with pytest.raises(ProposalError, match="only they can withdraw it"):
            policies.withdraw_policy(channel=channel, proposal=row.pk, by=other)
        policies.withdraw_policy(channel=channel, proposal=row.pk, by=one)
        assert sentence(AuditEvent.objects.latest("pk")).startswith(
            f"{one} withdrew the proposed change of who may promote to production"
        )
    elif event == "left":
        Membership.objects.filter(user=one).delete()
    else:
        Proposal.objects.update(at=timezone.now() - timedelta(days=15))
    with pytest.raises(ProposalError):
        policies.approve_policy(channel=channel, proposal=row.pk, by=other)


def test_who_is_alone_is_told_the_ways_out(project: Project, channel: Channel) -> None:
    one = admin_of(project)
    policies.save_policy(channel=channel, policy=Policy(two_people=True), reason="x", by=one)
    with pytest.raises(ProposalError, match="Add somebody under Settings"):
        policies.save_policy(channel=channel, policy=Policy(), reason="x", by=one)
    policies.save_policy(channel=channel, policy=Policy(), reason="on the server", by=None)
    assert not policies.policy_of(channel)[0].two_people


def test_one_owners_keys_and_pages_do_not_switch_it_off(project: Project, channel: Channel) -> None:
    one, other = admin_of(project), make_member(project, Role.ENGINEER)
    policy = Policy(two_people=True, api_keys=True)
    policies.save_policy(channel=channel, policy=policy, reason="x", by=None)
    keys = [create_api_key(project=project, name="k", by=by)[1] for by in (one, one, other)]
    address, body = "/api/v1/channels/production/policy/", {"policy": {}, "reason": "alone"}

    def call(method: str, path: str, key: str, body: Any = None) -> Any:
        headers = {"HTTP_AUTHORIZATION": f"Bearer {key}", "content_type": "application/json"}
        return getattr(Client(), method)(path, body, **headers)

    answer = call("put", address, keys[0], body)
    assert answer.status_code == 202 and answer.json()["proposal"]["reason"] == "alone"
    asked = {"proposal": answer.json()["proposal"]["id"]}
    assert call("post", f"{address}approve/", keys[1], asked).status_code == 409
    pages = Client(), Client()
    for client, by in zip(pages, (one, other), strict=True):
        client.force_login(by)
    page = f"/p/{project.slug}/models/channels/production/policy/"
    assert "Approve</button>" not in pages[0].get(page).content.decode()
    shown = pages[0].post(f"{page}approve/", asked, follow=True).content.decode()
    assert "another person has to approve it" in shown
    assert "Approve</button>" in pages[1].get(page).content.decode()
    assert call("get", address, keys[0]).json()["proposal"]["id"] == asked["proposal"]
    assert call("post", f"{address}withdraw/", keys[2], asked).status_code == 403
    assert call("post", f"{address}withdraw/", keys[1], asked).json()["proposal"] is None
    assert call("post", f"{address}approve/", keys[2], asked).status_code == 409
    asked = {"proposal": call("put", address, keys[0], body).json()["proposal"]["id"]}
    assert "Withdraw</button>" not in pages[1].get(page).content.decode()
    assert "Withdraw</button>" in pages[0].get(page).content.decode()
    assert "Withdrawn" in pages[0].post(f"{page}withdraw/", asked, follow=True).content.decode()
    asked = {"proposal": call("put", address, keys[0], body).json()["proposal"]["id"]}
    assert call("post", f"{address}approve/", keys[2], asked).json()["version"] == 2
    assert call("get", address, keys[0]).status_code == 200
    assert policies.policy_of(channel)[0] == Policy()
