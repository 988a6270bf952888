"""What an agent is given, what it gives back, and what an evaluation of it says."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """OpenAI chat messages to answer with these tools. `sample` is the number of the answer, from
    0: a task is answered several times.

    At `mcp_url` (an MCP server) and `tools_url` (GET lists, POST …/NAME calls) an agent with a loop
    of its own calls the tools on the state of this sample, without a key, until it has answered;
    "" where an episode ends after one message."""

    id: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    sample: int
    mcp_url: str = ""
    tools_url: str = ""


@dataclass
class Answer:
    """Of one kind: `output` and `tool_calls`, or `messages` (those that the agent added, or the
    whole conversation), or an `error`. `latency_ms` is measured where it is not given."""

    output: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    messages: list[Message] | None = None
    error: str | None = None
    latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    def as_row(self, task: Task) -> dict[str, Any]:
        """The row that the API takes, without the fields that say nothing."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return {"task": task.id, "index": task.sample, **given}


Given = Answer | str | Message | list[Message]
Agent = Callable[[Task], Given | Awaitable[Given]]


def answer_of(given: Any) -> Answer:
    """An agent may give an Answer, a text, a message, or a list of messages. Raises TypeError for
    anything else.
    """
    if isinstance(given, Answer):
        return given
    if isinstance(given, str):
        return Answer(output=given)
    if isinstance(given, dict) and "role" in given:
        return Answer(messages=[given])
    if isinstance(given, list) and all(isinstance(message, dict) for message in given):
        return Answer(messages=given)
    raise TypeError(
        f"the agent returned {type(given).__name__}; return an Answer, a text, a message or a list"
        " of messages"
    )


def encoded(row: dict[str, Any], most: int) -> bytes:
    """The row as one JSON line. What is not JSON, or larger than `most` bytes, becomes the agent's
    error.
    """
    try:
        line = json.dumps(row, allow_nan=False).encode()
        if len(line) <= most:
            return line
        problem = f"the answer is {len(line):,} bytes; {most:,} is the most"
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"the answer is not JSON: {error}"
    return json.dumps({"task": row["task"], "index": row["index"], "error": problem[:500]}).encode()


@dataclass
class Result:
    """An evaluation that has ended. `gate` is the gate's report against what is live, {} where it
    was not asked.

    `verdict` is "promote", "reject" or "inconclusive"; None where the gate was not asked, or had
    nothing to compare with. `summary` is its reason. `problem` says why the evaluation shows
    nothing about the agent; "" if it does.
    """

    run: dict[str, Any]
    gate: dict[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Any]:
        """Rates and the mean reward as {mean, low, high, n}, with 95% intervals over tasks; see the
        API's schema.
        """
        return self.run.get("metrics") or {}

    @property
    def notes(self) -> list[str]:
        """What to know before trusting the metrics, such as that no run called a tool."""
        return self.run.get("notes") or []

    @property
    def url(self) -> str:
        return self.gate.get("url") or self.run["url"]

    @property
    def verdict(self) -> str | None:
        return self.gate.get("verdict")

    @property
    def problem(self) -> str:
        counts = self.metrics.get("counts", {})
        samples, crashed, masked, other = (
            counts.get(name, 0) for name in ("samples", "agent_errors", "masked", "other_results")
        )
        if not samples:
            return "The evaluation has no samples."
        problems = list[str]()
        lacking = 0 if counts.get("called", 1) else counts.get("lack_calls", 0)
        if self.verdict == "reject":  # then it is shown to be worse, whatever the reason
            lacking = 0
        if 2 * (crashed + masked + lacking) > samples:
            reasons = [
                f"the agent failed to answer {crashed}" if crashed else "",
                f"{other} runs saw other results than the environment's, since the agent ran tools "
                "of its own (let it call those at task.mcp_url or task.tools_url)"
                if other
                else "",
                f"{masked - other} could not be scored" if masked > other else "",
                f"{lacking} failed, and no run called a tool of the environment (only calls at"
                " task.mcp_url or task.tools_url and those that the agent returns are seen)"
                if lacking
                else "",
            ]
            said = "; ".join(filter(None, reasons))
            problems.append(f"Of {samples} samples: {said}. See the evaluation: {self.run['url']}")
        if self.gate and not self.verdict:
            problems.append(f"Nothing to compare with. {self.gate.get('summary', '')}".strip())
        return " ".join(problems)

    @property
    def summary(self) -> str:
        return self.gate.get("summary") or self.run.get("label") or ""
