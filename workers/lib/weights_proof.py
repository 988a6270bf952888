"""Proves that a server has the right weights, by the log-probabilities of one fixed text. Light: no
torch.

A server's arithmetic differs slightly from the one that computed the reference, so absolute values
can only confirm the base. Which adapter serves shows in the move from the base, with both measured
on the same server: there the differences in arithmetic cancel, and the move is compared with that
of every known version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from workers.lib.adapter_serving import (
    LEAST_MOVE,
    NOTICEABLE,
    PROVABLE,
    SAME_MODEL,
    BrokenLogprobs,
    asker_of,
    difference,
    mean_distance,
    norm,
    text_logprobs,
)
from workers.lib.chat_client import ChatClient, ChatError, ChatServer
from workers.lib.engines import Sampling
from workers.lib.errors import JobError
from workers.lib.token_policy import completion_body

# Prose, a dialogue, a tool call and code: an adapter mostly changes what it was trained to write.
TEXT = (
    "The customer writes that order 4711 arrived damaged and asks for a refund.\nUser: Please move"
    ' my meeting with Dana to Thursday at 3 pm and tell her why.\nAssistant: {"name":'
    ' "calendar_update", "arguments": {"event_id": "00000217", "field": "start", "value":'
    ' "2023-11-30 15:00:00"}}\nTool: The event was updated.\nAssistant: Done. I moved it and sent'
    " Dana a message.\ndef refund(order: dict) -> float:\n    return round(order['price'] *"
    " order['quantity'], 2)\n"
)
CANARY = "Reply with one word: ready."
CANARY_TOKENS = 16
NOT_OFFERED = (400, 404, 405, 422, 501)  # statuses of a server that does not support such a request
# another version must be this much nearer, relative to the distance, to count as the one being
# served
NEAREST = 0.8

Level = Literal["weights", "same as first served", "moves its base", "answers", "acknowledged"]


class WrongWeights(JobError):
    """The server does not have the version's weights; the sentence says what it seems to have."""


@dataclass(frozen=True)
class Reference:
    """The log-probabilities of a text [len(ids) - 1]; `base` are those of its base model, empty for
    a base itself.
    """

    ids: list[int]
    logprobs: list[float]
    base: list[float] = field(default_factory=list)
    computed: bool = True

    @property
    def move(self) -> list[float]:
        return difference(self.logprobs, self.base)


@dataclass(frozen=True)
class Asked:
    """A model on a server. `base_served_as`: its base's name there, "" if it is a base itself or
    the name is unknown. `adapter`: the name under which the adapter was loaded, "" if it is not an
    adapter.
    """

    server: ChatServer
    kind: str
    base_served_as: str = ""
    adapter: str = ""


@dataclass(frozen=True)
class Measured:
    """A server's answer to the canary prompt, and its log-probabilities of the text if it supports
    them; otherwise `why_not`.
    """

    canary: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    base: list[float] = field(default_factory=list)
    why_not: str = ""


@dataclass(frozen=True)
class Finding:
    """What was proved, and what was not, in `sentence`. Numbers in nats."""

    level: Level
    sentence: str
    canary: str = ""
    gap: float | None = None  # mean |Δ log-probability| from the reference
    move: float | None = (
        None  # the share of the adapter's move from its base that the server shows; 1 is all of it
    )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(asked: Asked, ids: Sequence[int] | None, *, with_text: bool = True) -> Measured:
    """`ids`: those of the reference; without a reference, the server tokenizes TEXT. Raises
    JobError if the server does not answer.
    """
    canary = _canary(asked.server)
    if not with_text or asked.kind == "openai":
        return Measured(canary, why_not="this kind of server gives no log-probabilities of a text")
    known, why_not = _offered(lambda: list(ids or _ids(asked)))
    base, why_not = (
        _offered(lambda: _logprobs(_base_of(asked), known))
        if known and asked.base_served_as
        else ([], why_not)
    )
    values, why_not = _offered(lambda: _logprobs(asked, known)) if not why_not else ([], why_not)
    if base and not values:
        raise WrongWeights(
            f"It gives log-probabilities of a text as {asked.base_served_as}, but none as"
            f" {asked.server.model}: {why_not}"
        )
    return Measured(canary, known, values, base, why_not)


