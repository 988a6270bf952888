"""What all verifiers share: options checked when they are built, and a score that never raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Struct

from workers.lib.sandbox import SandboxError
from workers.lib.typed import FormError, convert, unknown
from workers.lib.typed import SpecError as SpecError
from workers.lib.verifiers.blame import MAX_ANSWER, controls, is_too_large
from workers.lib.verifiers.types import Rollout, Score, masked


class Unscorable(Exception):
    """This answer cannot be judged; the message says why. Whether it is masked or fails, `Guarded` finds out."""


class Unavailable(Unscorable):
    """What the verifier needs from elsewhere is not there, be the answer what it may: masked."""


class Unanswered(Unscorable):
    """Who was asked about this answer, elsewhere, did not answer: because of the answer, or for a time of its own."""


class Guarded:
    """A verifier by its `judge(rollout)`: what goes wrong in there masks the sample and says why, unless another answer to
    the same task can be judged (`controls`); then it is the answer's own doing, which fails.

    `quick`: a short answer is judged in microseconds, by this process alone, so that no thread need be asked."""

    quick = False

    def judge(self, rollout: Rollout) -> Score:
        raise NotImplementedError

    def score(self, rollout: Rollout) -> Score:
        try:
            if is_too_large(rollout.messages):
                raise Unscorable(f"The answer has more than {MAX_ANSWER:,} characters and parts.")
            return self.judge(rollout)
        except (Unavailable, SandboxError) as error:
            return masked(str(error))
        except Unanswered as error:
            return self.refused(rollout, str(error))
        except Unscorable as error:
            return self.blamed(rollout, str(error))
        except Exception as error:
            return self.blamed(rollout, f"The verifier failed: {type(error).__name__}: {error}")

    def blamed(self, rollout: Rollout, reason: str) -> Score:
        """What an answer gets that could not be judged for this reason."""
        for control in controls(rollout):
            try:
                found = self.judge(control)
            except Exception:  # then this answer is no evidence either
                continue
            if found.reward is not None:
                return failed(found, reason)
        return masked(reason)

    def refused(self, rollout: Rollout, reason: str) -> Score:
        """What an answer gets that nobody answered. One other answer is tried, since each question may wait long; where that
        is answered, this one is asked about again: it may have been asked while the server was away."""
        try:
            control = self.judge(next(controls(rollout)))
        except Exception:
            return masked(reason)
        try:
            return self.judge(rollout)
        except Unanswered:
            return failed(control, reason)
        except (Unavailable, SandboxError):
            return masked(reason)
        except Exception:
            return self.blamed(rollout, reason)

    def score_group(self, rollouts: list[Rollout]) -> list[Score]:
        """The scores of answers to one task, in order; one by one unless the kind compares or batches them."""
        return [self.score(rollout) for rollout in rollouts]


def failed(control: Score, reason: str) -> Score:
    """The score of an answer that cannot be judged, where another one, the control, can: at most 0."""
    if control.reward is None:
        return masked(reason)
    return Score(
        reward=min(0.0, control.reward), unsafe=control.unsafe, details=[f"could not be judged: {reason[:500]}"]
    )


class Options(Struct, forbid_unknown_fields=True, kw_only=True):
    """The options of one kind of verifier. Every spec may have a name and a description."""

    kind: str = ""
    name: str = ""
    description: str = ""


Form = TypeVar("Form", bound=Options)


def options(spec: dict, path: str, form: type[Form]) -> Form:
    """The checked options of a spec. Raises SpecError naming the first that is unknown, missing or wrong."""
    return convert(spec, form, path)


def weights_of(given: dict[str, float], defaults: dict[str, float], where: str) -> dict[str, float]:
    """The defaults, overridden by what is given. Raises SpecError for an unknown name."""
    for name in given:
        if name not in defaults:
            raise FormError(f"{where}.{name}", unknown(name, list(defaults)))
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
