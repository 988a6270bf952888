"""Synthetic variants: made from confirmed tasks, kept separate until a person has reviewed some of
them, and marked as synthetic permanently.

A batch waits inside the draft: nothing trains on it, exports it or freezes it before it is used.
`metadata.variant` is {batch, kind, state: waiting or used, verdict: null, accepted or rejected, by:
templates or model, model?}.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from apps.core.actions import audit
from apps.core.models import ApiKey
from apps.evals import actions
from apps.evals.canonical import canonical_hash
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.from_failures import free_key
from apps.evals.models import WAITING, EvalSet, Origin, Split, Task
from apps.evals.near_duplicates import compare
from apps.evals.near_duplicates.calls import document
from apps.evals.suggestions import demonstration_of
from apps.evals.variants import templates
from apps.evals.variants.seeds import Seed, faults

LOOKED_AT, ACCEPTED_SHARE = 10, 0.9
MOST_SEEDS = 2_000
ACCEPTED, REJECTED = "accepted", "rejected"
TEMPLATES, MODEL = "templates", "model"
NONE = "No usable variant was produced."


@dataclass(frozen=True)
class Made:
    """A batch, and what was left out: faulty variants, near-duplicates, and those too close to a
    hold-out.
    """

    batch: str
    made: int
    faulty: int
    alike: int
    guarded: int


@dataclass(frozen=True)
class Review:
    """The progress of reviewing a batch."""

    batch: str
    size: int
    looked: int
    accepted: int

    @property
    def needed(self) -> int:
        """How many must be reviewed: ten, or all of a smaller batch."""
        return min(LOOKED_AT, self.size)

    @property
    def share(self) -> float | None:
        return self.accepted / self.looked if self.looked else None

    @property
    def may_be_used(self) -> bool:
        return self.looked >= self.needed > 0 and self.accepted >= ACCEPTED_SHARE * self.looked


def seeds_of(eval_set: EvalSet) -> QuerySet[Task]:
    """The tasks from which variants may be made: training tasks confirmed by a person that are not
    synthetic themselves.
    """
    return eval_set.tasks.trainable().exclude(origin=Origin.SYNTHETIC).exclude(confirmed_by=None)


@transaction.atomic
def confirm(*, task: Task, by: Any) -> None:
    """A person confirms that the expected value is right. Raises EvalSetError for a frozen set."""
    actions.locked_draft(task.eval_set)
    if Task.objects.filter(pk=task.pk, confirmed_by=None).update(confirmed_by=by):
        audit(
            "task.confirmed",
            project=task.project,
            by=by,
            target=task,
            set=str(task.eval_set),
            key=task.key,
        )


@transaction.atomic
def make_batch(
    *,
    eval_set: EvalSet,
    kinds: Sequence[str],
    each: int,
    by: Any,
    seed: int = 0,
    viewer: ApiKey | None = None,
) -> Made:
    """Makes up to `each` variants of every kind from every seed, and stores the valid ones. They
    wait for a review.

    Raises EvalSetError if there are no seeds, if a batch is already waiting, or if no variant is
    valid.
    """
    if eval_set.variant_jobs.active().exists():
        raise actions.EvalSetError(
            "A model is writing variants for this set. Wait for it, or stop it."
        )
    rng = random.Random(seed)
    seeds = usable_seeds(eval_set)
    found = [
        (task, made)
        for task in seeds
        for made in templates.variants(seed_of(task), list(kinds), each, rng)
    ]
    made = store_batch(
        eval_set=eval_set, found=found, source={"by": TEMPLATES}, by=by, viewer=viewer
    )
    if not made.made:
        raise actions.EvalSetError(
            f"{NONE} Arguments can only be varied if the request contains them as digits."
        )
    return made


def usable_seeds(eval_set: EvalSet) -> list[Task]:
    """The seeds of a new batch. Raises EvalSetError for a frozen set, one with a waiting batch, and
    one without seeds.
    """
    if eval_set.is_frozen:
        raise actions.EvalSetError(actions.FROZEN.format(eval_set))
    if waiting_in(eval_set).exists():
        raise actions.EvalSetError("A batch needs review. Use it or discard it first.")
    seeds = list(seeds_of(eval_set).order_by("key")[:MOST_SEEDS])
    if not seeds:
        raise actions.EvalSetError("The train split has no confirmed tasks. Confirm some first.")
    return seeds


def store_batch(
    *,
    eval_set: EvalSet,
    found: Sequence[tuple[Task, Seed]],
    source: dict[str, str],
    by: Any,
    viewer: ApiKey | None = None,
) -> Made:
    """Stores the valid variants, whoever made them: without faults, different from each other, far
    from a hold-out.

    Inside a transaction. `source` says for each variant what made it. Raises EvalSetError for a
    frozen set.
    """
    good = [(task, made) for task, made in found if not faults(seed_of(task), made)]
    kept = without_alike(good)
    batch = uuid.uuid4().hex[:12]
    taken = set(eval_set.tasks.values_list("key", flat=True))
    tasks = [task_of(task, made, batch, taken, source) for task, made in kept]
    stored = actions.store_tasks(
        eval_set=eval_set,
        tasks=tasks,
        by=by,
        what=f"synthetic variants, batch {batch}",
        viewer=viewer,
    )
    alike = len(good) - len(kept) + stored.duplicates
    return Made(batch, stored.made, len(found) - len(good), alike, stored.left_out)


def seed_of(task: Task) -> Seed:
    return Seed(task.key, task.messages, task.expected, task.tools, task.metadata.get(RECORDED, []))


def without_alike(found: Sequence[tuple[Task, Seed]]) -> list[tuple[Task, Seed]]:
    """The first of each set of near-duplicate variants."""
    documents = [
        (number, document(made.messages, made.expected)) for number, (_, made) in enumerate(found)
    ]
    near: dict[int, set[int]] = {}
    for one, other, _ in compare.pairs(documents, most=None):
        near.setdefault(max(one, other), set()).add(min(one, other))
    kept: set[int] = set()
    for number in range(len(found)):
        if not near.get(number, set()) & kept:
            kept.add(number)
    return [found[number] for number in sorted(kept)]


def task_of(seed: Task, made: Seed, batch: str, taken: set[str], source: dict[str, str]) -> Task:
    """Unsaved: with the seed's split and group, marked as synthetic."""
    key = free_key(seed.eval_set, f"{seed.key[:90]}-{made.kind}", taken)
    taken.add(key)
    metadata = {
        "variant": {"batch": batch, "kind": made.kind, "state": "waiting", "verdict": None} | source
    }
    return Task(
        project_id=seed.project_id,
        eval_set_id=seed.eval_set_id,
        key=key,
        split=Split.TRAIN,
        group=seed.group,
        groups=seed.groups,
        canonical_hash=canonical_hash(made.messages),
        messages=made.messages,
        tools=made.tools,
        expected=made.expected,
        demonstration=_demonstration(seed, made),
        origin=Origin.SYNTHETIC,
        variant_of=seed,
        metadata=metadata | ({RECORDED: made.recorded} if made.recorded else {}),
    )


