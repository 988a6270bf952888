"""Alarms of a training run: a table of signals with thresholds, evaluated at every step. Pure: no
torch, no Django.

`Watchman.look(step, metrics)` takes the metrics of a step, of any method, and returns the alarms
that it raised. Alarms on metrics that a method does not emit stay silent. OUTSIDE are alarms that
the app evaluates, because a step cannot know what they need. Each alarm warns, pauses the run (it
can be resumed) or stops it (it has failed); the last two keep a checkpoint. A config changes single
entries: `{"kl": {"action": "pause", "act": 0.3}}`.

Smoothing: a threshold is compared with the median of the last `over` values of a metric, so half of
them must exceed it: one noisy step never pauses or stops a run. Only NaN and infinity act
immediately.

The start: signals without an absolute scale are compared with the run's own start. That is the
value of the first step, which is computed before the first update, so that a run that is ill from
its first update is not its own baseline; the median of the first five values counts if it is the
better one. Where a scale is known (nats per token, a preference loss whose first value is the same
for any data), the threshold is a distance on it.

Sources: NeMo RL (documentation and tests) for the log-probability gap and the token error; veRL's
rollout correction for importance weights, effective sample size and rollout KL; prime-rl for
errored rollouts; Azure's guidance on reward hacking for the gap between training and validation.
The others are relative, or chosen by us: docs/alarms.md says which.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, pvariance
from typing import Any, Literal, get_args

from msgspec import defstruct

from workers.lib.run_outcome import (
    LIKELY,
    SOLVED,
    TRACKED,
    Course,
    Sentence,
    change,
    fell,
    loss_gained,
    outcome,
    rose,
    variance,
)
from workers.lib.typed import AtLeastOne, Form, Number

Action = Literal["ignore", "warn", "pause", "stop"]
START = 5  # values of a metric that define the run's start
MOST = 64  # values kept per metric
Z = LIKELY  # one-sided 95% quantile
NO_REWARD = ("on_policy",)  # methods whose rollouts are scored but do not learn from the scores
PREFERENCES = ("dpo", "kto", "reward_model")
LIKELIHOODS = (
    "sft",
    "rejection",
    "distill",
    "best_of_n",
    "on_policy",
)  # their loss is in nats per token
LARGEST = 1e100  # larger values are not kept, since their squares would overflow


class Setting(Form, kw_only=True, omit_defaults=True):
    """A config's changes to one alarm; None keeps the table's value. `act` is the threshold of
    `action`.
    """

    action: Action | None = None
    warn: Number | None = None
    act: Number | None = None
    over: AtLeastOne | None = None


@dataclass
class History:
    """The first few and the last values of each metric."""

    start: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, deque[float]] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    courses: dict[str, Course] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if not is_number(value) or not abs(value) < LARGEST:  # also excludes NaN
                continue
            self.count[name] = self.count.get(name, 0) + 1
            first = self.start.setdefault(name, [])
            if len(first) < START:
                first.append(float(value))
            self.last.setdefault(name, deque(maxlen=MOST)).append(float(value))
            if name in TRACKED:
                self.courses.setdefault(name, Course()).add(float(value))

    @property
    def exact_loss(self) -> bool:
        """Whether the first loss is the same for any data, as with a preference method whose
        reference is the model at the start.
        """
        return "rewards/chosen" in self.start

    def recent(self, name: str, over: int) -> list[float] | None:
        """The last `over` values; None if there are fewer."""
        values = list(self.last.get(name, ()))
        return values[-over:] if len(values) >= over else None

    def level(self, name: str, over: int) -> float | None:
        values = self.recent(name, over)
        return None if values is None else median(values)

    def begin(self, name: str, *, below: bool = False) -> float | None:
        """The value at the run's start: that of the first step, or the median of the first START if
        it is better (lower, or for an alarm on low values higher); None before the first step.
        """
        first = self.start.get(name, [])
        if not first:
            return None
        seen = [first[0], *([median(first)] if len(first) >= START else [])]
        return max(seen) if below else min(seen)


Value = Callable[[History, int], float | None]


@dataclass(frozen=True)
class Rule:
    """One alarm. `reads` are the metrics whose worst value is compared, unless `value` computes
    something else from the history.

    `relative`: thresholds are multiples of the start, or of `least` if that is larger.
    """

    name: str
    title: str
    todo: str
    reads: tuple[str, ...] = ()
    warn: float | None = None
    act: float | None = None
    action: Action = "warn"
    over: int = 5
    below: bool = False
    relative: bool = False
    least: float = 1e-6
    value: Value | None = None
    unit: str = ""
    source: str = ""
    but: tuple[str, ...] = ()  # methods that it does not apply to
    only: tuple[str, ...] = ()  # the methods that it applies to; () means all
    spared: Callable[[History], bool] | None = (
        None  # whether a value beyond `act` only warns for now
    )

    def measure(self, history: History, over: int) -> float | None:
        if self.value is not None:
            return self.value(history, over)
        found = [
            value for name in self.reads if (value := self._level(history, name, over)) is not None
        ]
        return (min if self.below else max)(found) if found else None

    def _level(self, history: History, name: str, over: int) -> float | None:
        level = history.level(name, over)
        if level is None or not self.relative:
            return level
        begin = history.begin(name, below=self.below)
        return None if begin is None else level / max(self.least, begin)

    def applies_to(self, method: str) -> bool:
        """An unknown method, "", has all alarms that no method excludes."""
        return method not in self.but and (not self.only or not method or method in self.only)

    def beyond(self, value: float, threshold: float | None) -> bool:
        if threshold is None:
            return False
        return value < threshold if self.below else value > threshold


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Values computed from several metrics


def distance_from_one(name: str) -> Value:
    """A mean weight as a factor: 0.5 and 2 are equally far from 1."""

    def value(history: History, over: int) -> float | None:
        level = history.level(name, over)
        return None if level is None else max(level, 1 / level) if level > 0 else math.inf

    return value


def _rise(history: History, name: str, over: int) -> float | None:
    """Mean of the last `over` values − mean of the start; None as long as the two overlap."""
    values, first = history.recent(name, over), history.start.get(name, [])
    if (
        values is None
        or len(first) < min(over, START)
        or history.count[name] < 2 * min(over, START)
    ):
        return None
    return fmean(values) - fmean(first[: min(over, START)])


def reward_rises(history: History) -> bool:
    """Whether the reward is above the run's start by more than its noise (one-sided 95%)."""
    now, first = (
        history.recent("train/reward_mean", START),
        history.start.get("train/reward_mean", []),
    )
    if now is None or history.count["train/reward_mean"] < 2 * START:
        return False
    noise = math.sqrt((pvariance(now) + pvariance(first)) / (START - 1))
    return fmean(now) - fmean(first) > max(Z * noise, 1e-3)


