"""The queue: blind first, one person at a sample, undo; and what a page may tell whom."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import AuditEvent, Role
from apps.reviews import actions, results
from apps.reviews.labels import labels_of
from apps.reviews.models import Judgement, ReviewItem, RewardReview
from apps.reviews.reservations import Queue, reserve
from tests.factories import make_member
from tests.reviews.made import Made, judge_all

pytestmark = pytest.mark.django_db
HTMX = {"HTTP_HX_REQUEST": "true"}
SECRETS = ("secretpart", "secretdetail", "secretnote", "secretreason")


def browser(made: Made, role: Role = Role.ENGINEER) -> tuple[Client, Any]:
    user, client = make_member(made.project, role), Client()
    client.force_login(user)
    return client, user


def url(name: str, row: ReviewItem | RewardReview, query: str = "") -> str:
    review = row.review if isinstance(row, ReviewItem) else row
    return reverse(f"reviews:{name}", args=[review.project.slug, row.pk]) + query


def leaks(text: str, item: ReviewItem) -> list[str]:
    """What of the score, or of other people's words, stands in a page."""
    return [
        word
        for word in (
            *SECRETS,
            item.stratum,
            "The verifier gave",
            'class="badge good"',
            'class="badge bad"',
        )
        if word in text
    ]


# Blindness


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("htmx", [False, True], ids=["page", "fragment"])
def test_before_judging_nothing_tells_the_score_or_what_others_said(made: Made, htmx: bool) -> None:
    review = made.review(reviewers_per_sample=2)
    item, (client, user) = review.items.first(), browser(made)
    actions.judge(item=item, success=True, by=made.admin, note="secretnote")
    actions.answer(item=item, agrees=False, by=made.admin, reason="secretreason")
    headers = HTMX if htmx else {}
    for address in (url("item", item), url("step", review.items.last())):
        answer = client.get(address, follow=True, **headers)
        assert answer["X-Case"] == str(item.pk)
        assert leaks(answer.content.decode() + str(answer.headers), item) == []
    text = client.post(
        url("judge", item), {"success": "1"}, follow=True, **headers
    ).content.decode()
    assert {"secretpart", "secretdetail", "secretnote", "secretreason"} == set(SECRETS) & set(
        leaks(text, item)
    )
    assert (
        "The verifier gave" in text
        and Judgement.objects.filter(by=user, success=True, agrees=None).exists()
    )


def test_the_case_has_the_gold_the_tools_and_the_output(made: Made) -> None:
    item, (client, _) = made.review().items.select_related("sample__task").first(), browser(made)
    text = client.get(url("item", item)).content.decode()
    assert (
        item.sample.output in text
        and "Expected answer" in text
        and str(item.sample.task.expected["args"]["id"]) in text
    )
    assert "Tools: " in text and "tickets.close" in text


def test_hostile_output_is_text(made: Made) -> None:
    item, (client, _) = made.review().items.select_related("sample").first(), browser(made)
    item.sample.output = "<script>alert(1)</script>"
    item.sample.save(update_fields=["output"])
    actions.judge(item=item, success=False, by=made.admin, note="<b>n</b>")
    for name, row in (("item", item), ("detail", item.review)):
        text = client.get(url(name, row)).content.decode()
        assert "<script>alert" not in text and "<b>n</b>" not in text


def test_results_and_files_keep_what_is_yet_to_be_judged(made: Made) -> None:
    review = made.review(reviewers_per_sample=2)
    item = review.items.filter(success=True).exclude(pk__in=results.held_out(review)).first()
    (client, user), (viewer, _) = browser(made), browser(made, Role.VIEWER)
    actions.judge(item=item, success=False, by=made.admin, note="secretnote")
    for address in (
        url("detail", review),
        url("export", review),
        url("export", review, "?format=jsonl"),
        url("adjudicate", review),
    ):
        assert "secretnote" not in client.get(address).content.decode()
    assert (
        "secretnote" in viewer.get(url("export", review)).content.decode()
    )  # who cannot judge may read
    actions.judge(item=item, success=False, by=user)
    text = client.get(url("detail", review)).content.decode()
    assert "secretnote" in text and "false positive: rewarded failure" in text
    assert "secretnote" in client.get(url("export", review)).content.decode()