def _demonstration(seed: Task, made: Seed) -> str:
    """The seed's, if the expected answer is unchanged."""
    return seed.demonstration if made.expected == seed.expected else demonstration_of(made.expected)


# Review


def waiting_in(eval_set: EvalSet) -> QuerySet[Task]:
    return eval_set.tasks.filter(**WAITING)


def sample(tasks: Iterable[Task], size: int = LOOKED_AT) -> list[Task]:
    """The variants to review: random, but the same each time, those with a verdict first."""
    drawn = sorted(tasks, key=lambda task: hashlib.sha256(task.pk.bytes).digest())
    judged = [task for task in drawn if task.metadata["variant"]["verdict"]]
    rest = [task for task in drawn if not task.metadata["variant"]["verdict"]]
    return judged + rest[: max(0, size - len(judged))]


def review_of(eval_set: EvalSet) -> Review | None:
    """None if no batch is waiting."""
    found = [task["variant"] for task in waiting_in(eval_set).values_list("metadata", flat=True)]
    if not found:
        return None
    verdicts = Counter(item["verdict"] for item in found)
    looked = verdicts[ACCEPTED] + verdicts[REJECTED]
    return Review(found[0]["batch"], len(found), looked, verdicts[ACCEPTED])


@transaction.atomic
def judge(*, task: Task, verdict: str, by: Any) -> None:
    """A person's verdict on one variant of the waiting batch. Raises EvalSetError."""
    eval_set = actions.locked_draft(task.eval_set)
    if verdict not in (ACCEPTED, REJECTED):
        raise actions.EvalSetError("Accept the variant or reject it.")
    found = waiting_in(eval_set).select_for_update().filter(pk=task.pk).first()
    if found is None:
        raise actions.EvalSetError("This variant's batch was already used or discarded.")
    found.metadata["variant"]["verdict"] = verdict
    Task.objects.filter(pk=found.pk).update(
        metadata=found.metadata, confirmed_by=by if verdict == ACCEPTED else None
    )


@transaction.atomic
def use_batch(*, eval_set: EvalSet, by: Any) -> int:
    """Turns the waiting variants into ordinary tasks, except rejected ones. Returns their number.
    Raises EvalSetError.
    """
    eval_set = actions.locked_draft(eval_set)
    review = review_of(eval_set)
    if review is None:
        raise actions.EvalSetError("No batch is waiting for review.")
    if not review.may_be_used:
        raise actions.EvalSetError(
            f"{review.looked} of {review.size} were reviewed and {review.accepted} accepted. Review"
            f" at least {review.needed}; {ACCEPTED_SHARE:.0%} of them must be accepted."
        )
    tasks = list(waiting_in(eval_set).select_for_update())
    bad = [task.pk for task in tasks if task.metadata["variant"]["verdict"] == REJECTED]
    Task.objects.filter(pk__in=bad).delete()
    good = [task for task in tasks if task.pk not in set(bad)]
    for task in good:
        task.metadata["variant"]["state"] = "used"
    Task.objects.bulk_update(good, ["metadata"], batch_size=500)
    _note("variants.used", eval_set, by, review, used=len(good))
    return len(good)


@transaction.atomic
def discard_batch(*, eval_set: EvalSet, by: Any) -> int:
    """Removes the waiting variants. Returns their number. Raises EvalSetError."""
    eval_set = actions.locked_draft(eval_set)
    review = review_of(eval_set)
    if review is None:
        raise actions.EvalSetError("No batch is waiting for review.")
    waiting_in(eval_set).delete()
    _note("variants.discarded", eval_set, by, review)
    return review.size


@transaction.atomic
def _note(what: str, eval_set: EvalSet, by: Any, review: Review, **more: int) -> None:
    detail = {
        "batch": review.batch,
        "size": review.size,
        "looked": review.looked,
        "accepted": review.accepted,
    } | more
    audit(what, project=eval_set.project, by=by, target=eval_set, name=str(eval_set), **detail)
