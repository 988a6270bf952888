"""The scores that a verifier gives a run's samples, and the kind of thing that each sample is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apps.core.models import JobState
from apps.environments.models import Verifier
from apps.environments.scorer import runtime_hash
from apps.evals.models import EvalRun, Sample
from apps.registry.models import ModelKind
from apps.reviews.lock import ReviewError
from apps.reviews.models import Rescore
from apps.reviews.sampling import Candidate, stratum_name, stratum_of


@dataclass(frozen=True)
class Scored:
    """A sample with the score that the review's verifier gives it."""

    sample: Sample
    reward: float
    success: bool
    components: dict[str, Any] = field(default_factory=dict)

    @property
    def candidate(self) -> Candidate:
        sample = self.sample
        return Candidate(
            id=str(sample.pk),
            task=str(sample.task_id),
            output=sample.output,
            reward=self.reward,
            success=self.success,
            bucket=bucket_of(sample),
            model=str(sample.run.model_version),
        )

    @property
    def stratum(self) -> str:
        """Score, bucket and model, as the strata of the sampling are named."""
        return stratum_name(stratum_of(self.candidate))


def scores_of(run: EvalRun, verifier: Verifier) -> list[Scored]:
    """The run's samples as `verifier` scores them; masked ones have no score and are left out.

    If another version scored the run, the scores are those of the newest finished rescoring by this
    one. Raises ReviewError if there is none.
    """
    theirs = run.environment.verifier
    rows = run.samples.select_related("run__model_version").order_by("pk")
    if theirs.hash == verifier.hash:
        return [
            Scored(row, row.reward, row.success, row.components)
            for row in rows.filter(masked=False)
        ]
    known = rescored(run, verifier)
    if not known:
        raise ReviewError(
            f"“{run.name}” was scored by {theirs}, not by {verifier}. Rescore its samples with"
            f" {verifier} first."
        )
    found = [(row, known[str(row.pk)]) for row in rows if str(row.pk) in known]
    return [
        Scored(row, one["reward"], one["success"], one["components"])
        for row, one in found
        if not one["masked"]
    ]


def rescored(run: EvalRun, verifier: Verifier) -> dict[str, dict[str, Any]]:
    """{sample: its score} of the newest rescoring; {} without one."""
    newest = rescoring_of(run, verifier)
    return newest.result.get("scores", {}) if newest else {}


def rescoring_of(run: EvalRun, verifier: Verifier) -> Rescore | None:
    """The newest finished rescoring of the run's samples by this verifier's very content."""
    jobs = Rescore.objects.filter(
        samples__run=run, project=run.project_id, candidate_hash=verifier.hash
    )
    return jobs.filter(state=JobState.SUCCEEDED).order_by("-created_at").first()


def scorer_then(run: EvalRun, verifier: Verifier) -> dict[str, Any]:
    """Who gave the scores that `scores_of` has, when they were given. What an old job did not keep
    is None.
    """
    job = run if run.environment.verifier.hash == verifier.hash else rescoring_of(run, verifier)
    known = (job.spec if job else {}).get("scorer") or {"judge": None, "remote": None}
    agent = run.model_version.digest if run.model_version.kind == ModelKind.AGENT else ""
    agent = agent or run.spec.get("harness", {}).get("digest", "")
    there = {"environment": str(run.environment), "runtime": runtime_hash(run.environment)}
    return known | there | {"agent": agent}


def bucket_of(sample: Sample) -> str:
    """How the output ended, the worst first."""
    if sample.success:
        return "success"
    if sample.unsafe:
        return "unsafe"
    if sample.valid is False:
        return "invalid"
    if sample.tool_ok is False:
        return "wrong tool"
    return (
        "wrong arguments" if sample.args_score is not None and sample.args_score < 1 else "failed"
    )
