"""What a gate report is made from: the stored samples of its evaluations, and how to compute it
again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import msgspec

from apps.environments.scorer import uses_judge
from apps.evals.jobs import planned_groups
from apps.evals.latency import latencies
from apps.evals.models import EvalRun, LatencyMeasurement
from apps.promotion import preparation
from apps.promotion.gate import Evaluation, Policy, Report, Timing, compare, prefix
from apps.promotion.models import GateReport
from apps.promotion.unsafe_outputs import gate_rows
from apps.registry import engines
from workers.lib.typed import convert, plain


def as_evaluation(
    run: EvalRun, measurement: LatencyMeasurement | None = None, tries: int = 1
) -> Evaluation:
    samples = list(run.samples.defer("output", "messages", "components"))
    timing, groups = None, planned_groups(run)
    if measurement:
        how = f"adapters {measurement.get_adapters_display()}"
        timing = Timing(str(measurement.pk), how, latencies(measurement, run))
    return Evaluation(
        model=str(run.model_version),
        eval_set_digest=f"{run.eval_set_digest}:{run.split}",
        task_hash=run.environment.task_hash,
        agent=run.agent_part,
        verifier_hash=run.environment.verifier.hash,
        samples_per_task=run.samples_per_task,
        rows=gate_rows(run, samples),
        keys={str(sample.task_id): sample.task_key for sample in samples},
        timing=timing,
        planned=list(groups),
        groups=groups,
        scorer=_scorer(run),
        tries=tries,
        engine=engines.in_words(run.spec.get("engine") or {}, run.model_version),
        harness=run.harness,
        is_played=bool(run.played_by),
    )


def _scorer(run: EvalRun) -> dict[str, str | None]:
    """The versions of what scores besides the verifier's own code; None where one takes part and
    its version is unknown.
    """
    recorded, environment = run.spec.get("scorer") or {}, run.environment
    parts = {
        "judge": (uses_judge(environment), recorded.get("judge")),
        "remote server": (environment.is_remote, recorded.get("remote")),
    }
    return {name: version for name, (scores, version) in parts.items() if scores or version}


@dataclass(frozen=True)
class Inputs:
    """Everything that a report is made from."""

    baseline: Evaluation
    candidate: Evaluation
    measured: dict[str, tuple[Evaluation, Evaluation] | None]

    @classmethod
    def of(
        cls,
        baseline: EvalRun,
        candidate: EvalRun,
        measurement: LatencyMeasurement | None,
        guards: dict[str, list[EvalRun] | None],
        *,
        sequential: bool = False,
        most: int | None = None,
    ) -> Inputs:
        """`sequential`: only the tasks that both have completed, at most `most`, see `prefix`."""
        measured = {
            name: (
                tuple(as_evaluation(run, tries=preparation.tries(run)) for run in pair)
                if pair
                else None
            )
            for name, pair in guards.items()
        }
        sides = as_evaluation(baseline, measurement), as_evaluation(candidate, measurement)
        return cls(*(prefix(*sides, most) if sequential else sides), measured)

    def compare(self, policy: Policy, comparison: int) -> Report:
        return compare(self.baseline, self.candidate, policy, comparison, self.measured)

    @property
    def hash(self) -> str:
        """SHA-256 of everything that the gate was given: the same inputs, policy and number give
        the same report.
        """
        guards = [
            pair and [_ordered(side) for side in pair] for _, pair in sorted(self.measured.items())
        ]
        ordered = [_ordered(self.baseline), _ordered(self.candidate), sorted(self.measured), guards]
        return hashlib.sha256(msgspec.json.encode(ordered, order="sorted")).hexdigest()


def _ordered(side: Evaluation) -> Evaluation:
    return replace(side, rows=sorted(side.rows, key=msgspec.json.encode))


def inputs_of(report: GateReport) -> Inputs:
    """From the samples as they are stored now."""
    runs = EvalRun.objects.select_related("environment__verifier", "eval_set", "model_version")
    guards = {
        name: pair and [runs.get(pk=pk) for pk in pair] for name, pair in report.guards.items()
    }
    policy, most = convert(report.policy, Policy, "policy"), report.report["tasks"]
    sides = report.baseline, report.candidate, report.measurement, guards
    return Inputs.of(*sides, sequential=policy.sequential, most=most)


def reproduce(report: GateReport) -> tuple[Report, bool]:
    """The report recomputed from the stored samples, and whether inputs and result are
    unchanged.
    """
    inputs = inputs_of(report)
    again = inputs.compare(convert(report.policy, Policy, "policy"), report.comparison)
    same = inputs.hash == report.inputs_hash and plain(again.as_dict()) == report.report
    return again, same
