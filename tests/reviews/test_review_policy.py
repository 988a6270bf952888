from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Role
from apps.reviews.models import ReviewPolicy
from apps.reviews.policy import DEFAULTS, PolicyError, policy_of, set_policy
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
