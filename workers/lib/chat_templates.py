"""Chat templates and turns: what a template writes between an answer and the next one. Light and pure.

The next turn's prompt is the ids so far, which hold the answer as it was sampled, and the template's own text for what came
after it. That is right only where the template writes all that came before as it did: some drop the thinking of earlier
turns, or write the last answer in another way than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workers.lib.messages import text_of

Render = Callable[[list[dict], bool], str]
"""A conversation as text, and whether it ends with the beginning of an answer."""


class NotJoined(Exception):
    """Why a template's next turn does not begin with what there was before: a sentence's end."""


def text_after(render: Render, answered: list[dict], messages: list[dict], stops: Sequence[str]) -> str:
    """What stands after an answer's own words, from the end of its turn (one of the texts `stops`) to where the next answer
    begins. `messages` are those `answered`, the answer, and what came after it. Raises NotJoined."""
    count = len(answered)
    after = messages[count + 1 :]
    roles = [message["role"] == "assistant" for message in messages[count:]]
    if messages[:count] != answered or roles != [True] + [False] * len(after):
        raise NotJoined("the conversation was changed")
    asked, said, now = render(answered, True), render(messages[: count + 1], False), render(messages, True)
    if said.startswith(asked) and now.startswith(said):
        end, stop = max((said.rfind(stop, len(asked)), stop) for stop in stops)
        if end < 0 or said[end + len(stop) :].strip():
            raise NotJoined("the end of an answer is not marked by the token that ends it")
        return now[end:]
    if not now.startswith(asked):
        raise NotJoined("what came before is written in another way once the conversation goes on")
    return _after_last(render, messages, after, said.removeprefix(asked), (now, len(asked)), stops)


def _after_last(
    render: Render, messages: list[dict], after: list[dict], said: str, now: tuple[str, int], stops: Sequence[str]
) -> str:
    """For templates that write the last answer in another way than the same one later (Qwen 3 adds an empty thought): `said` is
    the last one, `now` the whole text and where the answer begins in it. Where what came after it begins is seen by changing
    that."""
    rest, before = now[0][now[1] :], messages[: len(messages) - len(after)]
    changed = [message | {"content": f"~{text_of(message)}"} for message in after] or [{"role": "user", "content": "~"}]
    other = render([*before, *changed], True)[now[1] :]
    same = next((at for at, pair in enumerate(zip(rest, other, strict=False)) if pair[0] != pair[1]), 0)
    ends = [(rest.find(stop, 0, same), stop) for stop in stops if stop in rest[:same]]
    if len(ends) != 1 or rest[:same].count(ends[0][1]) != 1:
        raise NotJoined("the end of an answer is not marked by the token that ends it")
    end, stop = ends[0]
    answer = rest[:end]
    if text_of(before[-1]).strip() not in answer or not said[: said.find(stop)].endswith(answer):
        raise NotJoined("an earlier answer is written in another way once the conversation goes on")
    return rest[end:]