# Judging


def test_answers_go_from_sample_to_sample(made: Made) -> None:
    review, (client, user) = made.review(), browser(made)
    first, second = review.items.all()[:2]
    assert client.get(url("queue", review))["Location"] == url("item", first)
    client.post(url("judge", first), {"success": "0", "note": " why "})
    answer = client.post(url("answer", first), {"agrees": "1"}, **HTMX)
    assert answer["X-Case"] == str(second.pk) and "59 left" in answer.content.decode()
    said = Judgement.objects.get(by=user)
    assert (said.success, said.note, said.agrees) == (False, "why", True) and said.agreed_at


@pytest.mark.proof
def test_a_case_held_ready_gets_only_the_counts(made: Made) -> None:
    review, (client, user) = made.review(), browser(made)
    first, second, third = review.items.all()[:3]
    client.get(url("item", first))
    ahead = client.get(url("step", first, "?ahead=1"), **HTMX)
    assert ahead["X-Case"] == str(second.pk) and "HX-Replace-Url" not in ahead
    assert set(review.items.filter(reserved_by=user)) == {first, second}
    client.post(url("judge", first), {"success": "1"}, **HTMX)
    answer = client.post(url("answer", first), {"agrees": "1", "ahead": second.pk}, **HTMX)
    text = answer.content.decode()
    assert answer["HX-Reswap"] == "none" and "59 left" in text and "Did the output" not in text
    assert client.get(url("step", second, "?ahead=1"), **HTMX)["X-Case"] == str(third.pk)


def test_what_is_half_done_comes_first_and_is_never_held_ready(made: Made) -> None:
    review, (client, user) = made.review(), browser(made)
    item, other = review.items.all()[3], review.items.all()[7]
    actions.judge(item=item, success=True, by=user)
    assert Queue(review, user).next() == item.pk and Queue(review, user).left() == 60
    assert client.get(url("step", other, "?ahead=1"), **HTMX).status_code == 204


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("judge", {}, "Choose whether the output did the task"),
        ("judge", {"success": "maybe"}, "Choose whether the output did the task"),
        ("answer", {}, "Choose whether the score is right"),
        ("answer", {"agrees": "1"}, "Judge the output first"),
    ],
    ids=["no word", "neither", "no answer", "answer first"],
)
def test_it_says_what_is_missing(made: Made, name: str, given: dict, says: str) -> None:
    item, (client, _) = made.review().items.first(), browser(made)
    for headers in (HTMX, {}):
        answer = client.post(url(name, item), given, follow=True, **headers)
        assert says in answer.content.decode() and leaks(answer.content.decode(), item) == []


def test_a_disagreement_needs_a_reason(made: Made) -> None:
    item = made.review().items.first()
    actions.judge(item=item, success=True, by=made.admin)
    with pytest.raises(actions.ReviewError, match="Enter a reason"):
        actions.answer(item=item, agrees=False, by=made.admin, reason=" ")
    assert (
        actions.answer(item=item, agrees=False, by=made.admin, reason="Wrong id.").reason
        == "Wrong id."
    )
    with pytest.raises(actions.ReviewError, match="already answered"):
        actions.answer(item=item, agrees=True, by=made.admin)


def test_the_same_word_twice_is_one_and_another_is_refused(made: Made) -> None:
    item = made.review().items.first()
    first = actions.judge(item=item, success=True, by=made.admin)
    assert actions.judge(item=item, success=True, by=made.admin) == first
    with pytest.raises(actions.ReviewError, match="your verdict is locked"):
        actions.judge(item=item, success=False, by=made.admin)


# Several people


def test_a_sample_has_no_more_judgements_than_the_policy_asks(made: Made) -> None:
    review = made.review(reviewers_per_sample=2)
    item, people = review.items.first(), [make_member(made.project) for _ in range(3)]
    for user in people[:2]:
        actions.judge(item=item, success=True, by=user)
    with pytest.raises(actions.ReviewError, match="needs no more judgements"):
        actions.judge(item=item, success=True, by=people[2])
    assert Queue(review, people[2]).left() == 59 and Queue(review, people[0]).left() == 60
    client = Client()
    client.force_login(people[2])
    assert "needs no more judgements" in client.get(url("item", item)).content.decode()


