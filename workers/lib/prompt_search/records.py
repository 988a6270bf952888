"""What the reflecting model sees of a sample of a training task: the request, what the agent did,
and why it failed. Pure.
"""

from __future__ import annotations

import json
from typing import Any

from workers.lib.messages import text_of
from workers.lib.rollouts import EXCEEDED, Finished

MOST_ASKED, MOST_DONE, MOST_SAID = 4_000, 8_000, 3_000  # characters of each part


def record(task: dict, done: Finished, evidence: str) -> dict[str, str]:
    """In the format that GEPA's own prompt for the reflecting model expects."""
    return {
        "Inputs": _short(_transcript(task.get("messages") or []), MOST_ASKED),
        "Generated Outputs": _short(_transcript(done.score.messages) or done.output, MOST_DONE),
        "Feedback": _short(feedback(done, task.get("expected") or {}, evidence), MOST_SAID),
    }


def feedback(done: Finished, expected: dict, evidence: str) -> str:
    """The verifier's reasons, the expected answer, and what is known about the failure that the
    task was made from.
    """
    score = done.score
    if score.success:
        return "This was right."
    reward = "" if score.reward is None else f" (reward {score.reward:g})"
    unsafe = ["An action was unsafe."] if score.unsafe else []
    stopped = [EXCEEDED[done.stop_reason]] if done.stop_reason in EXCEEDED else []
    said = list(dict.fromkeys([*score.details, *unsafe, *stopped]))
    lines = [f"This was wrong{reward}.", *(f"- {line}" for line in said)]
    if score.components:
        parts = ", ".join(f"{name} {value:g}" for name, value in score.components.items())
        lines.append(f"The verifier's components: {parts}.")
    if expected:
        lines.append(f"What was expected: {json.dumps(expected, ensure_ascii=False)}")
    if evidence:
        lines.append(f"In production the same task failed before: {evidence}")
    return "\n".join(lines)


def _transcript(messages: list[dict]) -> str:
    return "\n".join(
        f"{message.get('role', '?')}: {_message_text(message)}" for message in messages
    )


def _message_text(message: dict) -> str:
    calls: Any = [
        call.get("function", call)
        for call in message.get("tool_calls") or []
        if isinstance(call, dict)
    ]
    parts = [text_of(message), json.dumps(calls, ensure_ascii=False) if calls else ""]
    return " ".join(part for part in parts if part)


def _short(text: str, most: int) -> str:
    """The beginning and the end of a text, since what went wrong is often at the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are left out …]\n{text[-half:]}"
