"""How the judge finds the blamed step. Pure.

`whole` takes it from the answer that says whether the run failed. The others ask that question
first and then, of a failed run, for the step alone: `steps` shows the run up to each step of the
agent in turn, until one is called the mistake; `halving` shows the whole run and asks in which half
of the steps the mistake is (all-at-once, step-by-step and binary search of Zhang et al. 2025,
“Which Agent Causes Task Failures and When?”).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from apps.failures.judge import asking
from apps.failures.judge.answer import AnswerError, Verdict, extract, quote_from
from apps.failures.judge.asking import Answered
from apps.failures.judge.client import Server
from apps.failures.judge.prompt import Example, Mode, Prompt, chat_about, make
from workers.lib.spending import Usage

WHOLE, STEPS, HALVING = "whole", "steps", "halving"
STRATEGIES = (WHOLE, STEPS, HALVING)
MAX_STEPS = 40  # agent steps; in a longer run the first answer's step is used
STEP = """\
The run failed: {reason} The quotation ends with message #{index}. Is that message the mistake: \
the earliest step of the agent without \
which the run would have gone well? Earlier steps were looked at and are not. Answer with one JSON \
object and nothing else:
{{"mistake": true or false, "quote": string}}
“quote” is a few words of message #{index} exactly as they stand there, or ""."""
HALF = """\
The run failed: {reason} Where is the mistake, the earliest step of the agent without which the \
run would have gone well: in message \
{first} (part 1) or in message {second} (part 2)? Answer with one JSON object and nothing else:
{{"part": 1 or 2}}"""

Sleep = Callable[[float], None]


@dataclass(frozen=True)
class Counts:
    """What a forecast assumes: the bytes of a token, the tokens of an answer, and the share of runs
    that fail, about which some strategies ask more.
    """

    bytes_per_token: float
    answer: int
    failed: float

    def __str__(self) -> str:
        return f"{self.bytes_per_token:g} bytes per token and {self.answer} tokens per answer"


USUAL, LEAST, MOST = Counts(4, 120, 0.25), Counts(5, 60, 0.0), Counts(3, 300, 1.0)


@dataclass(frozen=True)
class Question:
    """Judging one run. `prompt` is its first question."""

    strategy: str
    rubric: str
    modes: Sequence[Mode]
    run: dict[str, Any]
    prompt: Prompt

    @classmethod
    def of(
        cls,
        strategy: str,
        rubric: str,
        modes: Sequence[Mode],
        run: dict[str, Any],
        examples: Sequence[Example] = (),
    ) -> Question:
        return cls(strategy, rubric, modes, run, make(rubric, modes, run, examples))

    @property
    def steps(self) -> list[int]:
        """The agent's own messages."""
        return sorted(self.prompt.agents)

    @property
    def _asked_for_step(self) -> int:
        """How many more questions a failed run takes at most."""
        count = len(self.steps)
        if self.strategy == WHOLE or not 1 < count <= MAX_STEPS:
            return 0
        return count if self.strategy == STEPS else (count - 1).bit_length()

    def max_cost(self, server: Server) -> float:
        """An upper estimate of the cost of all its questions, and a second try of each, in USD."""
        whole = sum(map(server.max_cost, self.prompt.chats()))
        return whole + self._asked_for_step * server.max_cost(
            [*self.prompt.chat, {"role": "user", "content": "x" * 2000}]
        )

    def usage(self, counts: Counts) -> Usage:
        """An estimate of the tokens of all its questions and answers, each asked once."""
        sent = [_bytes_of(chat) for chat in self.prompt.chats()]
        more = counts.failed * self._asked_for_step
        tokens = (sum(sent) + more * sent[-1]) / counts.bytes_per_token
        return Usage(round(tokens), round((len(sent) + more) * counts.answer))

    def ask(self, server: Server, sleep: Sleep = time.sleep) -> Answered:
        """Raises nothing that a server can cause. If a later question gets no usable answer, the
        first answer's step is used.
        """
        first = asking.ask(server, self.prompt, sleep)
        steps = self.steps
        if (
            first.answer is None
            or not first.answer.failed
            or self.strategy == WHOLE
            or not 1 < len(steps) <= MAX_STEPS
        ):
            return first
        search = _by_steps if self.strategy == STEPS else _by_halving
        return search(self, server, first, first.answer, sleep)


def _bytes_of(chat: Sequence[dict[str, str]]) -> int:
    return sum(len(message["content"].encode(errors="replace")) for message in chat)


def _by_steps(
    question: Question, server: Server, judged: Answered, verdict: Verdict, sleep: Sleep
) -> Answered:
    for index in question.steps:
        text = STEP.format(reason=_sentence(verdict), index=index)
        chat = chat_about(text, question.run, upto=index)
        judged, answer = _asked(
            server, judged, chat, partial(_mistake, question.prompt.bodies, index), sleep
        )
        if answer is None:
            return judged
        mistake, quote = answer
        if mistake:
            return replace(judged, answer=replace(verdict, message_index=index, quote=quote))
    return judged


def _by_halving(
    question: Question, server: Server, judged: Answered, verdict: Verdict, sleep: Sleep
) -> Answered:
    steps = question.steps
    while len(steps) > 1:
        middle = (len(steps) + 1) // 2
        text = HALF.format(
            reason=_sentence(verdict), first=_range(steps[:middle]), second=_range(steps[middle:])
        )
        judged, part = _asked(server, judged, chat_about(text, question.run), _part, sleep)
        if part is None:
            return judged
        steps = steps[:middle] if part == 1 else steps[middle:]
    same = steps[0] == verdict.message_index
    return replace(
        judged,
        answer=replace(verdict, message_index=steps[0], quote=verdict.quote if same else ""),
    )


def _asked(
    server: Server,
    judged: Answered,
    chat: list[dict[str, str]],
    read: Callable[[str], Any],
    sleep: Sleep,
) -> tuple[Answered, Any]:
    """(everything paid and written so far, including this answer; the answer, or None if it is
    unusable).
    """
    found = asking.answer_to(server, chat, read, sleep)
    judged = replace(
        judged, raw=[*judged.raw, *found.raw], usage=judged.usage + found.usage, final=found.final
    )
    return judged, found.answer


def _mistake(bodies: Sequence[str], index: int, text: str) -> tuple[bool, str]:
    given = extract(text, "mistake")
    if not isinstance(given["mistake"], bool):
        raise AnswerError("“mistake” must be true or false.")
    return given["mistake"], quote_from(given, index, bodies) if given["mistake"] else ""


def _part(text: str) -> int:
    part = extract(text, "part")["part"]
    if isinstance(part, bool) or part not in (1, 2, "1", "2"):
        raise AnswerError("“part” must be 1 or 2.")
    return int(part)


def _range(steps: Sequence[int]) -> str:
    return f"#{steps[0]}" if len(steps) == 1 else f"#{steps[0]} to #{steps[-1]}"


def _sentence(verdict: Verdict) -> str:
    """The reason in the first answer, which the judge wrote after reading the run: short, in
    quotation marks.
    """
    words = " ".join(verdict.reason.split()).replace('"', "'")[:300]
    return f'"{words}"' if words else "the reason is not known."
