"""How often the layers say what people say: the shares, what they are counted over, and the
page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.failures import measures
from apps.failures.actions.decisions import decide, mark_failure, split
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.modes import ensure_modes
from apps.failures.measures import Score, Share
from apps.failures.models import Failure, FailureState, JudgeVerdict, Rubric
from apps.trajectories.digest import run as digest
from apps.trajectories.models import Trajectory
from tests.factories import make_failed, make_member, make_project, make_trajectory
from tests.shared import copied, once

A, B, NONE = frozenset("a"), frozenset("b"), frozenset[str]()
WORDS = Counter(
    {
        ("a", "a", A): 6,  # confirmed
        ("a", "b", B): 2,  # changed
        ("a", "", NONE): 1,  # dismissed
        ("", "a", A): 3,  # marked by a person
        ("b", "a", A | B): 1,  # changed, and the layer's mode split off
        ("", "", NONE): 4,
    }
)


def test_precision_and_recall() -> None:
    a, b = measures.scores(WORDS)
    assert a == Score("a", Share(6, 9), Share(6, 10), changed=1, marked=3)
    assert b == Score("b", Share(1, 1), Share(1, 3), changed=2, marked=0)
    assert a.precision.rate == pytest.approx(2 / 3)
    low, high = a.precision.interval
    assert (round(low, 4), round(high, 4)) == (0.3542, 0.8794)  # Wilson 1927, by hand


def test_no_case_gives_no_rate() -> None:
    assert (
        Share(0, 0).rate is None
        and measures.scores(Counter()) == []
        and measures.agreement(Counter()).n == 0
    )


def test_agreement_and_confusion() -> None:
    assert measures.agreement(WORDS) == Share(11, 17)
    assert measures.confusion(WORDS) == {
        "a": {"a": 6, "b": 2, "": 1},
        "": {"a": 3, "": 4},
        "b": {"a": 1},
    }


def made_project(_: Path) -> Project:
    project = make_project()
    for _ in range(4):
        make_failed(project)
    classify_project(project=project)
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def test_words_are_those_of_people_against_the_rules(project: Project) -> None:
    modes, by = ensure_modes(project), make_member(project)
    first, second, third, _ = Failure.objects.order_by("pk")
    decide(failure=first, by=by)
    decide(failure=second, by=by, mode=modes["bad_planning"])
    split(failure=second, by=by, mode=modes["format_error"])
    decide(failure=third, by=by, state=FailureState.DISMISSED)
    fine = make_trajectory(project, outcome={"status": "success"})
    mark_failure(trajectory=fine, mode=modes["unsafe_action"], blamed_message=1, by=by)
    assert measures.pairs_of(project, "rules") == {
        ("incomplete_execution", "incomplete_execution", frozenset({"incomplete_execution"})): 1,
        ("incomplete_execution", "bad_planning", frozenset({"bad_planning", "format_error"})): 1,
        ("incomplete_execution", "", NONE): 1,
        ("", "unsafe_action", frozenset({"unsafe_action"})): 1,
    }
    assert measures.decided(project).count() == 4
    assert measures.pairs_of(project, "judge") == {}


def test_the_judge_is_measured_where_it_was_asked(project: Project) -> None:
    by = make_member(project)
    first, second, third, _ = Failure.objects.order_by("pk")
    for failure in (first, second, third):
        decide(failure=failure, by=by)
    Failure.objects.filter(pk=first.pk).update(judge_mode="incomplete_execution")
    rubric = Rubric.objects.create(
        project=project, text="t", base_url="http://localhost/v1", model="m"
    )
    for failure, error in ((second, ""), (third, "It timed out.")):
        digest = str(failure.pk)
        Trajectory.objects.filter(pk=failure.trajectory_id).update(content_digest=digest)
        JudgeVerdict.objects.create(
            rubric=rubric, content_digest=digest, trajectory=failure.trajectory, error=error
        )
    assert measures.pairs_of(project, "judge") == {
        ("incomplete_execution", "incomplete_execution", frozenset({"incomplete_execution"})): 1,
        ("", "incomplete_execution", frozenset({"incomplete_execution"})): 1,
    }


def test_the_case_says_what_the_judge_said_and_nothing_where_it_was_not_asked(
    project: Project,
) -> None:
    client = Client()
    client.force_login(make_member(project))
    failure = Failure.objects.select_related("trajectory").first()
    url = reverse("failures:case", args=[project.slug, failure.pk])
    assert b"Judge:" not in client.get(url).content
    rubric = Rubric.objects.create(
        project=project, text="t", base_url="http://localhost/v1", model="m"
    )
    digest = failure.trajectory.content_digest
    JudgeVerdict.objects.create(rubric=rubric, content_digest=digest, trajectory=failure.trajectory)
    assert b"Judge: no failure" in client.get(url).content
    Failure.objects.filter(pk=failure.pk).update(judge_mode="bad_planning")
    assert "Judge: “Bad planning”" in client.get(url).content.decode()


def test_what_nobody_decided_is_not_counted(project: Project) -> None:
    """A row that says it is a person's, without their decision: what an undo, or another tool,
    leaves.
    """
    by, failure = make_member(project), Failure.objects.first()
    split(failure=failure, by=by, mode=ensure_modes(project)["bad_planning"])
    Failure.objects.filter(pk=failure.pk).update(source="person", state=FailureState.CONFIRMED)
    assert not measures.decided(project).exists()
    Failure.objects.filter(pk=failure.pk).update(source="rule", state=FailureState.OPEN)
    decide(failure=failure, by=by)
    assert measures.decided(project).count() == 1


def test_rates_are_by_version_the_oldest_first(project: Project) -> None:
    make_trajectory(
        project, agent={"name": "assistant", "version": "0"}, started_at="2026-01-01T00:00:00Z"
    )
    digest()
    old, new = measures.by_version(project)
    assert (str(old.of), old.failed) == ("assistant 0", Share(0, 1))
    assert (str(new.of), new.failed) == ("assistant 1", Share(4, 4))
    assert [rate.failed.hits for rate in measures.by_version(project, "bad_planning")] == [0, 0]


@pytest.mark.proof
def test_the_page_says_what_it_cannot_know(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, by = Client(), make_member(project)
    client.force_login(by)
    url = reverse("failures:measures", args=[project.slug])
    page = client.get(url)
    assert (
        b"No case is decided in triage yet" in page.content
        and b"4 failures need review" in page.content
    )
    decide(failure=Failure.objects.first(), by=by)
    digest()
    page = client.get(url, {"mode": "incomplete_execution"})
    assert b">1 of 1<" in page.content and b">100.0%<" not in page.content
    assert b"too few for percentages" in page.content
    monkeypatch.setattr(measures, "FEW", 1)
    page = client.get(url, {"mode": "incomplete_execution"})
    assert b"at most" in page.content and b">100.0%<" in page.content and page.context["figure"]
    assert b"No data yet" in page.content