def test_two_people_are_not_given_the_same_sample(made: Made) -> None:
    review = made.review()
    (one, first), (two, second) = browser(made), browser(made)
    item = review.items.first()
    one.get(url("item", item))
    assert Queue(review, second).next() == review.items.all()[1].pk
    text = two.get(url("item", item)).content.decode()
    assert f"<b>{first}</b> is judging this sample" in text and "disabled" in text
    with pytest.raises(actions.ReviewError, match="is judging this sample"):
        actions.judge(item=item, success=True, by=second)
    ReviewItem.objects.filter(pk=item.pk).update(
        reserved_until=timezone.now() - timedelta(seconds=1)
    )
    assert Queue(review, second).next() == item.pk and reserve(item=item, by=second)
    assert not reserve(item=item, by=first)


@pytest.mark.proof
def test_at_the_end_one_waits_for_what_others_hold(made: Made) -> None:
    review, (client, user) = made.review(), browser(made)
    *rest, last = review.items.all()
    for item in rest:
        actions.answer(
            item=actions.judge(item=item, success=True, by=user).item, agrees=True, by=user
        )
    reserve(item=last, by=made.admin)
    text = client.get(url("queue", review), follow=True, **HTMX).content.decode()
    assert "are open for others" in text and "every 3s" in text and "1 left" in text
    actions.judge(item=last, success=True, by=made.admin)
    text = client.get(url("queue", review)).content.decode()
    assert "You have judged everything assigned to you." in text and "every 3s" not in text


# Undo


def test_undo_takes_back_answers_and_never_a_word_given_blind(made: Made) -> None:
    review, (client, user) = made.review(), browser(made)
    first, second, third = review.items.all()[:3]
    for item in (first, second):
        actions.judge(item=item, success=True, by=user)
        actions.answer(item=item, agrees=True, by=user)
    actions.judge(item=third, success=False, by=user)
    text = client.get(url("item", third)).content.decode()
    assert (
        "Your verdict is locked once the score is shown" in text
        and "Undo my last answer" not in text
    )
    answer = client.post(url("undo", review), **HTMX)
    assert answer["X-Case"] == str(second.pk) and "Is the score right?" in answer.content.decode()
    assert (
        actions.undo(review=review, by=user).pk == first.pk
        and actions.undo(review=review, by=user) is None
    )
    said = Judgement.objects.filter(by=user, agrees=None).order_by("item__position")
    assert [judgement.success for judgement in said] == [True, True, False]
    assert AuditEvent.objects.filter(action="review.undone", detail__agrees=True).count() == 2
    answer = client.post(url("undo", review), **HTMX)
    assert answer["HX-Redirect"] == url("queue", review)
    text = client.get(url("queue", review), follow=True).content.decode()
    assert "No answer to undo. A blind verdict is locked" in text


def test_who_thinks_otherwise_once_the_score_is_shown_can_be_ruled_on(made: Made) -> None:
    """κ has the blind word until then."""
    review, (client, user), (third, _) = made.review(), browser(made), browser(made)
    item = review.items.filter(success=False).first()
    actions.judge(item=item, success=True, by=user)
    with pytest.raises(actions.ReviewError, match="nothing to rule on"):
        actions.rule(item=item, success=False, reason="x", by=made.admin)
    text = client.post(url("answer", item), {"agrees": "1"}, follow=True).content.decode()
    text = client.get(url("item", item)).content.decode()
    assert "This contradicts your blind verdict" in text
    (label,) = [one for one in labels_of([review.pk])[review.pk] if one.item == item.pk]
    assert label.person(1) is True and label.may_be_ruled(1) and not label.differs(1)
    text = third.get(url("adjudicate", review)).content.decode()
    assert "0 to rule, 1 with second thoughts" in text and "contradicted their own verdict" in text
    third.post(url("rule", item), {"success": "0", "reason": "It was a slip."})
    (label,) = [one for one in labels_of([review.pk])[review.pk] if one.item == item.pk]
    assert label.person(1) is False


