"""One run before the judge: the question, one more try where its answer cannot be used, and what that cost. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from apps.failures.judge.answer import AnswerError, Verdict, read
from apps.failures.judge.client import Server, ServerError, complete
from apps.failures.judge.prompt import Prompt, repair
from workers.lib.spending import Usage


@dataclass(frozen=True)
class Judged:
    """A verdict, or the sentence why there is none; `raw` is what the judge wrote, each try of it.

    `final`: the next run would fare no better, so it is of no use to go on.
    """

    verdict: Verdict | None
    error: str
    raw: list[str]
    usage: Usage
    final: bool = False


def ask(server: Server, prompt: Prompt, sleep: Callable[[float], None] = time.sleep) -> Judged:
    """Raises nothing that a server can cause: errors are part of the result, with what they cost."""
    usage, raw, error, chat = Usage(), [], "", prompt.chat
    for _ in range(2):
        try:
            completion = complete(server, chat, sleep)
        except ServerError as failed:
            return Judged(None, str(failed), raw, usage + failed.usage, failed.final)
        usage += completion.usage
        raw.append(completion.text)
        try:
            return Judged(read(completion.text, prompt.slugs, prompt.bodies, prompt.agents), "", raw, usage)
        except AnswerError as wrong:
            error = f"It was cut off at its limit. {wrong}" if completion.truncated else str(wrong)
            chat = repair(prompt, completion.text, error)
    return Judged(None, f"The judge's answer cannot be used, not even at the second try: {error}", raw, usage)
