"""The triage screen: order, filters, reservation, decisions, undo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project, Role
from apps.failures.actions.decisions import decide, reserve, version_of
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure, FailureCluster, FailureMode, FailureState, OutcomeEstimate
from apps.failures.triage_queue import QueuePosition, TriageQueue
from apps.trajectories.pages.parts import Reader
from tests.factories import make_cluster, make_failed, make_member, make_project
from tests.failures.outcomes.test_estimates import estimating
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
FailuresOf = Callable[[int], tuple[Project, list[Failure]]]


def in_order(project: Project) -> list[Failure]:
    return list(Failure.objects.filter(project=project).order_by("-trajectory_id"))


def make_failures(count: int, project: Project | None = None) -> tuple[Project, list[Failure]]:
    """Open failures, the newest first: the order of the queue."""
    project = project or make_project()
    start = timezone.now() - timedelta(hours=1)
    for number in range(count):
        make_failed(project, started_at=(start + timedelta(seconds=number)).isoformat())
    classify_project(project=project)
    return project, in_order(project)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, lambda _: {count: make_failures(count)[0] for count in (1, 2, 3)})


@pytest.fixture
def failures_of(kept: Any, db: None, settings: Any) -> FailuresOf:
    """As `make_failures` of 1, 2 or 3 makes them."""
    projects = copied(kept, settings)
    return lambda count: (projects[count], in_order(projects[count]))


def browser(project: Project, role: Role = Role.ENGINEER) -> tuple[Client, Any]:
    user = make_member(project, role)
    client = Client()
    client.force_login(user)
    return client, user


def url(name: str, failure: Failure, query: str = "") -> str:
    return reverse(f"failures:{name}", args=[failure.project.slug, failure.pk]) + query


def set_mode(failure: Failure, slug: str) -> None:
    mode = FailureMode.objects.get(project=failure.project, slug=slug)
    Failure.objects.filter(pk=failure.pk).update(mode=mode)


def test_the_order_is_safety_then_severity_then_the_newest(failures_of: FailuresOf) -> None:
    project, (newest, middle, oldest) = failures_of(3)
    set_mode(middle, "bad_planning")
    set_mode(oldest, "unsafe_action")
    queue, seen, place = TriageQueue(project, make_member(project), {}), [], None
    for _ in range(3):
        failure = Failure.objects.select_related("mode").get(pk=queue.next(place))
        seen.append(failure)
        place = QueuePosition.of(failure)
    assert seen == [oldest, middle, newest]
    assert queue.next(place) == oldest.pk  # round to the top
    assert queue.previous(place) == middle.pk and queue.previous(QueuePosition.of(seen[0])) is None


def test_modes_of_one_rank_are_mixed_by_time(failures_of: FailuresOf) -> None:
    project, (newest, middle, oldest) = failures_of(3)
    for failure, slug in ((newest, "format_error"), (middle, "bad_planning")):
        set_mode(failure, slug)
    set_mode(oldest, "wrong_arguments")
    queue = TriageQueue(project, make_member(project), {})
    first = queue.next()
    second = queue.next(QueuePosition.of(Failure.objects.select_related("mode").get(pk=first)))
    assert (first, second) == (newest.pk, middle.pk)


@pytest.mark.proof
def test_the_most_informative_come_first_where_asked_for() -> None:
    """Nearest to the threshold, then clusters with few decisions, then what is in no cluster; the
    newest first among equals.
    """
    project, (far, near, decided, new, newer, alone, done) = make_failures(7)
    model = estimating(project)
    threshold = model.weights["threshold"]
    for failure, chance in ((far, threshold + 0.3), (near, threshold - 0.01)):
        OutcomeEstimate.objects.create(
            project=project, trajectory_id=failure.trajectory_id, score=chance, model=model
        )
    known, unknown = (make_cluster(failure) for failure in (decided, new))
    Failure.objects.filter(pk=newer.pk).update(cluster=unknown)
    Failure.objects.filter(pk=done.pk).update(cluster=known, state=FailureState.CONFIRMED)
    client, user = browser(project)
    expected = [near, far, new, newer, decided, alone]
    queue, seen, place = TriageQueue(project, user, {"sort": "informative"}), [], None
    for _ in expected:
        failure = Failure.objects.select_related("mode").get(pk=queue.next(place))
        seen.append(failure)
        place = queue.position_of(failure)
    assert (
        seen == expected
        and queue.next(place) == near.pk
        and queue.previous(place, skip=alone.pk) == decided.pk
    )
    assert queue.previous(queue.position_of(near)) is None
    first = client.get(reverse("failures:triage", args=[project.slug]) + "?sort=informative")
    assert first["Location"] == url("case", near, "?sort=informative")
    after = client.post(
        url("decide", near, "?sort=informative"), {"confirm": "1", "seen": version_of(near)}
    )
    assert after["Location"] == url("case", far, "?sort=informative")
    page = client.get(after["Location"]).content.decode()
    assert (
        '<option value="informative" selected>' in page
        and f"{url('step', far)}?sort=informative" in page
    )
    assert (
        "sort=informative"
        in client.get(reverse("failures:list", args=[project.slug])).content.decode()
    )
    assert "sort" not in TriageQueue(project, user, {"sort": "nonsense"}).given


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("name", ["mode", "cluster", "version", "safety", "mine", "confidence"])
def test_each_filter_leaves_its_own(name: str, failures_of: FailuresOf) -> None:
    project, (wanted, *others) = failures_of(3)
    user = make_member(project)
    set_mode(wanted, "unsafe_action")
    now = timezone.now()
    cluster = FailureCluster.objects.create(
        project=project, name="c", signature={}, first_seen=now, last_seen=now
    )
    evidence = [{"rule": "r", "message_index": 1, "text": "t", "confidence": "hint"}]
    Failure.objects.filter(pk=wanted.pk).update(
        cluster=cluster, assigned_to=user, evidence=evidence
    )
    wanted.trajectory.agent_version = "9"
    wanted.trajectory.save()
    wanted.refresh_from_db()
    wanted.save()  # its version is that of its run
    value = {
        "mode": "unsafe_action",
        "cluster": str(cluster.pk),
        "version": "9",
        "confidence": "hint",
    }.get(name, "1")
    queue = TriageQueue(project, user, {name: value})
    assert queue.next() == wanted.pk and queue.count() == "1"
    assert (
        queue.next(QueuePosition(rank=(True, 2), trajectory=others[-1].trajectory_id)) == wanted.pk
    )


@pytest.mark.parametrize(
    "given", [{"mode": "none"}, {"cluster": "x"}, {"version": "a\x00"}, {"confidence": "'"}]
)
def test_a_filter_that_means_nothing_finds_nothing(
    given: dict[str, str], failures_of: FailuresOf
) -> None:
    project, _ = failures_of(1)
    queue = TriageQueue(project, make_member(project), given)
    assert queue.next() is None and queue.count() == "0"


def test_filters_are_kept_from_case_to_case(failures_of: FailuresOf) -> None:
    project, cases = failures_of(3)
    client, _ = browser(project)
    start = client.get(
        reverse("failures:triage", args=[project.slug])
        + "?mode=incomplete_execution&utm_source=mail"
    )
    assert start["Location"] == url("case", cases[0], "?mode=incomplete_execution")
    page = client.get(start["Location"])
    assert b"?mode=incomplete_execution" in page.content
    answer = client.post(
        url("decide", cases[0], "?mode=incomplete_execution"),
        {"confirm": "1"},
        HTTP_HX_REQUEST="true",
    )
    assert answer["HX-Replace-Url"] == url("case", cases[1], "?mode=incomplete_execution")


def test_a_decision_answers_with_the_next_case_and_the_counts(failures_of: FailuresOf) -> None:
    project, cases = failures_of(3)
    client, user = browser(project)
    client.get(url("case", cases[0]))
    answer = client.post(url("decide", cases[0]), {"mode": "bad_planning"}, HTTP_HX_REQUEST="true")
    assert answer.status_code == 200 and answer["X-Case"] == str(cases[1].pk)
    assert b"2 left" in answer.content and b"<html" not in answer.content
    assert "private" in answer["Cache-Control"] and "HX-Request" in answer["Vary"]
    decided = Failure.objects.get(pk=cases[0].pk)
    assert (
        decided.mode.slug == "bad_planning"
        and decided.decided_by == user
        and decided.reserved_by is None
    )


def test_the_next_case_is_held_ready_and_confirmed_by_the_counts_alone(
    failures_of: FailuresOf,
) -> None:
    project, cases = failures_of(3)
    client, user = browser(project)
    client.get(url("case", cases[0]))
    ready = client.get(url("step", cases[0], "?ahead=1"), HTTP_HX_REQUEST="true")
    assert ready["X-Case"] == str(cases[1].pk) and "HX-Replace-Url" not in ready
    assert set(Failure.objects.filter(reserved_by=user)) == {cases[0], cases[1]}
    body = {"confirm": "1", "ahead": str(cases[1].pk)}
    answer = client.post(url("decide", cases[0]), body, HTTP_HX_REQUEST="true")
    assert (
        answer["HX-Reswap"] == "none"
        and b"2 left" in answer.content
        and b"hx-swap-oob" in answer.content
    )
    assert b"data-case" not in answer.content
    other = client.post(url("decide", cases[1]), body | {"ahead": "0"}, HTTP_HX_REQUEST="true")
    assert "HX-Reswap" not in other and b"data-case" in other.content


def test_two_people_get_two_cases(failures_of: FailuresOf) -> None:
    project, cases = failures_of(2)
    (one, _), (other, _) = browser(project), browser(project)
    start = reverse("failures:triage", args=[project.slug])
    assert one.get(start, follow=True).context["failure"] == cases[0]
    assert other.get(start, follow=True).context["failure"] == cases[1]
    third, _ = browser(project)
    nothing = third.get(start, follow=True)
    assert b"assigned to others" in nothing.content and b"Nothing left" not in nothing.content


@pytest.mark.proof
def test_a_case_on_somebodys_screen_says_so_and_is_theirs(failures_of: FailuresOf) -> None:
    project, (case, *_) = failures_of(2)
    (one, holder), (other, _) = browser(project), browser(project)
    one.get(url("case", case))
    page = other.get(url("case", case))
    assert f"<b>{holder}</b> is reviewing this case" in page.content.decode()
    answer = other.post(url("decide", case), {"confirm": "1"}, HTTP_HX_REQUEST="true")
    assert b"is reviewing this case for up to 10 more minutes" in answer.content
    case.refresh_from_db()
    assert (
        case.state == FailureState.OPEN
        and case.reserved_by == holder
        and not case.decisions.exists()
    )


def test_a_reservation_ends_by_itself_and_by_moving_on(failures_of: FailuresOf) -> None:
    project, cases = failures_of(3)
    (one, holder), (other, second) = browser(project), browser(project)
    one.get(url("case", cases[0]))
    Failure.objects.filter(pk=cases[0].pk).update(
        reserved_until=timezone.now() - timedelta(seconds=1)
    )
    other.post(url("decide", cases[0]), {"confirm": "1"})
    assert Failure.objects.get(pk=cases[0].pk).decided_by == second
    one.get(url("case", cases[1]))
    one.get(url("case", cases[2]))
    assert list(Failure.objects.filter(reserved_by=holder)) == [cases[2]]


def test_only_one_of_two_gets_the_reservation(failures_of: FailuresOf) -> None:
    project, (case,) = failures_of(1)
    one, other = make_member(project), make_member(project)
    assert (
        reserve(failure=case, by=one)
        and reserve(failure=case, by=one)
        and not reserve(failure=case, by=other)
    )


def test_reading_reserves_nothing_for_a_viewer(failures_of: FailuresOf) -> None:
    project, (case,) = failures_of(1)
    client, _ = browser(project, Role.VIEWER)
    page = client.get(url("case", case))
    assert b"Confirm" not in page.content and Failure.objects.get(pk=case.pk).reserved_by is None


def test_a_stale_page_does_not_overwrite_a_decision(failures_of: FailuresOf) -> None:
    project, (case,) = failures_of(1)
    client, _ = browser(project)
    seen, first = version_of(case), make_member(project)
    decide(failure=case, by=first, state=FailureState.DISMISSED)
    answer = client.post(
        url("decide", case), {"confirm": "1", "seen": seen}, HTTP_HX_REQUEST="true"
    )
    assert f"{first} has decided this case since you opened it" in answer.content.decode()
    case.refresh_from_db()
    assert case.state == FailureState.DISMISSED and case.decisions.count() == 1


def test_a_case_that_the_rules_took_away_is_not_found(failures_of: FailuresOf) -> None:
    project, cases = failures_of(2)
    client, _ = browser(project)
    client.get(url("case", cases[0]))
    address = url("decide", cases[0])
    Failure.objects.filter(pk=cases[0].pk).delete()
    assert client.post(address, {"confirm": "1"}, HTTP_HX_REQUEST="true").status_code == 404


def test_a_mode_of_another_project_is_not_found(failures_of: FailuresOf) -> None:
    project, (case,) = failures_of(1)
    other, _ = failures_of(2)
    FailureMode.objects.create(project=other, slug="theirs", name="Theirs")
    client, _ = browser(project)
    assert client.post(url("decide", case), {"mode": "theirs"}).status_code == 404
    assert client.post(url("split", case), {"mode": "theirs"}).status_code == 404
    assert Failure.objects.get(pk=case.pk).state == FailureState.OPEN


def test_split_and_assign_stay_on_the_case(failures_of: FailuresOf) -> None:
    project, (case, _) = failures_of(2)
    client, user = browser(project)
    answer = client.post(url("split", case), {"mode": "bad_planning"}, HTTP_HX_REQUEST="true")
    assert answer["X-Case"] == str(case.pk) and b"+ Bad planning" in answer.content
    answer = client.post(url("assign", case), {"to": user.username}, HTTP_HX_REQUEST="true")
    assert answer["X-Case"] == str(case.pk) and f"Assigned to {user}" in answer.content.decode()
    same = client.post(url("split", case), {"mode": case.mode.slug}, HTTP_HX_REQUEST="true")
    assert b"is already its mode" in same.content


def test_a_person_corrects_the_blamed_step(failures_of: FailuresOf) -> None:
    project, (case, _) = failures_of(2)
    client, _ = browser(project)
    watcher, _ = browser(project, Role.VIEWER)
    assert b"Blame this step" not in watcher.get(url("case", case)).content
    case.blamed_message, case.evidence = (
        0,
        [{"rule": "looped", "message_index": 0, "text": "x", "quote": "", "mode": case.mode.slug}],
    )
    case.save()
    assert b'name="message" value="1"' in client.get(url("case", case)).content
    answer = client.post(url("blame", case), {"message": "1"}, HTTP_HX_REQUEST="true")
    assert answer["X-Case"] == str(case.pk) and b"Blamed step #1" in answer.content
    case.refresh_from_db()
    assert (case.blamed_message, case.state) == (1, "open"), "it is corrected, not decided"
    classify_project(project=project)
    case.refresh_from_db()
    assert case.blamed_message == 1, "rules do not change it back"
    for wrong in ("99", "5"):
        assert (
            b"There is no message"
            in client.post(url("blame", case), {"message": wrong}, HTTP_HX_REQUEST="true").content
        )
    assert client.post(url("blame", case), {"message": "x"}).status_code == 404
    typed = client.post(url("blame", case), {"message": "1", "number": "0"}, HTTP_HX_REQUEST="true")
    assert b"Blamed step #0" in typed.content, (
        "Enter in the field presses the first button of the form too"
    )
    client.post(reverse("failures:undo", args=[project.slug]), HTTP_HX_REQUEST="true")
    undone = client.post(reverse("failures:undo", args=[project.slug]), HTTP_HX_REQUEST="true")
    assert b"Blamed step #0" in undone.content and undone["X-Case"] == str(case.pk)


def test_a_case_given_away_leaves_the_screen_and_comes_to_its_person(
    failures_of: FailuresOf,
) -> None:
    project, cases = failures_of(2)
    client, _ = browser(project)
    theirs, person = browser(project)
    answer = client.post(url("assign", cases[0]), {"to": person.username}, HTTP_HX_REQUEST="true")
    assert answer["X-Case"] == str(cases[1].pk)
    start = reverse("failures:triage", args=[project.slug])
    assert theirs.get(start + "?mine=1", follow=True).context["failure"] == cases[0]
    assert client.post(url("assign", cases[1]), {"to": "nobody-here"}).status_code == 404


def test_undo_goes_back_several_steps_and_shows_each_case(failures_of: FailuresOf) -> None:
    project, cases = failures_of(3)
    client, _ = browser(project)
    client.post(url("decide", cases[0]), {"mode": "bad_planning"})
    client.post(url("decide", cases[1]), {"dismiss": "1"})
    back = reverse("failures:undo", args=[project.slug])
    answer = client.post(back, HTTP_HX_REQUEST="true")
    assert (
        answer["X-Case"] == str(cases[1].pk) and b"Your last decision was undone." in answer.content
    )
    assert client.post(back, HTTP_HX_REQUEST="true")["X-Case"] == str(cases[0].pk)
    assert project.failures.filter(state=FailureState.OPEN, mode=cases[0].mode).count() == 3
    answer = client.post(f"{back}?at={cases[2].pk}", HTTP_HX_REQUEST="true")
    assert b"Nothing to undo." in answer.content and answer["X-Case"] == str(cases[2].pk)


def test_the_last_decision_ends_the_queue(failures_of: FailuresOf) -> None:
    project, (case,) = failures_of(1)
    client, _ = browser(project)
    answer = client.post(url("decide", case), {"confirm": "1"}, HTTP_HX_REQUEST="true")
    assert b"Nothing left to triage." in answer.content and b'data-key="u"' in answer.content
    for page in ("failures:clusters", "evals:list"):
        assert f'href="{reverse(page, args=[project.slug])}"' in answer.content.decode()
    message = client.get(
        reverse("failures:triage", args=[project.slug]), follow=True
    ).content.decode()
    assert (
        f'<a href="{reverse("failures:clusters", args=[project.slug])}">View clusters</a>'
        in message
    )


def similar(client: Client, failure: Failure) -> list[int]:
    return [other.pk for other, _, _ in client.get(url("similar", failure)).context["similar"]]


def give(failure: Failure, tools: list[str], text: str) -> None:
    """What the comparison reads of a failure."""
    type(failure.trajectory).objects.filter(pk=failure.trajectory_id).update(tool_names=tools)
    evidence = [{"rule": "failed_call", "message_index": 1, "text": text, "confidence": "likely"}]
    Failure.objects.filter(pk=failure.pk).update(evidence=evidence)


@pytest.mark.proof
def test_similar_failures_are_ranked_by_what_they_share_the_cluster_first() -> None:
    project, (case, unlike, near, other, *_) = make_failures(8)
    client, _ = browser(project)
    give(case, ["refund"], "payment_id is missing")
    give(other, ["refund"], "payment_id is missing")
    give(near, ["refund"], "the call timed out")
    assert similar(client, case)[:2] == [other.pk, near.pk] and len(similar(client, case)) == 6
    page = client.get(url("similar", case)).content.decode()
    assert "refund" in page and "payment_id, missing" in page
    now = timezone.now()
    cluster = FailureCluster.objects.create(
        project=project, name="c", signature={}, first_seen=now, last_seen=now
    )
    Failure.objects.filter(pk__in=[case.pk, unlike.pk, near.pk]).update(cluster=cluster)
    assert similar(client, case)[:3] == [near.pk, unlike.pk, other.pk]


@pytest.mark.proof
def test_the_same_decision_for_the_chosen_is_one_step_back_to_the_case() -> None:
    project, (case, second, third, decided, rest) = make_failures(5)
    set_mode(third, "bad_planning")
    client, user = browser(project)
    decide(failure=decided, by=make_member(project), state=FailureState.DISMISSED)
    client.get(url("case", case))
    body = {"confirm": "1", "ahead": str(second.pk), "also": [second.pk, third.pk, decided.pk, "x"]}
    answer = client.post(url("decide", case), body, HTTP_HX_REQUEST="true")
    assert answer["X-Case"] == str(rest.pk)
    assert (
        f"3 failures confirmed as “{case.mode}”. Skipped: 1 was already decided."
        in answer.content.decode()
    )
    chosen = Failure.objects.filter(pk__in=[case.pk, second.pk, third.pk])
    assert {(row.state, row.mode, row.decided_by) for row in chosen} == {
        ("confirmed", case.mode, user)
    }
    back = client.post(
        reverse("failures:undo", args=[project.slug]) + f"?at={rest.pk}", HTTP_HX_REQUEST="true"
    )
    assert (
        back["X-Case"] == str(case.pk)
        and "Your last change to 3 failures was undone." in back.content.decode()
    )
    third.refresh_from_db()
    assert (third.state, third.mode.slug, third.decided_by) == ("open", "bad_planning", None)
    assert Failure.objects.filter(project=project, state="open").count() == 4


def test_one_that_somebody_has_is_not_chosen_and_is_left(failures_of: FailuresOf) -> None:
    project, (case, held, given) = failures_of(3)
    client, _ = browser(project)
    other = make_member(project)
    reserve(failure=held, by=other)
    Failure.objects.filter(pk=given.pk).update(assigned_to=other)
    page = client.get(url("similar", case))
    assert not page.context["choosable"] and b'name="also"' not in page.content
    answer = client.post(
        url("decide", case), {"dismiss": "1", "also": [held.pk]}, HTTP_HX_REQUEST="true"
    )
    assert (
        "1 failure dismissed. Skipped: 1 is open on someone else&#x27;s screen."
        in answer.content.decode()
    )
    assert Failure.objects.get(pk=held.pk).state == FailureState.OPEN


def test_what_is_alike_is_text_and_a_viewer_chooses_nothing(failures_of: FailuresOf) -> None:
    project, (case, other) = failures_of(2)
    for failure in (case, other):
        give(failure, ["<script>alert(1)</script>"], "<b>bold</b> words")
    client, _ = browser(project, Role.VIEWER)
    page = client.get(url("similar", case)).content.decode()
    assert (
        "<script>alert" not in page and "&lt;script&gt;alert(1)" in page and "checkbox" not in page
    )


def test_evidence_and_quotes_are_text(failures_of: FailuresOf) -> None:
    project, (case,) = failures_of(1)
    hostile = '"><script>alert(1)</script>'
    evidence = [
        {
            "rule": hostile,
            "message_index": 1,
            "text": hostile,
            "quote": hostile,
            "confidence": hostile,
        }
    ]
    Failure.objects.update(evidence=evidence)
    client, _ = browser(project)
    content = client.get(url("case", case)).content.decode()
    assert "<script>alert(1)" not in content and "&lt;script&gt;alert(1)" in content


@pytest.mark.proof
def test_a_long_run_opens_at_its_blamed_part() -> None:
    project = make_project()
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"word {n}"} for n in range(900)]
    row = make_failed(project, messages=turns)
    classify_project(project=project)
    Failure.objects.filter(trajectory=row).update(blamed_message=501)
    client, _ = browser(project)
    page = client.get(url("case", Failure.objects.get(project=project)))
    content = page.content.decode()
    assert (
        'id="m501"' in content and 'id="m1"' not in content and content.count("part waiting") >= 2
    )
    assert content.count('class="badge bad">blamed step') == 1
    parts = [
        client.get(f"/p/{project.slug}/{path}")
        for path in re.findall(rf'hx-get="/p/{project.slug}/(failures/[^"]*/part/[^"]*)"', content)
    ]
    assert len(parts) == content.count("part waiting") and all(
        ">Blame this step<" in part.content.decode() for part in parts
    )
    first = Reader(row).firsts[Reader(row).position_of(501)]
    check = reverse("failures:check_part", args=[project.slug, row.pk, first])
    assert (
        "blamed step"
        in client.get(
            reverse("trajectories:part", args=[project.slug, row.pk, first])
        ).content.decode()
    )
    shown = client.get(check).content.decode()
    assert (
        'id="m501"' in shown and "blame" not in shown.lower()
    )  # people judge before they see what was found
