"""What each kind of step does: it starts jobs through the same actions as pages and API, and
reports their results.

A step is a function that is called again and again, each time in a new transaction, until it
returns its outputs. `Turn.job` starts a job on the first call, stores its id with the step, and
raises `NotYet` until the job has ended. So the function reads from top to bottom, although days and
many processes may lie between its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django.apps import apps
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone

from apps.automation import specs
from apps.automation.models import FlowRun, FlowStep
from apps.core.errors import Rejected
from apps.core.http import row_number
from apps.core.models import Job, JobState, Project
from apps.environments.models import Environment
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.canonical import set_digest
from apps.evals.costs import total_cost
from apps.evals.from_production import candidates, newest
from apps.evals.latency import LatencyError
from apps.evals.learnability.run import CannotPick, RunLearnability
from apps.evals.models import EvalRun, EvalSet, EvalSetState, Split
from apps.evals.submission import submit_eval
from apps.failures import classify_job
from apps.failures.clusters.store import recluster
from apps.failures.models import Classification
from apps.promotion import actions as promotion
from apps.promotion import preparation
from apps.promotion.channels import create_channel
from apps.promotion.models import Approval, Deployment, GateReport, Promotion, Verdict
from apps.promotion.policies import find_channel
from apps.registry.actions import ModelError
from apps.registry.harness import playable
from apps.registry.models import ModelVersion
from apps.registry.servers import ServerError
from apps.reviews.evidence import lock_of
from apps.training.actions import freeze_dataset, submit_training
from apps.training.budget.truth import paid_to_teacher
from apps.training.models import SHAPES, Method, TrainingRun
from apps.training.sources import usual_examples
from apps.trajectories import parquet_files
from apps.trajectories.ids import floor_of
from apps.trajectories.models import Outcome, ParquetExport, Trajectory
from workers.lib.errors import SpecError

J = TypeVar("J", bound=Job)
Outputs = dict[str, Any]
REFUSALS = (Rejected, LatencyError, CannotPick, SpecError, PermissionDenied, Http404)
PASSING = (
    ModelError,
    ServerError,
    LatencyError,
)  # refusals that may be of a server that is down or full


class NotYet(Exception):
    """The step continues later; the message says what it is doing meanwhile."""


class AsksPeople(NotYet):
    """The step waits for a person; the message says what for."""


class StepFailed(Rejected):
    """The step cannot be done; the message says why."""


class JobFailed(StepFailed):
    """A job of the step failed: another one may succeed."""


@dataclass(frozen=True)
class Turn:
    """One call of a step. `made` are the outputs of the run's earlier steps, by key; `by` is the
    user on whose behalf it acts.
    """

    run: FlowRun
    step: FlowStep
    made: dict[str, Outputs]
    by: Any

    @property
    def project(self) -> Project:
        return self.run.project

    def job(self, name: str, kind: type[J], start: Callable[[], J]) -> J:
        """The job of that name, once it has succeeded. Raises NotYet while it is active, StepFailed
        if it did not succeed.
        """
        job = self.begun(name, kind, start)
        if job.is_active:
            progress = f", {job.percent}%" if job.total and job.state == JobState.RUNNING else ""
            raise NotYet(f"{job.name}: {job.state}{progress}")
        if job.state != JobState.SUCCEEDED:
            kind = JobFailed if job.state == JobState.FAILED else StepFailed
            # the job's error might quote a held-out task
            raise kind(f"{job.name} {job.state}; see its page for the reason.")
        return job

    def begun(self, name: str, kind: type[J], start: Callable[[], J]) -> J:
        if name not in self.step.jobs:
            job = start()
            self.step.jobs[name] = [job._meta.label, str(job.pk)]
            self.step.save(update_fields=["jobs"])
            return job
        found: J | None = kind.objects.filter(
            project=self.project, pk=self.step.jobs[name][1]
        ).first()  # type: ignore[assignment]
        if found is None:
            raise StepFailed("Its job has been deleted.")
        return found

    def environment(self, slug: str) -> Environment:
        found = (
            self.project.environments.current()
            .select_related("verifier", "project")
            .filter(slug=slug)
        )
        return _there(
            found.order_by("-version").first(),
            f"There is no environment “{slug}” in this project, or it is archived.",
        )

    def eval_set(self, named: str) -> EvalSet:
        return frozen_set(self.project, named, self.made)

    def model(self, named: str) -> ModelVersion:
        return model_version(self.project, named, self.made)

    def player(self, name: str) -> ModelVersion | None:
        return player(self.project, name)

    def evaluation(self, named: str) -> EvalRun:
        rows = EvalRun.objects.select_related("model_version", "environment__verifier", "eval_set")
        return _there(
            rows.filter(project=self.project, pk=self.made[named]["run"]).first(),
            "Its evaluation was deleted.",
        )


def frozen_set(project: Project, named: str, made: dict[str, Outputs]) -> EvalSet:
    """The set that a step froze, or the newest frozen version with that name. Raises StepFailed."""
    rows = EvalSet.objects.current().filter(project=project, state=EvalSetState.FROZEN)
    if named.startswith("step:"):
        pk = made[named.removeprefix("step:")]["eval_set"]
        return _there(rows.filter(pk=pk).first(), "The eval set has been deleted or archived.")
    slug = named.removeprefix("set:")
    newest_version = rows.filter(slug=slug).order_by("-version").first()
    return _there(newest_version, f"There is no frozen eval set “{slug}”, or it is archived.")


def model_version(project: Project, named: str, made: dict[str, Outputs]) -> ModelVersion:
    """The version that a channel runs (production by default), that a step made, or that a name and
    number identify (“support-v3”). Raises StepFailed.
    """
    kind, _, name = named.partition(":")
    versions = ModelVersion.objects.current().filter(project=project)
    if kind == "step":
        return _there(
            versions.filter(pk=made[name]["model"]).first(),
            "The model has been deleted or archived.",
        )
    if kind == "channel":
        asked, production = (find_channel(project, one) for one in (name, specs.PRODUCTION))
        if asked and asked.archived_at:
            raise StepFailed(
                f"The channel “{name}” is archived. Unarchive it, or name another channel."
            )
        there = (channel for channel in (asked, production) if channel and not channel.archived_at)
        live = next((channel.current for channel in there if channel.current), None)
        nowhere = "" if name == specs.PRODUCTION else ", nor in production"
        return _there(
            live,
            f"Nothing is live in the channel “{name}” yet{nowhere}. Promote a model, or name a"
            " version as the step's model.",
        )
    base, _, number = name.rpartition("-v")
    found = versions.filter(name=base, version=row_number(number)).first()
    return _there(
        found,
        f"There is no model version “{name}”, or it is archived. Use its name and number, for"
        " example “support-v3”.",
    )


def player(project: Project, name: str) -> ModelVersion | None:
    """The newest version of an agent that plays; None for the built-in loop. Raises StepFailed."""
    if not name:
        return None
    return _there(
        playable(project.model_versions).filter(name=name).order_by("-pk").first(),
        f"There is no agent “{name}” that is called over HTTP, or it is archived.",
    )


def _there(found: Any, otherwise: str) -> Any:
    if not found:
        raise StepFailed(otherwise)
    return found


def classify(turn: Turn, asked: specs.Classify) -> Outputs:
    under_way = OTHERS if turn.project.classifications.active().exists() else "classify"
    name = next(iter(turn.step.jobs), under_way)
    job = turn.job(
        name, Classification, lambda: classify_job.start(project=turn.project, by=turn.by)
    )
    return {name: job.result[name] for name in ("looked", "found")}


def cluster(turn: Turn, asked: specs.Cluster) -> Outputs:
    found = recluster(
        turn.project
    )  # None means that another run finished first, with the same failures or newer ones
    return {name: (found or {}).get(name, 0) for name in ("clusters", "failures")}


def runs_of(project: Project, asked: specs.CollectTasks) -> QuerySet[Trajectory]:
    """The trajectories that a step collect_tasks would read now."""
    rows = candidates(project).filter(pk__gte=floor_of(timezone.now() - timedelta(days=asked.days)))
    if not asked.successes:
        rows = rows.filter(outcome_status=Outcome.FAILURE)
    return rows.filter(failure__mode__slug=asked.mode) if asked.mode else rows


def collect_tasks(turn: Turn, asked: specs.CollectTasks) -> Outputs:
    sets = EvalSet.objects.filter(project=turn.project, slug=asked.into).order_by("-version")
    newest_set = sets.first()
    if newest_set and newest_set.archived_at:
        raise StepFailed(
            f"{newest_set} is archived. Unarchive it, or collect into another eval set."
        )
    if newest_set is None:
        newest_set = evals.create_eval_set(
            project=turn.project,
            slug=asked.into,
            by=turn.by,
            description=f"Collected by the flow “{turn.run.version.flow}”",
        )
    elif newest_set.is_frozen:
        newest_set = drafts.new_version(eval_set=newest_set, by=turn.by)
    rows = runs_of(turn.project, asked)
    chosen = Trajectory.objects.filter(pk__in=rows.order_by("-pk").values("pk")[: asked.at_most])
    made = evals.tasks_from_trajectories(
        eval_set=newest_set, trajectories=newest(chosen), by=turn.by
    )
    return {
        "made": made.made,
        "duplicates": made.duplicates,
        "without_expected": made.without_expected,
        "left_out": made.left_out,
        "tasks": newest_set.tasks.count(),
    }


def freeze_set(turn: Turn, asked: specs.FreezeSet) -> Outputs:
    """A draft without anything new is not frozen; later steps use its frozen version."""
    sets = (
        EvalSet.objects.current().filter(project=turn.project, slug=asked.set).order_by("-version")
    )
    draft, frozen = (
        sets.filter(state=EvalSetState.DRAFT).first(),
        sets.filter(state=EvalSetState.FROZEN).first(),
    )
    if draft and frozen and _contents(draft) == _contents(frozen):
        draft = None
    if draft:
        drafts.split_by_group(
            eval_set=draft,
            holdout_size=asked.holdout,
            validation_size=asked.validation,
            seed=asked.seed,
            by=turn.by,
        )
        frozen = drafts.freeze(eval_set=draft, by=turn.by)
    eval_set: EvalSet = _there(
        frozen,
        f"There is no eval set “{asked.set}” that is not archived. A collect_tasks step creates"
        " one.",
    )
    count = eval_set.tasks.filter
    return {
        "eval_set": str(eval_set.pk),
        "tasks": eval_set.tasks.count(),
        **{
            str(split): count(split=split).count()
            for split in (Split.TRAIN, Split.VALIDATION, Split.HOLDOUT)
        },
    }


def _contents(eval_set: EvalSet) -> str:
    """A digest of its tasks, without their splits."""
    return set_digest(evals.content_of(task, but="split") for task in eval_set.tasks.all())


def evaluate(turn: Turn, asked: specs.Evaluate) -> Outputs:
    def start() -> EvalRun:
        return submit_eval(
            project=turn.project,
            eval_set=turn.eval_set(asked.set),
            split=Split(asked.split),
            environment=turn.environment(asked.environment),
            model_version=turn.model(asked.model),
            samples_per_task=asked.samples,
            seed=asked.seed,
            most_usd=asked.most_usd,
            played_by=turn.player(asked.played_by),
            by=turn.by,
        )

    run = turn.job("evaluate", EvalRun, start)
    metrics = run.result["metrics"]
    return {
        "run": str(run.pk),
        "success": metrics["success"]["mean"],
        "reward": metrics["reward"]["mean"],
        "tasks": metrics["success"]["n"],
        "masked": run.samples.filter(masked=True).count(),
        "usd": total_cost(run),
    }


def learnability(turn: Turn, asked: specs.Learnability) -> Outputs:
    made = evaluate(turn, asked)
    found = RunLearnability(EvalRun.objects.select_related("eval_set").get(pk=made["run"]))
    teaching = len(found.pick().chosen)
    return made | {"learnable": teaching, "share": teaching / max(1, len(found.names))}


def review(turn: Turn, asked: specs.Review) -> Outputs:
    environment, eval_set = turn.environment(asked.environment), turn.eval_set(asked.set)
    lock = lock_of(environment=environment, tasks=list(eval_set.tasks.trainable()), by=turn.by)
    if lock.locked:
        raise AsksPeople(
            f"The reward of {environment} must be reviewed before it can be used for training."
            f" {lock.why} {' '.join(lock.todo)}"
        )
    return {"verifier": str(environment.verifier)}


def train(turn: Turn, asked: specs.Train) -> Outputs:
    def start() -> TrainingRun:
        eval_set, given = turn.eval_set(asked.set), dict[str, Any]()
        if shape := SHAPES.get(asked.method):
            if asked.samples_of:
                given["samples_of"] = turn.evaluation(asked.samples_of)
            found = usual_examples(asked.method, eval_set, given.get("samples_of"))
            dataset = freeze_dataset(
                eval_set=eval_set, by=turn.by, shape=shape, examples=found.examples
            )
        else:
            keys = None
            if asked.learnable:
                given["picked_by"] = turn.evaluation(asked.learnable)
                keys = list(RunLearnability(given["picked_by"]).pick().chosen)
            dataset = freeze_dataset(
                eval_set=eval_set, by=turn.by, keys=keys, picked_by=given.get("picked_by")
            )
        if asked.teacher:
            given["teacher"] = turn.model(asked.teacher)
        return submit_training(
            project=turn.project,
            method=Method(asked.method),
            parent=turn.model(asked.model),
            seed=asked.seed,
            dataset=dataset,
            environment=turn.environment(asked.environment),
            config=asked.config,
            agent=turn.player(asked.played_by),
            by=turn.by,
            **given,
        )

    begun = turn.begun("train", TrainingRun, start)
    if begun.paused_by:
        raise AsksPeople(
            f"An alarm paused {begun.name} at step {begun.paused_by['step']}. Resume it on its"
            " page, or cancel this run."
        )
    run = turn.job("train", TrainingRun, start)
    return {
        "run": str(run.pk),
        "model": run.model_version_id,
        "seconds": run.seconds,
        "alarms": run.alarms.count(),
    }


def gate(turn: Turn, asked: specs.Gate) -> Outputs:
    baseline, candidate = turn.evaluation(asked.baseline), turn.evaluation(asked.candidate)
    channel, _ = create_channel(project=turn.project, name=asked.channel)
    if channel.current is None:  # a channel below production starts with the baseline
        promotion.set_initial(channel=channel, version=baseline.model_version, by=turn.by)
    if not turn.step.jobs:
        there = {job.pk for part in preparation.parts(baseline, candidate) for job in part.jobs}
        preparation.prepare(baseline=baseline, candidate=candidate, by=turn.by)
        parts = [job for part in preparation.parts(baseline, candidate) for job in part.jobs]
        turn.step.jobs = {
            f"{OTHERS if job.pk in there else 'part'} {at}": [job._meta.label, str(job.pk)]
            for at, job in enumerate(parts)
        }
        turn.step.save(update_fields=["jobs"])
    going = [job for job in jobs_of(turn.step) if job.is_active]
    if going:
        raise NotYet(
            f"Running the measurements for the comparison: {going[0].name}, {going[0].percent}%"
        )
    report = promotion.make_gate_report(
        baseline=baseline, candidate=candidate, by=turn.by, channel=channel
    )
    return {
        "report": str(report.pk),
        "verdict": report.verdict,
        "model": candidate.model_version_id,
    }


def promote(turn: Turn, asked: specs.Promote) -> Outputs:
    report = _there(
        GateReport.objects.filter(
            project=turn.project, pk=turn.made[asked.report]["report"]
        ).first(),
        "The gate report was deleted.",
    )
    if report.verdict != Verdict.PROMOTE:
        raise StepFailed(f"Gate verdict “{report.verdict}”: {report.report['summary']}")
    flow = turn.run.version
    moved: Promotion | Deployment | Approval | None = None
    if "deploy" not in turn.step.jobs:
        moved = promotion.promote(
            channel=report.channel,
            report=report,
            by=turn.by,
            reason=f"The flow “{flow.flow}”, version {flow.number}",
        )
    if isinstance(moved, Approval):
        raise StepFailed(
            f"The policy of {report.channel} requires two people. Promote it on the report's page."
        )
    if moved is None or isinstance(moved, Deployment):
        turn.job("deploy", Deployment, lambda: moved)  # type: ignore[arg-type, return-value]
    return {"model": report.candidate.model_version_id, "channel": report.channel.name}


def export_parquet(turn: Turn, asked: specs.ExportParquet) -> Outputs:
    under_way = OTHERS if turn.project.parquetexports.active().exists() else "export"
    name = next(iter(turn.step.jobs), under_way)
    job = turn.job(
        name, ParquetExport, lambda: parquet_files.start(project=turn.project, by=turn.by)
    )
    return {name: job.result[name] for name in ("written", "rows")}


def ask(turn: Turn, asked: specs.Ask) -> Outputs:
    """`engine.answer` sets its outputs."""
    raise AsksPeople(asked.question)


WORK: dict[type[specs.Step], Callable[[Turn, Any], Outputs]] = {
    specs.Classify: classify,
    specs.Cluster: cluster,
    specs.CollectTasks: collect_tasks,
    specs.FreezeSet: freeze_set,
    specs.Evaluate: evaluate,
    specs.Learnability: learnability,
    specs.Review: review,
    specs.Train: train,
    specs.Gate: gate,
    specs.Promote: promote,
    specs.ExportParquet: export_parquet,
    specs.Ask: ask,
}


# prefix of jobs that somebody else started: a step waits for them, but neither pays for nor cancels
# them
OTHERS = "found"


def jobs_of(step: FlowStep) -> list[Job]:
    """The jobs that a step has started or waits for, if they still exist."""
    return list(_jobs(step).values())


def own_jobs_of(step: FlowStep) -> list[Job]:
    """The jobs that a step has started itself."""
    return [job for name, job in _jobs(step).items() if not name.startswith(OTHERS)]


def _jobs(step: FlowStep) -> dict[str, Job]:
    found = {
        name: apps.get_model(label).objects.filter(project=step.run.project_id, pk=pk).first()
        for name, (label, pk) in step.jobs.items()
    }
    return {name: job for name, job in found.items() if job is not None}


def used(step: FlowStep) -> tuple[float, float]:
    """(seconds of compute, known cost in USD) of its jobs in this attempt."""
    return used_by(own_jobs_of(step))


def used_by(jobs: Sequence[Job]) -> tuple[float, float]:
    costs = [total_cost(job) or 0.0 for job in jobs if isinstance(job, EvalRun)]
    costs += [paid_to_teacher(job) or 0.0 for job in jobs if isinstance(job, TrainingRun)]
    return sum(job.seconds or 0.0 for job in jobs), sum(costs)
