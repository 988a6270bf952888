"""The rollouts of a training run: selected by a URL, with the effect of each on training, and its
neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import Avg, Count, Max, Min, Q, QuerySet

from apps.core.forms import whole
from apps.core.http import QueryFilters
from apps.evals.samples.filters import OUTCOMES
from apps.training.models import Method, Rollout, TrainingRun
from workers.lib.advantages import OVERLONG, group_advantages, returns, turn_advantages
from workers.lib.reasons import by_reason

OUTCOME = {
    name: OUTCOMES[name]
    for name in ("passed", "failed", "invalid", "unsafe", "truncated", "masked")
}
ORDER = ("-step", "task__key", "index", "pk")  # the order of the list
OTHER_STEPS = 40
WEIGHED = (
    "pk",
    "run",
    "step",
    "task",
    "index",
    "reward",
    "components",
    "phase",
    "masked",
    "truncated",
)


@dataclass(frozen=True)
class Filters(QueryFilters):
    """`step` is a number; `q` is searched in the task's key and the output."""

    phase: str = ""
    outcome: str = ""
    step: str = ""
    q: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        """The valid parts of a query; the rest is left out."""
        given = cls.texts(query)
        if given["phase"] not in Rollout.Phase.values:
            given["phase"] = ""
        if given["outcome"] not in OUTCOME:
            given["outcome"] = ""
        if whole(given["step"], 0, 2**31 - 1) is None:
            given["step"] = ""
        return cls(**given)

    @property
    def phases(self) -> list[str]:
        return [self.phase] if self.phase else list(Rollout.Phase.values)

    def apply(self, run: TrainingRun) -> QuerySet[Rollout]:
        """The newest step first, then by task."""
        rows = run.rollouts.order_by(*ORDER).filter(
            phase__in=self.phases
        )  # the index begins with run, phase, step
        if self.outcome:
            rows = rows.filter(OUTCOME[self.outcome][1])
        if self.step:
            rows = rows.filter(step=int(self.step))
        if self.q:
            rows = rows.filter(Q(task__key__icontains=self.q) | Q(output__icontains=self.q))
        return rows


def neighbours(chosen: Filters, run: TrainingRun, row: Rollout) -> tuple[int | None, int | None]:
    """The rollouts before and after one in the filtered list. They are searched step by step, since
    a step is small.
    """
    rows = chosen.apply(run)
    here = list(rows.filter(step=row.step).values_list("pk", flat=True))
    if row.pk not in here:
        return None, None
    at = here.index(row.pk)
    before = here[at - 1] if at else _beside(rows, chosen, row.step, later=True)
    after = here[at + 1] if at + 1 < len(here) else _beside(rows, chosen, row.step, later=False)
    return before, after


def _beside(rows: QuerySet[Rollout], chosen: Filters, step: int, *, later: bool) -> int | None:
    """The last rollout of the next later step, or the first of the next earlier one."""
    beyond = rows.order_by().filter(**{"step__gt" if later else "step__lt": step})
    steps = [
        beyond.filter(phase=phase).aggregate(at=Min("step") if later else Max("step"))["at"]
        for phase in chosen.phases
    ]
    known = [at for at in steps if at is not None]
    if not known:
        return None
    found = rows.filter(step=min(known) if later else max(known)).values_list("pk", flat=True)
    return found.last() if later else found.first()


# Groups: the rollouts of one task in one step


def group_of(row: Rollout) -> list[Rollout]:
    """All rollouts of its group by index, each with its `advantage` (None in a validation, and
    where it has no reward).
    """
    found = list(
        Rollout.objects.filter(
            run=row.run, phase=row.phase, step=row.step, task=row.task_id
        ).order_by("index")
    )
    _weigh(row.run, found)
    if row.run.spec["config"].get("advantages") == "turn":
        _weigh_turns(row.run.spec["config"], found)
    return found


def with_advantages(run: TrainingRun, shown: Iterable[Rollout]) -> list[Rollout]:
    """These rollouts, each with its `advantage`: one query for the rest of their groups."""
    rows = list(shown)
    others = run.rollouts.filter(
        phase=Rollout.Phase.TRAIN,
        step__in={row.step for row in rows},
        task__in={row.task_id for row in rows},
    )
    groups: dict[tuple, list[Rollout]] = {}
    for other in others.only(*WEIGHED).order_by("index"):
        groups.setdefault((other.step, other.task_id), []).append(other)
    weights: dict[int, float | None] = {}
    for group in groups.values():
        _weigh(run, group)
        weights |= {other.pk: other.advantage for other in group}
    for row in rows:
        row.advantage = weights.get(row.pk)
    return rows


