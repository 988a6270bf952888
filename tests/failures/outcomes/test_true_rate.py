"""The true failure rate through the product's own order: runs arrive over the API, are classified
and drawn, people answer and triage, the judge reviews its share, a model learns from the answers
and estimates all runs again, the share changes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import F
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.models import Project
from apps.failures import classify_job
from apps.failures.actions import diagnose as diagnosing
from apps.failures.actions.decisions import decide
from apps.failures.actions.diagnose import classify_project, diagnose
from apps.failures.classify import Diagnosis, Evidence
from apps.failures.judge import judging, rubrics, share
from apps.failures.judge.answer import Verdict
from apps.failures.judge.asking import Answered
from apps.failures.judge.client import Server
from apps.failures.judge.strategies import Question
from apps.failures.models import Classifier, Failure, FailureState, JudgeDay, OutcomeCheck
from apps.failures.outcomes import checks, train_job
from apps.failures.outcomes.rate import Check, How
from apps.trajectories.digest import run as digest
from apps.trajectories.models import Trajectory, with_content
from tests.factories import key_headers, make_member, make_project, row
from tests.failures.outcomes.test_checks import recall_of
from tests.failures.outcomes.test_estimates import estimating, send, unknown
from workers.lib.spending import NOTHING

pytestmark = pytest.mark.django_db
PROJECTS = int(os.environ.get("PROJECTS", 64))  # of each world
FIRST_SEED = int(os.environ.get("FIRST_SEED", 0))
WORDS = [f"word{n}" for n in range(400)]
UNREADABLE = {
    "id": "c1",
    "type": "function",
    "function": {"name": "tickets.close", "arguments": '{"id": 12'},
}


def weights() -> dict[str, float | None]:
    return dict(OutcomeCheck.objects.values_list("trajectory__external_id", "probability"))


def test_no_answer_changes_the_weight_of_a_run() -> None:
    """Answers, what they open in the inbox, decisions there, and a model that learned from them."""
    project = make_project()
    by = make_member(project)
    Classifier.objects.create(project=project, check_share=0.4)
    estimating(project)
    send(project, *(unknown(f"r{n}", wrong=n % 3 == 0) for n in range(60)))
    digest()
    classify_project(project=project)
    drawn = weights()
    assert drawn and set(drawn.values()) == {
        0.4
    }  # what the estimate flags is drawn as often as the rest
    for n, run in enumerate(Trajectory.objects.filter(external_id__in=drawn).order_by("pk")):
        checks.answer(trajectory=run, answer=("failed", "fine", "unsure")[n % 3], by=by)
    assert weights() == drawn
    flagged = {check.trajectory_id: check.layers for check in OutcomeCheck.objects.all()}
    for failure in Failure.objects.exclude(trajectory__outcome_check__answer="unsure")[:5]:
        decide(failure=failure, by=by)
    runner.run(train_job.start(project=project, by=None))
    diagnose(project, with_content(list(project.trajectories.all())))
    classify_project(project=project)
    assert weights() == drawn
    assert {check.trajectory_id: check.layers for check in OutcomeCheck.objects.all()} == flagged
    rate = checks.traffic(project).rate
    failed = len(range(0, len(drawn), 3))
    assert rate and rate.value == pytest.approx(failed / (failed + len(range(1, len(drawn), 3))))


def test_an_answer_changes_no_stratum_and_no_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules have changed since the last pass: an answer must not be what applies them."""
    project = make_project()
    Classifier.objects.create(project=project, check_share=0.5)
    rows = [run_of(f"r{n}", 2 * (n % 2), random.Random(n)) for n in range(40)]
    send(project, *rows)
    digest()
    classify_project(project=project)
    before = list(OutcomeCheck.objects.order_by("pk").values_list("pk", "probability", "by_rules"))
    assert {by_rules for *_, by_rules in before} == {True, False}
    by_rules = Failure.objects.exclude(rule_mode="").order_by("pk").values_list("trajectory_id")
    flagged, old = list(by_rules), diagnosing.classify_run
    new = Diagnosis("wrong_tool", None, [Evidence("r", None, "New", "", "wrong_tool", "certain")])
    monkeypatch.setattr(diagnosing, "classify_run", lambda run: None if old(run) else new)
    for n, run in enumerate(Trajectory.objects.filter(pk__in=[pk for pk, *_ in before])):
        checks.answer(trajectory=run, answer=("failed", "fine", "unsure")[n % 3], by=None)
    rows = OutcomeCheck.objects.order_by("pk")
    assert list(rows.values_list("pk", "probability", "by_rules")) == before
    assert list(by_rules.all()) == flagged


