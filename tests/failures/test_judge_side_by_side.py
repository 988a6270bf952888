"""Several runs before the judge at the same time: the budget holds, and what breaks is settled; and
strategies for the blamed step.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from apps.failures.judge import judging, rubrics
from apps.failures.judge.client import Server
from apps.failures.judge.prompt import Mode
from apps.failures.judge.strategies import STRATEGIES, Question
from apps.failures.models import JudgeVerdict
from tests.factories import make_project
from tests.failures.judge_server import JudgeServer, Reply, running, says
from tests.failures.test_judge import FAILED, make_rubric, make_run, run
from workers.lib.prices import Price

PRICE = {"price": Price(1.0)}
COUNTED = {"prompt_tokens": 1000, "completion_tokens": 0, "total_tokens": 1000}  # $0.001


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with running() as server:
        server.answer = lambda body: Reply(FAILED, usage=COUNTED)
        yield server


@pytest.fixture(autouse=True)
def _rules(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True


@pytest.mark.proof
@pytest.mark.django_db
def test_runs_are_asked_about_at_the_same_time(judge: JudgeServer) -> None:
    """One alone, then two together, then four: each group answers only when it is complete."""
    project, together, seen, met = make_project(), threading.Condition(), [], []
    for _ in range(7):
        make_run(project)

    def answer(body: dict) -> Reply:
        with together:
            seen.append(1)
            needed = 1 if len(seen) == 1 else 3 if len(seen) <= 3 else 7
            together.notify_all()
            met.append(all(met) and together.wait_for(lambda: len(seen) >= needed, 300))
        return Reply(FAILED, usage=COUNTED)

    judge.answer = answer
    make_rubric(project, judge, concurrency=4)
    report = run(project)
    assert (report.asked, report.failures, report.errors, report.stopped) == (7, 7, 0, "") and all(
        met
    )


@pytest.mark.proof
@pytest.mark.django_db
def test_the_budget_holds_with_several_a_crash_and_a_busy_server(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve runs, a budget for some of them; one question breaks inside, one is answered 429
    first.
    """
    project = make_project()
    for _ in range(12):
        make_run(project)
    judge.script = [Reply(FAILED, usage=COUNTED)] * 2 + [
        Reply("busy", 429, headers={"Retry-After": "0"})
    ]
    ask, numbers = Question.ask, itertools.count(1)

    def breaks(self: Question, *given: Any) -> Any:
        if next(numbers) == 3:
            raise RuntimeError("broken")
        return ask(self, *given)

    monkeypatch.setattr(Question, "ask", breaks)
    rubric = make_rubric(project, judge, concurrency=4, usd_per_day=0.01, **PRICE)
    report = run(project)
    spent = rubrics.account_of(project).usd
    assert "used up" in report.stopped and report.errors == 1 and 3 < report.asked < 12
    # what broke may have been paid, so it counts
    assert report.spent_usd == pytest.approx(spent) and spent <= rubric.usd_per_day
    assert JudgeVerdict.objects.filter(error="").count() == report.asked - 1
    broken = JudgeVerdict.objects.exclude(error="").get()
    assert broken.error == "1 of 4 tries used: The question broke: RuntimeError: broken"


