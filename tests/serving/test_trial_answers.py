"""What is answered in a trial: a row there, and production traffic only where a client was given
it.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from apps.core.models import Project
from apps.promotion.models import Trial, TrialAnswer
from apps.promotion.policies import channel_of
from apps.promotion.trials.sessions import lanes_of, settle
from apps.serving import storing
from apps.serving.routes import CANARY, SHADOW, read_table, route_of
from apps.serving.spool import Record
from apps.serving.trial_answers import row_of
from apps.trajectories.actions.redaction import save_builtins
from apps.trajectories.models import HourlyCount, Trajectory
from tests.factories import admin_of, make_endpoint, make_server
from tests.serving.test_routes import live
from tests.serving.test_storing import put, record, stored
from workers.lib.prices import Price

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "close",
            "parameters": {
                "type": "object",
                "properties": {"id": {"type": "integer"}},
                "required": ["id"],
            },
        },
    }
]


@pytest.fixture
def trial(project: Project, settings: Any) -> Trial:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    return make_trial(project)


def make_trial(project: Project, **given: Any) -> Trial:
    server = make_server(project)
    old, new = (make_endpoint(project, server, served_as=name) for name in ("old", "new"))
    live(old)
    fields = {"kind": "canary", "steps": [{"share": 0.25}], "state": "running"} | given
    return Trial.objects.create(
        project=project, channel=channel_of(project), version=new, baseline=old, **fields
    )


def of(trial: Trial, number: int = 1, **more: Any) -> Record:
    given = {
        "trial": str(trial.pk),
        "lane": "current",
        "unit": "u1",
        "number": number,
        "price": Price(1.0, 2.0),
    } | more
    answer = given.pop("answer", "Hello")
    return record(trial.project, ["Hi"], answer, **given)


def calls(arguments: str) -> dict[str, Any]:
    """A request with a tool, and an answer that calls it."""
    call = {"id": "1", "type": "function", "function": {"name": "close", "arguments": arguments}}
    asked = {"messages": [{"role": "user", "content": "Close ticket 7"}], "tools": TOOLS}
    said = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
    return {"request": json.dumps(asked).encode(), "answer": json.dumps(said).encode()}


@pytest.mark.parametrize(
    ("reported", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, 7),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": 3, "completion_tokens": 0}, None),
        ({"prompt_tokens": 0, "completion_tokens": 400}, None),
        ({"prompt_tokens": 3, "completion_tokens": 1}, None),
        (None, None),
    ],
)
def test_what_a_server_does_not_count_is_unknown(
    trial: Trial, reported: Any, tokens: int | None
) -> None:
    """Servers that do not count report 0, or 1 for a long text."""
    choice = {"message": {"role": "assistant", "content": "It was refunded. " * 20}}
    if tokens:
        choice["message"]["content"] = "Done."
    answer = json.dumps({"choices": [choice], "usage": reported}).encode()
    row = row_of(of(trial, answer=answer))
    assert row.tokens == tokens and (row.cost_usd is None) == (tokens is None)


def test_each_answer_of_a_trial_is_a_row_of_it_once(trial: Trial, tmp_path: Path) -> None:
    some = [of(trial), of(trial, 2, lane=CANARY, unit="u2", step=1, version="m-v2", version_id=2)]
    for _ in range(2):
        put(tmp_path, *some)
        stored(trial.project, tmp_path)
    one, two = trial.answers.order_by("at")
    assert (one.lane, one.step, one.unit, one.answered, one.ms, one.tokens) == (
        "current",
        0,
        "u1",
        True,
        500.0,
        7,
    )
    assert (
        one.cost_usd == pytest.approx(11e-6) and one.first_ms == 0.0 and one.trace_id == f"{1:032x}"
    )
    assert (two.lane, two.step, two.unit) == ("canary", 1, "u2")
    assert [row.failed for row in (one, two)] == [
        None,
        None,
    ], "a canary's verdict is read from its run"
    assert Trajectory.objects.count() == 2


def test_what_no_client_was_given_is_no_production_traffic(trial: Trial, tmp_path: Path) -> None:
    put(
        tmp_path,
        of(trial, 1, paired=True),
        of(trial, 2, lane=SHADOW, served=False, shadow_of=f"{1:016x}", version="m-v2"),
        of(
            trial,
            3,
            lane=CANARY,
            served=False,
            ended="unreached",
            status=0,
            answer=b"",
            problem="it is down",
        ),
        of(trial, 4, lane=CANARY, ended="left", status=200, answer=b""),
    )
    rows = stored(trial.project, tmp_path)
    assert {row.model for row in rows} == {"m-v1"} and len(rows) == 2
    found = {row.span_id: row for row in trial.answers.all()}
    assert [found[f"{number:016x}"].answered for number in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        True,
    ]
    assert found[f"{2:016x}"].shadow_of == f"{1:016x}"
    assert HourlyCount.objects.count() <= 1 and trial.answers.count() == 4


def test_both_lanes_of_a_shadow_trial_are_judged_by_the_same_rules(
    trial: Trial, tmp_path: Path
) -> None:
    good, bad = calls('{"id": 7}'), calls('{"id": "seven"}')
    put(
        tmp_path,
        of(trial, 1, paired=True, **good),
        of(trial, 2, lane=SHADOW, served=False, shadow_of=f"{1:016x}", **bad),
        of(trial, 3, paired=True, **bad),
        of(trial, 4, lane=SHADOW, served=False, shadow_of=f"{3:016x}", **good),
        of(
            trial,
            5,
            lane=SHADOW,
            served=False,
            status=500,
            answer=b'{"error": {"message": "CUDA"}}',
        ),
    )
    stored(trial.project, tmp_path)
    one, two, three, four, five = trial.answers.order_by("at")
    assert [row.failed for row in (one, two, three, four, five)] == [False, True, True, False, True]
    assert not any(row.unsafe for row in (one, two, three, four, five))
    assert one.said == three.said == {} and two.said["modes"] and not four.said["modes"]
    assert two.said["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"id": "seven"}'
    assert (
        five.said == {"messages": [], "modes": five.said["modes"], "problem": "HTTP 500: CUDA"}
        and not five.answered
    )


def test_what_a_shadow_says_is_redacted(trial: Trial, tmp_path: Path) -> None:
    save_builtins(project=trial.project, chosen={"email": False}, by=admin_of(trial.project))
    put(tmp_path, of(trial, 1, lane=SHADOW, served=False, answer="Write to ann@example.com"))
    stored(trial.project, tmp_path)
    assert (
        "ann@example.com" not in json.dumps(trial.answers.get().said)
        and trial.answers.get().said["messages"]
    )


def test_hostile_answers_of_a_shadow_are_rows(trial: Trial, tmp_path: Path) -> None:
    put(
        tmp_path,
        of(trial, 1, lane=SHADOW, served=False, request=b'{"messages": "Hi"}', answer=b"<html>"),
        of(
            trial,
            2,
            lane=SHADOW,
            served=False,
            request=b'{"messages": [7]}',
            answer=b'{"choices":[{"message":{"content":7,"tool_calls":{}}}]}',
        ),
        of(trial, 3, lane=SHADOW, served=False, answer=("\x00" + "x" * 100_000)),
    )
    stored(trial.project, tmp_path)
    assert trial.answers.count() == 3 and not (tmp_path / "refused").exists()
    assert all(len(json.dumps(row.said)) < 25_000 for row in trial.answers.all())


def test_answers_of_a_trial_that_is_gone_are_still_runs(trial: Trial, tmp_path: Path) -> None:
    put(tmp_path, of(trial))
    trial.delete()
    assert len(stored(trial.project, tmp_path)) == 1 and not TrialAnswer.objects.exists()


# What the endpoint reads


def test_a_running_trial_is_a_second_lane(trial: Trial) -> None:
    route = read_table().routes[trial.project_id]["production"]
    current, candidate = route.lanes
    assert (current.kind, current.share, current.version) == ("current", 0.75, str(trial.baseline))
    assert (candidate.kind, candidate.share, candidate.version) == (
        CANARY,
        0.25,
        str(trial.version),
    )
    assert {(lane.trial, lane.step) for lane in route.lanes} == {
        (str(trial.pk), 0)
    } and route.salt == trial.salt
    assert candidate.backends[0].served_as == "new" and not candidate.problem


def test_a_shadow_takes_nobody_from_the_current_version(project: Project, settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    trial = make_trial(project, kind="shadow")
    current, candidate = route_of(trial.channel).lanes
    assert (current.share, candidate.kind, candidate.share) == (1.0, SHADOW, 0.25)


@pytest.mark.parametrize(("state", "lanes"), [("preparing", 1), ("promoting", 2)])
def test_a_trial_gets_traffic_from_its_first_share_until_its_end(
    trial: Trial, state: str, lanes: int
) -> None:
    Trial.objects.update(state=state)
    assert len(route_of(trial.channel).lanes) == lanes


def test_a_segment_is_kept_where_the_rows_of_a_trial_cannot_be_stored(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(rows: Any) -> None:
        raise OperationalError("gone")

    put(tmp_path, of(trial))
    with monkeypatch.context() as patched:
        patched.setattr(storing, "note_answers", away)
        with pytest.raises(OperationalError):
            stored(trial.project, tmp_path)
    assert len(stored(trial.project, tmp_path)) == 1 and trial.answers.count() == 1


def test_a_shadow_is_compared_by_what_the_rules_find_in_both_answers(
    trial: Trial, tmp_path: Path
) -> None:
    """Its answers are no runs, so the runs say nothing of them."""
    Trial.objects.update(kind="shadow", started_at=timezone.now(), step_at=timezone.now())
    trial.refresh_from_db()
    good, bad = calls('{"id": 7}'), calls('{"id": "seven"}')
    pairs = ((good, bad), (bad, good), (good, good), (good, bad))
    shadow = {"lane": SHADOW, "served": False, "version": "m-v2"}
    given = []
    for at, (said, shadowed) in enumerate(pairs):
        one, two = 2 * at + 1, 2 * at + 2
        given.append(of(trial, one, paired=True, unit=f"u{at}", **said))
        given.append(
            of(
                trial,
                two,
                unit=f"u{at}",
                shadow_of=f"{one:016x}",
                trace_id=f"{one:032x}",
                **shadow,
                **shadowed,
            )
        )
    put(tmp_path, *given, of(trial, 20, unit="u0", **bad))
    stored(trial.project, tmp_path)
    TrialAnswer.objects.update(at=timezone.now() - timedelta(minutes=5))
    settle(trial, timezone.now())
    (step,) = lanes_of(trial)["success"]
    assert step.pairs == (1, 2, 1) and (step.current.bad, step.candidate.bad) == (1, 2)
