"""The common part of all verifiers: options that are checked when they are built, and a score that
never raises.
"""

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
    """This answer cannot be judged; the message says why. `Guarded` decides whether it is masked or
    fails.
    """


class Unavailable(Unscorable):
    """Something external that the verifier needs is missing, whatever the answer: masked."""


class Unanswered(Unscorable):
    """The external service that was asked about this answer did not answer, because of the answer
    or temporarily.
    """


class Guarded:
    """A verifier with a method `judge(rollout)`. An error in it masks the sample with the reason,
    unless another answer to the same task can be judged (`controls`): then the answer caused the
    error, and fails.

    `quick`: a short answer is judged in microseconds and within this process, so no thread is
    needed. `only_calls`: what the agent writes besides its calls does not count.
    """

    quick = False
    only_calls = False

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
        """The score of an answer that could not be judged for this reason."""
        for control in controls(rollout):
            try:
                found = self.judge(control)
            except Exception:  # then this answer is not at fault either
                continue
            if found.reward is not None:
                return failed(found, reason)
        return masked(reason)

    def refused(self, rollout: Rollout, reason: str) -> Score:
        """The score of an answer about which the external service did not answer. Only one other
        answer is tried, since each request may take long. If that one is answered, this one is
        tried again, in case the service was only temporarily down.
        """
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
        """The scores of answers to one task, in order. By default one by one; kinds that compare or
        batch answers override it.
        """
        return [self.score(rollout) for rollout in rollouts]


def failed(control: Score, reason: str) -> Score:
    """The score of an answer that cannot be judged although another one, the control, can: at most
    0.
    """
    if control.reward is None:
        return masked(reason)
    return Score(
        reward=min(0.0, control.reward),
        unsafe=control.unsafe,
        details=[f"could not be judged: {reason[:500]}"],
    )


class Options(Struct, forbid_unknown_fields=True, kw_only=True):
    """The options of a kind of verifier. Every spec may have a name and a description."""

    kind: str = ""
    name: str = ""
    description: str = ""


Form = TypeVar("Form", bound=Options)


def options(spec: dict, path: str, form: type[Form]) -> Form:
    """The checked options of a spec. Raises SpecError naming the first that is unknown, missing or
    invalid.
    """
    return convert(spec, form, path)


def weights_of(given: dict[str, float], defaults: dict[str, float], where: str) -> dict[str, float]:
    """The defaults, overridden by what is given. Raises SpecError for an unknown name."""
    for name in given:
        if name not in defaults:
            raise FormError(f"{where}.{name}", unknown(name, list(defaults)))
    return defaults | given


def right_or_wrong(right: bool, details: Iterable[str] = (), **fields: Any) -> Score:
    """1 or 0, the simplest score. What is not in `fields` is left open."""
    return Score(
        reward=float(right),
        components={"right": float(right)},
        success=right,
        details=[] if right else list(details),
        **fields,
    )
