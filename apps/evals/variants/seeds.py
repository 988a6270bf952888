"""The source of a variant: a task whose values can be replaced, and the checks that a variant has
to pass. Pure.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from apps.evals.formats.rows import Bad, checked_expected, checked_messages, checked_tools
from apps.trajectories.arguments import Checker
from workers.lib.messages import is_prompt, last_request, text_of

PARAPHRASE, ARGUMENTS, EDGE = "paraphrase", "arguments", "edge"
SHORTEST = 2  # characters of a text that is searched for in a request


@dataclass(frozen=True)
class Seed:
    """The fields of a task that a variant may change; a variant has the same ones."""

    key: str
    messages: list[dict]
    expected: dict
    tools: list[dict] = field(default_factory=list)
    recorded: list[dict] = field(default_factory=list)
    kind: str = ""

    @property
    def calls(self) -> list[dict]:
        """The expected calls as {tool, args}; none where an answer is expected."""
        return self.expected.get("calls", [self.expected] if "tool" in self.expected else [])

    @property
    def values(self) -> list[Any]:
        """Every text and number in the arguments of the expected calls."""
        return list(leaves([call["args"] for call in self.calls]))

    @property
    def accepted(self) -> list[Any]:
        """The same of arguments that a call may leave out."""
        return [
            value
            for call in self.calls
            for name, values in call.get("accept", {}).items()
            if name not in call["args"]
            for value in leaves(values)
        ]

    @property
    def request(self) -> str | None:
        """The user's last message; None if it is not plain text."""
        at = last_request(self.messages)
        content = None if at is None else self.messages[at].get("content")
        return content if isinstance(content, str) else None

    def with_request(self, request: str) -> Seed:
        """Requires a plain-text request."""
        messages, at = copy.deepcopy(self.messages), last_request(self.messages)
        assert at is not None, "with_request on a seed without a request"
        messages[at]["content"] = request
        return replace(self, messages=messages)

    def with_arguments(self, arguments: list[dict]) -> Seed:
        """New arguments for each call, exchanged in the other messages and in recorded results as
        well.

        A system message is the harness's and stays. Raises Bad if the form or a type differs, or if
        an old value would get two new ones.
        """
        changes: dict[str, str] = {}
        for call, new in zip(self.calls, arguments, strict=True):
            for one, other in _aligned(call["args"], new):
                if changes.setdefault(str(one), str(other)) != str(other):
                    raise Bad("ground_truth", f"gives “{one}” two new values.")
        exchange = exchanger({old: new for old, new in changes.items() if old != new})
        messages = [
            message if is_prompt(message) else exchange(message) for message in self.messages
        ]
        expected = _expected(self.expected, arguments)
        return replace(self, messages=messages, expected=expected, recorded=exchange(self.recorded))


def leaves(value: Any) -> Iterator[Any]:
    """The texts and numbers inside a value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _aligned(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """(old, new) of every text and number inside. Raises Bad if the form or a type differs."""
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


def _expected(expected: dict, arguments: list[dict]) -> dict:
    """Alternative accepted values of a changed argument belong to the seed, so they are removed."""
    if "calls" in expected:
        pairs = zip(expected["calls"], arguments, strict=True)
        return expected | {"calls": [_expected(call, [new]) for call, new in pairs]}
    if "args" not in expected:
        return expected
    made = expected | {"args": arguments[0]}
    if "accept" in expected:
        old, new = expected["args"], made["args"]
        made["accept"] = {
            k: values for k, values in expected["accept"].items() if old.get(k) == new.get(k)
        }
    return made


def word(value: str) -> str:
    """The pattern of a value that stands as a word of its own: neither in x^2 nor in 2.5 is there a
    2.
    """
    return rf"(?<![\w.^]){re.escape(value)}(?!\w|\.\d)"


def count(value: Any, text: str) -> int:
    return len(re.findall(word(str(value)), text, re.IGNORECASE))


def exchanger(changes: dict[str, str]) -> Callable[[Any], Any]:
    """Exchanges values, as words of their own, inside texts and numbers of JSON. `changes` are both
    as text.
    """
    long = [
        name
        for name in sorted(changes, key=len, reverse=True)
        if len(name) >= SHORTEST or name.isdigit()
    ]
    pattern = re.compile("|".join(map(word, long)) or r"(?!)", re.IGNORECASE)
    lower = {name.casefold(): value for name, value in changes.items()}

    def exchange(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: exchange(item) for name, item in value.items()}
        if isinstance(value, list):
            return [exchange(item) for item in value]
        if isinstance(value, str):
            return pattern.sub(lambda match: lower.get(match[0].casefold(), match[0]), value)
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in changes:
            with contextlib.suppress(ValueError):  # 20260304 is a number and a date
                return type(value)(changes[str(value)])
        return value

    return exchange


def faults(seed: Seed, variant: Seed) -> list[str]:
    """Why a variant is not a valid task; empty if it is."""
    try:
        checked_messages(variant.messages)
        checked_tools(variant.tools)
        checked_expected(variant.expected)
    except Bad as error:
        return [str(error)]
    return [*_unknown_values(seed, variant), *_broken_calls(seed, variant)]


def _unknown_values(seed: Seed, variant: Seed) -> Iterator[str]:
    """Expected values that the conversation does not say, unless the seed's did not say the very
    same one either.
    """
    before, after = _all_text(seed.messages), _all_text(variant.messages)
    derived = {str(value) for value in seed.values if not count(value, before)}
    for value in variant.values:
        if str(value) and not count(value, after) and str(value) not in derived:
            yield f"The request does not say {json.dumps(value, ensure_ascii=False)}."


def _all_text(messages: list[dict]) -> str:
    return "\n".join(text_of(message) for message in messages)


def _broken_calls(seed: Seed, variant: Seed) -> Iterator[str]:
    """Expected calls that break their tool's schema. What was broken in the seed already was
    confirmed by a person.
    """
    checker, before = Checker(variant.tools), Checker(seed.tools)
    for call, old in zip(variant.calls, seed.calls, strict=True):
        if variant.tools and not before.problems(old["tool"], old["args"]):
            yield from checker.problems(call["tool"], call["args"])
