"""The lock: what opens it, what shuts it again, and who may pass it by."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from apps.core.models import AuditEvent
from apps.environments.actions import save_verifier
from apps.reviews import actions
from apps.reviews.evidence import lock_states
from apps.reviews.models import ProbeRun
from apps.reviews.policy import set_policy
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method, TrainingRun
from tests.factories import admin_of, make_environment, make_member, make_project
from tests.reviews.made import Made, judge_all, pass_probes
from tests.test_access import ROUTES

pytestmark = pytest.mark.django_db


def wanted(made: Made) -> dict[str, Any]:
    dataset = freeze_dataset(eval_set=made.eval_set, by=made.admin)
    return {
        "project": made.project,
        "method": Method.GRPO,
        "parent": made.base,
        "dataset": dataset,
        "environment": made.environment,
        "config": {"steps": 1, "learning_rate": 1e-3},
        "by": made.admin,
    }


def why(made: Made) -> str:
    lock = actions.lock_state(made.verifier)
    assert lock.locked
    return lock.why


def test_training_is_locked_until_people_agree_and_the_probes_pass(made: Made) -> None:
    with pytest.raises(actions.TrainingLocked, match="have not been reviewed"):
        submit_training(**wanted(made))
    review = made.review()
    assert "0 of at least 50 samples are judged" in why(made)
    judge_all(review, made.admin)
    assert why(made) == "The hack probes have not been run on this verifier."
    pass_probes(made.environment)
    assert actions.lock_state(made.verifier).why.startswith(
        "Passed its review: κ 1.00 on 60 samples"
    )
    submit_training(**wanted(made))


@pytest.mark.proof
def test_the_form_refuses_and_says_why(made: Made) -> None:
    client = Client()
    client.force_login(made.admin)
    body = {
        "method": "grpo",
        "parent": made.base.pk,
        "environment": made.environment.pk,
        "eval_set": made.eval_set.pk,
        "seed": 0,
        "steps": 2,
        "learning_rate": 0.001,
        "batch_size": 8,
        "prompts_per_step": 4,
        "generations": 4,
        "beta": 0,
    }
    answer = client.post(reverse("training:new", args=[made.project.slug]), body)
    assert (
        answer.status_code == 200
        and "is locked. Its scores have not been reviewed" in answer.content.decode()
    )
    assert not TrainingRun.objects.exists()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (1, None),
        (2, "The verifier passes"),
        (8, "The verifier is right on"),
        (30, "κ of people and verifier is"),
    ],
    ids=lambda value: str(value or "unlocked")[:20],
)
def test_disagreement_keeps_it_locked(made: Made, wrong: int, says: str | None) -> None:
    review = made.review()
    pass_probes(made.environment)
    fails = [item for item in review.items.all() if item.success][:wrong]
    for item in review.items.all():
        actions.judge(item=item, success=item.success and item not in fails, by=made.admin)
    lock = actions.lock_state(made.verifier)
    if says is None:
        # One rewarded failure is 3% of what people fail, which may be 17%: over the default of 15%.
        assert lock.locked and "95% interval 1% to 16%" in lock.why
        set_policy(project=made.project, by=made.admin, reason="test", max_false_positive_rate=0.2)
        assert not actions.lock_state(made.verifier).locked
    else:
        assert says in lock.why


def test_a_hole_found_by_the_newest_probes_locks(made: Made) -> None:
    judge_all(made.review(), made.admin)
    pass_probes(made.environment)
    assert not actions.lock_state(made.verifier).locked
    pass_probes(made.environment, failed=2)
    assert why(made) == "Its probes found 2 holes: empty answer."
    set_policy(project=made.project, by=made.admin, reason="test", probes_must_pass=False)
    assert not actions.lock_state(made.verifier).locked


def test_a_probe_that_has_not_ended_changes_nothing(made: Made) -> None:
    judge_all(made.review(), made.admin)
    done = pass_probes(made.environment)
    ProbeRun.objects.create(
        project=made.project,
        name="new",
        verifier=made.verifier,
        environment=made.environment,
        eval_set=done.eval_set,
    )
    assert not actions.lock_state(made.verifier).locked


def test_a_changed_verifier_is_locked_again(made: Made) -> None:
    judge_all(made.review(), made.admin)
    pass_probes(made.environment)
    changed = save_verifier(
        project=made.project, name=made.verifier.name, spec={"kind": "exact"}, by=made.admin
    )
    assert changed.hash != made.verifier.hash
    assert not actions.lock_state(made.verifier).locked and actions.lock_state(changed).locked


def test_the_policy_of_today_decides_not_that_of_the_opening(made: Made) -> None:
    judge_all(made.review(), made.admin)
    pass_probes(made.environment)
    set_policy(project=made.project, by=made.admin, reason="test", min_samples=61)
    assert "60 of at least 61" in why(made)
    set_policy(
        project=made.project, by=made.admin, reason="test", min_samples=50, reviewers_per_sample=2
    )
    assert "this review was opened with 1. Open a new one." in why(made)


def test_a_new_review_decides_from_its_opening(made: Made) -> None:
    judge_all(made.review(), made.admin)
    pass_probes(made.environment)
    made.review()
    assert "0 of at least 50" in why(made)


def test_what_differs_counts_only_once_it_is_ruled(made: Made) -> None:
    review, other = made.review(reviewers_per_sample=2), make_member(made.project)
    pass_probes(made.environment)
    judge_all(review, made.admin)
    assert "0 of at least 50" in why(made)
    judge_all(review, other, wrong=1)
    assert why(made).startswith(
        "1 sample waits for a ruling: the reviewers differ. The verifier passes 3.2% of what"
    )
    item = review.items.first()
    actions.rule(
        item=item,
        success=item.success,
        reason="Read the request again.",
        by=make_member(made.project),
    )
    assert not actions.lock_state(made.verifier).locked


def test_overriding_needs_an_admin_and_a_reason() -> None:
    project = make_project()
    verifier = make_environment(project).verifier
    with pytest.raises(PermissionDenied):
        actions.override_lock(verifier=verifier, reason="please", by=make_member(project))
    with pytest.raises(actions.ReviewError):
        actions.override_lock(verifier=verifier, reason="  ", by=admin_of(project))
    assert actions.lock_state(verifier).state == "locked"
    actions.override_lock(verifier=verifier, reason="a demo", by=admin_of(project))
    lock = actions.lock_state(verifier)
    assert lock.state == "override" and not lock.locked and lock.reasons
    assert AuditEvent.objects.get(action="review.lock_overridden").detail["reason"] == "a demo"


def test_many_verifiers_take_as_many_queries_as_one(made: Made) -> None:
    made.review()
    pass_probes(made.environment)

    def count() -> int:
        with CaptureQueriesContext(connection) as found:
            assert len(lock_states(made.project.verifiers.all())) == made.project.verifiers.count()
        return len(found) - 1

    before = count()
    for number in range(6):
        verifier = save_verifier(
            project=made.project, name=f"v{number}", spec={"kind": "exact"}, by=made.admin
        )
        actions.override_lock(verifier=verifier, reason="test", by=made.admin)
    assert count() == before


def test_there_is_no_door_past_the_action() -> None:
    """Training is started in one place, which asks for the lock: pages and the API come through it,
    and so does the export of a run's plan. Resuming and forking ask again
    (tests/training/test_resume.py, test_steering_api.py). A prompt search asks for it in its own
    action (tests/training/test_prompt_search.py). To save what a search found, or to take in what
    was trained elsewhere, trains nothing, nor does an estimate, nor sending outputs to a review.
    """
    writes = {
        name
        for name, methods in ROUTES.items()
        if name.startswith("training_api:") and methods.keys() - {"GET"}
    }
    assert writes == {
        f"training_api:{name}"
        for name in (
            "runs",
            "run_estimate",
            "run_export",
            "run_submit",
            "run_import",
            "run_cancel",
            "run_resume",
            "run_fork",
            "run_outputs_send",
            "searches",
            "search_cancel",
            "search_resume",
            "search_save",
        )
    }
