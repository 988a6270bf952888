"""Advantages within a group of rollouts, as `workers.grpo` trains with them and a rollout's page
shows them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from statistics import fmean, stdev

EPSILON = 1e-4  # as in TRL, added to the denominator
OVERLONG = "overlong"  # component of a score that shapes the reward but is not part of it
# components with the reward of each turn, starting with turn_1; together they are the reward
TURN = "turn_{}"


def group_advantages(
    rewards: Sequence[float | None], scale: str = "group", baseline: str = "mean"
) -> list[float]:
    """(r − mean) / (std + ε) over the unmasked rewards of a group; 0 for a masked one (None), and
    for a whole group with fewer than two or with equal rewards.

    `scale="none"` omits the division (Dr. GRPO 2503.20783). `baseline="leave_one_out"`: each reward
    is compared with the mean of the others (RLOO 2402.14740).
    """
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2 or min(known) == max(known):
        return [0.0] * len(rewards)
    mean, by = fmean(known), stdev(known) + EPSILON if scale == "group" else 1.0
    if baseline == "leave_one_out":
        by *= (len(known) - 1) / len(known)  # r − mean of the others = (r − mean) · n / (n − 1)
    return [0.0 if reward is None else (reward - mean) / by for reward in rewards]


def turn_components(rewards: Sequence[float]) -> dict[str, float]:
    """The reward of each turn of an episode, as components of its score."""
    return {TURN.format(turn): float(reward) for turn, reward in enumerate(rewards, 1)}


def turn_rewards(components: Mapping[str, float]) -> list[float]:
    """The reward of each turn, from an episode's components; [] if they have none."""
    found: list[float] = []
    while (name := TURN.format(len(found) + 1)) in components:
        found.append(components[name])
    return found


def earned(reward: float, components: Mapping[str, float], turns: int) -> list[float]:
    """The reward of each turn. If the turns' rewards are unknown, or do not add up to the reward
    (because the episode was failed for exceeding a limit), the last turn earns all of it.
    """
    found = turn_rewards(components)
    if len(found) != turns or not isclose(sum(found), reward, rel_tol=1e-6, abs_tol=1e-6):
        return [*[0.0] * (turns - 1), reward][:turns]
    return found


def returns(reward: float, components: Mapping[str, float], turns: int) -> list[float]:
    """The reward from each turn on: the sum of that turn's reward and all later ones. A reward that
    was earned at the end is the return of every turn.
    """
    found = earned(reward, components, turns)
    return [sum(found[turn:]) for turn in range(turns)]


def turn_advantages(
    returns: Sequence[Sequence[float] | None], scale: str = "group", baseline: str = "mean"
) -> list[list[float]]:
    """`group_advantages` of each turn's returns, among the group's episodes that have that turn.
    None: a masked episode, which has no advantage.
    """
    found: list[list[float]] = [[] for _ in returns]
    for turn in range(max((len(one) for one in returns if one), default=0)):
        took = [at for at, one in enumerate(returns) if one and len(one) > turn]
        given = group_advantages([returns[at][turn] for at in took], scale, baseline)  # type: ignore[index]
        for at, advantage in zip(took, given, strict=True):
            found[at].append(advantage)
    return found


def overlong_shaping(tokens: int, longest: int, buffer: int, penalty: float = 1.0) -> float:
    """The penalty of a completion of `tokens` tokens: 0 up to longest − buffer, then linear up to
    −`penalty` at `longest` (soft overlong punishment, DAPO 2503.14476, equation 13). At most 0.
    """
    if not buffer:
        return 0.0
    return penalty * max(-1.0, min(0.0, (longest - buffer - tokens) / buffer))