@pytest.mark.django_db
def test_what_is_booked_is_never_more_than_the_budget(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, most = make_project(), [0.0]
    for _ in range(10):
        make_run(project)
    reserve = judging._Entry.reserve

    def watched(*given: Any) -> None:
        reserve(*given)
        most[0] = max(most[0], rubrics.account_of(project).usd)

    monkeypatch.setattr(judging._Entry, "reserve", watched)
    make_rubric(project, judge, concurrency=8, usd_per_day=0.01, **PRICE)
    report = run(project)
    assert 0 < most[0] <= 0.01 and report.spent_usd == pytest.approx(0.001 * report.asked)
    assert report.asked == 10 or "used up" in report.stopped


# Strategies


MODES = [Mode("bad_planning", "Bad planning")]
LONG = [{"role": "user", "content": "Do it."}] + [
    message
    for n in range(1, 7)
    for message in (
        {"role": "assistant", "content": f"Step {n}."},
        {"role": "user", "content": "On."},
    )
]
TRUE = 7  # the fourth of steps 1, 3, 5, 7, 9, 11


def knows(body: dict) -> Reply:
    """A judge that knows the step, but names the last one where it must say all at once."""
    system = body["messages"][0]["content"]
    if found := re.search(r"Is that message the mistake", system) and re.search(
        r"ends with message #(\d+)", system
    ):
        at = int(found[1])
        shown = body["messages"][1]["content"]
        assert f"#{at} assistant]" in shown and f"#{at + 1} " not in shown
        return Reply(
            json.dumps({"mistake": at == TRUE, "quote": "Step" if at == TRUE else ""}),
            usage=COUNTED,
        )
    if found := re.search(r"in message #(\d+)(?: to #(\d+))? \(part 1\)", system):
        return Reply(
            json.dumps({"part": 1 if int(found[2] or found[1]) >= TRUE else 2}), usage=COUNTED
        )
    return Reply(
        says(mode="bad_planning", message_index=11, quote="Step 6", reason="Bad."), usage=COUNTED
    )


def question(strategy: str) -> Question:
    return Question.of(
        strategy, "Be strict.", MODES, {"messages": LONG, "tools": [], "outcome_status": "failure"}
    )


@pytest.mark.parametrize(
    ("strategy", "step", "questions"), [("whole", 11, 1), ("steps", TRUE, 5), ("halving", TRUE, 4)]
)
def test_a_strategy_finds_the_step(
    judge: JudgeServer, strategy: str, step: int, questions: int
) -> None:
    judge.answer = knows
    server = Server(judge.url, "m", allow_private=True)
    judged = question(strategy).ask(server)
    assert judged.answer and (judged.answer.mode, judged.answer.message_index) == (
        "bad_planning",
        step,
    )
    assert (
        len(judge.seen) == questions == len(judged.raw)
        and judged.usage.input_tokens == 1000 * questions
    )
    assert (judged.answer.quote == "Step") == (strategy == "steps")


@pytest.mark.parametrize("strategy", ["steps", "halving"])
def test_where_a_later_answer_is_of_no_use_the_first_step_stands(
    judge: JudgeServer, strategy: str
) -> None:
    judge.script, judge.answer = (
        [knows({"messages": [{"content": ""}]})],
        lambda body: Reply("no idea"),
    )
    judged = question(strategy).ask(Server(judge.url, "m", allow_private=True))
    assert judged.answer and judged.answer.message_index == 11 and len(judge.seen) == 3


def test_nobody_is_asked_for_the_step_of_a_run_that_went_well(judge: JudgeServer) -> None:
    judge.answer = lambda body: Reply(says(failed=False))
    for strategy in STRATEGIES:
        question(strategy).ask(Server(judge.url, "m", allow_private=True))
    assert len(judge.seen) == 3


def test_all_questions_of_a_strategy_are_booked() -> None:
    server = Server("http://x/v1", "m", **PRICE)
    whole, steps, halving = (question(strategy).max_cost(server) for strategy in STRATEGIES)
    assert steps > 7 * whole and 4 * whole < halving < steps


@pytest.mark.parametrize("broken", [0, 2])
def test_a_long_run_is_judged_with_notes_on_its_parts(judge: JudgeServer, broken: int) -> None:
    """Each part is read with the notes on those before it; a mistake of an early one can be
    quoted. Where notes cannot be had, there is no verdict, and all answers are paid.
    """
    words = "Closed it. " + "x" * 5000
    talk = [{"role": role, "content": words} for _ in range(20) for role in ("user", "assistant")]
    asked = Question.of("whole", "", [Mode("bad_planning", "Bad")], {"messages": talk})

    def answer(body: dict) -> Reply:
        said, count = body["messages"][1]["content"], len(judge.seen)
        assert broken or (f"note {count - 1}" in said) == (count > 1)
        is_last = '"notes"' not in body["messages"][0]["content"]
        if broken and count >= broken:
            return Reply("no notes", usage=COUNTED)
        found = says(mode="bad_planning", message_index=1, quote="Closed it.", reason="Early.")
        return Reply(found if is_last else json.dumps({"notes": f"note {count}"}), usage=COUNTED)

    judge.answer = answer
    judged = asked.ask(Server(judge.url, "m", allow_private=True))
    parts = len(asked.prompt.parts)
    assert parts >= 3
    if broken:
        assert judged.answer is None and "even after a retry" in judged.error
        assert judged.usage.input_tokens == 3000 and len(judge.seen) == 3
    else:
        assert judged.answer and judged.answer.message_index == 1
        assert len(judge.seen) == parts + 1 and judged.usage.input_tokens == 1000 * (parts + 1)


def test_the_parts_of_a_long_run_are_booked() -> None:
    server, talk = Server("http://x/v1", "m", **PRICE), [{"role": "user", "content": "x" * 5000}]
    costs = [
        Question.of("whole", "", [], {"messages": talk * count}).max_cost(server)
        for count in (10, 40)
    ]
    assert costs[1] > 4 * costs[0]