def _offered(ask: Callable[[], list[Any]]) -> tuple[list[Any], str]:
    """(the values, or why there are none): a server need not support this. Raises JobError if it
    fails, or returns invalid numbers.
    """
    try:
        return ask(), ""
    except BrokenLogprobs:
        raise
    except ChatError as error:
        if error.status in NOT_OFFERED:
            return [], str(error)
        raise
    except JobError as error:
        return [], str(error)


def _base_of(asked: Asked) -> Asked:
    return replace(asked, server=replace(asked.server, model=asked.base_served_as), adapter="")


def _canary(server: ChatServer) -> str:
    """The model's answer on one line. Raises JobError."""
    question = {
        "messages": [{"role": "user", "content": CANARY}],
        "max_tokens": CANARY_TOKENS,
        "temperature": 0,
    }
    with ChatClient(server) as client:
        answer = client.ask(question)
    if isinstance(named := answer.get("model"), str) and named not in (
        server.model,
        *server.model.rsplit(":", 1)[-1:],
    ):
        raise WrongWeights(f"It answered as “{named[:80]}” when “{server.model}” was asked.")
    return " ".join(str(answer["choices"][0]["message"].get("content") or "").split())[:200]


def _completions(asked: Asked) -> ChatServer:
    if asked.kind == "sglang":
        return replace(asked.server, protocol="generate", adapter=asked.adapter)
    return asked.server


def _ids(asked: Asked) -> list[int]:
    with asker_of(_completions(asked)) as client:
        body = completion_body([], Sampling(0.0), [], 0, 1) | {"prompt": TEXT}
        found = client.ask(body)["choices"][0].get("prompt_token_ids")
    if not isinstance(found, list) or len(found) < 2 or not all(type(one) is int for one in found):
        raise JobError(f"{client.where} returned no token ids of its prompt")
    return found


def _logprobs(asked: Asked, ids: Sequence[int]) -> list[float]:
    with asker_of(_completions(asked)) as client:
        return text_logprobs(client, ids, completion_body(ids, Sampling(0.0), [], 0, 1))[0]


# Judging the measurements


def judge(
    name: str,
    measured: Measured,
    reference: Reference | None,
    others: Mapping[str, Reference],
    *,
    is_adapter: bool,
) -> Finding:
    """Judge a measurement. `name`: the version's name; `others`: the references of versions that it
    must not be mistaken for, for the same text.

    Raises WrongWeights.
    """
    if not measured.logprobs:
        said = (
            f"It answers. That the weights are those of {name} was not proved:"
            f" {measured.why_not.rstrip('.')}."
        )
        return Finding("answers", said, measured.canary)
    _require_numbers(measured)
    if reference is None or reference.ids != measured.ids:
        return _without_reference(name, measured, is_adapter)
    gap = mean_distance(measured.logprobs, reference.logprobs)
    if measured.base and reference.base:
        base_gap = mean_distance(measured.base, reference.base)
        if base_gap > SAME_MODEL:
            raise WrongWeights(
                f"It serves another base model than {name} was made on: the log-probabilities of a"
                f" fixed text differ by {base_gap:.2g} on average without the adapter."
            )
    move, doubt = None, ""
    if measured.base and reference.base:
        move, doubt = _moved(name, measured, reference, others)
    if gap > SAME_MODEL:
        raise WrongWeights(
            f"It serves other weights than {name}: the log-probabilities of a fixed text differ by"
            f" {gap:.2g} on average, where {SAME_MODEL:g} is the most that arithmetic explains."
        )
    whose = (
        "computed from its weights" if reference.computed else "recorded when it was first served"
    )
    said = (
        f"The log-probabilities of a fixed text of {len(measured.ids)} tokens are those {whose},"
        f" {_within(gap)} on average"
    )
    if move is not None:
        said += f"; {move:.0%} of the adapter's move from its base"
    return Finding(
        "weights" if reference.computed else "same as first served",
        f"{said}.{doubt}",
        measured.canary,
        gap,
        move,
    )