def _weigh(run: TrainingRun, group: list[Rollout]) -> None:
    config = run.spec["config"]
    if run.method != Method.GRPO or config.get("advantages") == "gae":
        for row in group:
            row.advantage = None
        return
    # The overlong penalty is not part of the reward, but counts for the advantage.
    shaped = [
        None if row.reward is None else row.reward + row.components.get(OVERLONG, 0.0)
        for row in group
    ]
    weights = group_advantages(
        shaped, config.get("scale_rewards", "group"), config.get("baseline", "mean")
    )
    for row, weight in zip(group, weights, strict=True):
        row.advantage = (
            weight if row.phase == Rollout.Phase.TRAIN and not left_out(row, config) else None
        )


def left_out(row: Rollout, config: dict) -> bool:
    """Whether its tokens are left out of the loss: it is masked, or was cut off where
    `mask_truncated` leaves such completions out.
    """
    return row.masked or bool(config.get("mask_truncated") and row.truncated)


def _weigh_turns(config: dict, group: list[Rollout]) -> None:
    """Set `turn_advantages` of each rollout; the first of them becomes its `advantage`."""
    earned = [
        (
            None
            if row.reward is None
            else [
                one + row.components.get(OVERLONG, 0.0)
                for one in returns(row.reward, row.components, row.turns or 1)
            ]
        )
        for row in group
    ]
    found = turn_advantages(
        earned, config.get("scale_rewards", "group"), config.get("baseline", "mean")
    )
    for row, weights in zip(group, found, strict=True):
        row.turn_advantages = (
            weights if row.phase == Rollout.Phase.TRAIN and not left_out(row, config) else []
        )


@dataclass(frozen=True)
class Standing:
    """The effect of a rollout: `state` is a word for its badge, `why` a sentence."""

    state: str
    tone: str
    why: str


def standing(row: Rollout, group: list[Rollout], updated: bool) -> Standing:
    """`updated`: the numbers of its step's update are stored."""
    config = row.run.spec["config"]
    if row.phase == Rollout.Phase.VALIDATION:
        return Standing(
            "validation", "info", "Validation only measures the policy; it is not trained on."
        )
    if row.phase == Rollout.Phase.CHECKPOINT:
        return Standing(
            "sampled", "info", "Sampled at a checkpoint for inspection; not part of any update."
        )
    if row.masked:
        return Standing(
            "masked",
            "warn",
            "It has no reward, so its tokens are left out of the update. The rest of its group"
            " still counts.",
        )
    if left_out(row, config):
        return Standing(
            "masked",
            "warn",
            "It was truncated, and “mask_truncated” leaves its tokens out of the update. Its reward"
            " still counts for its group.",
        )
    if "kept" in row.components:
        if row.components["kept"]:
            return Standing("kept", "good", "It passed, so SFT learns from it.")
        return Standing(
            "not kept",
            "",
            "It failed, was truncated, is empty, contains a control token, duplicates a kept"
            " sample, or is not the best.",
        )
    if not updated and not row.run.is_active:
        return Standing("not trained", "warn", "The run ended before the update of this step.")
    if not updated:
        return Standing("pending", "", "The update of this step is not finished.")
    if row.run.method == Method.ON_POLICY:
        return Standing(
            "trained",
            "good",
            "Its tokens are in the update of this step, each weighted by how likely the teacher"
            " finds it.",
        )
    if config.get("advantages") == "gae":
        return Standing(
            "trained",
            "good",
            "Its tokens are in the update of this step, each weighted by how much better it went"
            " than the critic expected.",
        )
    if any(other.advantage or any(getattr(other, "turn_advantages", ())) for other in group):
        return Standing(
            "trained",
            "good",
            "Its tokens are in the update of this step, weighted by the advantage.",
        )
    why = (
        "The rewards of its group do not differ"
        if sum(not other.masked for other in group) > 1
        else "Its group has only one scored rollout"
    )
    if config.get("beta"):
        return Standing("no signal", "", f"{why}, so its advantage is 0; only the KL term uses it.")
    return Standing("left out", "warn", f"{why}, so the group is left out of the update.")


def mask_reasons(run: TrainingRun) -> list[tuple[str, int]]:
    """Why rollouts of the run were masked, and how often, the most frequent reason first."""
    masked = run.rollouts.filter(masked=True, phase=Rollout.Phase.TRAIN).order_by()
    return by_reason(masked.values_list("mask_reason").annotate(n=Count("pk")))


def rewards_of(group: list[Rollout]) -> list[float]:
    return [row.reward for row in group if row.reward is not None]


def same_task(row: Rollout) -> list[dict]:
    """[{step, n, reward, passed, first}] of the task's groups in other steps of the run, newest
    first.
    """
    rows = (
        Rollout.objects.filter(run=row.run, phase=row.phase, task=row.task_id)
        .exclude(step=row.step)
        .order_by("-step")
    )
    return list(
        rows.values("step").annotate(
            n=Count("pk"),
            reward=Avg("reward"),
            passed=Count("pk", filter=Q(success=True, masked=False)),
            first=Min("pk"),
        )[:OTHER_STEPS]
    )