def held_out(history: History, over: int) -> float | None:
    """How much more success has risen in training than on the validation tasks, at least: the lower
    bound (one-sided 95%) of the difference, given their numbers of samples. The last two
    validations count.
    """
    rise = _rise(history, "train/success", over)
    seen = history.last.get("validation/success", deque())
    if rise is None or len(seen) < 3:
        return None
    begin, now = history.start["validation/success"][0], fmean(list(seen)[-2:])
    samples = (history.last.get("validation/samples") or [0.0])[-1]
    rollouts = (history.last.get("train/rollouts") or [0.0])[-1] * over
    train = history.level("train/success", over) or 0.0
    error = variance(now, 2 * samples) + variance(begin, samples) + 2 * variance(train, rollouts)
    return rise - (now - begin) - Z * math.sqrt(error)


def reward_only(history: History, over: int) -> float | None:
    """How far the reward has risen, in standard deviations of a step's rewards at the start,
    although success on the validation tasks has not (by more than 0.10, by the upper bound
    (one-sided 95%) of its change); else 0.
    """
    rise, spread = _rise(history, "train/reward_mean", over), history.begin("train/reward_std")
    seen = history.last.get("validation/success", deque())
    if rise is None or not spread or len(seen) < 3:
        return None
    begin, now = history.start["validation/success"][0], fmean(list(seen)[-2:])
    samples = (history.last.get("validation/samples") or [0.0])[-1]
    error = variance(now, 2 * samples) + variance(begin, samples)
    return rise / spread if now - begin + Z * math.sqrt(error) <= 0.10 else 0.0


def climb(history: History, over: int) -> float | None:
    """How far the share of wrong outputs among those with the highest rewards has risen, if the
    reward has risen by 0.05; else 0.
    """
    reward, wrong = (
        _rise(history, "train/reward_mean", over),
        _rise(history, "watch/best_wrong", over),
    )
    if reward is None or wrong is None:
        return None
    return wrong if reward >= 0.05 and history.last["watch/best_wrong"][-1] > 0 else 0.0


def exploited(history: History, over: int) -> float | None:
    """How far the share of sampled outputs that are wrong but rewarded like right ones has risen
    since the first checkpoint, at least: the lower bound (one-sided 95%).
    """
    shares, samples = (
        history.last.get("watch/exploits", deque()),
        history.last.get("watch/exploit_samples", deque()),
    )
    if not shares or history.count["watch/exploits"] < 2:
        return None
    begin, now, n = history.start["watch/exploits"][0], shares[-1], samples[-1] if samples else 1.0
    return max(0.0, now - begin - Z * math.sqrt(variance(now, n) + variance(begin, n)))


def judged_gap(pairs: Sequence[tuple[bool, bool]], least: int) -> float | None:
    """How much more often the verifier passes outputs than people (or a judge) do, at least: the
    lower bound (one-sided 95%) of the mean of the paired differences. `pairs` are (by the verifier,
    by people); None if there are fewer than `least`.
    """
    if len(pairs) < max(2, least):
        return None
    gaps = [float(verifier) - float(person) for verifier, person in pairs] + [
        1.0,
        -1.0,
    ]  # a few identical pairs must not give certainty
    mean = fmean(float(verifier) - float(person) for verifier, person in pairs)
    return max(0.0, mean - Z * math.sqrt(pvariance(gaps) / len(gaps)))


def hole(history: History, over: int) -> float | None:
    """The stronger of two signs that the policy exploits the reward: the best-rewarded outputs of
    the steps, or the samples at checkpoints.
    """
    return max(
        (one for one in (climb(history, over), exploited(history, over)) if one is not None),
        default=None,
    )


MARKS = (
    "claims",
    "apology",
    "refusal",
    "tags",
    "headings",
    "orders_to_judge",
    "copied_prompt",
    "repetition",
    "code_tricks",
)


def marks(history: History, over: int) -> float | None:
    """The highest share of best-rewarded outputs with a mark that those of the first step did not
    have.
    """
    found = [
        median(values)
        for name in MARKS
        if (values := history.recent(f"watch/best_{name}", over)) is not None
        and history.start[f"watch/best_{name}"][0] < 0.25
    ]
    return max(found, default=None)


