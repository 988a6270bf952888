"""Opening a review: which samples, of which evaluations, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent
from apps.demo.recipes import HARNESS, VERIFIER
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Verifier
from apps.evals.models import EvalRun, HoldoutView, Sample
from apps.reviews import actions
from apps.reviews.models import RewardReview
from apps.reviews.policy import DEFAULTS
from apps.reviews.scores import bucket_of, scores_of
from tests.factories import make_adapter, make_environment, make_member, make_project
from tests.reviews.made import Made, make_run

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("fields", "bucket"),
    [
        ({"success": True, "unsafe": True}, "success"),
        ({"unsafe": True, "valid": True}, "unsafe"),
        ({"valid": False}, "invalid"),
        ({"valid": True}, "failed"),
        ({"valid": True, "tool_ok": False}, "wrong tool"),
        ({"valid": True, "tool_ok": True, "args_score": 0.5}, "wrong arguments"),
        ({"valid": True, "tool_ok": True, "args_score": 1.0}, "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sample_is_of_one_kind(fields: dict, bucket: str) -> None:
    assert bucket_of(Sample(**fields)) == bucket


def test_samples_are_of_every_score_kind_and_model(made: Made, tmp_path: Path) -> None:
    adapter = make_adapter(made.project, made.base, tmp_path)
    other = make_run(made.eval_set, adapter, made.environment, success=0.75)
    other.samples.filter(success=False)[0]
    Sample.objects.filter(pk=other.samples.filter(success=False).first().pk).update(unsafe=True)
    review = actions.open_review(runs=[made.run, other], by=made.admin, size=60)
    items = list(review.items.select_related("sample__run"))
    assert len(items) == 60 and [item.position for item in items] == list(range(60))
    assert {item.sample.run_id for item in items} == {made.run.pk, other.pk}
    assert {item.stratum.split(" · ")[1] for item in items} == {"success", "invalid", "unsafe"}
    assert 20 <= sum(item.success for item in items) <= 45
    assert all(
        (item.reward, item.components) == (item.sample.reward, item.sample.components)
        for item in items
    )
    again = actions.open_review(runs=[other, made.run], by=made.admin, size=60)
    assert list(again.items.values_list("sample", flat=True)) == [item.sample_id for item in items]


def test_it_freezes_the_policy_counts_the_look_and_is_audited(made: Made) -> None:
    review = made.review(reviewers_per_sample=2)
    assert review.policy == DEFAULTS | {"four_eyes": False, "alone": False}
    look = HoldoutView.objects.get(eval_set=made.eval_set, kind="view")
    assert look.by == made.admin and look.detail == f"reward review of {made.verifier}"
    detail = AuditEvent.objects.get(action="review.opened").detail
    assert (
        detail["hash"] == made.verifier.hash
        and detail["n"] == 60
        and detail["runs"] == [str(made.run.pk)]
    )


def test_what_is_thin_is_said_and_masked_samples_stay_out(made: Made) -> None:
    masked = list(made.run.samples.values_list("pk", flat=True)[:20])
    Sample.objects.filter(pk__in=masked).update(masked=True, reward=None, mask_reason="broken")
    review = made.review()
    assert review.items.count() == 44 and not review.items.filter(sample__in=masked).exists()
    assert review.thin == ["There are only 44 distinct outputs; 60 were requested."]


def other_verifier(made: Made) -> EvalRun:
    verifier = save_verifier(
        project=made.project,
        name="tool-call",
        spec=VERIFIER | {"weights": VERIFIER["weights"] | {"tool": 0.3}},
        by=made.admin,
    )
    environment = save_environment(
        project=made.project,
        slug="workplace",
        builtin="workplace",
        harness=HARNESS,
        verifier=verifier,
        by=made.admin,
    )
    return make_run(made.eval_set, made.base, environment)


def test_it_refuses_scores_of_another_verifier(made: Made) -> None:
    run = other_verifier(made)
    with pytest.raises(actions.ReviewError, match="was scored by tool-call@2, not by tool-call@1"):
        actions.open_review(runs=[made.run, run], by=made.admin)
    assert len(scores_of(run, run.environment.verifier)) == 64


@pytest.mark.parametrize("size", [49, 101, 0])
def test_it_refuses_a_size_out_of_range(made: Made, size: int) -> None:
    with pytest.raises(actions.ReviewError, match="50 to 100 samples"):
        actions.open_review(runs=[made.run], by=made.admin, size=size)


def test_it_refuses_what_has_not_finished_what_is_elsewhere_and_nothing(made: Made) -> None:
    with pytest.raises(actions.ReviewError, match="at least one evaluation"):
        actions.open_review(runs=[], by=made.admin)
    elsewhere = make_environment(make_project()).verifier
    with pytest.raises(actions.ReviewError, match="another project"):
        actions.open_review(runs=[made.run], verifier=elsewhere, by=made.admin)
    Sample.objects.update(masked=True, reward=None)
    with pytest.raises(actions.ReviewError, match="no scored samples"):
        actions.open_review(runs=[made.run], by=made.admin)
    EvalRun.objects.update(state="running", finished_at=None)
    made.run.refresh_from_db()
    with pytest.raises(actions.ReviewError, match="has not finished"):
        actions.open_review(runs=[made.run], by=made.admin)


@pytest.mark.proof
def test_the_page_offers_the_evaluations_of_this_verifier_and_opens(made: Made) -> None:
    run, client = other_verifier(made), Client()
    client.force_login(make_member(made.project))
    address = reverse("reviews:open", args=[made.project.slug, made.verifier.pk])
    page = client.get(address, {"run": made.run.pk}).content.decode()
    offered = re.findall(r'name="runs" value="([^"]+)"', page)
    assert offered == [str(made.run.pk)] and "checked" in page
    assert f'<option value="{run.pk}">' in page  # to be scored by this version first
    assert (
        "Select a valid choice"
        in client.post(address, {"runs": [run.pk], "size": 60, "seed": 0}).content.decode()
    )
    assert (
        "less than or equal to 100"
        in client.post(address, {"runs": [made.run.pk], "size": 200, "seed": 0}).content.decode()
    )
    answer = client.post(address, {"runs": [made.run.pk], "size": 50, "seed": 3})
    review = RewardReview.objects.get()
    assert answer["Location"] == reverse("reviews:detail", args=[made.project.slug, review.pk])
    assert (review.items.count(), review.seed) == (50, 3)
    empty = client.get(
        reverse("reviews:open", args=[made.project.slug, make_other(made).pk])
    ).content.decode()
    assert "No finished evaluation was scored by" in empty


def test_a_second_review_draws_what_nobody_has_judged_and_the_page_says_how_many(
    made: Made,
) -> None:
    client = Client()
    client.force_login(made.admin)
    address = reverse("reviews:open", args=[made.project.slug, made.verifier.pk])

    def drawn(**given: object) -> str:
        return client.get(
            address, {"size": 50, "seed": 0} | given, HTTP_HX_REQUEST="true"
        ).content.decode()

    assert "<b>50 samples</b> would be drawn: 50 not judged yet." in drawn(runs=made.run.pk)
    first = actions.open_review(runs=[made.run], by=made.admin, size=50)
    judged = list(first.items.all()[:20])
    for item in judged:
        actions.judge(item=item, success=True, by=made.admin)
    assert "<b>50 samples</b> would be drawn: 44 not judged yet, <b>6 again</b>" in drawn(
        runs=made.run.pk
    )
    second = actions.open_review(runs=[made.run], by=made.admin, size=50)
    again = set(second.items.values_list("sample", flat=True)) & {item.sample_id for item in judged}
    assert (
        len(again) == 6
        and "6 of 50 were judged in an earlier review of this verifier" in second.thin[0]
    )
    assert AuditEvent.objects.filter(action="review.opened").first().detail["drawn_again"] == 6
    assert "Choose an evaluation" in drawn() and "preview the sample" not in drawn(
        runs=made.run.pk, size=7
    )


def make_other(made: Made) -> Verifier:
    return save_verifier(project=made.project, name="unused", spec={"kind": "exact"}, by=made.admin)
