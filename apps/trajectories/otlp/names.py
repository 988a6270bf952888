"""What the name of an attribute, or of a member of an object, says of its value: by its words, in
any spelling and behind any prefix. Values are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from msgspec import Struct

from apps.trajectories.otlp.conventions import is_known
from workers.lib.token_usage import is_part, is_side

MANY_NAMES, MANY_SPANS = 10_000, 256
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
NUMBERED = re.compile(r"(.+?\.)\d{1,4}\.")

# The last words of the names of each field, the best of what went in and came out first.
FIELDS = {
    "given": "messages, contents, input, inputs, prompt, prompts, request, arguments, args, arg, "
    "kwargs, question, query, params, parameters, history",
    "answer": "output, outputs, response, completion, completions, result, results, answer, "
    "reply, replies, generation, generations, choices, candidates, generated, return",
    "model": "model name, model id, model version, model",
    "provider": "provider",
    "instructions": "system prompt, prompt system, system instruction, system message, "
    "instructions",
    "usage": "usage, usage metadata, token counts, token count, metrics",
    "tools": "tools, functions, tool definitions, tool schemas, tool specs",
    "tool_name": "tool name, definition name",
    "function_name": "function name",
    "call_id": "call id, use id, tool id, function id",
    "schema": "definition schema, input schema, parameters schema, args schema, tool schema",
    "description": "tool description, function description, definition description",
    "agent_name": "agent name",
    "session": "session id, conversation id, thread id, chat id",
    "user": "user id",
    "about": "metadata, properties, config, settings, options, state, snapshot",
    "name": "name",
    "error": "error, error message, exception message",
}
TAILS = {
    tuple(tail.split()): (field, rank)
    for field, tails in FIELDS.items()
    for rank, tail in enumerate(tails.split(", "))
}
VALUES = ("given", "answer")
OBJECTS = ("usage", "tools", "about", "instructions")
NEUTRAL = ("content", "text", "value", "values", "body", "data", "json", "raw", "full", "message")
COUNTED = {"token", "tokens", "usage"}
# Of tokens, not counts of them: limits, and what had been counted when something was only begun.
LIMITS = {"budget", "limit", "max", "min", "remaining", "partial"}
ASKED = {"request", "config", "options", "parameters", "params", "settings"}
# What the words of a value say of the kind of a span, the first that has one of them.
KINDS = {
    "other": "embedding embeddings embed memory",
    "tool": "tool function tools toolcall",
    "retriever": "retriever retrieval rerank reranker",
    "guardrail": "guardrail guardrails",
    "agent": "agent subagent",
    "model": "llm chat generation generate completion completions model inference",
    "frame": "workflow flow chain pipeline graph crew task run",
}
KIND_OF = {word: kind for kind, words in reversed(KINDS.items()) for word in words.split()}
MAX_KIND_WORDS = 4
KIND_WORDS = ("kind", "type", "subtype", "operation", "category")
OF_A_SPAN = ("span", "observation", "step", "node")  # whose type is the span's own
OF_ITS_OWN = ("llm", "tool", "agent", "retriever", "guardrail")  # as in `llm.input`
WEAK = 2  # of a type that may be anything's
# OpenTelemetry's conventions for other spans: they say nothing of a model call.
OTHERS = (
    *("code", "db", "faas", "feature_flag", "graphql", "http", "messaging", "net"),
    *("network", "process", "rpc", "thread", "url"),
)
CONTEXT = frozenset(("session", "user", "about"))
# Fields of which a span that no convention reads needs one to be a step.
SIGNS = frozenset(("given", "answer", "count", "usage", "tool_name", "kind", "model"))
# Fields that only say something beside others.
ASIDE = frozenset(("kind", "name", "description", "provider"))


class Sign(Struct, frozen=True):
    """What a name says: of which `field` its value is, how well, and which count."""

    field: str = ""
    rank: int = 0
    count: str = ""
    group: str = ""  # what it has in common with the names beside it
    kind: str = ""  # which the word before says (`llm.input`)


ELSEWHERE = Sign("elsewhere")


@lru_cache(MANY_NAMES)
def words_of(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in WORDS.findall(name))


@lru_cache(MANY_NAMES)
def sign_of(name: str) -> Sign:
    words = words_of(name)
    first, _, rest = name.partition(".")
    if rest and first in OTHERS:
        return ELSEWHERE
    if COUNTED.intersection(words) and (sign := _counted(words)):
        return sign
    for size in (2, 1):
        field, _ = TAILS.get(words[-size:], ("", 0))
        if field == "call_id" and not {"tool", "function"} & set(words):
            break
        if field == "model" and not {"response", "answer", "output"}.isdisjoint(words):
            field = "answered_by"
        if field and field not in VALUES:
            return Sign(field, len(words), group=_before(name))
    if (rank := _kind_rank(words)) is not None:
        return Sign("kind", rank, group=_before(name))
    while len(words) > 1 and words[-1] in NEUTRAL:
        words = words[:-1]
    if words[-1:] == ("messages",) and TAILS.get(words[-2:-1], ("",))[0] == "answer":
        words = words[:-1]
    field, rank = TAILS.get(words[-1:]) or TAILS.get(words[-2:], ("", 0))
    if field in OBJECTS:
        return Sign(field, len(words), group=_before(name))
    return Sign(field, rank, kind=_kind_before(words[:-1])) if field in VALUES else Sign()


def _kind_before(words: tuple[str, ...]) -> str:
    """The kind that the word before says, also with a call between (`tool_call_args`)."""
    if words[-1:] == ("call",):
        words = words[:-1]
    return kind_in_words(set(words[-1:]).intersection(OF_ITS_OWN))


def _kind_rank(words: tuple[str, ...]) -> int | None:
    """How well a name says that its value is the kind of the span; None if it does not."""
    last, before = words[-1:], words[-2:-1]
    if last and last[0] in (*KIND_WORDS, "attributes") and before and before[0] in OF_A_SPAN:
        return 0
    if last == ("subtype",):
        return 1
    return WEAK if last and last[0] in KIND_WORDS else None


def _before(name: str) -> str:
    """The namespace of a name: all before its last part."""
    cut = max(name.rfind(sign) for sign in ".:/_")
    return name[: cut + 1]


def _counted(words: tuple[str, ...]) -> Sign | None:
    """A count of tokens: by the longest end of its name that is one. What a request allows is
    none.
    """
    if not LIMITS.isdisjoint(words):
        return None
    start = max((at + 1 for at, word in enumerate(words) if word == "usage"), default=0)
    for at in range(max(start, len(words) - 4), len(words)):
        name = "".join(words[at:])
        if not start and not ASKED.isdisjoint(words[:at]):
            return None
        if is_part(name) or is_side(name) or name == "totaltokens":
            return Sign("count", count=name, group=".".join(words[:at]))
    return None


def kind_in_words(words: Iterable[str]) -> str:
    distinct = set(words)
    kinds = {KIND_OF[word] for word in distinct if word in KIND_OF}
    if len(distinct) > MAX_KIND_WORDS:
        return ""
    return next((kind for kind in KINDS if kind in kinds), "")


class Plan(Struct, frozen=True):
    """The attributes of a span by what their names say, the best first, under "" those that say
    nothing; `lists`: the beginnings of those that are one list with a name for each member.
    """

    fields: dict[str, tuple[str, ...]]
    lists: tuple[str, ...]
    is_of_use: bool  # what is left says more than what only helps others

    def names(self, field: str, kind: str) -> list[str]:
        """Those of a field, the ones of the span's own kind first; of a model call none that are a
        tool's by their name, and the other way round.
        """
        strange = {"model": "tool", "tool": "model"}.get(kind)
        names = [name for name in self.fields.get(field, ()) if sign_of(name).kind != strange]
        return sorted(names, key=lambda name: sign_of(name).kind != kind)

    @property
    def has_signs(self) -> bool:
        return bool(self.lists) or not self.fields.keys().isdisjoint(SIGNS)


@lru_cache(MANY_SPANS)
def plan_of(names: tuple[str, ...], kind: str, in_events: tuple[str, ...] = ()) -> Plan:
    """What the names of a span's attributes and of its events' say. `kind`: as a convention says
    it, whose attributes are left out; "" if none does.
    """
    left = [name for name in names if not (kind and is_known(name, kind))]
    lists = tuple(dict.fromkeys(_lists_in(left)))
    fields: dict[str, list[tuple[int, int, str]]] = {}
    for place, name in enumerate((*left, *in_events)):
        sign = sign_of(name)
        if sign is not ELSEWHERE and not name.startswith(lists):
            fields.setdefault(sign.field, []).append((sign.rank, place, name))
    said = fields.keys() - {""}
    if not kind:
        said &= SIGNS | CONTEXT
    elif kind in ("model", "agent", "tool"):
        said -= ASIDE
    else:
        said &= CONTEXT
    ranked = {field: tuple(name for *_, name in sorted(some)) for field, some in fields.items()}
    return Plan(ranked, lists, bool(lists or said))


def _lists_in(names: Iterable[str]) -> Iterator[str]:
    """The beginnings of messages and tools that have a name for each member."""
    for name in names:
        match = NUMBERED.match(name) if name.endswith(("role", "name")) else None
        if match and (name.endswith("role") or sign_of(match[1]).field == "tools"):
            yield match[1]