def same_reward(history: History, over: int) -> float | None:
    """The number of last steps in a row that had nothing to learn from: in each group, all rewards
    were equal. Tasks that always succeed beside tasks that always fail are such steps, although the
    rewards of the step differ.
    """
    flat = history.last.get("train/zero_std_share")
    if not flat:
        return None
    return float(next((at for at, share in enumerate(reversed(flat)) if share < 1), len(flat)))


def entropy_rise(history: History, over: int) -> float | None:
    """How far the entropy is above the start, in nats."""
    level, begin = history.level("train/entropy", over), history.begin("train/entropy")
    return None if level is None or begin is None else level - begin


def loss_rise(history: History, over: int) -> float | None:
    """How far the loss is above the start, in nats per token. The start is the first step's value,
    which is computed before the first update, or that of the held-back rows before it.
    """
    level, first = history.level("train/loss", over), history.start.get("train/loss", [])
    if level is None:
        return None
    return level - max([first[0], *history.start.get("validation/loss", [])[:1]])


def validation_rise(history: History, over: int) -> float | None:
    """The loss on held-back rows as a multiple of that before the first update, on the same
    rows.
    """
    level, first = history.level("validation/loss", over), history.start.get("validation/loss", [])
    if level is None or len(first) < 2:
        return None
    return level / max(first[0], 0.05)


def reward_drop(history: History, over: int) -> float | None:
    """How far the reward is below the start, at least, in standard deviations of a step's rewards
    at the start: the lower bound (one-sided 95%), given how much steps differ.
    """
    now, first = (
        history.recent("train/reward_mean", over),
        history.start.get("train/reward_mean", []),
    )
    spread = history.start.get("train/reward_std", [0.0])[0]
    if (
        now is None
        or len(first) < START
        or history.count["train/reward_mean"] < over + START
        or spread <= 0
    ):
        return None
    noise = (
        math.sqrt(pvariance(now) / (len(now) - 1) + pvariance(first) / (START - 1))
        if len(now) > 1
        else 0.0
    )
    return max(0.0, fmean(first) - fmean(now) - Z * noise) / spread


def validation_drop(history: History, over: int) -> float | None:
    """How far success on the validation tasks is below that before the first update, at least: the
    lower bound (one-sided 95%). The last two validations count.
    """
    seen = history.last.get("validation/success", deque())
    if len(seen) < 3:
        return None
    begin, now = history.start["validation/success"][0], fmean(list(seen)[-2:])
    samples = (history.last.get("validation/samples") or [0.0])[-1]
    return max(
        0.0, begin - now - Z * math.sqrt(variance(now, 2 * samples) + variance(begin, samples))
    )


def reward_fall(history: History, over: int) -> float | None:
    """How far the reward is below its highest level of the last MOST steps, at least, in standard
    deviations of a step's rewards at the start: the lower bound (one-sided 95%).
    """
    values = list(history.last.get("train/reward_mean", ()))
    spread = history.start.get("train/reward_std", [0.0])[0]
    if len(values) < 2 * over or over < 2 or spread <= 0:
        return None
    levels = [values[at : at + over] for at in range(len(values) - 2 * over + 1)]
    best, now = max(levels, key=fmean), values[-over:]
    noise = math.sqrt((pvariance(now) + pvariance(best)) / (over - 1))
    return max(0.0, fmean(best) - fmean(now) - Z * noise) / spread


def gradient(history: History, over: int) -> float | None:
    """The usual norm of the last steps; None if one of them had only equal rewards in each group,
    which is for `same_reward`: the gradient of a KL penalty is 0 while the policy is the start.
    """
    flat = list(history.last.get("train/zero_std_share", ()))[-over:]
    if any(share >= 1 for share in flat):
        return None
    return history.level("train/grad_norm", over)


def has_teacher(history: History) -> bool:
    """Whether a student's distance to its teacher is measured. On the way to answers that it never
    gave, its entropy rises, and the distance (`loss_rise`) says whether it gets lost.
    """
    return "train/teacher_kl" in history.start


def ranking(history: History, over: int) -> float | None:
    """The share of held-back pairs that are ranked correctly, at least: the lower bound (one-sided
    95%) of the last two measurements on the same pairs; None before the third.
    """
    shares = list(history.last.get("validation/accuracy", ()))
    samples = history.last.get("validation/pairs")
    if len(shares) < 3 or not samples:
        return None
    share = fmean(shares[-2:])
    return share - Z * math.sqrt(variance(share, samples[-1]))


def uses(history: History, over: int) -> float | None:
    """How often each different example is learned from; None if held-back data show whether it is
    learned by heart.
    """
    if "validation/loss" in history.start or "validation/success" in history.start:
        return None
    return history.level("data/uses", 1)


def rows_learned(history: History) -> bool:
    """Whether the loss of a method that learns from rows has reached its floor, 0, where no
    gradient is left: every pair beyond the margin, or every token certain. The loss of a method
    that learns from rewards says nothing.
    """
    level = history.level("train/loss", 1)
    return level is not None and abs(level) < 1e-3 and "train/reward_mean" not in history.start


def no_learning(history: History, over: int) -> float | None:
    """The number of steps since the start if the loss has not fallen beyond its noise, and by at
    least 1%; else 0. Where there was no loss to begin with, nothing can be learned.
    """
    loss = loss_gained(history.courses, exact=history.exact_loss)
    if loss is None or history.count["train/loss"] < 2 * over:
        return None
    return 0.0 if fell(loss) else float(history.count["train/loss"])