def test_what_was_ruled_on_is_not_taken_back(made: Made) -> None:
    review, other = made.review(reviewers_per_sample=2), make_member(made.project)
    item = review.items.first()
    actions.judge(item=item, success=True, by=made.admin)
    actions.judge(item=item, success=False, by=other)
    actions.answer(item=item, agrees=True, by=other)
    actions.rule(item=item, success=True, reason="It did.", by=made.admin)
    with pytest.raises(actions.ReviewError, match="ruled on"):
        actions.undo(review=review, by=other)


def test_back_shows_what_one_judged_before(made: Made) -> None:
    review, (client, user) = made.review(), browser(made)
    first, second, third = review.items.all()[:3]
    for item in (second, first):
        actions.judge(item=item, success=True, by=user)
        actions.answer(item=item, agrees=True, by=user)
    assert client.get(url("step", third, "?back=1"))["Location"] == url("item", first)
    assert client.get(url("step", first, "?back=1"))["Location"] == url("item", second)
    assert (
        "No other samples." in client.get(url("step", second, "?back=1"), **HTMX).content.decode()
    )


# Rulings


def test_a_ruling_is_for_a_third_person_or_an_admin_with_a_reason(made: Made) -> None:
    review, (one, two) = (
        made.review(reviewers_per_sample=2),
        [make_member(made.project) for _ in range(2)],
    )
    item = review.items.first()
    actions.judge(item=item, success=True, by=one)
    with pytest.raises(actions.ReviewError, match="nothing to rule on"):
        actions.rule(item=item, success=True, reason="x", by=made.admin)
    actions.judge(item=item, success=False, by=two)
    with pytest.raises(actions.ReviewError, match="You judged this sample"):
        actions.rule(item=item, success=True, reason="x", by=one)
    client, third = browser(made)
    page = client.get(url("adjudicate", review)).content.decode()
    assert str(one) in page and str(two) in page and "1 to rule" in page
    answer = client.post(
        url("rule", item), {"success": "0", "reason": ""}, follow=True
    ).content.decode()
    assert "Enter a reason for the ruling" in answer
    answer = client.post(
        url("rule", item), {"success": "0", "reason": "Not done."}, follow=True
    ).content.decode()
    assert (
        "Ruled: sample 1 is a failure." in answer and "Not done." in answer and "1 ruled" in answer
    )
    item.refresh_from_db()
    assert (item.ruling, item.ruled_by) == (False, third)
    assert AuditEvent.objects.get(action="review.ruled").detail["reason"] == "Not done."


def test_a_file_has_a_row_for_each_judgement_and_no_formulas(made: Made) -> None:
    review, (client, user) = made.review(), browser(made)
    judge_all(review, made.admin)
    Judgement.objects.filter(item__review=review).update(note="=1+1")
    kept = len(results.held_out(review))
    lines = client.get(url("export", review)).content.decode().splitlines()
    assert (
        len(lines) == 61 - kept and lines[0].startswith("item,task,model") and "'=1+1" in lines[1]
    )
    assert not AuditEvent.objects.filter(action="review.held_out_exported").exists()
    rows = (
        client.get(url("export", review, "?format=jsonl&held_out=1")).content.decode().splitlines()
    )
    assert len(rows) == 60 and '"note": "=1+1"' in rows[0]
    assert sum('"held_out": true' in row for row in rows) == kept > 0
    event = AuditEvent.objects.get(action="review.held_out_exported")
    assert (event.actor, event.detail["n"]) == (user, kept)


@pytest.mark.parametrize(("people", "blocked"), [(1, True), (2, False)])
def test_a_sample_on_another_s_screen_is_barred_only_where_one_judgement_is_left(
    made: Made, people: int, blocked: bool
) -> None:
    item, (client, user), other = (
        made.review(reviewers_per_sample=people).items.first(),
        browser(made),
        made.admin,
    )
    assert reserve(item=item, by=other)
    assert ("disabled>Success" in client.get(url("item", item)).content.decode()) is blocked
    if blocked:
        with pytest.raises(actions.ReviewError, match="is judging this sample"):
            actions.judge(item=item, success=True, by=user)
    else:
        actions.judge(item=item, success=True, by=user)
        actions.judge(item=item, success=True, by=other)
