"""Failures by the keyboard alone, fifty in proof: what the page says is held to what the database
says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from apps.failures.models import Failure, FailureDecision, FailureState
from tests.amounts import amount
from tests.e2e.conftest import PATIENCE_MS, go, log_in
from tests.e2e.seed import fill_inbox
from tests.factories import make_member

COUNT = amount(9, 50)


@pytest.fixture(autouse=True)
def _nothing_on_its_way(page: Any) -> Iterator[None]:
    """The next case is fetched after each decision: the database is not emptied under such a
    request.
    """
    yield
    page.wait_for_load_state("networkidle")


def left(page: Any, n: int) -> None:
    expect(page.locator("#left")).to_have_text(f"{n} left")


def shown(page: Any) -> int:
    return int(page.locator("[data-case]").get_attribute("data-case"))


def counts(rows: Any) -> dict[str, int]:
    return {state: rows.filter(state=state).count() for state in FailureState.values}


def wait_for_the_next(page: Any) -> None:
    """Until the next case is held ready. (`wait_for_function` evaluates in the page, which the CSP
    forbids.)
    """
    for _ in range(PATIENCE_MS // 25):
        if page.evaluate("ahead !== null"):
            return
        page.wait_for_timeout(25)
    raise AssertionError("The next case was not downloaded ahead.")


def press(page: Any, key: str, before: int, waiting: int) -> None:
    """Presses a key that decides; waits until another case is there and the server has counted."""
    page.keyboard.press(key)
    left(page, waiting)
    expect(page.locator(f'[data-case="{before}"]')).to_have_count(0)


@pytest.mark.more
def test_many_failures_by_keyboard(user: Any, page: Any) -> None:
    project = fill_inbox(user, COUNT)
    rows = Failure.objects.filter(project=project)
    log_in(page)
    page.goto("/")
    go(page, "gf", "failures")
    page.keyboard.press("t")
    left(page, COUNT)
    scrolled_to_the_blamed_turn(page)
    keys = {"c": 0, "d": 0, "4": 0, "6": 0}
    waiting, wanted = COUNT, {}
    for number in range(COUNT - 4):
        case, key = shown(page), ("c", "d", "4", "c", "6")[number % 5]
        if key in "46" and page.locator(f'[data-key="{key}"]').is_disabled():
            key = "c"
        waiting -= 1
        press(page, key, case, waiting)
        keys[key] += 1
        wanted[case] = key
    assert counts(rows) == {"open": 4, "confirmed": COUNT - 4 - keys["d"], "dismissed": keys["d"]}
    for case, key in wanted.items():
        failure = rows.select_related("mode").get(pk=case)
        assert failure.decided_by == user and failure.state == (
            "dismissed" if key == "d" else "confirmed"
        )
        assert (
            key not in "46"
            or failure.mode.slug == {"4": "bad_planning", "6": "retrieval_failure"}[key]
        )
    undo_three(page, rows, list(wanted)[-3:])
    split_assign_and_move(page, rows, user)
    for n in range(6, -1, -1):
        page.keyboard.press("d")
        if n:
            left(page, n)
    expect(page.get_by_text("Nothing left to triage.")).to_be_visible()
    assert counts(rows)["open"] == 0 and FailureDecision.objects.filter(by=user).count() >= COUNT


def scrolled_to_the_blamed_turn(page: Any) -> None:
    """In a window so low that the turn is below it until the page scrolls."""
    whole, blamed = page.viewport_size, page.locator(".turn.blamed")
    top = page.evaluate(
        "scrollY + document.querySelector('.turn.blamed').getBoundingClientRect().top"
    )
    page.set_viewport_size({"width": whole["width"], "height": int(top) - 20})
    page.goto(page.url)  # not reloaded: a browser puts a reloaded page back to where it was
    left(page, COUNT)
    expect(blamed).to_be_in_viewport()
    assert page.evaluate("scrollY") > 0
    page.set_viewport_size(whole)
    page.reload()
    left(page, COUNT)


def undo_three(page: Any, rows: Any, last: list[int]) -> None:
    for n, case in enumerate(reversed(last), 5):
        page.keyboard.press("u")
        expect(page.get_by_text("Your last decision was undone.")).to_be_visible()
        left(page, n)
        expect(page.locator(f'[data-case="{case}"]')).to_be_visible()
        assert rows.get(pk=case).state == FailureState.OPEN and rows.get(pk=case).decided_by is None


def split_assign_and_move(page: Any, rows: Any, user: Any) -> None:
    case = shown(page)
    page.keyboard.press("s")
    expect(page.locator("details.menu[open]")).to_be_visible()
    page.keyboard.press("1")
    expect(page.locator(".verdict h2").first).to_contain_text("+ Format error")
    page.keyboard.press("a")
    page.keyboard.press("1")
    expect(page.get_by_text("Assigned to ada")).to_be_visible()
    failure = rows.get(pk=case)
    assert [mode.slug for mode in failure.also.all()] == ["format_error"]
    assert failure.assigned_to == user
    page.keyboard.press("j")
    expect(page.locator(f'[data-case="{case}"]')).to_have_count(0)
    page.keyboard.press("k")
    expect(page.locator(f'[data-case="{case}"]')).to_be_visible()
    page.keyboard.press("b")
    expect(page.locator(".found")).to_be_in_viewport()
    correct_the_step(page, failure)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    left(page, 7)


def correct_the_step(page: Any, failure: Failure) -> None:
    """By its number, and by a button on the message; both are taken back."""
    first = failure.blamed_message
    for taken_back in (True, False):
        page.keyboard.press("m")
        page.keyboard.type("0")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Blamed step #0")).to_be_visible()
        if taken_back:
            page.keyboard.press("u")  # a key again, although the field had the focus
            expect(page.get_by_role("link", name=f"Blamed step #{first}")).to_be_visible()
    page.locator(f"#m{first}").get_by_role("button", name="Blame this step").press("Enter")
    expect(page.get_by_role("link", name=f"Blamed step #{first}")).to_be_visible()
    for number in (0, first):
        page.locator("body").press("u")
        expect(page.get_by_role("link", name=f"Blamed step #{number}")).to_be_visible()


@pytest.mark.proof
def test_quotes_are_marked_where_they_were_said(user: Any, page: Any) -> None:
    project = fill_inbox(user, 2)
    log_in(page)
    failure = Failure.objects.filter(project=project).first()
    asked = [
        n for n, message in enumerate(failure.trajectory.messages) if message["role"] == "user"
    ][-1]
    item = {
        "rule": "r",
        "text": "t",
        "quote": failure.trajectory.preview[:20],
        "message_index": asked,
    }
    failure.evidence = [item, item | {"quote": "said by nobody"}]
    failure.save(update_fields=["evidence"])
    page.goto(reverse("failures:case", args=[project.slug, failure.pk]))
    expect(page.locator(".evidence blockquote").first).to_have_text(item["quote"].strip())
    assert page.evaluate("CSS.highlights.get('quote').size") == 1


@pytest.mark.proof
def test_the_next_case_is_there_before_the_server_answers(user: Any, page: Any) -> None:
    """With the answer held back, the case fetched ahead is on the screen, and only one decision is
    made.
    """
    project = fill_inbox(user, 3)
    log_in(page)
    page.goto(reverse("failures:triage", args=[project.slug]))
    first = shown(page)
    wait_for_the_next(page)
    held: list[Any] = []
    page.route("**/decide/**", lambda route: held.append(route))
    with page.expect_request("**/decide/**"):
        page.keyboard.press("c")
    expect(page.locator(f'[data-case="{first}"]')).to_have_count(0)
    while not held:  # the request is on its way to `route`
        page.wait_for_timeout(20)
    assert Failure.objects.filter(state="open", project=project).count() == 3
    second = shown(page)
    held[0].continue_()
    left(page, 2)
    assert (
        shown(page) == second
        and Failure.objects.filter(project=project, state="confirmed").get().pk == first
    )


@pytest.mark.proof
def test_a_decision_that_is_refused_brings_the_case_back(user: Any, page: Any) -> None:
    project = fill_inbox(user, 3)
    other = make_member(project)
    log_in(page)
    page.goto(reverse("failures:triage", args=[project.slug]))
    first = shown(page)
    wait_for_the_next(page)
    Failure.objects.filter(pk=first).update(reserved_by=other)
    page.keyboard.press("c")
    expect(page.get_by_text("is reviewing this case for up to")).to_be_visible()
    assert shown(page) == first and Failure.objects.get(pk=first).state == FailureState.OPEN


@pytest.mark.proof
def test_similar_ones_are_decided_together_and_taken_back_by_keyboard(user: Any, page: Any) -> None:
    project = fill_inbox(user, 6)
    rows = Failure.objects.filter(project=project)
    rows.update(mode=project.failure_modes.get(slug="bad_planning"))
    log_in(page)
    page.goto(reverse("failures:triage", args=[project.slug]))
    first = shown(page)
    expect(page.locator("[name=also]")).to_have_count(5)
    page.keyboard.press("x")
    expect(page.locator("#together")).to_contain_text("Your decision is for 6")
    page.locator("[name=also]").first.uncheck()
    kept = int(page.locator("[name=also]").first.get_attribute("value"))
    wait_for_the_next(page)
    page.keyboard.press("c")
    expect(page.get_by_text("5 failures confirmed as “Bad planning”.")).to_be_visible()
    left(page, 1)
    assert shown(page) == kept and counts(rows) == {"open": 1, "confirmed": 5, "dismissed": 0}
    expect(page.locator("#together")).to_be_hidden()
    page.keyboard.press("u")
    expect(page.get_by_text("change to 5 failures was undone")).to_be_visible()
    left(page, 6)
    assert shown(page) == first and counts(rows)["open"] == 6


@pytest.mark.proof
def test_many_are_dismissed_and_taken_back_from_the_list(user: Any, page: Any) -> None:
    project = fill_inbox(user, 4)
    log_in(page)
    page.goto(reverse("failures:list", args=[project.slug]))
    for key in "jxjx":
        page.keyboard.press(key)
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_text("2 failures dismissed.")).to_be_visible()
    assert counts(Failure.objects.filter(project=project)) == {
        "open": 2,
        "confirmed": 0,
        "dismissed": 2,
    }
    page.keyboard.press("u")
    expect(page.get_by_text("change to 2 failures was undone")).to_be_visible()
    assert Failure.objects.filter(project=project, state="open").count() == 4