def no_progress(history: History, over: int) -> float | None:
    """The number of steps since the start if the reward has not risen beyond its noise; 0 if it
    has, or if it cannot rise further.
    """
    course = history.courses.get("train/reward_mean")
    reward = change(course, up=True) if course else None
    if reward is None or history.count["train/reward_mean"] < 2 * over:
        return None
    if (history.level("train/success", over) or 0.0) > SOLVED or rose(reward):
        return 0.0
    return float(history.count["train/reward_mean"])


SAFER = (
    "Fork from the last checkpoint before the alarm with a lower learning rate, or with a KL"
    " penalty (beta)."
)
TABLE: tuple[Rule, ...] = (
    Rule(
        "non_finite",
        "NaN or infinity in the update",
        f"The step was not applied. {SAFER}",
        action="stop",
        act=0.0,
        over=1,
    ),
    Rule(
        "kl",
        "KL to the start",
        SAFER,
        reads=("train/kl",),
        warn=0.5,
        act=2.0,
        action="stop",
        over=3,
        unit="nats per token",
        spared=reward_rises,
        source=(
            "chosen: the policy is e^0.5 (e^2) times as likely to say its tokens as the start was;"
            " only warns while the reward is above its start"
        ),
    ),
    Rule(
        "ratio",
        "Importance ratio, largest",
        SAFER,
        reads=("train/ratio_max",),
        warn=10.0,
        act=100.0,
        action="stop",
        over=3,
        source="chosen; exactly 1 on policy",
    ),
    Rule(
        "importance_weight",
        "Mean importance weight of the rollouts, as a factor",
        "Sampler and trainer disagree: check that the server has this step's adapter, "
        "the precision and the attention kernel, and turn rollout correction on.",
        value=distance_from_one("train/is_mean"),
        warn=2.0,
        act=4.0,
        action="stop",
        source="veRL: mean below 0.5 or above 2",
    ),
    Rule(
        "importance_spread",
        "Standard deviation of the importance weights",
        "Turn rollout correction on, or sample on policy.",
        reads=("train/is_std",),
        warn=1.0,
        source="veRL: above 1",
    ),
    Rule(
        "effective_samples",
        "Effective sample size, share of the samples",
        "Most of the batch has no weight: turn rollout correction on, or sample on policy.",
        reads=("train/ess",),
        warn=0.3,
        act=0.1,
        action="stop",
        below=True,
        source="veRL: below 0.3",
    ),
    Rule(
        "rollout_kl",
        "KL between sampler and trainer",
        "Check that the sampler has this step's weights, its precision and its sampling settings.",
        reads=("train/rollout_kl",),
        warn=0.1,
        source="veRL: |rollout KL| above 0.1",
    ),
    Rule(
        "sampler_gap",
        "Log-probability gap of sampler and trainer",
        "Sampler and trainer compute different models: check precision, attention kernel and the"
        " adapter that serves.",
        reads=("train/gen_kl_error",),
        warn=1e-3,
        act=2e-3,
        action="stop",
        over=3,
        source="NeMo RL: gen_kl_error, look above 1e-3, stop above 2e-3 (LoRA)",
    ),
    Rule(
        "token_error",
        "Multiplicative error of token probabilities",
        "Sampler and trainer are diverging: use the "
        "same kernels and precision, or turn rollout correction on.",
        reads=("train/token_mult_prob_error",),
        warn=1.02,
        source="NeMo RL: trending above 1% to 2%",
    ),
    Rule(
        "entropy_low",
        "Entropy, relative to the start",
        "The policy always gives the same output and no longer "
        "explores: lower the learning rate, raise clip_high, or stop here if it "
        "has learned the task.",
        reads=("train/entropy",),
        warn=0.25,
        act=0.05,
        below=True,
        relative=True,
        source="relative to the run's start",
        but=("sft",),
    ),
    Rule(
        "entropy_high",
        "Entropy above the start",
        SAFER,
        value=entropy_rise,
        warn=1.0,
        act=3.0,
        action="stop",
        over=3,
        unit="nats",
        spared=has_teacher,
        source=(
            "chosen: each token is chosen among three (twenty) times as many as at the start; only"
            " warns where the distance of a student to its teacher is measured"
        ),
        but=("sft", "best_of_n"),
    ),
    Rule(
        "grad_norm",
        "Gradient norm, relative to the start",
        "Clipping holds it (max_grad_norm); if the reward suffers, lower the learning rate.",
        reads=("train/grad_norm",),
        warn=20.0,
        relative=True,
        least=1e-3,
        source="relative to the run's start",
    ),
    Rule(
        "no_gradient",
        "Gradient norm is zero",
        "Nothing is learned any more. If the loss is 0, the rows are learned: stop here, or train"
        " on more. Otherwise the weights may have collapsed to a point where every output is"
        f" equally likely, or the correction masks every token. {SAFER}",
        value=gradient,
        act=1e-12,
        action="stop",
        below=True,
        spared=rows_learned,
        source=(
            "chosen; the largest of a step's updates; only warns where the loss is 0, as of pairs"
            " beyond the margin"
        ),
    ),
    Rule(
        "loss",
        "Loss, relative to the first step",
        SAFER,
        reads=("train/loss",),
        warn=1.5,
        act=3.0,
        action="stop",
        over=3,
        relative=True,
        least=0.05,
        source=(
            "chosen; the first value of a preference loss does not depend on the data, since model"
            " and reference are the same"
        ),
        only=PREFERENCES,
    ),
    Rule(
        "loss_rise",
        "Loss above the first step",
        SAFER,
        value=loss_rise,
        warn=1.0,
        act=3.0,
        action="stop",
        over=3,
        unit="nats per token",
        source="chosen: each token is a third (a twentieth) as likely as before training",
        only=LIKELIHOODS,
    ),
    Rule(
        "chosen",
        "Reward of the chosen answers",
        "The answers that should become likelier become unlikely, together "
        f"with the rejected ones: the loss does not show it. {SAFER}",
        reads=("rewards/chosen",),
        warn=-5.0,
        act=-20.0,
        action="stop",
        below=True,
        source=(
            "chosen: with beta 0.1, a chosen answer is e^-50 (e^-200) times as likely as before"
            " training"
        ),
        only=PREFERENCES,
    ),
    Rule(
        "no_learning",
        "Steps without a decrease in loss",
        "Nothing measurable is learned: raise the learning rate, check "
        "the data, or leave it: the model may already know it.",
        value=no_learning,
        warn=39.5,
        over=20,
        unit="steps",
        source="chosen; also checked at the end of a shorter run",
        only=(*PREFERENCES, *LIKELIHOODS),
    ),
    Rule(
        "weight_change",
        "Largest change of a weight in the whole run",
        "The new version answers like the model that it started from: raise the learning rate, or"
        " train for more steps.",
        reads=("train/weight_change",),
        warn=1e-5,
        below=True,
        over=1,
        source="chosen; measured at the end, however short the run was",
    ),
    Rule(
        "update_size",
        "Size of the adapter, relative to the weights that it changes",
        "The adapter outweighs the model: little of what the model could do is left. Evaluate it on"
        f" other tasks before you use it. {SAFER}",
        reads=("train/update_size",),
        warn=1.0,
        over=1,
        unit="× the weights",
        source="chosen; measured at the end, over all layers that have an adapter",
    ),
    Rule(
        "lost_gain",
        "Share of the best improvement that is gone at the end",
        "An earlier checkpoint is better than the version of this run: evaluate it, or fork from it"
        " with a lower learning rate.",
        reads=("train/loss", "train/reward_mean"),
        warn=0.5,
        source="chosen; the lower bound (one-sided 95%), at the end of the run",
    ),
    Rule(
        "reward_lost",
        "Fall of the reward in a run that does not learn from it",
        "The answers have become like the teacher's, and worse for the verifier: evaluate the"
        " teacher on the same tasks.",
        reads=("train/reward_mean",),
        warn=0.0,
        below=True,
        source="chosen; at the end of the run, if the 95% interval is below 0",
        only=NO_REWARD,
    ),
    Rule(
        "repeated",
        "Times that each different example is learned from, with nothing held back",
        "The examples are learned by heart, which the loss does not tell from learning what they"
        " have in common: add examples, train for fewer steps, or hold some back to measure it.",
        value=uses,
        warn=50.0,
        over=1,
        unit="times",
        source="chosen; measured once, at the first step",
        only=(*PREFERENCES, *LIKELIHOODS),
    ),
    Rule(
        "contradictory",
        "Share of examples that another example contradicts",
        "The same answer is preferred in one example and rejected in another, so nothing can be"
        " learned from either: settle which is right, and leave the other out.",
        reads=("data/contradictory",),
        warn=0.1,
        over=1,
        source="chosen; measured once, at the first step",
        only=PREFERENCES,
    ),
    Rule(
        "lopsided",
        "Good answers per bad one, or bad ones per good one",
        "A few answers outweigh all others: add examples of the rarer side, or set the weights"
        " (desirable_weight, undesirable_weight).",
        reads=("data/lopsided",),
        warn=20.0,
        over=1,
        source="chosen; measured once, at the first step",
        only=("kto",),
    ),
    Rule(
        "chosen_longer",
        "Length of the chosen answers, relative to the rejected ones",
        "Length alone tells the two apart, so longer answers may be all that is learned: add pairs"
        " of similar length, and look at the length of the answers after training.",
        reads=("data/chosen_length",),
        warn=2.0,
        over=1,
        source="chosen; the median over pairs, measured once, at the first step",
        only=("dpo", "reward_model"),
    ),
    Rule(
        "ranking",
        "Held-back pairs ranked correctly, at least",
        "On pairs that it does not train on, the model is not shown to be better than chance: check"
        " whether people agree on the pairs, add pairs, or hold more back to measure it.",
        value=ranking,
        warn=0.5,
        below=True,
        over=1,
        source="chosen; the lower bound (one-sided 95%) of two measurements, from the third on",
        only=("reward_model",),
    ),
    Rule(
        "validation_loss",
        "Loss on held-back rows, relative to before training",
        "The model predicts examples that it does not train on worse than before training: evaluate"
        " an earlier checkpoint, train on more examples, or lower the learning rate.",
        value=validation_rise,
        warn=1.05,
        over=1,
        source="chosen; the same rows each time; at the end also if it is not lower by 1%",
    ),
    Rule(
        "validation_drop",
        "Fall of success on the validation tasks",
        f"The model solves fewer tasks than before training. {SAFER}",
        value=validation_drop,
        warn=0.0,
        act=0.2,
        action="pause",
        source=(
            "chosen; the lower bound (one-sided 95%); at the end also if a rise of 10 points is"
            " ruled out"
        ),
    ),
    Rule(
        "reward_drop",
        "Fall of the reward below the start",
        SAFER,
        value=reward_drop,
        warn=0.25,
        act=0.75,
        action="pause",
        over=10,
        unit="standard deviations of the start",
        source="chosen; the lower bound (one-sided 95%)",
        but=NO_REWARD,
    ),
    Rule(
        "reward_fall",
        "Fall of the reward below its highest level",
        "What the policy had learned is lost, or the verifier has changed: evaluate an earlier"
        f" checkpoint. {SAFER}",
        value=reward_fall,
        warn=1.0,
        over=10,
        unit="standard deviations of the start",
        source="chosen; the lower bound (one-sided 95%)",
        but=NO_REWARD,
    ),
    Rule(
        "length",
        "Completion length, relative to the start",
        "Look at the longest outputs: if they are padding, "
        "bound max_new_tokens or turn overlong shaping on.",
        reads=("train/completion_length",),
        warn=2.0,
        act=4.0,
        relative=True,
        least=4.0,
        source="relative to the run's start",
    ),
    Rule(
        "truncated",
        "Share of truncated completions",
        "Raise max_new_tokens, or turn overlong shaping on: truncated answers are scored as wrong.",
        reads=("train/truncated_share",),
        warn=0.5,
        source="chosen",
    ),
    Rule(
        "flat_groups",
        "Share of groups without reward spread",
        "They give no training signal: choose informative "
        "tasks (learnability), raise the temperature, or sample dynamically.",
        reads=("train/zero_std_share",),
        warn=0.8,
        source="chosen",
        but=NO_REWARD,
    ),
    Rule(
        "same_reward",
        "Steps without different rewards in any group",
        "Each task is always solved or never: choose tasks that are solved sometimes"
        " (learnability), raise the temperature, or start with SFT. If the verifier always gives"
        " the same score, probe it.",
        value=same_reward,
        warn=4.5,
        act=9.5,
        action="pause",
        unit="steps in a row",
        spared=reward_rises,
        source=(
            "chosen: nothing is learned from equal rewards; only warns where the reward has risen,"
            " as in a run that has solved its tasks"
        ),
        but=NO_REWARD,
    ),
    Rule(
        "critic",
        "Explained variance of the critic's values",
        "The critic estimates worse than a constant would, so PPO's advantages are noise: lower"
        " critic_learning_rate, or raise clip_value if rewards are much larger than 1.",
        reads=("train/explained_variance",),
        warn=-0.5,
        over=10,
        below=True,
        source="chosen: 0 is a constant",
        only=("grpo",),
    ),
    Rule(
        "tool_failures",
        "Share of tool calls that failed",
        "Open a rollout to see whether the policy's arguments or the environment are at fault.",
        reads=("train/tool_failures",),
        warn=0.3,
        act=0.8,
        action="pause",
        source="chosen",
    ),
    Rule(
        "masked",
        "Share of masked or errored rollouts",
        "The environment or the verifier is failing: open a masked "
        "rollout to see the reason, fix it, then resume.",
        reads=("train/masked_share",),
        warn=0.05,
        act=0.2,
        action="pause",
        source="prime-rl: sustained above 5%",
    ),
    Rule(
        "bypasses",
        "Share of rollouts whose agent did without the model in training",
        "Open a masked rollout to see what its agent did. Its model and its tools are those at the"
        " rollout's address; if its own code may act, start a run with “own_code”.",
        reads=("harness/bypasses",),
        warn=0.02,
        act=0.2,
        action="pause",
        over=3,
        source="chosen: where this happens, other models or code earn the rewards",
    ),
    Rule(
        "branches",
        "Share of the agent's calls that continue no earlier one",
        "A clock in the prompt, a rewritten history or thinking that the chat template drops makes"
        " each call a row of its own, which costs time: keep what was said before as it was.",
        reads=("harness/branch_share",),
        warn=0.5,
        source="chosen: sub-agents and compaction branch, too, but not at every other call",
    ),
    Rule(
        "agent_calls",
        "The agent's calls to the model per rollout, relative to the start",
        "Open a long rollout: the agent repeats itself, or its tools fail.",
        reads=("harness/calls",),
        warn=3.0,
        relative=True,
        least=1.0,
        source="relative to the run's start",
    ),
    Rule(
        "altered_results",
        "Results of tools that the agent's code altered, per rollout",
        "The model acts on results that the environment did not give. Check that the agent shows"
        " them as they are, or knowingly cuts them.",
        reads=("harness/altered",),
        warn=0.5,
        source="chosen",
    ),
    Rule(
        "held_out",
        "Gain in training success minus gain in validation success",
        "The policy memorises or exploits "
        "the training tasks: evaluate the checkpoint, "
        "add tasks, or stop earlier.",
        value=held_out,
        warn=0.10,
        act=0.25,
        action="pause",
        source="Azure, reward hacking: gap above 0.10",
    ),
    Rule(
        "reward_only",
        "Reward up, validation success not",
        "Read the highest-reward outputs and run probes on them: "
        "the reward is rewarding something else.",
        value=reward_only,
        warn=0.5,
        act=1.5,
        action="pause",
        unit="standard deviations of the start",
        source="relative to the run's start",
        but=NO_REWARD,
    ),
    Rule(
        "hacking",
        "Rise in the share of wrong but rewarded outputs",
        "The policy is exploiting a hole in the verifier: read its outputs at the checkpoints, fix"
        " the verifier, and fork from an earlier checkpoint.",
        value=hole,
        act=0.2,
        action="stop",
        source="chosen (docs/probes.md)",
        but=NO_REWARD,
    ),
    Rule(
        "exploits",
        "Wrong but rewarded sampled outputs like right ones",
        "The verifier already rewards something else: read the example and probe the verifier.",
        reads=("watch/exploits",),
        warn=0.25,
        over=1,
        source="chosen (docs/probes.md)",
        but=NO_REWARD,
    ),
    Rule(
        "marks",
        "Highest-reward outputs with suspicious signs",
        "Read the example: claims, flattery, instructions "
        "to a judge or a copied prompt may be what earns "
        "the reward.",
        value=marks,
        warn=0.5,
        over=1,
        source="chosen (docs/probes.md)",
    ),
    Rule(
        "best_length",
        "Length of the highest-reward outputs, relative to the start",
        "Read the longest of them: the verifier may be rewarding length.",
        reads=("watch/best_length",),
        warn=2.0,
        relative=True,
        least=1.0,
        source="relative to the run's start",
    ),
    Rule(
        "stall",
        "No output from the run, in multiples of its usual step time",
        "Check the log and the machine "
        "(memory, disk, a hanging rollout server), then resume from the "
        "last checkpoint.",
        warn=10.0,
        act=30.0,
        action="pause",
        over=20,
        unit="steps",
        source="chosen; judged from outside, since a run that hangs says nothing",
    ),
    Rule(
        "judge_gap",
        "Success by the verifier minus success by people or the LLM judge",
        "They see failures that the verifier rewards: read these outputs, fix the verifier, and"
        " fork from an earlier checkpoint.",
        warn=0.10,
        act=0.25,
        action="pause",
        over=10,
        source=(
            "chosen; the gap of Azure's reward hacking, judged when people or the LLM judge have"
            " judged"
        ),
    ),
    Rule(
        "no_progress",
        "Steps without an increase in reward",
        "Measure learnability: the tasks may be too easy or "
        "too hard. Otherwise raise the learning rate or the group size.",
        value=no_progress,
        warn=39.5,
        over=20,
        unit="steps",
        source="chosen; also checked at the end of a shorter run",
        but=NO_REWARD,
    ),
)
RULES = {rule.name: rule for rule in TABLE}
OUTSIDE = ("stall", "judge_gap")
AT_END = ("lost_gain", "reward_lost")  # alarms that only the whole run can raise
ACTIONS = get_args(Action)


