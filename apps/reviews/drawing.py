"""What a review's queue would hold: the scores of its evaluations, and the draw from them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from apps.core.models import JobState
from apps.environments.models import Verifier
from apps.evals.models import EvalRun, Task
from apps.reviews.evidence import traits_of
from apps.reviews.labels import OUTPUT, TASK
from apps.reviews.lock import ReviewError
from apps.reviews.models import ReviewItem
from apps.reviews.sampling import LARGEST, SMALLEST, Sampling, choose, content_key
from apps.reviews.scores import Scored, scorer_then, scores_of


@dataclass(frozen=True)
class Draw:
    """The scored samples in the order of the queue, and how they were chosen."""

    items: list[Scored]
    sampling: Sampling

    @property
    def fresh(self) -> int:
        """How many of them nobody has judged yet."""
        return len(self.items) - self.sampling.again


def draw(*, runs: Sequence[EvalRun], verifier: Verifier | None, size: int, seed: int) -> Draw:
    """Samples of finished evaluations, first those without a verdict in any review of the verifier
    (any version). `verifier` is the runs' by default. Raises ReviewError."""
    scored = _scored(runs, verifier, size)
    before = judged_before(verifier or runs[0].environment.verifier)
    candidates = (one.candidate for one in scored)
    drawn = choose(
        (replace(one, judged=content_key(one.task, one.output) in before) for one in candidates),
        size,
        seed=seed,
    )
    known = {str(one.sample.pk): one for one in scored}
    return Draw([known[pk] for pk in drawn.ids], drawn)


def scope_of(runs: Sequence[EvalRun], verifier: Verifier) -> dict[str, Any]:
    """What a review of these evaluations speaks of: who scored each of them, and the distribution
    of their tasks, as the digests of the sets, a digest of the tasks' contents, and how many there
    are of each tool, origin and failure mode.
    """
    drawn_from = Task.objects.filter(samples__run__in=runs, samples__masked=False).distinct()
    found = traits_of(drawn_from)
    contents = "\n".join(sorted(task.key for task in found))
    return {
        "runs": {str(run.pk): scorer_then(run, verifier) for run in runs},
        "eval_sets": sorted({run.eval_set.digest for run in runs}),
        "tasks": len(found),
        "digest": hashlib.sha256(contents.encode()).hexdigest(),
        "strata": {
            "tool": Counter(tool for task in found for tool in task.tools),
            "origin": Counter(task.origin for task in found),
            "bucket": Counter(task.bucket for task in found if task.bucket),
        },
    }


def judged_before(verifier: Verifier) -> set[str]:
    """Content keys of the outputs that people have judged with any version of the verifier."""
    rows = ReviewItem.objects.filter(
        review__project=verifier.project_id,
        review__verifier__name=verifier.name,
        judgements__isnull=False,
    )
    return {content_key(str(task), output) for task, output in rows.values_list(TASK, OUTPUT)}


def _scored(runs: Sequence[EvalRun], verifier: Verifier | None, size: int) -> list[Scored]:
    if not runs:
        raise ReviewError("Choose at least one evaluation to review samples from.")
    if not SMALLEST <= size <= LARGEST:
        raise ReviewError(f"A review must have {SMALLEST} to {LARGEST} samples, not {size}.")
    verifier = verifier or runs[0].environment.verifier
    for run in runs:
        if run.project_id != verifier.project_id:
            raise ReviewError("This evaluation belongs to another project.")
        if run.state != JobState.SUCCEEDED:
            raise ReviewError(
                f"“{run.name}” has not finished yet. Its samples can be reviewed afterwards."
            )
    found = [scored for run in runs for scored in scores_of(run, verifier)]
    if not found:
        raise ReviewError("These evaluations have no scored samples to review.")
    return found
