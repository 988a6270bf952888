"""What the results page says, and the effect of an edit on labelled samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import JobState
from apps.environments.actions import save_verifier
from apps.environments.models import Verifier
from apps.evals.holdout.view_log import views_of
from apps.evals.models import EvalRun, Sample
from apps.reviews import actions, results
from apps.reviews.edit_effect import effect_of
from apps.reviews.labels import HumanLabel, Label, labels_of
from apps.reviews.models import Rescore
from tests.factories import key_headers, make_member
from tests.reviews.made import Made, judge_all, make_run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def label(
    *answers: bool,
    ruling: bool | None = None,
    success: bool = True,
    reward: float = 1.0,
    item: int = 1,
) -> Label:
    said = tuple(HumanLabel(by, word, None, NOON) for by, word in enumerate(answers))
    return Label(item, "s", reward, success, ruling, said)


@pytest.mark.parametrize(
    ("answers", "ruling", "needed", "person", "differs"),
    [
        ((), None, 1, None, False),
        ((True,), None, 1, True, False),
        ((True,), None, 2, None, False),
        ((False, False), None, 2, False, False),
        ((True, False), None, 2, None, True),
        ((True, True, False), None, 3, None, True),
        ((True, False), True, 2, True, False),
    ],
    ids=["none", "one", "one of two", "both", "split", "two to one", "ruled"],
)
def test_the_peoples_word(
    answers: tuple, ruling: bool | None, needed: int, person: bool | None, differs: bool
) -> None:
    found = label(*answers, ruling=ruling)
    assert (found.person(needed), found.differs(needed)) == (person, differs)


def test_minutes_leave_out_pauses() -> None:
    at = [NOON + timedelta(minutes=minute) for minute in (0, 1, 3, 33, 34)]
    assert results.minutes_of(reversed(at)) == 4 and results.minutes_of([]) == 0


def test_disagreements_come_with_rewarded_failures_first() -> None:
    found = [
        label(True, success=True, item=1),
        label(True, success=False, reward=-1, item=2),
        label(False, success=True, reward=0.7, item=3),
        label(False, success=True, item=4),
    ]
    assert results.disagreements_of(found, 1) == [4, 3, 2]


def test_calibration_is_over_the_range_of_rewards() -> None:
    found = [label(False, reward=-1.0)] * 5 + [label(True, reward=1.0)] * 5
    bins, error, low, high = results.calibration_of(found, 1)
    assert (low, high, error) == (-1.0, 1.0, 0.0)
    figure = results.calibration_figure(bins, low, high)
    assert figure["data"][1]["x"] == [-1.0, 1.0] and figure["data"][1]["y"] == [0.0, 1.0]


@pytest.mark.proof
@pytest.mark.django_db
def test_the_page_has_every_figure_with_its_interval(made: Made) -> None:
    review, other = made.review(reviewers_per_sample=2), make_member(made.project)
    judge_all(review, made.admin)
    judge_all(review, other, wrong=3)
    rewarded = review.items.filter(success=True).exclude(pk__in=results.held_out(review)).last()
    rewarded.judgements.all().delete()
    for by in (made.admin, other):
        actions.answer(
            item=actions.judge(item=rewarded, success=False, by=by).item,
            agrees=False,
            reason="hm",
            by=by,
        )
    client = Client()
    client.force_login(made.admin)
    text = client.get(
        reverse("reviews:detail", args=[made.project.slug, review.pk])
    ).content.decode()
    for part in (
        "The review does not pass yet",
        "3 samples wait for a ruling",
        "60 / 60",
        "Cohen&#x27;s κ [",
        "Krippendorff&#x27;s α, 60 shared [",
        "false positive: rewarded failure",
        "the score: hm",
        "Expected calibration error",
        "Adjudicate 3",
        "<dt>Policy</dt>",
    ):
        assert part in text.replace("'", "&#x27;"), part
    assert text.index("Disagreements") < text.index("Reviewers")


@pytest.mark.django_db
def test_it_says_how_right_the_verifier_is_on_all_outputs(made: Made, client: Client) -> None:
    """The samples are all 60 of 64 outputs: two strata, half of the outputs in each."""
    review = made.review()
    api = reverse("reviews_api:review", args=[review.pk])
    nobody = client.get(api, **key_headers(made.project)).json()["on_all"]
    assert (nobody["judged"], nobody["accuracy"], nobody["false_positive"]) == (0, None, None)
    judge_all(review, made.admin, wrong=6)
    found = client.get(api, **key_headers(made.project)).json()["on_all"]
    assert (found["outputs"], found["judged"], found["accuracy"]["n"]) == (64, 60, 60)
    assert found["accuracy"]["value"] == pytest.approx(0.9, abs=0.01)
    assert found["accuracy"]["low"] < 0.9 < found["accuracy"]["high"] and found["false_positive"]
    client.force_login(made.admin)
    url = reverse("reviews:detail", args=[made.project.slug, review.pk])
    text = " ".join(client.get(url).content.decode().split())
    assert "On all 64 scored outputs" in text and "from 60 judged samples and all scores" in text
    review.scope.pop("pool")  # of a review that was opened before this was kept
    review.save()
    assert client.get(api, **key_headers(made.project)).json()["on_all"] is None


@pytest.mark.django_db
def test_what_is_held_out_is_counted_and_never_listed(made: Made) -> None:
    review, kept = made.review(), None
    for item in review.items.all():
        actions.judge(item=item, success=not item.success, by=made.admin, note=f"note {item.pk}.")
    kept, client = results.held_out(review), Client()
    client.force_login(made.admin)
    address = reverse("reviews:detail", args=[made.project.slug, review.pk])
    pages = [client.get(address, {"page": page}).content.decode() for page in (1, 2, 3)]
    listed = {
        item.pk for item in review.items.all() if any(f"note {item.pk}." in page for page in pages)
    }
    assert listed == set(review.items.values_list("pk", flat=True)) - kept and 0 < len(kept) < 60
    assert f"{len(kept)} more are held out so that edits do not overfit to them" in pages[0]
    assert "60 / 60" in pages[0] and f"<dd>{len(kept)} of 60:" in pages[0]


@pytest.mark.django_db
def test_reviewers_are_held_to_the_verifier_and_to_each_other(made: Made) -> None:
    review, other = made.review(reviewers_per_sample=2), make_member(made.project)
    judge_all(review, made.admin)
    judge_all(review, other, wrong=6)
    actions.answer(item=review.items.first(), agrees=True, by=other)  # the score is right after all
    actions.answer(item=review.items.last(), agrees=True, by=other)
    first, second = results.reviewers_of(review, labels_of([review.pk])[review.pk])
    assert (first.user, first.n, first.with_verifier.value, first.second_thoughts) == (
        made.admin,
        60,
        1.0,
        0,
    )
    assert (second.user, second.n, second.second_thoughts, second.seen_before) == (other, 60, 1, 0)
    assert (
        second.with_verifier.count == 54
        and first.with_others.count == 54
        and first.with_others.n == 60
    )


# The effect of an edit


def edited(made: Made) -> Verifier:
    return save_verifier(
        project=made.project, name=made.verifier.name, spec={"kind": "exact"}, by=made.admin
    )


def rescored(made: Made, verifier: Verifier, scores: dict) -> None:
    job = Rescore.objects.create(
        project=made.project,
        name="r",
        verifier=made.verifier,
        environment=made.environment,
        candidate=verifier.spec,
        candidate_hash=verifier.hash,
    )
    job.samples.set(scores)
    assert job.claim("test")
    result = {
        "scores": {
            str(pk): {"success": word, "masked": False, "reward": float(word)}
            for pk, word in scores.items()
        }
    }
    assert job.finish(JobState.SUCCEEDED, result=result)


@pytest.mark.django_db
def test_an_edit_that_people_agree_with_more_shows_its_gain(made: Made) -> None:
    review, after = made.review(), edited(made)
    judge_all(review, made.admin, wrong=12)
    client, address = Client(), reverse("reviews:effect", args=[made.project.slug, after.pk])
    client.force_login(made.admin)
    assert "No labelled sample has both scores" in client.get(address).content.decode()
    items = list(review.items.all())
    rescored(
        made,
        after,
        {one.sample_id: one.success != (number < 12) for number, one in enumerate(items)},
    )
    found = effect_of(made.verifier, after)
    assert (found.labelled, found.scored) == (60, 60)
    assert found.effect.fitted["agreement"].n + found.effect.held_out["agreement"].n == 60
    assert (
        found.effect.fitted["agreement"].after == 1.0
        and found.effect.fitted["agreement"].difference > 0
    )
    text = client.get(address).content.decode()
    assert "held out" in text and "tool-call@1" in text and "1.00" in text
    assert (
        views_of(made.eval_set)
        .filter(by=made.admin, detail=f"effect of {made.verifier} to {after}")
        .count()
        == 1
    )


@pytest.mark.django_db
def test_a_first_version_has_nothing_to_be_compared_with(made: Made) -> None:
    client = Client()
    client.force_login(made.admin)
    address = reverse("reviews:effect", args=[made.project.slug, made.verifier.pk])
    assert "No earlier version" in client.get(address).content.decode()


@pytest.mark.django_db
def test_the_list_has_the_locks_and_how_far_reviews_are(made: Made) -> None:
    review = made.review()
    for item in review.items.all()[:7]:
        actions.judge(item=item, success=item.success, by=made.admin)
    client = Client()
    client.force_login(made.admin)
    text = client.get(reverse("reviews:list", args=[made.project.slug])).content.decode()
    assert (
        "7 of 60 judged" in text
        and "7 of at least 50 samples are judged." in text
        and "Override the lock" in text
    )
    client.force_login(make_member(made.project))
    assert (
        "Override the lock"
        not in client.get(reverse("reviews:list", args=[made.project.slug])).content.decode()
    )


# Samples that are drawn again


def copy_of(made: Made) -> EvalRun:
    """Another evaluation in which the model gave the very same answers."""
    run = make_run(made.eval_set, made.base, made.environment)
    for mine, theirs in zip(
        run.samples.order_by("pk"), made.run.samples.order_by("pk"), strict=True
    ):
        Sample.objects.filter(pk=mine.pk).update(output=f" {theirs.output}\n")
    return run


@pytest.mark.proof
@pytest.mark.django_db
def test_an_output_that_was_judged_twice_is_one_label(made: Made) -> None:
    """Neither the lock nor the effect of an edit counts a person's word on the same output
    twice.
    """
    first, after = made.review(), edited(made)
    judge_all(first, made.admin)
    again = actions.open_review(runs=[copy_of(made)], by=made.admin)
    judge_all(again, made.admin, wrong=3)
    assert actions.lock_state(made.verifier).agreement.n == 60
    samples = [
        item.sample for review in (first, again) for item in review.items.select_related("sample")
    ]
    rescored(made, after, {sample.pk: sample.success for sample in samples})
    found = effect_of(made.verifier, after)
    outputs = {(sample.task_id, sample.output.strip()) for sample in samples}
    assert found.labelled == found.scored == len(outputs) < len(samples)
    assert found.effect.fitted["agreement"].n + found.effect.held_out["agreement"].n == len(outputs)
    (one,) = results.reviewers_of(again, labels_of([again.pk])[again.pk])
    assert one.seen_before == again.items.count() - (len(outputs) - 60)
