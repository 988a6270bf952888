"""Chat templates and turns: what a template writes between an answer and the next one. Light and pure.

The next turn's prompt is the ids so far, which hold the answer as it was sampled, and the template's own text for what came
after it. That is right only where the template writes all that came before as it did: some drop the thinking of earlier
turns, or write the last answer in another way than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from workers.lib.messages import native_calls, text_of

Render = Callable[[list[dict], bool], str]
"""A conversation as text, and whether it ends with the beginning of an answer."""


CHANGED = "what came before is written in another way once the conversation goes on"
REWRITTEN = "an earlier answer is written in another way once the conversation goes on"
UNMARKED = "the end of an answer is not marked by the token that ends it"


class NotJoined(Exception):
    """Why a template's next turn does not begin with what there was before: a sentence's end."""


class After(NamedTuple):
    """What a template writes after an answer, from the token that ends it. `by_prefix`: the template keeps all that came before as it
    was; else the answer itself is written in another way, and what follows it was found by `_after_last`."""

    text: str
    by_prefix: bool = True


def text_after(
    render: Render, answered: list[dict], messages: list[dict], stops: Sequence[str], ended_by: str = ""
) -> After:
    """What stands after an answer's own words, from the end of its turn (one of the texts `stops`) to where the next answer
    begins. `messages` are those `answered`, the answer, and what came after it; `ended_by` is the stop with which the answer was
    sampled, "" where that is unknown or it was cut off. Raises NotJoined."""
    after = _followed(answered, messages)
    asked, said, now = render(answered, True), render(messages[: len(answered) + 1], False), render(messages, True)
    if said.startswith(asked) and now.startswith(said):
        end, stop = max((said.rfind(stop, len(asked)), stop) for stop in stops)
        if end >= 0 and not said[end + len(stop) :].strip():
            return After(now[end:])
        return After(_begins_next(now[len(said) :], stops, ended_by))
    if not now.startswith(asked):
        raise NotJoined(CHANGED)
    return After(_after_last(render, messages, after, said.removeprefix(asked), (now, len(asked)), stops), False)


def template_tail(render: Render, answered: list[dict], messages: list[dict], stops: Sequence[str]) -> str:
    """As `text_after`, however the template writes the answer: only what came before it has to stay as it was, and the answer's words
    and calls have to be there. Alone too little to join turns by, since the way an answer begins may differ; bridges are checked
    with it. Raises NotJoined."""
    after = _followed(answered, messages)
    history, now, answer = render(answered, False), render(messages, True), messages[len(answered)]
    if not now.startswith(history):
        raise NotJoined(CHANGED)
    between, end = _up_to_end(render, messages, after, now, len(history), stops)
    if any(
        word not in between[:end] for word in [text_of(answer).strip(), *(call.tool for call in native_calls(answer))]
    ):
        raise NotJoined(REWRITTEN)
    return now[len(history) + end :]


def _followed(answered: list[dict], messages: list[dict]) -> list[dict]:
    """The messages after the answer. Raises NotJoined where they are not what may follow one."""
    after = messages[len(answered) + 1 :]
    roles = [message["role"] == "assistant" for message in messages[len(answered) :]]
    if messages[: len(answered)] != answered or roles != [True] + [False] * len(after):
        raise NotJoined("the conversation was changed")
    return after


def _begins_next(rest: str, stops: Sequence[str], ended_by: str) -> str:
    """For templates without an end of an answer, whose models stop by writing the token that begins the next turn (GLM)."""
    opens = next((stop for stop in sorted(stops, key=len, reverse=True) if rest.startswith(stop)), "")
    if not opens:
        raise NotJoined(UNMARKED)
    if ended_by not in ("", opens):
        raise NotJoined("the answer ended with the token of another turn than the one that follows")
    return rest


def _after_last(
    render: Render, messages: list[dict], after: list[dict], said: str, now: tuple[str, int], stops: Sequence[str]
) -> str:
    """For templates that write the last answer in another way than the same one later (Qwen 3 adds an empty thought): `said` is
    the last one, `now` the whole text and where the answer begins in it. Where what came after it begins is seen by changing
    that."""
    rest, end = _up_to_end(render, messages, after, *now, stops)
    answer, last = rest[:end], messages[len(messages) - len(after) - 1]
    ends = min((said.find(stop) for stop in stops if stop in said), default=len(said))
    if text_of(last).strip() not in answer or not said[:ends].endswith(answer):
        raise NotJoined(REWRITTEN)
    return now[0][now[1] + end :]


def _up_to_end(
    render: Render, messages: list[dict], after: list[dict], now: str, start: int, stops: Sequence[str]
) -> tuple[str, int]:
    """(the text from `start` to where what came after the answer begins, where in it the answer's end is)."""
    before = messages[: len(messages) - len(after)]
    changed = [message | {"content": f"~{text_of(message)}"} for message in after] or [{"role": "user", "content": "~"}]
    rest, other = now[start:], render([*before, *changed], True)[start:]
    same = next((at for at, pair in enumerate(zip(rest, other, strict=False)) if pair[0] != pair[1]), 0)
    ends = [(rest.find(stop, 0, same), stop) for stop in stops if stop in rest[:same]]
    if len(ends) != 1 or rest[:same].count(ends[0][1]) != 1:
        raise NotJoined(UNMARKED)
    return rest[:same], ends[0][0]
