"""The stations of the wheel: the last thing that was done at each, the next thing to do, and what
is broken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.dashboard.next_steps import Wheel
from apps.dashboard.waiting import Waiting
from apps.evals.models import EvalRun
from apps.failures.models import FailureDecision
from apps.promotion.models import GateReport, Promotion
from apps.reviews.models import Judgement
from apps.training.models import TrainingRun
from apps.trajectories.ids import time_of
from apps.trajectories.models import HourlyCount

SILENT_AFTER = timedelta(days=2)


@dataclass(frozen=True)
class Station:
    """`last` is what was done, `at` when; `todo` what is next, at `todo_url`. `state` is ok, todo,
    broken or unused.
    """

    name: str
    url: str
    last: str
    at: datetime | None
    todo: str
    todo_url: str
    broken: str = ""

    @property
    def state(self) -> str:
        return (
            "broken"
            if self.broken
            else "unused"
            if self.at is None
            else "todo"
            if self.todo
            else "ok"
        )


def stations(project: Project, wheel: Wheel, waiting: Iterable[Waiting]) -> list[Station]:
    """In the order of the wheel. What is broken is what failed last at a station and was not done
    since.
    """
    found = _Project(project, wheel, list(waiting))
    return [
        found.traffic(),
        found.failures(),
        found.sets(),
        found.evaluation(),
        found.review(),
        found.training(),
        found.gate(),
        found.promotion(),
    ]


@dataclass(frozen=True)
class _Project:
    project: Project
    wheel: Wheel
    waiting: list[Waiting]

    def url(self, name: str, *args: Any) -> str:
        return reverse(name, args=[self.project.slug, *args])

    def traffic(self) -> Station:
        newest = self.project.trajectories.order_by("-pk").values_list("pk", flat=True).first()
        at, url = time_of(newest) if newest else None, self.url("trajectories:list")
        day = HourlyCount.objects.filter(
            project=self.project, hour__gte=timezone.now() - timedelta(days=1)
        )
        n = day.aggregate(n=Sum("trajectories"))["n"] or 0
        lost = next((item for item in self.waiting if "could not be indexed" in item.title), None)
        broken, where = (
            (f"{lost.count:,} batches or traces not indexed", lost.url) if lost else ("", url)
        )
        todo = "" if at else "Send the first trajectory"
        if at and not broken and timezone.now() - at > SILENT_AFTER:
            todo = "No traffic for two days: check the agent"
        return Station(
            "Traffic",
            url,
            f"{n:,} run{'s' * (n != 1)} in 24 h" if at else "",
            at,
            todo,
            where,
            broken,
        )

    def failures(self) -> Station:
        last = (
            FailureDecision.objects.filter(failure__project=self.project)
            .order_by("-id")
            .select_related("by")
            .first()
        )
        n, url = self.wheel.open_failures, self.url("failures:list")
        found = (
            self.project.failures.order_by("-trajectory_id")
            .values_list("created_at", flat=True)
            .first()
        )
        said, at = (
            (f"{last.by} decided on a failure", last.at)
            if last
            else ("Newest failure found" if found else "", found)
        )
        broken = next((item.title for item in self.waiting if item.failed and item.url == url), "")
        return Station(
            "Failures",
            url,
            said,
            at,
            f"Triage {n:,}" if n else "",
            self.url("failures:triage"),
            broken,
        )

    def sets(self) -> Station:
        newest = self.project.eval_sets.order_by("-created_at").first()
        url = self.url("evals:list")
        todo = (
            "" if self.wheel.frozen_sets else "Freeze a hold-out" if newest else "Make an eval set"
        )
        where = self.url("evals:detail", newest.pk) if newest else url
        said = f"{newest}, {newest.state}" if newest else ""
        return Station("Eval sets", url, said, newest.created_at if newest else None, todo, where)

    def evaluation(self) -> Station:
        last = EvalRun.objects.filter(project=self.project).select_related("model_version").first()
        url, where = (
            self.url("evals:list"),
            self.url("evals:run", last.pk) if last else self.url("evals:list"),
        )
        if last is None:
            return Station(
                "Evaluation",
                url,
                "",
                None,
                "Evaluate the baseline" if self.wheel.frozen_sets else "",
                url,
            )
        todo = "" if self.wheel.evaluations else "Evaluate the baseline"
        return self._job(
            "Evaluation", url, last, f"{last.model_version}: {_result(last)}", todo, where
        )

    def review(self) -> Station:
        rows = Judgement.objects.filter(item__review__project=self.project)
        last = rows.select_related("by").first()
        url, locked = self.url("reviews:list"), self.wheel.locked_verifiers
        own = next((item for item in self.waiting if item.title == "Samples to judge"), None)
        todo, where = (f"Judge {own.count:,} samples", own.url) if own else ("", url)
        if last is None and not own and self.wheel.evaluations:
            todo = "Open a review"
        elif locked and not own and self.wheel.evaluations:
            todo = f"{locked} verifier{'s' * (locked != 1)} locked: open a review"
        return Station(
            "Reward review",
            url,
            f"{last.by} judged a sample" if last else "",
            last.at if last else None,
            todo,
            where,
        )

    def training(self) -> Station:
        last = TrainingRun.objects.filter(project=self.project).first()
        url = self.url("training:list")
        if last is None:
            todo = "Train: see the advisor" if self.wheel.evaluations else ""
            return Station("Training", url, "", None, todo, self.url("training:new"))
        todo, where = "", self.url("training:detail", last.pk)
        if (
            last.state == "succeeded"
            and not EvalRun.objects.filter(model_version=last.model_version_id).exists()
        ):
            todo, where = (
                "Evaluate the new model",
                self.url("promotion:model", last.model_version_id),
            )
        return self._job("Training", url, last, f"{last.name}: {last.state}", todo, where)

    def gate(self) -> Station:
        rows = GateReport.objects.filter(project=self.project).select_related(
            "candidate__model_version"
        )
        last, url = rows.first(), self.url("promotion:compare")
        todo = "" if last or self.wheel.evaluations < 2 else "Compare two evaluations"
        said = f"{last.candidate.model_version}: {last.verdict}" if last else ""
        where = self.url("promotion:report", last.pk) if last and not todo else url
        return Station("Gate", where, said, last.created_at if last else None, todo, url)

    def promotion(self) -> Station:
        last = (
            Promotion.objects.filter(channel__project=self.project)
            .select_related("to_version", "channel")
            .first()
        )
        url, n = self.url("promotion:models"), self.wheel.waiting_reports
        passed = next((item for item in self.waiting if item.title == "Promotion to decide"), None)
        todo = (
            f"Decide on {n} promotion{'s' * (n != 1)}"
            if n
            else ""
            if last
            else "Register the model in production"
        )
        said = (
            f"{last.to_version} in {last.channel}"
            + (" (rollback)" if last.kind == "rollback" else "")
            if last
            else ""
        )
        return Station(
            "Promotion", url, said, last.at if last else None, todo, passed.url if passed else url
        )

    def _job(self, name: str, url: str, job: Any, said: str, todo: str, where: str) -> Station:
        broken = "The last run failed" if job.state == "failed" else ""
        todo = "Running" if job.is_active else todo
        return Station(name, url, said, job.finished_at or job.created_at, todo, where, broken)


def _result(run: EvalRun) -> str:
    """Its success rate; that on a hold-out is only shown on pages that count views of it."""
    success = (run.result.get("metrics") or {}).get("success") or {}
    if run.state != "succeeded" or run.split == "holdout" or success.get("mean") is None:
        return str(run.state)
    return f"{success['mean']:.0%} success on {run.split}"
