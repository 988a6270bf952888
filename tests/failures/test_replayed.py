"""What a replay adds to a failure: the step, which only a person outranks, and nothing else."""

from __future__ import annotations

import pytest

from apps.failures.actions import decisions
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.replayed import blame_by_replay
from apps.failures.judge.answer import Verdict
from apps.failures.judge.precedence import REPLAY, Label, choose, joined, rules_mode
from apps.failures.models import Failure, Source
from tests.factories import admin_of, make_failed, make_project

FOUND = {
    "rule": REPLAY,
    "message_index": 5,
    "text": "7 of 8",
    "quote": "",
    "mode": "bad_planning",
    "confidence": "certain",
}
RULES = Label("incomplete_execution", 2, [{"rule": "loop", "message_index": 2, "text": "again"}])


def test_the_step_of_a_replay_stays_whatever_rules_and_judge_say_of_the_mode() -> None:
    label = joined(RULES, [FOUND])
    assert (label.mode, label.blamed, label.evidence[-1]) == (RULES.mode, 5, FOUND)
    judged = choose(label, Verdict("wrong_arguments", 3, "", "It was wrong."))
    assert (judged.mode, judged.blamed, judged.by_judge) == ("wrong_arguments", 5, True)
    assert [item["rule"] for item in judged.evidence] == ["judge", "loop", REPLAY]
    assert rules_mode(judged.evidence[1:]) == rules_mode(RULES.evidence)
    again = joined(RULES, judged.evidence)
    assert [item["rule"] for item in again.evidence] == ["judge", "loop", REPLAY]


def test_what_is_not_sure_blames_nothing_and_no_failure_is_made_of_it() -> None:
    hint = FOUND | {"confidence": "hint"}
    assert joined(RULES, [hint]).blamed == 2
    assert joined(Label(), [FOUND]) == Label()


@pytest.mark.django_db
def test_a_person_s_step_stays_and_a_confirmed_failure_may_get_one() -> None:
    project = make_project()
    rows = [make_failed(project, request=f"Close ticket {n}.") for n in (1, 2)]
    classify_project(project=project)
    named, confirmed = (Failure.objects.get(trajectory=row) for row in rows)
    decisions.blame(failure=named, by=admin_of(project), message=0)
    decisions.decide(failure=confirmed, by=admin_of(project))
    for failure in (named, confirmed):
        blame_by_replay(failure=failure, message=1, text="7 of 8", is_sure=True, by=None)
        blame_by_replay(failure=failure, message=1, text="8 of 8", is_sure=True, by=None)
        failure.refresh_from_db()
        said = [item["text"] for item in failure.evidence if item["rule"] == REPLAY]
        assert said == ["8 of 8"] and failure.source == Source.PERSON
    assert (named.blamed_message, confirmed.blamed_message) == (0, 1)
