"""A project of one person has a policy of one: it is said where it counts, and ends when it
should.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.core import actions as core
from apps.core.auditing.words import sentence
from apps.core.models import AuditEvent, Role
from apps.promotion.actions import oversight_of
from apps.reviews import actions, people
from apps.reviews.evidence import lock_of
from apps.reviews.policy import policy_in_force, policy_of
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method, TrainingRun
from apps.training.results import lineage
from tests.factories import make_member, make_user
from tests.reviews.made import Made, judge_all, pass_probes

pytestmark = pytest.mark.django_db


@pytest.fixture
def made(data_dir: Path) -> Made:
    """By the default policy, which asks for two reviewers and four eyes; its probes pass."""
    made = Made(data_dir, alone=True)
    pass_probes(made.environment)
    return made


def train(made: Made, by: Any = None) -> TrainingRun:
    return submit_training(
        project=made.project,
        method=Method.GRPO,
        parent=made.base,
        environment=made.environment,
        config={"steps": 2, "learning_rate": 1e-3},
        dataset=freeze_dataset(eval_set=made.eval_set, by=made.admin),
        by=by or made.admin,
    )


def reviewed_alone(made: Made) -> None:
    judge_all(actions.open_review(runs=[made.run], by=made.admin), made.admin)


def test_one_person_writes_reviews_and_trains_and_every_page_that_counts_says_so(
    made: Made,
) -> None:
    reviewed_alone(made)
    run = train(made)
    said = f"Reviewed by the person who trains ({made.admin}), the only one in this project."
    assert run.spec["oversight"] == said
    assert sentence(AuditEvent.objects.get(action="trainingrun.submitted")).endswith(said)
    version = made.base
    version.lineage = lineage(run)
    assert oversight_of(version) == [{"model": str(version), "oversight": said}]
    assert policy_in_force(made.project)["alone"] and policy_of(made.project)["four_eyes"]


def test_an_override_by_the_person_who_trains_says_so(made: Made) -> None:
    actions.override_lock(verifier=made.verifier, reason="a first try", by=made.admin)
    assert (
        train(made).spec["oversight"]
        == f"Not reviewed: the person who trains overrode the lock ({made.admin}), the only one in"
        " this project."
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("role", [Role.REVIEWER, Role.ENGINEER, Role.OWNER])
def test_with_a_second_person_four_eyes_hold_again(made: Made, role: Role) -> None:
    reviewed_alone(made)
    run, second = train(made), make_member(made.project, role)
    with pytest.raises(actions.TrainingLocked, match="requires 2 people per sample"):
        train(made)
    assert lock_of(environment=made.environment, by=run.created_by).locked
    second.is_active = False
    second.save()
    train(made)


def test_a_viewer_can_neither_judge_nor_train_and_does_not_count(made: Made) -> None:
    make_member(made.project, Role.VIEWER)
    reviewed_alone(made)
    assert not lock_of(environment=made.environment, by=made.admin).locked


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("how", ["removed", "made a viewer"])
def test_removing_a_colleague_does_not_make_it_a_project_of_one_at_once(
    made: Made, how: str
) -> None:
    second = make_user()
    membership = core.set_member(
        project=made.project, user=second, role=Role.ENGINEER, by=made.admin
    )
    if how == "removed":
        core.remove_member(membership=membership, by=made.admin)
    else:
        core.set_member(project=made.project, user=second, role=Role.VIEWER, by=made.admin)
    reviewed_alone(made)
    lock = lock_of(environment=made.environment, by=made.admin)
    assert lock.locked and "No other engineer is in this project" in " ".join(lock.todo)
    assert f"{second} left on" in " ".join(lock.todo)
    later = timezone.now() + people.COUNTS_FOR + timedelta(minutes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(people.timezone, "now", lambda: later)
        assert people.companies_of([made.project.pk])[made.project.pk].alone


def test_a_colleague_who_was_added_by_the_one_who_trains_leaves_a_trace(made: Made) -> None:
    """A second account of the same person looks like this."""
    second, third = make_user("second"), make_user("third")
    for user in (second, third):
        core.set_member(project=made.project, user=user, role=Role.ENGINEER, by=made.admin)
    review = actions.open_review(runs=[made.run], by=made.admin)
    judge_all(review, second)
    judge_all(review, third)
    said = train(made, by=second).spec["oversight"]
    assert said.startswith("Reviewed by second and third. second was added to the project by ")
    assert f"third was added to the project by {made.admin} on" in said


def test_who_is_asked_instead_is_somebody_who_is_there(made: Made) -> None:
    colleague = make_member(made.project)
    actions.override_lock(verifier=made.verifier, reason="in a hurry", by=made.admin)
    with pytest.raises(actions.TrainingLocked, match=f"Ask {colleague} to start it"):
        train(made)


@pytest.mark.proof
def test_the_pages_say_which_policy_applies(made: Made) -> None:
    page = Client()
    page.force_login(made.admin)
    address = f"/p/{made.project.slug}/reviews/"
    assert "One person is in this project" in page.get(f"{address}policy/").content.decode()
    assert "the person who reviews may also train" in page.get(address).content.decode()
    make_member(made.project)
    assert "One person is in this project" not in page.get(f"{address}policy/").content.decode()