def _check(self: Any) -> None:
    for rule in TABLE:
        given: Setting | None = getattr(self, rule.name)
        if given is None:
            continue
        made = merged(rule, given)
        if made.warn is not None and made.act is not None and rule.beyond(made.warn, made.act):
            raise ValueError(
                f"of “{rule.name}” would act before it warns: warn is {made.warn:g}, act is"
                f" {made.act:g}"
            )
        if given.action in ("pause", "stop") and made.act is None:
            raise ValueError(f"of “{rule.name}” needs a threshold “act” to {given.action} at")


AlarmSettings: Any = defstruct(
    "AlarmSettings",
    [(rule.name, Setting | None, None) for rule in TABLE],
    bases=(Form,),
    kw_only=True,
    omit_defaults=True,
    module=__name__,
    namespace={"__post_init__": _check, "__doc__": "Changes of single alarms, by name (`TABLE`)."},
)


@dataclass(frozen=True)
class Limits:
    """A rule's thresholds in a run."""

    rule: Rule
    action: Action
    warn: float | None
    act: float | None
    over: int


def merged(rule: Rule, given: Setting | None) -> Limits:
    given = given or Setting()
    act = rule.act if given.act is None else given.act
    warn = rule.warn if given.warn is None else given.warn
    return Limits(rule, given.action or rule.action, warn, act, given.over or rule.over)


