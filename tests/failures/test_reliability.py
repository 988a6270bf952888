"""How often each confidence is right by people's decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.failures import measures, reliability
from apps.failures.actions.decisions import decide, mark_failure, split
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.modes import ensure_modes
from apps.failures.measures import Share
from apps.failures.models import Failure, FailureState
from apps.failures.reliability import Right, by_confidence, by_rule, is_overconfident
from tests.factories import make_failed, make_member, make_project, make_trajectory
from tests.shared import copied, once

COUNTS = Counter(
    {(("a", "certain"), True): 7, (("a", "certain"), False): 1, (("b", "hint"), False): 2}
)


def test_shares_by_confidence_and_by_rule() -> None:
    assert by_confidence(COUNTS) == [
        Right("", "certain", Share(7, 8)),
        Right("", "likely", Share(0, 0)),
        Right("", "hint", Share(0, 2)),
    ]
    assert by_rule(COUNTS) == [Right("a", "certain", Share(7, 8)), Right("b", "hint", Share(0, 2))]


def test_certain_is_overconfident_where_its_interval_lies_below_the_goal() -> None:
    assert is_overconfident(Right("", "certain", Share(70, 100)))
    assert not is_overconfident(Right("", "certain", Share(7, 8)))
    assert not is_overconfident(Right("", "hint", Share(0, 100)))
    assert not is_overconfident(Right("", "certain", Share(0, 0)))


def made_project(_: Path) -> Project:
    project = make_project()
    for _ in range(5):
        make_failed(project)
    classify_project(project=project)
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def test_right_is_what_people_confirm_with_that_mode(project: Project) -> None:
    modes, by = ensure_modes(project), make_member(project)
    confirmed, changed, dismissed, splitted, _ = Failure.objects.order_by("pk")
    said = (confirmed.evidence[0]["rule"], confirmed.evidence[0]["confidence"])
    decide(failure=confirmed, by=by)
    decide(failure=changed, by=by, mode=modes["bad_planning"])
    decide(failure=dismissed, by=by, state=FailureState.DISMISSED)
    decide(failure=splitted, by=by, mode=modes["bad_planning"])
    split(failure=splitted, by=by, mode=modes["incomplete_execution"])
    fine = make_trajectory(project, outcome={"status": "success"})
    mark_failure(trajectory=fine, mode=modes["unsafe_action"], blamed_message=1, by=by)
    assert reliability.decisions(project) == {(said, True): 2, (said, False): 2}


def test_where_the_judge_decided_the_rules_reason_comes_second(project: Project) -> None:
    failure = Failure.objects.first()
    rule = failure.evidence[0]
    Failure.objects.filter(pk=failure.pk).update(
        evidence=[rule | {"rule": "judge", "confidence": "likely"}, rule]
    )
    decide(failure=Failure.objects.get(pk=failure.pk), by=make_member(project))
    assert reliability.decisions(project) == {((rule["rule"], rule["confidence"]), True): 1}


@pytest.mark.proof
def test_the_page_has_the_diagram_and_warns(project: Project) -> None:
    client, by = Client(), make_member(project)
    client.force_login(by)
    url = reverse("failures:measures", args=[project.slug])
    assert b"Reliability" not in client.get(url).content
    for _ in range(measures.FEW - 5):
        make_failed(project)
    classify_project(project=project)
    Failure.objects.update(
        evidence=[{"rule": "expected_calls", "confidence": "certain", "mode": "format_error"}]
    )
    *first, last = Failure.objects.all()
    for failure in first:
        decide(failure=failure, by=by, state=FailureState.DISMISSED)
    assert 'id="reliability"' not in client.get(url).content.decode()  # too few for a diagram
    decide(failure=last, by=by, state=FailureState.DISMISSED)
    page = client.get(url)
    assert b"Calibration of confidence" in page.content and page.context["reliability"]
    said = page.content.decode()
    assert "“Certain” is right in 0.0% of 10 cases" in said
    assert (
        said.count('id="reliability"') == 1
    )  # a second one would be read as the chart, and no chart would be drawn
