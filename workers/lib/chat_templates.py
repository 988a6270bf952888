"""Chat templates and multi-turn conversations: the text that a template renders between an answer
and the next one. Light and pure.

The next turn's prompt consists of the ids so far, which contain the answer as it was sampled, and
the template's own text for what came after it. That is only correct if the template renders
everything before in the same way as earlier: some drop the thinking of earlier turns, or render the
last answer differently from the others.
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
    """Why a template's next turn does not begin with the previous text; the end of a sentence."""


class After(NamedTuple):
    """The text that a template renders after an answer, from the token that ends it. `by_prefix`:
    the template leaves everything before unchanged; otherwise it renders the answer itself
    differently, and the text after it was found by `_after_last`.
    """

    text: str
    by_prefix: bool = True


def text_after(
    render: Render,
    answered: list[dict],
    messages: list[dict],
    stops: Sequence[str],
    ended_by: str = "",
) -> After:
    """The text after an answer's own words, from the end of its turn (one of the texts `stops`) to
    the beginning of the next answer.

    `messages` are those `answered`, the answer, and what came after it. `ended_by` is the stop with
    which the answer was sampled; "" if that is unknown or it was cut off. Raises NotJoined.
    """
    after = _followed(answered, messages)
    asked, said, now = (
        render(answered, True),
        render(messages[: len(answered) + 1], False),
        render(messages, True),
    )
    if said.startswith(asked) and now.startswith(said):
        end, stop = max(((said.rfind(stop, len(asked)), stop) for stop in stops), default=(-1, ""))
        if end >= 0 and not said[end + len(stop) :].strip():
            return After(now[end:])
        return After(_begins_next(now[len(said) :], stops, ended_by))
    if not now.startswith(asked):
        raise NotJoined(CHANGED)
    return After(
        _after_last(render, messages, after, said.removeprefix(asked), (now, len(asked)), stops),
        False,
    )


def template_tail(
    render: Render, answered: list[dict], messages: list[dict], stops: Sequence[str]
) -> str:
    """Like `text_after`, however the template renders the answer: only what came before it must be
    unchanged, and the answer's words and calls must be included. This alone is not enough to join
    turns, since the answer may begin differently; bridges are checked with it. Raises NotJoined.
    """
    after = _followed(answered, messages)
    history, now, answer = render(answered, False), render(messages, True), messages[len(answered)]
    if not now.startswith(history):
        raise NotJoined(CHANGED)
    between, end = _up_to_end(render, messages, after, now, len(history), stops)
    if any(
        word not in between[:end]
        for word in [text_of(answer).strip(), *(call.tool for call in native_calls(answer))]
    ):
        raise NotJoined(REWRITTEN)
    return now[len(history) + end :]


def _followed(answered: list[dict], messages: list[dict]) -> list[dict]:
    """The messages after the answer. Raises NotJoined if they cannot follow one."""
    after = messages[len(answered) + 1 :]
    roles = [message["role"] == "assistant" for message in messages[len(answered) :]]
    if messages[: len(answered)] != answered or roles != [True] + [False] * len(after):
        raise NotJoined("the conversation was changed")
    return after


def _begins_next(rest: str, stops: Sequence[str], ended_by: str) -> str:
    """For templates that do not render the end of an answer, whose models stop by generating the
    token that begins the next turn (GLM).
    """
    opens = next(
        (stop for stop in sorted(stops, key=len, reverse=True) if rest.startswith(stop)), ""
    )
    if not opens:
        raise NotJoined(UNMARKED)
    if ended_by not in ("", opens):
        raise NotJoined("the answer ended with the token of another turn than the one that follows")
    return rest


def _after_last(
    render: Render,
    messages: list[dict],
    after: list[dict],
    said: str,
    now: tuple[str, int],
    stops: Sequence[str],
) -> str:
    """For templates that render the last answer differently from earlier ones (Qwen 3 adds an empty
    thought). `said`: the answer as rendered at the end of a conversation; `now`: the whole text and
    where the answer begins in it. Where the following messages begin is found by changing them.
    """
    rest, end = _up_to_end(render, messages, after, *now, stops)
    answer, last = rest[:end], messages[len(messages) - len(after) - 1]
    ends = min((said.find(stop) for stop in stops if stop in said), default=len(said))
    if text_of(last).strip() not in answer or not said[:ends].endswith(answer):
        raise NotJoined(REWRITTEN)
    return now[0][now[1] + end :]


def _up_to_end(
    render: Render,
    messages: list[dict],
    after: list[dict],
    now: str,
    start: int,
    stops: Sequence[str],
) -> tuple[str, int]:
    """(the text from `start` to the beginning of the messages after the answer, the position of the
    answer's end in it).
    """
    before = messages[: len(messages) - len(after)]
    changed = [message | {"content": f"~{text_of(message)}"} for message in after] or [
        {"role": "user", "content": "~"}
    ]
    rest, other = now[start:], render([*before, *changed], True)[start:]
    same = next(
        (at for at, pair in enumerate(zip(rest, other, strict=False)) if pair[0] != pair[1]), 0
    )
    ends = [(rest.find(stop, 0, same), stop) for stop in stops if stop in rest[:same]]
    if len(ends) != 1 or rest[:same].count(ends[0][1]) != 1:
        raise NotJoined(UNMARKED)
    return rest[:same], ends[0][0]
