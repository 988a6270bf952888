"""Special tokens in the text of answers. Pure.

The output of a chat template is tokenized as a whole, so `<|im_end|>` within an answer would become
the token that ends an answer, and `<|im_start|>user` the start of a turn that never happened. Such
answers are not learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from workers.lib.errors import JobError
from workers.lib.messages import arguments_of, text_of

Row = TypeVar("Row")
AROUND = 30  # characters shown on either side


def control_texts(tokenizer: Any, stop_ids: Collection[int] = ()) -> list[str]:
    """The texts that a tokenizer (of transformers) reads as special tokens or as the end of an
    answer. Other added tokens, such as `<tool_call>` and `<think>` of some models, are part of
    answers.
    """
    added = tokenizer.added_tokens_decoder.items()
    special = [str(token) for at, token in added if token.special or at in stop_ids]
    return sorted({text for text in [*special, *tokenizer.all_special_tokens] if text.strip()})


def control_text_in(said: str | dict, texts: Sequence[str]) -> str:
    """The first of `texts` in an answer or a message of an assistant; "" if there is none."""
    parts = list(_parts(said))
    return next((text for text in texts if any(text in part for part in parts)), "")


def _parts(said: Any, name: str = "") -> Iterator[str]:
    """All texts in a message. Arguments that are JSON text are also parsed, since a template may
    render them as an object.
    """
    if isinstance(said, str):
        yield said
        if name == "arguments" and (found := arguments_of(said)):
            yield from _parts(found)
    elif isinstance(said, dict):
        yield text_of(said)  # pieces of one text, joined
        for key, value in said.items():
            yield str(key)
            yield from _parts(value, key)
    elif isinstance(said, list):
        for item in said:
            yield from _parts(item)


def assistants(messages: Iterable[dict]) -> list[dict]:
    return [message for message in messages if message.get("role") == "assistant"]


def without_control_texts(
    rows: Sequence[Row],
    said: Callable[[Row], Iterable[str | dict]],
    texts: Sequence[str],
    warn: Callable[[str], None],
    *,
    what: str = "examples",
    required: bool = True,
) -> list[Row]:
    """The rows without control tokens in their answers; `said` returns a row's answers. `warn` is
    called with the number of rows left out and an example. Raises JobError if none is left although
    some are `required`.
    """
    kept, shown = list[Row](), list[str]()
    for row in rows:
        found = next(
            ((text, one) for one in said(row) if (text := control_text_in(one, texts))), None
        )
        if found:
            shown.append(_shown(*found))
        else:
            kept.append(row)
    if not shown:
        return kept
    sentence = (
        f"{len(shown):,} of {len(rows):,} {what} left out: an answer contains a control token of"
        f" the model as text, such as {shown[0]}."
    )
    if required and not kept:
        raise JobError(
            f"{sentence} No {what} are left to learn from. Remove these tokens from the answers."
        )
    warn(sentence)
    return kept


def _shown(token: str, said: str | dict) -> str:
    """The token with a little of what is around it."""
    text = next(part for part in _parts(said) if token in part)
    at = text.index(token)
    return f"{token} in “{' '.join(text[max(0, at - AROUND) : at + len(token) + AROUND].split())}”"