def test_a_raised_share_holds_for_all_runs_answered_or_not() -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=0.3)
    send(project, *(unknown(f"r{n}") for n in range(60)))
    classify_project(project=project)
    first = weights()
    for run in Trajectory.objects.filter(external_id__in=first):
        checks.answer(trajectory=run, answer="fine", by=make_member(project))
    checks.set_share(project=project, share=0.8, by=None)
    assert weights() == first
    classify_project(project=project)
    assert weights().keys() > first.keys() and set(weights().values()) == {0.8}


def arrive(project: Project, week: int, n: int = 24) -> None:
    send(project, *(run_of(f"{week}-{at}", 2 * (at % 2), random.Random(at)) for at in range(n)))
    digest()
    classify_project(project=project)


def test_what_people_triage_before_its_turn_stands_for_no_other_run() -> None:
    """Everything is answered; more arrives, of which people decide the failures alone."""
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    by = make_member(project)
    arrive(project, 1)
    for run in list(project.trajectories.all()):
        checks.answer(trajectory=run, answer="fine", by=by)
    arrive(project, 2)
    for failure in Failure.objects.filter(trajectory__external_id__startswith="2-")[:6]:
        decide(failure=failure, by=by)
    known = checks.traffic(project)
    assert (known.answered, known.waiting) == (30, 18)
    assert known.rate and known.rate.value == 0.0


def test_what_was_triaged_counts_once_its_turn_has_come() -> None:
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    by = make_member(project)
    arrive(project, 1)
    in_turn = sorted(project.trajectories.all(), key=lambda run: checks.turn_of(run.pk))
    first = next(run for run in in_turn if Failure.objects.filter(trajectory=run).exists())
    decide(failure=Failure.objects.get(trajectory=first), by=by)
    asked = dict(checks.drawn(project))
    assert asked[first.pk].how == How.CHOSEN and asked[first.pk].asked is None
    checks.answer(trajectory=in_turn[-2], answer="fine", by=by)
    check = OutcomeCheck.objects.get(pk=in_turn[-2].pk)
    asked = dict(checks.drawn(project))
    assert asked[first.pk].how == How.ASKED and asked[first.pk].asked == check.at


def test_an_answer_to_a_run_that_somebody_chose_stands_for_no_other_run() -> None:
    """A script that posts what it knows of failures has not asked about a random run."""
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    arrive(project, 1, 8)
    OutcomeCheck.objects.update(drawn_at=F("drawn_at") - timedelta(hours=3))
    in_turn = sorted(project.trajectories.all(), key=lambda run: checks.turn_of(run.pk))
    for run, how in ((in_turn[5], How.CHOSEN), (in_turn[0], How.ASKED)):
        checks.answer(trajectory=run, answer="failed", by=None)
        assert dict(checks.drawn(project))[run.pk].how == how


def test_a_layer_found_what_it_flagged_before_the_answer() -> None:
    """A model that learned from the answers flags all of these runs."""
    project = make_project()
    Classifier.objects.create(project=project, check_share=1.0)
    estimating(project)
    send(project, *(unknown(f"r{n}", wrong=n < 3) for n in range(12)))
    digest()
    classify_project(project=project)
    for run in project.trajectories.all():
        said = "failed" if int(run.external_id[1:]) < 6 else "fine"
        checks.answer(trajectory=run, answer=said, by=None)
    estimating(project, word="user ticket")
    diagnose(project, with_content(list(project.trajectories.all())))
    found = recall_of(project, "estimate")
    assert found and (found.value, found.n) == (0.5, 6)


@pytest.mark.parametrize("failed", [True, False, None])
def test_no_answer_decides_whether_a_verdict_counts(failed: bool | None) -> None:
    run = uuid4()
    judged = share.Reviewed("m", {False: 9.0}, {run: 0.4}, {run: 0.2}, frozenset({run}))
    check = Check(False, 0.5, failed)
    assert judged.on(run, check) == replace(check, verdict=0.4, flags=frozenset({"judge"}))
    assert [found.probability for found in judged.also_reviewed([(run, check)])] == [0.2]
    assert judged.on(uuid4(), check) == check


