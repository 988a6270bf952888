"""From what a model wrote to a variant of the seed that it was asked about. Pure; hostile input.

The model says the new request and the calls that are right for it. Where it was to keep the calls, they must be the
seed's; where it was to change arguments, the tools, their order and the form of the arguments must be. What else the
conversation and the recorded results say of a changed value is changed with it; the system's words stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from apps.evals.formats.rows import Bad, want
from apps.evals.variants.templates import ARGUMENTS, EDGE, KINDS, PARAPHRASE, SHORTEST, Seed, exchanger, with_request

WRITTEN = {kind: KINDS[kind] for kind in (PARAPHRASE, ARGUMENTS, EDGE)}
MAX_REQUEST = 20_000  # characters
SYSTEM = ("system", "developer")


def calls_of(expected: dict) -> list[dict]:
    """The expected calls as NeMo Gym's {name, arguments}; none where an answer is expected."""
    calls = expected.get("calls", [expected] if "tool" in expected else [])
    return [{"name": call["tool"], "arguments": call["args"]} for call in calls]


def may_be_asked_about(seed: Seed) -> bool:
    """Whether there is a request in plain text to say otherwise."""
    return with_request(seed, str) is not None


def key_of(row: Any) -> str:
    """The seed that a row is about. Raises Bad."""
    about = want(want(row, dict, "row", "").get("verifier_metadata"), dict, "verifier_metadata", "")
    return want(about.get("key"), str, "verifier_metadata.key", "")


def variant(seed: Seed, row: dict) -> Seed:
    """The variant in a row of workers.write_variants. Raises Bad."""
    kind = want(want(row.get("verifier_metadata"), dict, "verifier_metadata", "").get("kind"), str, "kind", "")
    if kind not in WRITTEN:
        raise Bad("kind", "is none that was asked for.")
    request, calls = _request(row), want(row.get("ground_truth"), list, "ground_truth", "Give a list of calls.")
    _storable([request, calls])
    before = calls_of(seed.expected)
    if kind != ARGUMENTS and calls != before:
        raise Bad("ground_truth", "differs from the seed's calls.")
    base = _with_arguments(seed, before, calls) if kind == ARGUMENTS else seed
    made = with_request(base, lambda _: request)
    if made is None or request == _last(seed):
        raise Bad("request", "is the seed's.")
    return replace(made, kind=kind)


def _request(row: dict) -> str:
    asked = want(row.get("responses_create_params"), dict, "responses_create_params", "")
    messages = want(asked.get("input"), list, "input", "")
    last = want(messages[-1] if messages else None, dict, "input", "")
    text = want(last.get("content"), str, "input.content", "Give text.").strip()
    if not text or len(text) > MAX_REQUEST:
        raise Bad("request", f"is empty or longer than {MAX_REQUEST:,} characters.")
    return text


def _storable(value: Any) -> None:
    """PostgreSQL's JSON has neither NUL nor half of a surrogate pair nor NaN."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise Bad("row", "has characters or numbers that cannot be stored.") from error
    if "\\u0000" in text:
        raise Bad("row", "has a NUL character.")


def _last(seed: Seed) -> Any:
    return [message.get("content") for message in seed.messages if message.get("role") == "user"][-1]


def _with_arguments(seed: Seed, before: list[dict], calls: list[dict]) -> Seed:
    """The seed with the arguments of the calls, there and in all but the system's words. Raises Bad."""
    if [_name(call) for call in calls] != [call["name"] for call in before]:
        raise Bad("ground_truth", "calls other tools than the seed, or in another order.")
    if calls == before:
        raise Bad("ground_truth", "changes no argument.")
    changes: dict[str, str] = {}
    for one, other in zip(before, calls, strict=True):
        for old, new in _aligned(one["arguments"], other.get("arguments")):
            if changes.setdefault(str(old), str(new)) != str(new):
                raise Bad("ground_truth", f"gives “{old}” two new values.")
    changes = {old: new for old, new in changes.items() if old != new and len(old) >= SHORTEST}
    exchange = exchanger(changes) if changes else lambda value: value
    messages = [message if message.get("role") in SYSTEM else exchange(message) for message in seed.messages]
    return replace(seed, messages=messages, expected=_expected(seed.expected, calls), recorded=exchange(seed.recorded))


def _name(call: Any) -> Any:
    return want(call, dict, "ground_truth", "Give {“name”, “arguments”}.").get("name")


def _aligned(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """(old, new) of every text and number inside; the form and the types must be the same. Raises Bad."""
    if type(old) is not type(new):
        raise Bad("ground_truth", "has arguments of another type than the seed's.")
    if isinstance(old, dict):
        if old.keys() != new.keys():
            raise Bad("ground_truth", "has other arguments than the seed's.")
        for name in old:
            yield from _aligned(old[name], new[name])
    elif isinstance(old, list):
        if len(old) != len(new):
            raise Bad("ground_truth", "has longer or shorter lists than the seed's.")
        for one, other in zip(old, new, strict=True):
            yield from _aligned(one, other)
    elif isinstance(old, str | int | float) and not isinstance(old, bool):
        yield old, new


def _expected(expected: dict, calls: list[dict]) -> dict:
    """The seed's with new arguments. Other accepted values of a changed argument are the seed's: they go."""
    if "calls" in expected:
        pairs = zip(expected["calls"], calls, strict=True)
        return expected | {"calls": [_expected(call, [new]) for call, new in pairs]}
    made = expected | {"args": calls[0]["arguments"]}
    if "accept" in expected:
        old, new = expected["args"], made["args"]
        made["accept"] = {k: values for k, values in expected["accept"].items() if old.get(k) == new.get(k)}
    return made
