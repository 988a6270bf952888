"""What a flow would have done in the last 30 days, from stored data, and what its next run would
do. Nothing is started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import F
from django.utils import timezone

from apps.automation import specs
from apps.automation.models import Flow
from apps.automation.specs import FlowSpec, Step
from apps.automation.starts import Cause, Known, cause_of, names_known
from apps.automation.steps import StepFailed, frozen_set, model_version, player, runs_of
from apps.core.models import JobState, Project
from apps.evals.costs import total_cost
from apps.evals.models import EvalRun, EvalSet, EvalSetState, LatencyMeasurement, Split
from apps.failures import classify_job
from apps.failures.models import Classification
from apps.registry.actions import ModelError
from apps.training.budget.asked import Asked, whole
from apps.training.budget.estimate import Estimate, estimate
from apps.training.models import Method, TrainingRun
from apps.training.teachers import chosen
from workers.lib.memory import gigabytes
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import FormError, convert

DAYS, LOOKS = (
    30,
    timedelta(hours=6),
)  # triggers other than schedules are evaluated this often in the simulation
RECENT = 20  # recent jobs whose median is used as an estimate
MOST_RUNS = 500


@dataclass(frozen=True)
class Would:
    """A simulated run: when and why it was triggered, when it would have begun, and what would have
    delayed it.
    """

    at: datetime
    cause: Cause
    begins: datetime | None
    note: str = ""


@dataclass(frozen=True)
class Forecast:
    """One step of the next run. `seconds`: from similar jobs of this project; None if there are
    none yet.
    """

    key: str
    label: str
    sentence: str
    seconds: float | None = None
    problem: bool = False
    usd: float = 0.0


@dataclass(frozen=True)
class DryRun:
    runs: list[Would]
    steps: list[Forecast]
    timezone: str
    days: int = DAYS
    more: bool = False

    @property
    def begun(self) -> int:
        return sum(run.begins is not None for run in self.runs)

    @property
    def seconds(self) -> float:
        """Seconds of one run, as far as known."""
        return sum(step.seconds or 0.0 for step in self.steps)

    @property
    def usd(self) -> float:
        """Cost of one run, as far as prices are known."""
        return sum(step.usd for step in self.steps)


@dataclass
class _Past:
    """The state of the simulation: when the last run was triggered, and when it would have
    ended.
    """

    since: datetime
    free: datetime


def dry_run(
    project: Project, spec: FlowSpec, *, now: datetime | None = None, days: int = DAYS
) -> DryRun:
    now = now or timezone.now()
    steps = forecast(project, spec)
    runs: list[Would] = []
    found = DryRun(runs, steps, spec.timezone, days)
    took, usd = timedelta(seconds=found.seconds), found.usd
    hours_today, usd_today, today = 0.0, 0.0, None
    start = now - timedelta(days=days)
    past = _Past(since=start, free=start)
    for at, cause in _asked(project, spec, past, now):
        if len(runs) == MOST_RUNS:
            return replace(found, more=True)
        if at < past.free:
            runs.append(Would(at, cause, None, "the previous run would still have been running"))
            continue
        past.since = at
        begins, quiet = spec.after_quiet(at), spec.quiet_at(at)
        note = f"it would have waited until the quiet hours ended at {quiet.end}" if quiet else ""
        if spec.midnight(begins) != today:
            today, hours_today, usd_today = spec.midnight(begins), 0.0, 0.0
        if (limit := spec.budget.hours_a_day) and hours_today >= limit:
            runs.append(Would(at, cause, None, f"the limit of {limit:g} hours per day was used up"))
            continue
        if (limit := spec.budget.usd_a_day) and usd_today >= limit:
            runs.append(Would(at, cause, None, f"the limit of {limit:g} USD per day was used up"))
            continue
        usd_today += usd
        length = took
        if (most := spec.budget.hours_a_run) and took > timedelta(hours=most):
            length, note = (
                timedelta(hours=most),
                f"it would have stopped at its limit of {most:g} hours",
            )
        hours_today += length.total_seconds() / 3600
        past.free = begins + length
        runs.append(Would(at, cause, begins, note))
    return found


def _asked(
    project: Project, spec: FlowSpec, past: _Past, now: datetime
) -> Iterator[tuple[datetime, Cause]]:
    """Yield triggers in order of time. Schedules always fire; other triggers are only evaluated
    once the previous run has ended.
    """
    start = past.since
    clock = spec.times(start)
    ahead = next(clock, None)
    seen = FlowSpec(steps=spec.steps, starts=spec.watched, timezone=spec.timezone)
    flow = Flow(project=project, seen=names_known(project, start))
    at = start
    while at <= now:
        at = min(at + LOOKS, now) if at < now else now + LOOKS
        while ahead is not None and ahead <= min(at, now):
            yield ahead, Cause("cron", "Schedule")
            ahead = next(clock, None)
        if at > now or at < past.free or not seen.starts:
            continue
        cause = cause_of(flow, seen, past.since, Known(project, at))
        if cause:
            flow.seen = [*flow.seen, cause.seen["name"]] if "name" in cause.seen else flow.seen
            yield at, cause


# The next run


@dataclass(frozen=True)
class _Now:
    """What the forecasts of earlier steps tell later ones."""

    project: Project
    spec: FlowSpec
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)

    def counts(self, named: str) -> dict[str, int]:
        """{split: number of tasks} of the set that a step or a name refers to."""
        if named.startswith("step:"):
            return self.tasks.get(named.removeprefix("step:"), {})
        rows = EvalSet.objects.filter(
            project=self.project, slug=named.removeprefix("set:"), state=EvalSetState.FROZEN
        )
        return _sizes(rows.order_by("-version").first())

    def estimated(self, step: specs.Train) -> Estimate | None:
        """The same estimate as on the page of a new run; None if an earlier step makes its model or
        tasks.
        """
        if step.model.startswith("step:") or step.set.startswith("step:"):
            return None
        try:
            eval_set, parent = (
                frozen_set(self.project, step.set, {}),
                model_version(self.project, step.model, {}),
            )
        except StepFailed:
            return None
        environment = (
            self.project.environments.current()
            .filter(slug=step.environment)
            .order_by("-version")
            .first()
        )
        if environment is None:
            return None
        config, teacher = whole(step.method, step.config), None
        try:
            if step.teacher and not step.teacher.startswith("step:"):
                teacher = model_version(self.project, step.teacher, {}).model
            taught = (
                chosen(Method(step.method), parent.model, teacher, "", config) if teacher else {}
            )
        except (StepFailed, ModelError):
            return None
        found = estimate(
            Asked(
                project=self.project,
                method=step.method,
                parent=parent.model,
                environment=environment,
                eval_set=eval_set,
                config=config,
                tasks=list(eval_set.tasks.trainable()),
                teacher=teacher,
                teacher_engine=taught.get("teacher_engine"),
            )
        )
        return None if found.problem else found

    def problem_of(self, eval_set: str, model: str, played_by: str = "") -> str:
        """Why the step could not use the current set, model or agent; "" if it could, or if an
        earlier step makes it.
        """
        try:
            made_here = {
                f"set:{step.set}" for step in self.spec.steps if isinstance(step, specs.FreezeSet)
            }
            if not eval_set.startswith("step:") and eval_set not in made_here:
                frozen_set(self.project, eval_set, {})
            if not model.startswith("step:"):
                model_version(self.project, model, {})
            player(self.project, played_by)
        except StepFailed as error:
            return str(error)
        return ""


def forecast(project: Project, spec: FlowSpec) -> list[Forecast]:
    now = _Now(project, spec)
    found = []
    for step in spec.steps:
        one = FORECASTS.get(type(step), _plain)(now, step)
        if step.condition:
            one = replace(one, sentence=f"If {step.condition}: {one.sentence}")
        found.append(one)
    return found


def _of(step: Step, sentence: str, seconds: float | None = 0.0, problem: bool = False) -> Forecast:
    return Forecast(step.key, step.label, sentence, seconds, problem)


def _plain(now: _Now, step: Step) -> Forecast:
    return _of(step, (type(step).__doc__ or "").split(".")[0].split(":")[0])


def _classify(now: _Now, step: specs.Classify) -> Forecast:
    count = classify_job.count(now.project)
    return _of(
        step,
        f"{count:,} new or changed trajectories are waiting",
        _seconds(Classification, now.project),
    )


def _collect(now: _Now, step: specs.CollectTasks) -> Forecast:
    count = min(step.at_most, runs_of(now.project, step).count())
    now.tasks[f"collect:{step.into}"] = {"new": count}
    return _of(
        step,
        f"Checks {count:,} runs of the last {step.days} days; those with a known correct answer"
        " that are not held out become tasks",
    )


def _freeze(now: _Now, step: specs.FreezeSet) -> Forecast:
    rows = EvalSet.objects.filter(project=now.project, slug=step.set).order_by("-version")
    newest = rows.first()
    new = now.tasks.get(f"collect:{step.set}", {}).get("new", 0)
    now.tasks[step.key] = _sizes(rows.filter(state=EvalSetState.FROZEN).first())
    if newest is None and f"collect:{step.set}" not in now.tasks:
        return _of(
            step,
            f"There is no eval set “{step.set}” yet, and no earlier step creates one",
            problem=True,
        )
    count = newest.tasks.count() if newest else 0
    return _of(
        step,
        f"“{step.set}” has {count:,} tasks{f', and up to {new:,} more by then' if new else ''};"
        f" {step.holdout:,} are held out",
    )


def _evaluate(now: _Now, step: specs.Evaluate) -> Forecast:
    if not now.project.environments.current().filter(slug=step.environment).exists():
        return _of(
            step,
            f"There is no environment “{step.environment}” in this project, or it is archived",
            problem=True,
        )
    if problem := now.problem_of(step.set, step.model, step.played_by):
        return _of(step, problem, problem=True)
    count = now.counts(step.set).get(step.split, 0)
    samples = count * step.samples
    each = _seconds(EvalRun, now.project, per_unit=True)
    usd = samples * _usd_a_sample(now.project, step)
    what = (
        f"{count:,} tasks × {step.samples} samples of {step.model}"
        if count
        else f"{step.samples} samples a task of {step.model}"
    )
    return replace(
        _of(step, what, None if each is None or not samples else each * samples), usd=usd
    )


def _train(now: _Now, step: specs.Train) -> Forecast:
    if not now.project.environments.current().filter(slug=step.environment).exists():
        return _of(
            step,
            f"There is no environment “{step.environment}” in this project, or it is archived",
            problem=True,
        )
    if problem := now.problem_of(step.set, step.model, step.played_by):
        return _of(step, problem, problem=True)
    if step.teacher and (problem := now.problem_of(step.set, step.teacher)):
        return _of(step, problem, problem=True)
    try:
        convert(step.config, CONFIGS[step.method], "config")
    except FormError as error:
        return _of(step, str(error), problem=True)
    count = now.counts(step.set).get(Split.TRAIN, 0)
    if (known := now.estimated(step)) is not None:
        said = (
            f"{step.method.upper()} from {step.model}, {known.steps:,} steps on {known.rows:,} rows"
        )
        if known.seconds is not None:
            said += (
                ""
                if known.fits
                else (
                    f"; it may not fit in memory: {gigabytes(known.memory.high)} of"
                    f" {gigabytes(known.available)}"
                )
            )
            return replace(
                _of(step, said, known.seconds.likely), usd=known.usd.likely if known.usd else 0.0
            )
    each = _seconds(TrainingRun, now.project, per_unit=True, method=step.method)
    wanted = step.config.get("steps")
    known = isinstance(wanted, int) and each is not None
    return _of(
        step,
        f"{Method(step.method).label} from {step.model}{_taught(step)},"
        f" {wanted or 'the default number of'}"
        f" steps{f', on up to {count:,} tasks' if count else ''}",
        each * wanted if known and each is not None and isinstance(wanted, int) else None,
    )


def _taught(step: specs.Train) -> str:
    source = f", on samples of {step.samples_of}" if step.samples_of else ""
    return source + (f", taught by {step.teacher}" if step.teacher else "")


def _gate(now: _Now, step: specs.Gate) -> Forecast:
    return _of(
        step,
        f"Compares {step.candidate} with {step.baseline} under the policy of {step.channel}",
        _seconds(LatencyMeasurement, now.project),
    )


FORECASTS: dict[type[Step], Any] = {
    specs.Classify: _classify,
    specs.CollectTasks: _collect,
    specs.FreezeSet: _freeze,
    specs.Evaluate: _evaluate,
    specs.Learnability: _evaluate,
    specs.Train: _train,
    specs.Gate: _gate,
}


def _sizes(eval_set: EvalSet | None) -> dict[str, int]:
    if eval_set is None:
        return {}
    splits = eval_set.tasks.values_list("split", flat=True)
    return {str(split): sum(one == split for one in splits) for split in Split}


def _usd_a_sample(project: Project, step: specs.Evaluate) -> float:
    """The median cost of a sample in recent evaluations in this environment whose price is known,
    with the same model if one is named.
    """
    rows = EvalRun.objects.filter(
        project=project, state=JobState.SUCCEEDED, environment__slug=step.environment
    )
    with suppress(StepFailed, KeyError):
        rows = rows.filter(model_version=model_version(project, step.model, {}))
    found = [
        usd / run.total
        for run in rows.order_by("-created_at")[:RECENT]
        if run.total and (usd := total_cost(run)) is not None
    ]
    return median(found) if found else 0.0


def _seconds(kind: Any, project: Project, *, per_unit: bool = False, **like: Any) -> float | None:
    """The median duration of recent successful jobs, per sample or training step if `per_unit`.
    None if there are none.
    """
    rows = kind.objects.filter(project=project, state=JobState.SUCCEEDED, **like).order_by(
        "-created_at"
    )
    times = rows.annotate(took=F("finished_at") - F("started_at")).values_list("took", "total")[
        :RECENT
    ]
    found = [
        took.total_seconds() / (total if per_unit else 1)
        for took, total in times
        if took and (total or not per_unit)
    ]
    return median(found) if found else None