@dataclass(frozen=True)
class World:
    """A project over `weeks`: `rates` are how often runs fail that nothing, the estimate and the
    rules flag. `judge` is how often it sees a failure in failed runs and in the others, and
    `budget` how many runs it can review a week, and `first` how many of the first runs it reviews.
    """

    rates: tuple[float, float, float]
    kinds: tuple[float, float, float] = (0.75, 0.15, 0.1)
    weeks: int = 2
    a_week: int = 75
    shares: tuple[float, ...] = (0.3, 0.3)
    drift: float = 0.0
    answered: tuple[float, ...] = (1.0, 1.0)
    unsure: float = 0.0
    triaged: float = 0.3
    judge: tuple[float, float] = (0.8, 0.2)
    judged: float = 0.7
    budget: int = 1000
    first: int = 0


WORLDS = {
    "rare": World((0.01, 0.05, 0.1)),
    "usual": World((0.1, 0.2, 0.6)),
    "frequent": World((0.4, 0.4, 0.45), judge=(0.9, 0.1)),
    "most": World((0.55, 0.7, 0.8), judge=(0.5, 0.5)),
    "drifting, share raised": World((0.05, 0.2, 0.5), drift=0.2, shares=(0.15, 0.4)),
    "share lowered": World((0.1, 0.3, 0.5), drift=0.2, shares=(0.5, 0.2), judged=0.6),
    "people skip and fall behind": World(
        (0.2, 0.3, 0.6), drift=0.2, answered=(0.9, 0.4), unsure=0.1, triaged=0.6
    ),
    "judge out of money": World((0.1, 0.3, 0.6), drift=0.3, judge=(0.9, 0.1), budget=40),
    "first runs all judged": World((0.1, 0.3, 0.6), drift=0.3, judged=0.3, first=75),
    "first runs all judged, out of money": World(
        (0.1, 0.3, 0.6), drift=0.3, judge=(0.9, 0.1), judged=0.2, budget=40, first=100
    ),
}


def run_of(name: str, kind: int, chance: random.Random) -> dict[str, Any]:
    """Kind 0 is flagged by nothing, 1 by the estimate, 2 by the rules. Its words tell it from all
    others.
    """
    words = " ".join(chance.choices(WORDS, k=6))
    sent = unknown(name, wrong=kind == 1)
    first = {"role": "user", "content": f"Please close ticket 1234. {words}"}
    if kind == 2:
        call = {"role": "assistant", "content": None, "tool_calls": [UNREADABLE]}
        return row(name=name, messages=[first, call]) | {"outcome": {"status": "unknown"}}
    return sent | {"messages": [first, *sent["messages"][1:]]}


