"""Ways to have a model promoted that is not better, or that nobody may promote: each was open
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from apps.core import runner
from apps.core.models import JobState
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import EnvironmentKind
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.capability.environment import SLUG
from apps.evals.holdout.view_log import record_view
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Sample, Split
from apps.evals.submission import submit_eval
from apps.promotion import actions, inputs, preparation
from apps.promotion.gate import NotComparable, compare
from apps.promotion.gate.error_control import level_of
from apps.promotion.gate.policy import Policy
from apps.promotion.models import GateReport
from apps.promotion.policies import channel_of, save_policy
from apps.promotion.wear import comparison_number, evaluations_on
from apps.registry.actions import register_agent
from apps.registry.models import ModelVersion, Reach
from tests.amounts import amount
from tests.evals.test_called_agents import solve
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
)
from tests.promotion.test_gate import HIGH, LOW, evaluation
from tests.registry.model_server import serving
from tests.shared import copied, once

database = pytest.mark.django_db


class World:
    """Production runs `base`; `better` succeeds on every task of the hold-out, `base` on none."""

    train, regression = 1, 0

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, make_project()
        self.admin, self.member = admin_of(self.project), make_member(self.project)
        self.environment = make_environment(self.project)
        self.base = make_base(self.project, folder)
        self.better = make_adapter(self.project, self.base, folder, "better")
        self.eval_set = make_eval_set(self.project, self.train, 32, regression=self.regression)
        self.channel = channel_of(self.project)
        actions.set_initial(channel=self.channel, version=self.base, by=self.admin)
        self.before = make_eval_run(
            self.eval_set, self.base, self.environment, success=0.0, samples=2
        )
        self.after = make_eval_run(
            self.eval_set, self.better, self.environment, success=1.0, samples=2
        )

    def report(self, *runs: EvalRun) -> GateReport:
        before, after = runs or (self.before, self.after)
        found = actions.make_gate_report(baseline=before, candidate=after, by=self.member)
        return GateReport.objects.get(pk=found.pk)

    def promote(self, report: GateReport, by: object = None) -> None:
        actions.promote(
            channel=self.channel, report=report, by=by or self.member, reason="it is better"
        )


class Guarded(World):
    """With regression tasks."""

    train, regression = 0, 60


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, World)


@pytest.fixture
def world(kept: Any, db: None, settings: Any) -> World:
    return copied(kept, settings)


def test_without_a_trick_a_member_promotes_what_is_better(world: World) -> None:
    world.promote(world.report())


# What was compared


@pytest.mark.parametrize("scorer", [{"judge": "{} at http://judge"}, {"remote": "server {}"}])
def test_evaluations_that_different_judges_scored_are_not_compared(
    scorer: dict[str, str], world: World
) -> None:
    (name, text), *_ = scorer.items()
    for run, version in ((world.before, "strict"), (world.after, "lenient")):
        EvalRun.objects.filter(pk=run.pk).update(
            spec=run.spec | {"scorer": {name: text.format(version)}}
        )
        run.refresh_from_db()
    with pytest.raises(actions.PromotionError, match="scored by different versions"):
        world.report()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("keep", [0, 5])
def test_samples_that_are_missing_are_not_taken_for_good_ones(side: int, keep: int) -> None:
    """A crash, or somebody, has taken away failures of the one or successes of the other."""
    sides = [evaluation(LOW), evaluation(HIGH)]
    rows = [row for at, row in enumerate(sides[side].rows) if row.task != "t3" or at % 8 < keep]
    sides[side] = replace(sides[side], rows=rows)
    with pytest.raises(
        NotComparable, match="cover the same tasks" if keep == 0 else "5 of 8 samples of a task"
    ):
        compare(*sides)


def timed_out(successes: list[int]) -> object:
    """What did not succeed had no time left."""
    made = evaluation(successes)
    return replace(made, rows=[replace(row, timed_out=not row.success) for row in made.rows])


def test_a_busy_machine_promotes_nothing_and_rejects_nothing() -> None:
    good = evaluation([7] * 40)
    assert compare(timed_out([2] * 40), good).verdict == "inconclusive"
    success = compare(good, timed_out([2] * 40)).checks[0]
    assert success.state == "inconclusive"
    hanging = compare(evaluation([2] * 40), timed_out([2] * 40))
    assert (
        hanging.verdict == "inconclusive"
        and "timed out" in next(c for c in hanging.checks if c.name == "masked").sentence
    )


@pytest.mark.parametrize("of", [1, 2], ids=["never", "every other time"])
def test_who_reports_no_tokens_is_not_cheaper(of: int) -> None:
    good = evaluation(HIGH)
    rows = [replace(row, input_tokens=None, output_tokens=None) for row in good.rows[::of]]
    silent = replace(good, rows=rows + [row for at, row in enumerate(good.rows) if at % of])
    report = compare(evaluation(LOW), silent)
    assert next(check for check in report.checks if check.name == "tokens").state == "not judged"


def test_who_reports_only_what_it_wrote_is_compared_by_that() -> None:
    good = evaluation(HIGH)
    rows = [replace(row, input_tokens=None, output_tokens=200) for row in good.rows]
    report = compare(evaluation(LOW), replace(good, rows=rows))
    tokens = next(check for check in report.checks if check.name == "tokens")
    assert (tokens.state, tokens.baseline, tokens.candidate) == (
        "worse",
        20,
        200,
    ) and "Output tokens" in tokens.title


def test_a_sample_that_failed_without_an_answer_has_no_tokens_and_hides_no_others() -> None:
    good = evaluation(HIGH)
    rows = [
        (
            replace(row, input_tokens=500)
            if row.success
            else replace(row, answered=False, input_tokens=None, output_tokens=None)
        )
        for row in good.rows
    ]
    report = compare(evaluation(LOW), replace(good, rows=rows))
    tokens = next(check for check in report.checks if check.name == "tokens")
    assert (tokens.state, tokens.candidate) == ("worse", 520)


@pytest.mark.more
def test_tasks_of_few_templates_are_few_tasks() -> None:
    """A model that is better in four templates of six, and equal over all templates there are,
    shows nothing by 60 tasks.
    """
    rng, promoted, runs = np.random.default_rng(5), {True: 0, False: 0}, amount(40, 100)
    for _ in range(runs):
        template = np.arange(60) % 6
        before = rng.random(60)
        after = np.clip(before + rng.normal(0, 0.25, 6)[template], 0, 1)
        sides = [
            evaluation(rng.binomial(4, rates).tolist(), samples=4) for rates in (before, after)
        ]
        groups = {f"t{task}": str(name) for task, name in enumerate(template)}
        for known in promoted:
            given = [replace(side, groups=groups) if known else side for side in sides]
            promoted[known] += compare(*given).verdict == "promote"
    assert promoted[False] > 0.08 * runs and promoted[True] <= 0.025 * runs


def test_one_group_alone_says_nothing_about_groups() -> None:
    sides = [
        replace(evaluation(rows), groups={f"t{task}": "file" for task in range(40)})
        for rows in (LOW, HIGH)
    ]
    assert compare(*sides).verdict == "promote"


# Which evaluation of many


def guard(
    world: World, run: EvalRun, success: float, state: JobState = JobState.SUCCEEDED
) -> EvalRun:
    made = EvalRun.objects.create(
        project=world.project,
        name="guard",
        eval_set=run.eval_set,
        split=Split.REGRESSION,
        environment=run.environment,
        model_version=run.model_version,
        samples_per_task=run.samples_per_task,
        spec={"seed": 0},
    )
    Sample.objects.bulk_create(
        Sample(
            run=made,
            task=task,
            index=index,
            output="x",
            reward=1.0,
            success=at < round(60 * success),
        )
        for at, task in enumerate(
            made.eval_set.tasks.filter(split=Split.REGRESSION).order_by("key")
        )
        for index in range(made.samples_per_task)
    )
    made.claim("test")
    made.finish(state, result={})
    made.refresh_from_db()
    return made


@pytest.fixture(scope="module")
def guarded_kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, Guarded)


@pytest.fixture
def guarded(guarded_kept: Any, db: None, settings: Any) -> Guarded:
    return copied(guarded_kept, settings)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("ended", [JobState.SUCCEEDED, JobState.CANCELLED])
def test_whoever_evaluates_a_guard_until_it_passes_pays_for_each_try(
    ended: JobState, guarded: World
) -> None:
    """60 tasks without a change exclude a drop of 5% with an error of 5%, not with the 2.5% of a
    second try.
    """
    guard(guarded, guarded.before, 1.0)
    guard(guarded, guarded.after, 0.7, ended)
    guard(guarded, guarded.after, 1.0)
    report = guarded.report()
    check = next(check for check in report.report["checks"] if check["name"] == "regression")
    assert report.verdict == "inconclusive" and "Evaluated 2 times" in check["sentence"]
    assert inputs.reproduce(report)[1]


def test_a_guard_of_which_nothing_could_be_scored_is_not_passed(guarded: World) -> None:
    for run in (guarded.before, guarded.after):
        guard(guarded, run, 1.0)
    assert guarded.report().verdict == "promote"
    Sample.objects.filter(run__split=Split.REGRESSION, run__model_version=guarded.better).update(
        masked=True, reward=None, success=False
    )
    assert guarded.report().verdict == "inconclusive"


def test_an_environment_of_the_same_name_does_not_measure_general_capability(world: World) -> None:
    anything = save_verifier(
        project=world.project, name="anything", spec={"kind": "json"}, by=world.member
    )
    easy = save_environment(
        project=world.project,
        slug=SLUG,
        kind=EnvironmentKind.SINGLE_TURN,
        harness={"max_new_tokens": 4},
        verifier=anything,
        by=world.member,
    )
    run = make_eval_run(world.eval_set, world.better, easy)
    EvalRun.objects.filter(pk=run.pk).update(split=Split.GENERAL)
    assert not preparation.guard_runs(world.after, Split.GENERAL).exists()


def test_what_was_queued_first_and_run_last_counts(world: World) -> None:
    """Six are queued and run in reverse, each compared as soon as it has run."""
    runs = [
        make_eval_run(world.eval_set, world.better, world.environment, samples=2) for _ in range(5)
    ]
    EvalRun.objects.filter(pk__in=[run.pk for run in runs]).update(
        started_at=None, finished_at=None, state=JobState.QUEUED
    )
    numbers = [comparison_number(world.before, world.after)]
    for run in reversed(runs):
        run.state, run.started_at, run.finished_at = (
            JobState.SUCCEEDED,
            timezone.now(),
            timezone.now(),
        )
        run.save()
        numbers.append(comparison_number(world.before, run))
    assert numbers == sorted(set(numbers))


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("order", ["bcbcbcbc", "bbbbcccc", "bccccbbb"])
def test_all_pairs_of_repeated_evaluations_stay_below_the_error(order: str, world: World) -> None:
    EvalRun.objects.all().update(started_at=None)  # these are not counted
    made = {
        side: [
            (at, make_eval_run(world.eval_set, model, world.environment, samples=1))
            for at, letter in enumerate(order)
            if letter == side
        ]
        for side, model in (("b", world.base), ("c", world.better))
    }
    runs = sorted(made["b"] + made["c"], key=lambda found: found[0])
    start = timezone.now()
    for at, run in runs:
        EvalRun.objects.filter(pk=run.pk).update(
            created_at=start + timezone.timedelta(seconds=at),
            started_at=start + timezone.timedelta(seconds=at),
        )
        run.refresh_from_db()
    numbers = [
        comparison_number(before, after)
        for (_, before), (_, after) in product(made["b"], made["c"])
    ]
    assert sum(level_of(number, 0.02) for number in numbers) <= 0.02


def test_the_same_requests_with_other_punctuation_are_no_fresh_holdout(world: World) -> None:
    record_view(
        eval_set=world.eval_set, kind=HoldoutView.Kind.EVALUATION, by=world.member
    )  # as submit_eval does
    copy = evals.create_eval_set(project=world.project, slug="copy", by=world.member)
    for task in world.eval_set.tasks.holdout():
        evals.add_task(
            eval_set=copy,
            key=task.key,
            request=task.messages[0]["content"].replace(".", " !"),
            split=Split.HOLDOUT,
            expected=task.expected,
            by=world.member,
        )
    assert evaluations_on(drafts.freeze(eval_set=copy, by=world.member)).count() == 2


# What promotes


def forge_verdict(world: World, report: GateReport) -> None:
    report.verdict = "promote"


def forge_report(world: World, report: GateReport) -> None:
    report.verdict, report.report = "promote", report.report | {"verdict": "promote"}


def swap_candidate(world: World, report: GateReport) -> None:
    bad = make_adapter(world.project, world.base, world.folder, "bad")
    report.candidate = make_eval_run(world.eval_set, bad, world.environment, success=0.0, samples=2)


def swap_model(world: World, report: GateReport) -> None:
    bad = make_adapter(world.project, world.base, world.folder, "bad")
    EvalRun.objects.filter(pk=report.candidate_id).update(model_version=bad)


def swap_channel(world: World, report: GateReport) -> None:
    world.channel = report.channel = channel_of(world.project, "other")


@pytest.mark.parametrize(
    "forge", [forge_verdict, forge_report, swap_candidate, swap_model, swap_channel]
)
def test_a_forged_report_promotes_nothing(
    forge: Callable[[World, GateReport], None], world: World
) -> None:
    report = world.report()
    forge(world, report)
    report.save()
    if forge in (forge_verdict, forge_report):
        GateReport.objects.filter(pk=report.pk).update(signature=world.report().signature)
    with pytest.raises(actions.PromotionError, match="signature of this report is invalid"):
        world.promote(GateReport.objects.get(pk=report.pk), by=world.admin)


def test_a_report_signed_with_a_lost_key_promotes_nothing(world: World, settings: object) -> None:
    report = world.report()
    settings.FLYWHEEL_SIGNING_KEY = "another one"  # type: ignore[attr-defined]
    with pytest.raises(actions.PromotionError, match="key that is no longer configured"):
        world.promote(report)


def test_a_prompt_that_production_does_not_run_needs_an_admin(world: World) -> None:
    """Both are evaluated with a prompt that suits the new one: nothing is known about it with
    production's.
    """
    world.promote(world.report())
    harness = world.environment.harness | {"system_prompt": "Answer in Latin."}
    latin = save_environment(
        project=world.project,
        slug="workplace",
        builtin="workplace",
        harness=harness,
        verifier=world.environment.verifier,
        by=world.member,
    )
    model = make_adapter(world.project, world.base, world.folder, "latin")
    runs = [
        make_eval_run(world.eval_set, of, latin, success=rate, samples=2)
        for of, rate in ((world.better, 0), (model, 1))
    ]
    with pytest.raises(PermissionDenied):
        world.promote(world.report(*runs))
    world.promote(world.report(*runs), by=world.admin)


def own_set(world: World, slug: str = "") -> list[EvalRun]:
    """An evaluation of both on a set that somebody has made for it."""
    eval_set = make_eval_set(world.project, train=1, holdout=32)
    new = make_adapter(world.project, world.base, world.folder, "new")
    sides = ((world.channel.current, 0.0), (new, 1.0))
    return [
        make_eval_run(eval_set, model, world.environment, success=rate, samples=2)
        for model, rate in sides
    ]


def test_a_set_of_ones_own_needs_an_admin(world: World) -> None:
    world.promote(world.report())
    world.channel.refresh_from_db()
    runs = own_set(world)
    with pytest.raises(PermissionDenied):
        world.promote(world.report(*runs))


def test_the_policy_may_name_the_set_that_decides(world: World) -> None:
    named = Policy(eval_set=world.eval_set.slug)
    save_policy(
        channel=world.channel, policy=named, reason="the one that is kept up", by=world.admin
    )
    world.channel.refresh_from_db()
    with pytest.raises(actions.PromotionError, match="; this report compares on"):
        world.promote(world.report(*own_set(world)), by=world.admin)
    world.promote(world.report())


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "change", ["", "a harder task", "a regression task", "another right answer"]
)
def test_the_newest_version_of_a_set_decides(change: str, world: World) -> None:
    newer = drafts.new_version(eval_set=world.eval_set, by=world.member)
    expected = {"tool": "tickets.close", "args": {"id": 7}}
    if change in ("a harder task", "a regression task"):
        split = Split.HOLDOUT if change == "a harder task" else Split.REGRESSION
        request = "Cancel what is planned for the seventh of May, and tell Maria why."
        evals.add_task(
            eval_set=newer,
            key="new",
            request=request,
            split=split,
            expected=expected,
            by=world.member,
        )
    elif change:
        newer.tasks.holdout().filter(pk=newer.tasks.holdout()[0].pk).update(expected=expected)
    assert isinstance(drafts.freeze(eval_set=newer, by=world.member), EvalSet)
    refused = (
        pytest.raises(actions.PromotionError, match="holds out other tasks")
        if change
        else nullcontext()
    )
    with refused:
        world.promote(world.report())


def test_what_was_rolled_back_comes_again_only_by_an_admin(world: World) -> None:
    report = world.report()
    world.promote(report)
    actions.rollback(channel=world.channel, by=world.member, reason="it deletes tickets")
    with pytest.raises(PermissionDenied):
        world.promote(report)
    with pytest.raises(PermissionDenied):
        world.promote(world.report())
    world.promote(report, by=world.admin)


# What an agent masks, or leaves out


def masked_check(report: GateReport) -> dict:
    return next(check for check in report.report["checks"] if check["name"] == "masked")


def agent_of(
    world: World, reached_by: Reach, base_url: str = "http://127.0.0.1:9/v1"
) -> ModelVersion:
    address = {"base_url": base_url} if reached_by == Reach.HTTP else {}
    return register_agent(
        project=world.project,
        name="desk",
        agent_version="2",
        by=world.admin,
        reached_by=reached_by,
        **address,
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("reached_by", Reach.values)
def test_who_masks_the_hard_tasks_is_not_promoted_and_the_report_says_who_masked_how_many(
    world: World, reached_by: str, settings: object
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    run = make_eval_run(
        world.eval_set,
        agent_of(world, Reach(reached_by)),
        world.environment,
        success=1.0,
        samples=2,
    )
    assert world.report(world.before, run).verdict == "promote"
    hard = world.eval_set.tasks.holdout().order_by("pk")[:2]
    run.samples.filter(task__in=list(hard)).update(
        masked=True, success=False, reward=None, mask_reason="HTTP 503"
    )
    report = world.report(world.before, run)
    check = masked_check(report)
    assert (report.verdict, check["state"], check["required"]) == (
        "inconclusive",
        "inconclusive",
        True,
    )
    said = (
        f"0 of 64 samples (0.0%) of the baseline {world.base} and 4 of 64 samples (6.2%) of the"
        " candidate desk@2 could not"
    )
    assert said in check["sentence"] and (check["baseline"], check["candidate"]) == (0.0, 4 / 64)
    assert "masked samples" in report.report["summary"]


def test_an_agent_that_says_it_is_busy_when_a_task_is_hard_decides_nothing(
    world: World, settings: object, warm_jobs: None
) -> None:
    """It passes all the others, which alone would promote it."""
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    hard = {
        task.messages[0]["content"] for task in world.eval_set.tasks.holdout().order_by("pk")[:3]
    }
    busy = b"HTTP/1.1 503 X\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"

    def say(body: dict) -> object:
        return busy if body["messages"][-1]["content"] in hard else solve(body)

    with serving({("POST", "/v1/chat/completions"): say}) as server:
        agent = agent_of(world, Reach.HTTP, server.base)
        run = submit_eval(
            project=world.project,
            eval_set=world.eval_set,
            split=Split.HOLDOUT,
            environment=world.environment,
            model_version=agent,
            samples_per_task=2,
            by=world.admin,
        )
        runner.run(run)
    run.refresh_from_db()
    assert (run.state, run.result["metrics"]["counts"]["masked"]) == (JobState.SUCCEEDED, 6)
    report = world.report(world.before, run)
    assert report.verdict == "inconclusive" and masked_check(report)["state"] == "inconclusive"
    assert "6 of 64 samples (9.4%) of the candidate desk@2" in masked_check(report)["sentence"]
    with pytest.raises(PermissionDenied):
        world.promote(report)


@pytest.mark.parametrize("sequential", [False, True])
def test_an_evaluation_that_its_agent_ended_is_not_compared(
    world: World, settings: object, sequential: bool
) -> None:
    """By naming another version, say, at the first hard task: what it had done by then would be its
    best.
    """
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    save_policy(
        channel=world.channel, policy=Policy(sequential=sequential), reason="test", by=world.admin
    )
    run = make_eval_run(
        world.eval_set, agent_of(world, Reach.HTTP), world.environment, success=1.0, samples=2
    )
    EvalRun.objects.filter(pk=run.pk).update(state=JobState.FAILED)
    run.refresh_from_db()
    with pytest.raises(actions.PromotionError, match="incomplete"):
        world.report(world.before, run)
