"""Chat templates and turns: what a template writes between an answer and the next one. Light and pure.

The next turn's prompt is the ids so far, which hold the answer as it was sampled, and the template's own text for what came
after it. That is right only where the template writes all that came before as it did: some drop the thinking of earlier
turns, or write the last answer in another way than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Render = Callable[[list[dict], bool], str]
"""A conversation as text, and whether it ends with the beginning of an answer."""


class NotJoined(Exception):
    """Why a template's next turn does not begin with what there was before: a sentence's end."""


def text_after(render: Render, answered: list[dict], messages: list[dict], stops: Sequence[str]) -> str:
    """What stands after an answer's own words, from the end of its turn (one of the texts `stops`) to where the next answer
    begins. `messages` are those `answered`, the answer, and what came after it. Raises NotJoined."""
    count = len(answered)
    after = messages[count + 1 :]
    if messages[:count] != answered or [m["role"] == "assistant" for m in messages[count:]] != [True] + [False] * len(
        after
    ):
        raise NotJoined("the conversation was changed")
    asked, said, now = render(answered, True), render(messages[: count + 1], False), render(messages, True)
    if not said.startswith(asked):
        raise NotJoined("an answer is written in another way than the prompt for it begins")
    if not now.startswith(said):
        raise NotJoined("an earlier answer is written in another way once the conversation goes on")
    end, stop = max((said.rfind(stop, len(asked)), stop) for stop in stops)
    if end < 0 or said[end + len(stop) :].strip():
        raise NotJoined("the end of an answer is not marked by the token that ends it")
    return now[end:]
