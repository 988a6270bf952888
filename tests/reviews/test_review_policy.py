from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse

from apps.core.actions import remove_member
from apps.core.auditing.words import sentence
from apps.core.models import AuditEvent, Membership, Role
from apps.notifications.models import Notification
from apps.reviews.models import ReviewPolicy
from apps.reviews.policy import DEFAULTS, PolicyError, approve_policy, policy_of, set_policy
from apps.teamwork.models import Proposal
from apps.teamwork.proposals import ProposalError
from tests.factories import admin_of, make_member, make_project

pytestmark = pytest.mark.django_db


def test_without_a_row_the_defaults_hold() -> None:
    project = make_project()
    assert policy_of(project) == DEFAULTS
    assert (
        DEFAULTS["min_samples"] == 50
        and DEFAULTS["min_kappa"] == 0.6
        and DEFAULTS["max_false_positive_rate"] == 0.15
    )
    assert not ReviewPolicy.objects.exists()


def test_a_change_is_audited_before_and_after() -> None:
    project = make_project()
    set_policy(project=project, by=admin_of(project), reason="test", min_kappa=0.7)
    event = AuditEvent.objects.get(action="review.policy_changed")
    assert (event.detail["before"]["min_kappa"], event.detail["after"]["min_kappa"]) == (0.6, 0.7)
    set_policy(project=project, by=admin_of(project), reason="test", min_kappa=0.7)
    assert AuditEvent.objects.filter(action="review.policy_changed").count() == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"min_kappa": 1.2},
        {"min_kappa": float("nan")},
        {"max_false_positive_rate": -0.1},
        {"min_samples": 0},
        {"reviewers_per_sample": 0},
        {"min_accuracy": 1.1},
        {"max_unreviewed_share": -1.0},
        {"colour": "red"},
    ],
    ids=str,
)
def test_it_refuses_what_cannot_be(fields: dict[str, Any]) -> None:
    project = make_project()
    with pytest.raises(PolicyError):
        set_policy(project=project, by=admin_of(project), reason="test", **fields)
    assert policy_of(project) == DEFAULTS


def test_a_change_needs_a_reason() -> None:
    project = make_project()
    with pytest.raises(PolicyError, match="Enter a reason"):
        set_policy(project=project, by=admin_of(project), four_eyes=False, reason=" ")
    set_policy(project=project, by=admin_of(project), four_eyes=False, reason="I am alone here")
    assert (
        AuditEvent.objects.get(action="review.policy_changed").detail["reason"] == "I am alone here"
    )


def test_only_an_owner_changes_it() -> None:
    project = make_project()
    with pytest.raises(PermissionDenied):
        set_policy(project=project, by=make_member(project), reason="test", min_kappa=0.1)


def test_the_page_saves_shows_and_explains() -> None:
    project = make_project()
    client, address = Client(), reverse("reviews:policy", args=[project.slug])
    client.force_login(admin_of(project))
    assert "These are the defaults" in client.get(address).content.decode()
    given = DEFAULTS | {
        "min_kappa": "0.65",
        "reviewers_per_sample": "3",
        "probes_must_pass": "on",
        "four_eyes": "on",
        "reason": "Three of us",
    }
    save = reverse("reviews:policy_save", args=[project.slug])
    page = client.post(save, given, follow=True).content.decode()
    assert "Saved. It now applies" in page
    assert (
        'Min κ and α <span class="muted">0.6 →</span> <b>0.65</b>' in page and "Three of us" in page
    )
    assert policy_of(project) == DEFAULTS | {"min_kappa": 0.65, "reviewers_per_sample": 3}
    answer = client.post(save, given | {"max_false_positive_rate": "7"})
    assert answer.status_code == 400 and "less than or equal to 1" in answer.content.decode()
    client.force_login(make_member(project, Role.VIEWER))
    assert "Only project owners can change this" in client.get(address).content.decode()


@pytest.mark.parametrize("loose", [{"four_eyes": False}, {"reviewers_per_sample": 1}], ids=str)
def test_one_owner_does_not_let_fewer_people_review(loose: dict[str, Any]) -> None:
    project = make_project()
    owner, colleague = admin_of(project), make_member(project, Role.REVIEWER)
    viewer, change = make_member(project, Role.VIEWER), loose | {"min_kappa": 0.5}
    row = set_policy(project=project, by=owner, reason="In a hurry", **change)
    assert isinstance(row, Proposal) and policy_of(project) == DEFAULTS
    assert set(Notification.objects.values_list("user", flat=True)) == {colleague.pk}
    for who in (owner, viewer):
        with pytest.raises((ProposalError, PermissionDenied)):
            approve_policy(project=project, proposal=row.pk, by=who)
    approve_policy(project=project, proposal=row.pk, by=colleague)
    assert policy_of(project) == DEFAULTS | change
    assert (
        sentence(AuditEvent.objects.latest("pk"))
        == f"{colleague} changed the review policy, proposed by {owner}: “In a hurry”"
    )
    with pytest.raises(ProposalError, match="no longer open"):
        approve_policy(project=project, proposal=row.pk, by=colleague)


@pytest.mark.parametrize(
    "change",
    [{"four_eyes": True, "reviewers_per_sample": 3}, {"min_samples": 5}, {"min_kappa": 0.1}],
    ids=str,
)
def test_other_changes_need_one_owner(change: dict[str, Any]) -> None:
    project = make_project()
    make_member(project, Role.REVIEWER)
    set_policy(project=project, by=admin_of(project), reason="test", **change)
    assert policy_of(project) == DEFAULTS | change


def test_removing_the_colleagues_first_does_not_help() -> None:
    project = make_project()
    owner, colleague = admin_of(project), make_member(project, Role.REVIEWER)
    remove_member(membership=Membership.objects.get(user=colleague), by=owner)
    with pytest.raises(ProposalError, match=f"or wait: {colleague} counts until"):
        set_policy(project=project, by=owner, reason="Alone now", four_eyes=False)
    assert policy_of(project) == DEFAULTS


def test_the_page_proposes_withdraws_and_approves() -> None:
    project = make_project()
    people = admin_of(project), make_member(project, Role.REVIEWER)
    clients = Client(), Client()
    for client, user in zip(clients, people, strict=True):
        client.force_login(user)
    page, save, approve, withdraw = (
        reverse(f"reviews:{name}", args=[project.slug])
        for name in ("policy", "policy_save", "policy_approve", "policy_withdraw")
    )
    form = DEFAULTS | {"probes_must_pass": "on", "reviewers_per_sample": "1", "reason": "Two of us"}
    del form["four_eyes"]
    for decide in (withdraw, approve):
        shown = clients[0].post(save, form, follow=True).content.decode()
        assert "A second person has to approve this change on this page" in shown
        assert "Reviewers per sample: 1" in shown and "Withdraw</button>" in shown
        assert "Approve</button>" not in shown and policy_of(project) == DEFAULTS
        shown = clients[1].get(page).content.decode()
        assert "Approve</button>" in shown and "Withdraw</button>" not in shown
        proposal = {"proposal": Proposal.objects.first().pk}
        assert clients[1].post(withdraw, proposal).status_code == 403
        clients[0 if decide == withdraw else 1].post(decide, proposal)
        assert "Waiting for a second person" not in clients[1].get(page).content.decode()
    assert policy_of(project) == DEFAULTS | {"four_eyes": False, "reviewers_per_sample": 1}