@dataclass(frozen=True)
class Alarm:
    """An alarm that a step raised. `action`: its effect; `cleared`: it is over, and has no
    effect.
    """

    name: str
    step: int
    action: Action
    value: float | None
    threshold: float | None
    message: str
    todo: str
    cleared: bool = False

    def as_event(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step": self.step,
            "action": self.action,
            "value": self.value,
            "threshold": self.threshold,
            "message": self.message,
            "todo": self.todo,
            "cleared": self.cleared,
        }


LEVELS = {"ignore": 0, "warn": 1, "pause": 2, "stop": 3}
NEVER_FINITE = (
    "train/loss",
    "train/value_loss",
    "train/critic_grad_norm",
    "train/grad_norm",
    "train/entropy",
    "train/kl",
    "train/ratio_mean",
    "train/ratio_max",
    "train/logp_diff_mean",
)


def alarm_at(
    limits: Limits, step: int, value: float, *, spared: bool = False, title: str = ""
) -> Alarm | None:
    """The alarm for a value; None if it is within the limits. `spared`: beyond `act` it only warns.
    `title`: the value's name, for a rule with several.
    """
    rule = limits.rule
    if limits.act is not None and rule.beyond(value, limits.act) and not spared:
        action, threshold = limits.action, limits.act
    elif rule.beyond(value, limits.warn) or rule.beyond(value, limits.act):
        action, threshold = "warn", limits.act if limits.warn is None else limits.warn
    else:
        return None
    return Alarm(
        rule.name,
        step,
        action,
        value,
        threshold,
        sentence(limits, value, threshold, title),
        rule.todo,
    )