def _within(gap: float) -> str:
    """A distance in nats, for people."""
    return f"±{gap:.2g}" if gap >= 1e-4 else "to within 0.0001"


def _require_numbers(measured: Measured) -> None:
    """Raises WrongWeights for NaN: no comparison with NaN is ever true, so it would hide any
    difference.
    """
    wanted = len(measured.ids) - 1
    for values in filter(None, (measured.logprobs, measured.base)):
        if len(values) != wanted or not all(map(math.isfinite, values)):
            raise WrongWeights(
                f"It gave no log-probability for each of the {wanted} tokens of a fixed text:"
                f" {sum(map(math.isfinite, values))} numbers came."
            )


def _moved(
    name: str, measured: Measured, reference: Reference, others: Mapping[str, Reference]
) -> tuple[float | None, str]:
    """(the share of the reference's move that the server made, what cannot be distinguished).
    Raises WrongWeights.
    """
    theirs, ours = difference(measured.logprobs, measured.base), reference.move
    noise = norm(difference(measured.base, reference.base))
    least = max(NOTICEABLE * noise, PROVABLE * len(ours) ** 0.5)
    if norm(ours) <= least:
        return None, f" {name} moves this text too little to be told from its base."
    move = sum(map(float.__mul__, theirs, ours)) / norm(ours) ** 2
    if move < 0.5:
        raise WrongWeights(
            f"It does not serve {name}: the adapter moves the log-probabilities of a fixed text by"
            f" {norm(ours) / len(ours) ** 0.5:.2g}, of which the server shows {max(0.0, move):.0%}."
            f" It seems to serve {_nearest(theirs, ours, others)}."
        )
    alike = []
    for other, given in others.items():
        if given.ids != reference.ids or not given.base:
            continue
        if norm(difference(given.move, ours)) <= least:
            alike.append(other)
        elif norm(difference(theirs, given.move)) < NEAREST * norm(difference(theirs, ours)):
            raise WrongWeights(
                f"It serves {other} under the name of {name}, by the log-probabilities of a fixed"
                " text."
            )
    return move, f" This text does not tell it from {', '.join(alike)}." if alike else ""


def _nearest(theirs: list[float], ours: list[float], others: Mapping[str, Reference]) -> str:
    """The version that a server seems to have, by its move; "another adapter" if none is near."""
    known = {"the base without an adapter": norm(theirs)}
    for name, other in others.items():
        if other.base and len(other.base) == len(theirs):
            known[name] = norm(difference(theirs, other.move))
    nearest = min(known, key=lambda name: known[name])
    return nearest if known[nearest] < NEAREST * norm(ours) else "another adapter"


def _without_reference(name: str, measured: Measured, is_adapter: bool) -> Finding:
    if not is_adapter or not measured.base:
        said = (
            "It answers, and its log-probabilities of a fixed text are recorded now. There was"
            f" nothing to compare those of {name} with."
        )
        return Finding("answers", said, measured.canary)
    moved = difference(measured.logprobs, measured.base)
    if norm(moved) <= LEAST_MOVE * len(moved) ** 0.5:
        raise WrongWeights(
            f"It answers as its base does: the adapter {name} is not applied, or changes nothing."
        )
    said = (
        "An adapter serves: it moves the log-probabilities of a fixed text by"
        f" {norm(moved) / len(moved) ** 0.5:.2g}. That it is {name}'s "
    )
    said += (
        "was not proved, since there is nothing to compare with; what it gives the text is recorded"
        " now."
    )
    return Finding("moves its base", said, measured.canary)
