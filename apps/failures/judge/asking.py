"""Judging one run: the question, one retry if its answer is unusable, and the cost. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from apps.failures.judge.answer import AnswerError, read, read_notes
from apps.failures.judge.client import Server, ServerError, complete
from apps.failures.judge.prompt import Prompt, repair
from workers.lib.spending import NOTHING, Usage


@dataclass(frozen=True)
class Answered:
    """A parsed answer (of a run that was judged: its `Verdict`), or the sentence why there is none;
    `raw` is what the judge wrote in each try.

    `final`: the next question would fail in the same way, so continuing is pointless. `is_servers`:
    the server failed, so this was no try of the question.
    """

    answer: Any
    error: str
    raw: list[str]
    usage: Usage
    final: bool = False
    is_servers: bool = False


@dataclass(frozen=True)
class Chat:
    """One question, and how its answer is read: `read` raises AnswerError."""

    messages: list[dict[str, str]]
    read: Callable[[str], Any]

    def max_cost(self, server: Server) -> float:
        return server.max_cost(self.messages)

    def ask(self, server: Server, sleep: Callable[[float], None] = time.sleep) -> Answered:
        return answer_to(server, self.messages, self.read, sleep)


def ask(server: Server, prompt: Prompt, sleep: Callable[[float], None] = time.sleep) -> Answered:
    """Raises nothing that a server can cause: errors are part of the result, with their cost. Of a
    long run, notes on its parts are asked for first.
    """
    usage, raw, notes = NOTHING, list[str](), ""
    for at in range(len(prompt.parts)):
        found = answer_to(server, prompt.with_notes(at, notes), read_notes, sleep)
        usage, raw = usage + found.usage, raw + found.raw
        if found.answer is None:
            return replace(found, raw=raw, usage=usage)
        notes = found.answer
    found = answer_to(
        server,
        prompt.with_notes(len(prompt.parts), notes),
        lambda text: read(text, prompt.slugs, prompt.bodies, prompt.agents, prompt.rules),
        sleep,
    )
    return replace(found, raw=raw + found.raw, usage=usage + found.usage)


def answer_to(
    server: Server,
    chat: list[dict[str, str]],
    read_answer: Callable[[str], Any],
    sleep: Callable[[float], None] = time.sleep,
) -> Answered:
    """The result of `read_answer` for the answer to a chat; if it raises AnswerError, the judge is
    asked once more, with the error.
    """
    usage, raw, error, asked = NOTHING, [], "", chat
    for _ in range(2):
        try:
            completion = complete(server, asked, sleep)
        except ServerError as failed:
            paid = usage + failed.usage
            return Answered(None, str(failed), raw, paid, failed.final, failed.is_servers)
        usage += completion.usage
        raw.append(completion.text)
        try:
            return Answered(read_answer(completion.text), "", raw, usage)
        except AnswerError as wrong:
            error = f"It was cut off at its limit. {wrong}" if completion.truncated else str(wrong)
            asked = repair(chat, completion.text, error)
    return Answered(
        None, f"The judge's answer could not be used, even after a retry: {error}", raw, usage
    )
