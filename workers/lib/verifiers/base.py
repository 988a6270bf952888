"""What all verifiers share: options checked when they are built, and a score that never raises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from workers.lib.spec import NAMES, SpecError
from workers.lib.verifiers.types import Rollout, Score, masked

REQUIRED: Any = object()
ANYWHERE = ("kind", "name", "description")
TYPE_NAMES = NAMES | {bool: "true or false"}


class Unscorable(Exception):
    """The sample cannot be judged, through no fault of the agent; the message is the reason it is masked for."""


class Guarded:
    """A verifier by its `judge(rollout)`: what goes wrong in there masks the sample and says why."""

    def judge(self, rollout: Rollout) -> Score:
        raise NotImplementedError

    def score(self, rollout: Rollout) -> Score:
        try:
            return self.judge(rollout)
        except Unscorable as error:
            return masked(str(error))
        except Exception as error:  # a fault of the verifier is no evidence about the model
            return masked(f"The verifier failed: {type(error).__name__}: {error}")

    def score_group(self, rollouts: list[Rollout]) -> list[Score]:
        """The scores of answers to one task, in order; one by one unless the kind compares or batches them."""
        return [self.score(rollout) for rollout in rollouts]


@dataclass(frozen=True)
class Option:
    """One option of a spec: its default, its type, and what values it may have. `of` is the type of a list's items."""

    default: Any = REQUIRED
    kind: type = object
    choices: tuple = ()
    low: float | None = None
    high: float | None = None
    of: type | None = None


def options(spec: dict, path: str, wanted: dict[str, Option]) -> SimpleNamespace:
    """The checked options of a spec. Raises SpecError naming the first that is unknown, missing or wrong."""
    for name in spec:
        if name not in wanted and name not in ANYWHERE:
            known = ", ".join(wanted) or "none"
            raise SpecError(f"“{path}.{name}” is no option of “{spec.get('kind')}”. Options: {known}.")
    return SimpleNamespace(**{name: _option(spec, path, name, option) for name, option in wanted.items()})


def _option(spec: dict, path: str, name: str, option: Option) -> Any:
    if name not in spec:
        if option.default is REQUIRED:
            raise SpecError(f"“{path}.{name}” is missing.")
        return option.default
    value, where = spec[name], f"{path}.{name}"
    if value is None and option.default is None:
        return None
    check_type(value, option.kind, where)
    _check_value(value, option, where)
    return value


def _check_value(value: Any, option: Option, where: str) -> None:
    if option.choices and value not in option.choices:
        raise SpecError(f"“{where}” must be one of {', '.join(map(str, option.choices))}.")
    if (option.low is not None and not value >= option.low) or (option.high is not None and not value <= option.high):
        raise SpecError(f"“{where}” must be {_range(option)}.")
    if option.of is not None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            check_type(item, option.of, f"{where}.{key}")


def _range(option: Option) -> str:
    if option.high is None:
        return f"at least {option.low}"
    return f"at most {option.high}" if option.low is None else f"between {option.low} and {option.high}"


def check_type(value: Any, kind: type, where: str) -> None:
    """Raises SpecError. A whole number is a number; true is none; NaN and infinity are none."""
    fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not fits or (isinstance(value, bool) and kind in (int, float)):
        raise SpecError(f"“{where}” must be {TYPE_NAMES.get(kind, kind.__name__)}.")
    if kind is float and not abs(value) < 1e300:
        raise SpecError(f"“{where}” must be a finite number.")


def weights_of(given: dict[str, float], defaults: dict[str, float], where: str) -> dict[str, float]:
    """The defaults with what is given put over them. Raises SpecError for a name there is not."""
    for name in given:
        if name not in defaults:
            raise SpecError(f"“{where}.{name}” is no weight. Weights: {', '.join(defaults)}.")
    return defaults | given


def right_or_wrong(right: bool, details: Iterable[str] = (), **fields: Any) -> Score:
    """1 or 0, the plainest of scores."""
    return Score(
        reward=float(right),
        components={"right": float(right)},
        success=right,
        details=[] if right else list(details),
        **({"valid": True} | fields),
    )