class Life:
    """A project that goes through a world, over the API and the pages that people use."""

    def __init__(self, world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.chance, self.project = world, random.Random(seed), make_project()
        self.by, self.failed = make_member(self.project), dict[str, bool]()
        self.agent, self.person = Client(headers={}), Client()
        self.headers = key_headers(self.project)
        self.person.force_login(self.by)
        estimating(self.project)
        self.seen: dict[str, bool] = {}  # by the judge, by request
        self.by_rules, self.found = dict[str, bool](), dict[str, bool]()  # by run
        monkeypatch.setattr(Question, "max_cost", lambda question, server: 0.001)
        monkeypatch.setattr(Server, "cost", lambda server, usage: 0.001)
        monkeypatch.setattr(Question, "ask", lambda question, *_: self.say(question))
        fields = {
            "text": "Judge.",
            "base_url": "http://127.0.0.1:9/v1",
            "model": "m",
            "key_variable": "",
            "usd_per_day": 0.001 * world.budget + 0.0005,
        }
        made = rubrics.save_version(project=self.project, fields=fields, by=self.by)
        rubrics.switch(project=self.project, version=made.version, by=self.by)
        given = share.SharesChange(unflagged=world.judged, flagged=1.0, first=world.first)
        share.set_shares(project=self.project, by=self.by, given=given)
        for week in range(world.weeks):
            self.live(week)

    def say(self, question: Question) -> Answered:
        is_seen = self.seen[question.run["messages"][0]["content"]]
        mode = "bad_planning" if is_seen else ""
        return Answered(Verdict(mode, question.steps[-1] if is_seen else None), "", [], NOTHING)

    def post(self, url: str, body: Any) -> dict[str, Any]:
        answer = self.agent.post(url, body, content_type="application/json", **self.headers)
        assert answer.status_code < 300, answer.content
        return answer.json()

    def live(self, week: int) -> None:
        world = self.world
        if not week or world.shares[week] != world.shares[week - 1]:
            self.person.post(
                reverse("failures:check_share", args=[self.project.slug]),
                {"percent": str(100 * world.shares[week])},
            )
        rows = []
        for n in range(world.a_week):
            kind = self.chance.choices(range(3), world.kinds)[0]
            sent = run_of(f"{week}-{n}", kind, self.chance)
            sent["agent"] = {"name": "a", "version": str(week)}
            self.by_rules[sent["id"]] = kind == 2
            failed = self.chance.random() < world.rates[kind] + world.drift * week
            self.failed[sent["id"]] = failed
            self.seen[sent["messages"][0]["content"]] = (
                self.chance.random() < world.judge[not failed]
            )
            self.found[sent["id"]] = self.seen[sent["messages"][0]["content"]]
            rows.append(sent)
        assert not self.post("/api/v1/trajectories/batch/", rows).get("rejected")
        digest()
        runner.run(classify_job.start(project=self.project, by=None))
        for half in (0.5, 1.0):  # people decide and answer before, between and after the verdicts
            self.triage(half)
            self.answer(world.answered[week] * half)
            JudgeDay.objects.all().delete()  # another day
            judging.judge_new(self.project)
        runner.run(train_job.start(project=self.project, by=None))

    def answer(self, share: float) -> None:
        url = "/api/v1/outcomes/checks/"
        asked = self.agent.get(url, **self.headers).json()
        left = asked["waiting"] * (1 - share)
        while asked["random"] and asked["waiting"] > left:
            said = "failed" if self.failed[asked["trajectory"]] else "fine"
            said = "unsure" if self.chance.random() < self.world.unsure else said
            asked = self.post(url, {"trajectory": asked["trajectory"], "answer": said})

    def triage(self, share: float) -> None:
        """People decide some of the open cases, failures more often."""
        rows = Failure.objects.filter(project=self.project).waiting().select_related("trajectory")
        for failure in rows:
            truth = self.failed[failure.trajectory.external_id]
            if self.chance.random() < self.world.triaged * share * (1 if truth else 1 / 3):
                state = FailureState.CONFIRMED if truth else FailureState.DISMISSED
                decide(failure=failure, by=self.by, state=state)

    def measured(self) -> dict[str, tuple[float, dict[str, float] | None]]:
        """{what: (the truth, what the API says of it)}."""
        said = self.agent.get("/api/v1/outcomes/", **self.headers).json()
        recall = {layer["layer"]: layer["recall"] for layer in said["layers"]}
        newest = str(self.world.weeks - 1)
        [version] = [row for row in said["versions"] if row["version"] == newest]
        bad = [run for run, failed in self.failed.items() if failed]
        of_newest = [failed for run, failed in self.failed.items() if run.startswith(f"{newest}-")]
        return {
            "rate": (share_of(self.failed.values()), said["failure_rate"]),
            "newest version": (share_of(of_newest), version["failure_rate"]),
            "recall of the rules": (
                share_of(self.by_rules[run] for run in bad),
                recall["rules"],
            ),
            "recall of the judge": (
                share_of(self.found[run] for run in bad),
                recall["judge"],
            ),
        }


def share_of(hits: Iterable[bool]) -> float:
    known = list(hits)
    return sum(known) / max(1, len(known))


@pytest.mark.proof
@pytest.mark.parametrize("name", WORLDS)
def test_the_intervals_cover_the_truth_in_94_of_100_projects(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the API says a number: without a checked failure there is no recall."""
    seeds = range(FIRST_SEED, FIRST_SEED + PROJECTS)
    lives = [Life(WORLDS[name], seed, monkeypatch).measured() for seed in seeds]
    missed = []
    for what in lives[0]:
        known = [life[what] for life in lives if life[what][1]]
        n = len(known)
        covered = sum(said["low"] <= truth <= said["high"] for truth, said in known)
        width = sum(said["high"] - said["low"] for _, said in known) / max(1, n)
        bias = sum(said["value"] - truth for truth, said in known) / max(1, n)
        print(f"{name}, {what}: covered {covered} of {n}, width {width:.3f}, bias {bias:+.3f}")
        if covered < 0.94 * n - 2 * (n * 0.95 * 0.05) ** 0.5:
            missed.append(what)
    assert not missed
