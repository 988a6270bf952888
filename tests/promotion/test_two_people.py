"""Two people promote: who the second may be, and what neither of them can do alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from msgspec import structs

from apps.core.models import Membership, Project, Role
from apps.promotion import actions, policies
from apps.promotion.conditions import PromotionError
from apps.promotion.models import Approval, Channel, GateReport, Promotion
from apps.registry.models import ModelVersion
from tests.factories import (
    admin_of,
    make_adapter,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
)
from tests.promotion.made import signed_again

pytestmark = pytest.mark.django_db


def report_of(
    project: Project,
    channel: Channel,
    base: ModelVersion,
    folder: Path,
    verdict: str,
    **policy: Any,
) -> GateReport:
    changed = structs.replace(policies.policy_of(channel)[0], two_people=True, **policy)
    policies.save_policy(channel=channel, policy=changed, reason="two pairs of eyes", by=None)
    eval_set, environment = make_eval_set(project), make_environment(project)
    runs = [
        make_eval_run(eval_set, model, environment)
        for model in (base, make_adapter(project, base, folder))
    ]
    found = actions.make_gate_report(
        baseline=runs[0], candidate=runs[1], by=admin_of(project), channel=channel
    )
    signed_again(found, verdict)
    return found


def person(project: Project, role: Role) -> Any:
    return admin_of(project) if role == Role.OWNER else make_member(project, role)


@pytest.fixture
def make_report(project: Project, channel: Channel, base: ModelVersion, data_dir: Path) -> Any:
    return lambda verdict="promote", **policy: report_of(
        project, channel, base, data_dir, verdict, **policy
    )


def promote(report: GateReport, by: Any) -> Promotion | Approval:
    made = actions.promote(channel=report.channel, gate_report=report, by=by, reason="better")
    assert isinstance(made, Promotion | Approval)
    return made


E, OP, W = Role.ENGINEER, Role.OPERATOR, Role.OWNER


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
