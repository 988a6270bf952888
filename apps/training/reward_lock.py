"""Which training runs need a reviewed reward: those that learn what a verifier decides."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from apps.environments.models import Environment
from apps.registry.models import ModelVersion
from apps.reviews.actions import require_unlocked
from apps.reviews.oversight import NO_REWARD, oversight_of
from apps.training.models import Dataset, Method, Shape, Source

# Their updates or the choice of their samples follow the verifier while they run.
REWARDED = frozenset({Method.GRPO, Method.BEST_OF_N})
JUDGED = frozenset({Source.EVALUATION, Source.REPLAYS})


def uses_reward(method: str, sources: Collection[str] = ()) -> bool:
    """Whether a verifier decides what a run learns. Demonstrations, corrections, ratings, people's
    verdicts in a review and a teacher's probabilities come without one; of an evaluation's samples
    and of replayed failures it says which are right.
    """
    return method in REWARDED or not JUDGED.isdisjoint(sources)


def sources_of(dataset: Dataset) -> set[str]:
    return (
        set()
        if dataset.shape == Shape.TASKS
        else set(dataset.examples.order_by().values_list("source", flat=True))
    )


def require_reviewed(
    *,
    method: str,
    dataset: Dataset,
    environment: Environment,
    by: Any,
    scorer: dict[str, Any] | None = None,
    agent: ModelVersion | None = None,
) -> str:
    """A sentence: who stands behind the reward (`oversight_of`). Raises TrainingLocked if the run
    needs a reviewed one and has none. With an `agent` that plays the episodes, its outputs must
    have been reviewed.
    """
    if not uses_reward(method, sources_of(dataset)):
        return NO_REWARD
    lock = require_unlocked(
        environment=environment, tasks=dataset.tasks(), by=by, scorer=scorer, agent=agent
    )
    return oversight_of(lock, environment.verifier, by)
