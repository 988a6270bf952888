"""Reuse the samples of a `best_of_n` run in its forks, instead of sampling (and paying a teacher)
again.
"""

from __future__ import annotations

from typing import Any

from apps.core import job_files
from apps.environments.scorer import differences, scorer_of
from apps.registry.engines import identity
from apps.training.models import Method, TrainingRun
from workers.lib.sampled_tasks import SAMPLED, SETTINGS
from workers.lib.sampled_tasks import count as tasks_in

KEPT = f"out/{SAMPLED}"
FROZEN = ("dataset_digest", "environment_hash", "verifier_hash", "parent_digest", "teacher_digest")


def of_fork(
    run: TrainingRun, spec: dict[str, Any], step: int, *, ask: bool = False
) -> tuple[bool, str]:
    """(whether a fork with this spec reuses the samples of `run`, a sentence that says so or why
    not); (False, "") for other methods. `ask`: query the version of a remote server, which takes
    seconds if it does not answer.
    """
    if run.method != Method.BEST_OF_N:
        return False, ""
    paid = " The teacher’s server is asked, and paid, again." if spec.get("teacher_engine") else ""
    found, count = _sampled(run), run.dataset.size
    if not found:
        return False, f"{run} has no samples to reuse, so all {count:,} tasks are sampled.{paid}"
    if changed := _changed(run, spec, ask=ask):
        return (
            False,
            (
                f"The samples of {run} are not reused, because these differ: {', '.join(changed)}."
                f" All {count:,} tasks are sampled again.{paid}"
            ),
        )
    # From a later step on, what it learns from stays as it is.
    rest = (
        "nothing is sampled again"
        if found >= count or step
        else f"the other {count - found:,} are sampled"
    )
    return True, f"The samples of {run} are reused ({found:,} of {count:,} tasks); {rest}."


def _sampled(run: TrainingRun) -> int:
    """The number of tasks whose samples a fork can have."""
    path = job_files.here(run, KEPT)
    return tasks_in(path) if path else 0


def _changed(run: TrainingRun, spec: dict[str, Any], *, ask: bool) -> list[str]:
    """The names of the inputs of sampling that differ."""
    before, now = run.spec, spec
    names = [
        name
        for name in SETTINGS
        if (before["config"].get(name) or None) != (now["config"].get(name) or None)
    ]
    names += ["seed"] if before.get("seed") != now.get("seed") else []
    names += [name.rpartition("_")[0] for name in FROZEN if before.get(name) != now.get(name)]
    engines = [identity(one.get("teacher_engine") or {}) for one in (before, now)]
    names += ["the teacher’s server"] if engines[0] != engines[1] else []
    scorer = scorer_of(run.environment, ask=ask)
    names += ["the scorer"] if differences(before.get("scorer", {}), scorer) else []
    return names
