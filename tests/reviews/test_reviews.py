from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import PermissionDenied

from apps.core.models import AuditEvent
from apps.reviews import actions
from apps.reviews.agreement import assess, cohen_kappa
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)


@pytest.mark.parametrize(
    ("table", "kappa"),
    [  # (both yes, person only, verifier only, both no)
        ((20, 5, 10, 15), 0.4),  # the example of Cohen's kappa on Wikipedia
        ((25, 0, 0, 25), 1.0),
        ((0, 25, 25, 0), -1.0),
        ((10, 10, 10, 10), 0.0),
        ((50, 0, 0, 0), None),
    ],
)
def test_kappa(table: tuple[int, int, int, int], kappa: float | None) -> None:
    both, person_only, verifier_only, neither = table
    person = [True] * (both + person_only) + [False] * (verifier_only + neither)
    verifier = [True] * both + [False] * person_only + [True] * verifier_only + [False] * neither
    found = cohen_kappa(person, verifier)
    assert found is None if kappa is None else found == pytest.approx(kappa)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(True, True)] * 30 + [(False, False)] * 30, None),
        ([(True, True)] * 20 + [(False, False)] * 20, "at least 50"),
        ([(True, True)] * 60, "not defined"),
        ([(True, True)] * 40 + [(False, False)] * 27 + [(False, True)] * 3, "passes 10% of what people fail"),
        ([(True, True)] * 30 + [(True, False)] * 30 + [(False, False)] * 10, "κ is"),
    ],
)
def test_the_policy(pairs: list[tuple[bool, bool]], reason: str | None) -> None:
    found = assess(pairs)
    assert found.passed == (reason is None)
    if reason:
        assert any(reason in sentence for sentence in found.reasons)


@pytest.mark.django_db
def test_training_is_locked_until_people_agree(data_dir: Path) -> None:
    project = make_project()
    by = admin_of(project)
    environment, base = make_environment(project), make_base(project, data_dir)
    eval_set = make_eval_set(project, holdout=16)
    run = make_eval_run(eval_set, base, environment, success=0.5)
    wanted = {
        "project": project, "method": Method.SFT, "parent": base, "dataset": freeze_dataset(eval_set=eval_set, by=by),
        "environment": environment, "config": {"steps": 1}, "by": by,
    }  # fmt: skip
    with pytest.raises(actions.TrainingLocked):
        submit_training(**wanted)
    review = actions.open_review(run=run, by=by, size=60)
    items = list(review.items.select_related("sample"))
    assert len(items) == 60 and 25 <= sum(item.sample.success for item in items) <= 35
    for item in items[:-1]:
        actions.judge(item=item, success=item.sample.success, by=by)
    assert not actions.lock_state(environment.verifier).locked
    actions.undo(review=review, by=by)
    submit_training(**wanted)


@pytest.mark.django_db
def test_overriding_needs_an_admin_and_a_reason() -> None:
    project = make_project()
    verifier = make_environment(project).verifier
    with pytest.raises(PermissionDenied):
        actions.override_lock(verifier=verifier, reason="please", by=make_member(project))
    with pytest.raises(actions.ReviewError):
        actions.override_lock(verifier=verifier, reason="  ", by=admin_of(project))
    assert actions.lock_state(verifier).locked
    actions.override_lock(verifier=verifier, reason="a demo", by=admin_of(project))
    assert not actions.lock_state(verifier).locked
    assert AuditEvent.objects.get(action="review.lock_overridden").detail["reason"] == "a demo"
