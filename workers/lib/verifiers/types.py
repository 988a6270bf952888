"""The input and output of verifiers. Light and pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from workers.lib.messages import last_answer, text_of, without_reasoning


@dataclass(frozen=True)
class Execution:
    """The result of running a call: whether it worked, whether it did harm, and the tool's answer.

    `name` and `args` are the call's; `error` is the tool's own error if it failed.
    """

    ok: bool
    unsafe: bool
    observation: str
    name: str = ""
    args: dict = field(default_factory=dict)
    error: str = ""


@dataclass
class Score:
    """A scored output. `reward` is None if and only if `masked`: a verifier's own error is not a 0.

    `components` are named numbers; `details` describes what was wrong, the first fault first. What
    a verifier cannot know is None, and counts in no rate: `valid` (the output has the expected
    form, and its calls fit the tools' definitions), `tool_ok` and `args_score` (the calls are those
    that were expected), `executed` (every call worked).
    """

    reward: float | None
    components: dict[str, float] = field(default_factory=dict)
    success: bool = False
    valid: bool | None = None
    tool_ok: bool | None = None
    args_score: float | None = None
    executed: bool | None = None
    unsafe: bool = False
    masked: bool = False
    mask_reason: str = ""
    messages: list[dict] = field(default_factory=list)
    details: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rollout:
    """What an agent did with a task.

    `task` has id, messages, tools, expected and metadata; `messages` are those after the task's
    own, in OpenAI's chat format; `state` is the end state, `expected_state` what it should have
    been; `stats` has turns, tokens, stop_reason.
    """

    task: dict
    messages: list[dict] = field(default_factory=list)
    tools: list[dict] = field(default_factory=list)
    state: dict | None = None
    expected_state: dict | None = None
    calls: list[Execution] = field(default_factory=list)
    stats: dict = field(default_factory=dict)

    @property
    def output(self) -> str:
        """The text of the last assistant message; "" if there is none."""
        return text_of(last_answer(self.messages))

    @property
    def answer(self) -> str:
        """The output without reasoning, which is what is judged, except by verifiers of its
        format.
        """
        return without_reasoning(self.output).strip()

    @property
    def expected(self) -> dict:
        found = self.task.get("expected")
        return found if isinstance(found, dict) else {}

    @classmethod
    def of_text(cls, task: dict, output: str, **rest: Any) -> Rollout:
        """A rollout with a single answer."""
        rest.setdefault("tools", task.get("tools") or [])
        return cls(task=task, messages=[{"role": "assistant", "content": output}], **rest)


class Verifier(Protocol):
    """Maps a rollout to a score. Never raises: a verifier's own error gives a masked score with the
    reason.
    """

    def score(self, rollout: Rollout) -> Score: ...

    def score_group(self, rollouts: list[Rollout]) -> list[Score]: ...


Clients = Mapping[str, Any]
"""What a verifier needs from outside, by name: `ask` (judge), `reward_model`, `labels` (human), and
`allow_private`: whether addresses inside our own network may be called."""


def masked(reason: str) -> Score:
    """The score of a sample that must not count, neither for nor against the model."""
    return Score(reward=None, masked=True, mask_reason=reason[:500])
