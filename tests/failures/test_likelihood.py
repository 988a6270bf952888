"""How likely cases are failures, by what people decided on cases that rest on the same."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from django.urls import reverse

from apps.failures.actions.decisions import decide
from apps.failures.likelihood import FAILED, FINE, UNASKED, Basis, Likelihood
from apps.failures.measures import Share
from apps.failures.models import Failure, FailureState
from apps.failures.triage_queue import TriageQueue
from tests.failures.test_triage import browser, make_failures, url

FACT, WEAK = Basis("looped", "certain", UNASKED), Basis("refused", "hint", UNASKED)
JUDGE = Basis("judge", "likely", FAILED)


def test_before_any_decision_it_is_what_the_rules_promise_and_a_judge_promises_nothing() -> None:
    likelihood = Likelihood(Counter())
    assert likelihood.of(FACT) > likelihood.of(JUDGE) == likelihood.of(WEAK) == 0.5


def test_decisions_count_for_their_basis_and_less_for_others_of_the_same_reason() -> None:
    agreed, doubted = Basis("odd", "likely", FAILED), Basis("odd", "likely", FINE)
    likelihood = Likelihood(Counter({(agreed, True): 30, (doubted, False): 10, (JUDGE, True): 40}))
    assert likelihood.share(doubted) == Share(0, 10)
    unasked = likelihood.of(Basis("odd", "likely", UNASKED))
    assert likelihood.of(doubted) < 0.4 < unasked < likelihood.of(agreed)
    assert likelihood.of(JUDGE) > 0.9


def test_a_case_rests_on_the_rules_where_the_judge_only_chose_its_mode() -> None:
    rule, judge = ("looped", "certain"), ("judge", "likely")
    assert Basis.of(*judge, *rule, "bad_planning", True) == Basis(*rule, FAILED)
    assert Basis.of(*judge, None, None, "bad_planning", True) == JUDGE
    assert Basis.of(*judge, "replay", "certain", "bad_planning", True) == JUDGE
    assert Basis.of(*rule, "stopped", "hint", "", True) == Basis(*rule, FINE)
    assert Basis.of(None, None, None, None, "", False) is None


def rest_on(failure: Failure, rule: str, confidence: str, sure: float | None = None) -> None:
    evidence = {"rule": rule, "confidence": confidence, "text": "t", "sure": sure, "quote": ""}
    mode = "bad_planning" if rule == "judge" else ""
    Failure.objects.filter(pk=failure.pk).update(evidence=[evidence], judge_mode=mode)


@pytest.mark.django_db
def test_cases_like_the_confirmed_ones_come_first_where_asked_for() -> None:
    project, (fact, weak, sure, unsure, *others) = make_failures(16)
    client, user = browser(project)
    for failure in (fact, *others[:6]):
        rest_on(failure, "looped", "certain")
    rest_on(weak, "refused", "hint")
    rest_on(sure, "judge", "likely", 0.9)
    for failure in (unsure, *others[6:]):
        rest_on(failure, "judge", "likely", 0.6)

    def order() -> list[Failure]:
        queue, seen, place = TriageQueue(project, user, {"sort": "likeliest"}), [], None
        while (pk := queue.next(place)) not in [failure.pk for failure in seen]:
            seen.append(Failure.objects.select_related("mode").get(pk=pk))
            place = queue.position_of(seen[-1])
        return [failure for failure in seen if failure in (fact, weak, sure, unsure)]

    assert order() == [fact, sure, unsure, weak]
    for failure in others:
        judged = failure in others[6:]
        state = FailureState.CONFIRMED if judged else FailureState.DISMISSED
        decide(failure=Failure.objects.get(pk=failure.pk), by=user, state=state)
    assert order() == [sure, unsure, weak, fact]
    first = client.get(reverse("failures:triage", args=[project.slug]) + "?sort=likeliest")
    assert first["Location"] == url("case", sure, "?sort=likeliest")
    page = client.get(first["Location"]).content.decode()
    assert "90% sure" in page and '<option value="likeliest" selected>' in page
    beside = " ".join(client.get(url("similar", sure)).content.decode().split())
    assert "Rests on: The judge alone. People confirmed 6 of 6 such cases" in beside
    page = client.get(reverse("failures:measures", args=[project.slug])).content.decode()
    table = page.split("What cases rest on")[1].split("</table>")[0]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", " ".join(table.split()))
    rows = [[cell.strip() for cell in cells[at : at + 5]] for at in range(0, len(cells), 5)]
    assert rows[0][:2] == ["The judge alone", "6 of 6"] and rows[0][3:] == ["6", "2"]
    assert rows[-1][:2] == ["looped (certain); the judge was not asked", "0 of 6"]
    listed = client.get(reverse("failures:list", args=[project.slug])).content.decode()
    assert '<span class="badge">judge</span>' in " ".join(listed.split())