class Watchman:
    """Evaluates the table at every step; one per run. `state` goes into a checkpoint, so that a
    resumed run compares itself with its own start and raises no alarm twice.
    """

    def __init__(
        self, settings: Any = None, method: str = "", state: Mapping[str, Any] | None = None
    ) -> None:
        self.limits = [
            merged(rule, getattr(settings, rule.name, None))
            for rule in TABLE
            if rule.applies_to(method)
        ]
        self.method, self.history, self.raised = method, History(), dict[str, str]()
        if state:
            self._restore(state)

    def look(
        self, step: int, metrics: Mapping[str, Any], examples: Mapping[str, str] | None = None
    ) -> list[Alarm]:
        """The alarms that these metrics raise or clear, each once until it is over. `examples`: a
        sentence for each alarm.
        """
        self.history.add(metrics)
        broken = sorted(
            name
            for name in NEVER_FINITE
            if isinstance(metrics.get(name), float) and not math.isfinite(metrics[name])
        )
        found = []
        for limits in self.limits:
            if limits.action == "ignore" or limits.rule.name in AT_END:
                continue
            if limits.rule.name == "non_finite":
                value: float | None = float(len(broken))
            elif metrics.keys().isdisjoint(_read_by(limits.rule)):
                continue  # no new value to evaluate
            else:
                value = limits.rule.measure(self.history, limits.over)
            alarm = self._judge(step, limits, value)
            if alarm is not None:
                note = (
                    ", ".join(broken)
                    if limits.rule.name == "non_finite"
                    else (examples or {}).get(alarm.name, "")
                )
                found.append(alarm if alarm.cleared or not note else _with_note(alarm, note))
        return found

    def outcome(self) -> list[Sentence]:
        """What the run has achieved, and what is not known about it."""
        rewarded = self.method not in (*PREFERENCES, *LIKELIHOODS)
        courses, exact = self.history.courses, self.history.exact_loss
        return outcome(courses, rewarded=rewarded, exact=exact)

    def at_end(self, step: int) -> list[Alarm]:
        """The warnings about what the whole run has achieved, except those that are raised."""
        by_name = {limits.rule.name: limits for limits in self.limits if limits.action != "ignore"}
        alarms = []
        for sentence in self.outcome():
            limits = by_name.get(sentence.alarm)
            if limits is None or sentence.alarm in self.raised:
                continue
            rule, value = limits.rule, sentence.value
            if rule.name not in AT_END or rule.beyond(value, limits.warn):
                alarms.append(
                    Alarm(rule.name, step, "warn", value, limits.warn, sentence.text, rule.todo)
                )
        return alarms

    def _judge(self, step: int, limits: Limits, value: float | None) -> Alarm | None:
        rule, before = limits.rule, self.raised.get(limits.rule.name, "ignore")
        if value is None:
            return None
        alarm = alarm_at(
            limits, step, value, spared=rule.spared is not None and rule.spared(self.history)
        )
        if alarm is None:
            if self.raised.pop(rule.name, None):
                message = f"{rule.title}: back to {_shown(value)}."
                return Alarm(rule.name, step, "warn", value, None, message, "", cleared=True)
            return None
        if LEVELS[alarm.action] <= LEVELS[before]:
            return None
        self.raised[rule.name] = alarm.action
        return alarm

    def state(self) -> dict[str, Any]:
        return {
            "start": self.history.start,
            "last": {name: list(values) for name, values in self.history.last.items()},
            "count": self.history.count,
            "courses": {name: one.state() for name, one in self.history.courses.items()},
            # A resumed run evaluates again what ended the run.
            "raised": {name: action for name, action in self.raised.items() if action == "warn"},
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.history.start = {name: list(values) for name, values in state.get("start", {}).items()}
        self.history.last = {
            name: deque(values, maxlen=MOST) for name, values in state.get("last", {}).items()
        }
        self.history.count = dict(state.get("count", {}))
        courses = state.get("courses", {})
        self.history.courses = {name: Course.restored(one) for name, one in courses.items()}
        self.raised = dict(state.get("raised", {}))


_OF_VALUES = {
    "importance_weight": ("train/is_mean",),
    "held_out": ("validation/success",),
    "reward_only": ("validation/success",),
    "hacking": ("watch/best_wrong", "watch/exploits"),
    "marks": tuple(f"watch/best_{name}" for name in MARKS),
    "same_reward": ("train/zero_std_share",),
    "no_progress": ("train/reward_mean",),
    "entropy_high": ("train/entropy",),
    "loss_rise": ("train/loss",),
    "no_learning": ("train/loss",),
    "validation_loss": ("validation/loss",),
    "validation_drop": ("validation/success",),
    "reward_drop": ("train/reward_mean",),
    "reward_fall": ("train/reward_mean",),
    "no_gradient": ("train/grad_norm",),
    "ranking": ("validation/accuracy",),
    "repeated": ("data/uses",),
}


def _read_by(rule: Rule) -> tuple[str, ...]:
    """The metrics that change a rule's value."""
    return rule.reads or _OF_VALUES.get(rule.name, ())


def metrics_of(rule: Rule) -> tuple[str, ...]:
    """The metrics in whose charts an alarm is marked."""
    return _read_by(rule) or (NEVER_FINITE if rule.name == "non_finite" else ())


def _with_note(alarm: Alarm, note: str) -> Alarm:
    return Alarm(
        alarm.name,
        alarm.step,
        alarm.action,
        alarm.value,
        alarm.threshold,
        f"{alarm.message} {note}",
        alarm.todo,
    )


def _shown(value: float) -> str:
    return f"{value:.3g}"


def sentence(limits: Limits, value: float, threshold: float | None, title: str = "") -> str:
    rule = limits.rule
    if rule.name == "non_finite":
        return f"{rule.title}:"
    unit = " times the start" if rule.relative else f" {rule.unit}" if rule.unit else ""
    smoothed = f", the median of {limits.over} steps" if rule.reads and limits.over > 1 else ""
    way = "below" if rule.below else "above"
    return (
        f"{title or rule.title}: {_shown(value)}{unit}{smoothed}; {way} {_shown(threshold or 0.0)}."
    )
