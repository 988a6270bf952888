"""Reads the `usage` object of any provider: how many tokens went in and came out, which parts of
them were cached or reasoning, and the cost if it is reported. Pure and light; input is untrusted.

Providers differ in what the count of the input includes. OpenAI, Gemini and most others include
what was read from a cache. Anthropic and Bedrock count it apart, and so do Langfuse's buckets. A
reported total decides in doubtful cases, and parts that are larger than the whole are never in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_TOKENS = 2_000_000_000
MAX_COST_USD = 1_000_000.0
MAX_MEMBERS = 200

CACHE_READ, CACHE_WRITE, REASONING = "cache_read_tokens", "cache_write_tokens", "reasoning_tokens"
# Names without case, underscores, hyphens and dots.
INPUT = (
    "inputtokens",
    "prompttokens",
    "prompttokencount",
    "inputtokencount",
    "promptevalcount",
    "requesttokens",
    "input",
    "prompt",
)
OUTPUT = (
    "outputtokens",
    "completiontokens",
    "candidatestokencount",
    "responsetokencount",
    "outputtokencount",
    "generatedtokencount",
    "evalcount",
    "responsetokens",
    "output",
    "completion",
)
# What others call them: `num_prompt_tokens` (vLLM), `prompt_n` and `tokens_evaluated` (llama.cpp),
# `prefill_tokens` (TGI), `inputTextTokenCount` (Titan).
LIKE_INPUT = re.compile(
    r"prefill|(num|n|total)?(input|prompt|prefill)(text|eval)?(tokens?(count|n)|tokens|n|count)"
    r"|tokens(in|input|prompt|evaluated)"
)
LIKE_OUTPUT = re.compile(
    r"(num|n|total)?(output|completion|generated|generation|predicted|eval|new)(text)?"
    r"(tokens?(count|n)|tokens|n|count)|tokens(out|output|completion|generated|predicted)"
)
NAMESPACE = re.compile(r"^(gen_ai|llm|ai)\.(usage|token_count)\.")
TOTAL = ("totaltokens", "totaltokencount", "total")
COST = ("costusd", "totalcostusd", "cost", "totalcost", "estimatedcost")
APART = (
    "cachereadinputtokens",
    "cachecreationinputtokens",
    "cachewriteinputtokens",
)  # beside Anthropic's `input_tokens`
INSIDE = ("tokens", "billedunits", "usage", "usagemetadata")  # Cohere and whole responses
GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
MAX_DEPTH = 4  # of objects around the counts: a response, a client's `llmOutput`
SIDES = ((INPUT, LIKE_INPUT), (OUTPUT, LIKE_OUTPUT))
PARTS = (
    (CACHE_READ, re.compile("cacheread|cached|cachehit")),
    (CACHE_WRITE, re.compile("cachecreation|cachewrit")),
    (REASONING, re.compile("reasoning|thoughts|thinking")),
)
NO_TOKENS = re.compile("cost|price|time|duration|request|byok|unit|cachemiss")


@dataclass
class TokenUsage:
    """None is unknown. `details`: the tokens of parts, by CACHE_READ, CACHE_WRITE and REASONING."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    details: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, Any]:
        """What is known of input, output and cost."""
        counts = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": self.cost_usd,
        }
        return {name: value for name, value in counts.items() if value is not None}


def read_usage(usage: Any, *, is_inclusive: bool = False) -> TokenUsage:
    """What a usage object says. `is_inclusive`: its convention says that the input includes what
    was cached.
    """
    if not isinstance(usage, dict):
        return TokenUsage()
    members = _members_with_counts(usage, MAX_DEPTH) or _members(usage)
    details = {name: count for name, pattern in PARTS if (count := _part(members, pattern))}
    input_name, output_name = (_first_name(members, names, like) for names, like in SIDES)
    given, made = (_count(members.get(name)) for name in (input_name, output_name))
    total = next(
        (count for name in TOTAL if (count := _count(members.get(name))) is not None), None
    )
    found = TokenUsage(given, made, _cost(members), details)
    if given is not None:
        found.input_tokens = min(
            given + _beside(members, input_name, given, made, total, is_inclusive), MAX_TOKENS
        )
    if made is not None:
        found.output_tokens = min(
            made + _unspoken(members, output_name, found.input_tokens, made, total), MAX_TOKENS
        )
    return found


def _members(usage: dict) -> dict[str, Any]:
    members = {
        _plain(NAMESPACE.sub("", str(name))): value
        for name, value in list(usage.items())[:MAX_MEMBERS]
    }
    if isinstance(prefill := members.get("prefill"), list) and prefill:  # TGI lists the tokens
        members["prefill"] = len(prefill)
    return members


def _members_with_counts(usage: dict, levels: int) -> dict[str, Any]:
    """The members of the object itself, else of the nearest one inside it, that has counts of input
    or output; {} if none has.
    """
    members = _members(usage)
    if any(_first_name(members, names, like) for names, like in SIDES):
        return members
    inner = [name for name, value in members.items() if isinstance(value, dict)]
    inner.sort(key=lambda name: INSIDE.index(name) if name in INSIDE else len(INSIDE))
    for name in inner if levels else ():
        if name.endswith("details") and name != "details":
            continue
        if found := _members_with_counts(members[name], levels - 1):
            return found
    return {}


def _beside(
    members: dict, name: str, given: int, made: int | None, total: int | None, is_inclusive: bool
) -> int:
    """Tokens of the input that its count leaves out."""
    extra = _count(members.get("tooluseprompttokencount")) or 0  # Gemini
    if name == "input":
        parts = _sum(members, (other for other in members if "input" in other and other != name))
    else:
        parts = _sum(members, APART)
    if not parts:
        cached = _part(members, PARTS[0][1])
        return extra + (cached if cached > given else 0)
    if parts > given:
        return extra + parts
    if total is not None and total == given + (made or 0):
        return extra
    return extra + (parts if name in ("input", "inputtokens") and not is_inclusive else 0)


def _unspoken(members: dict, name: str, given: int | None, made: int, total: int | None) -> int:
    """Tokens of the output that its count leaves out: reasoning."""
    if name == "output":
        parts = _sum(members, (other for other in members if "output" in other and other != name))
    else:
        parts = _part(members, PARTS[2][1])
    if total is not None and given is not None:
        return parts if total == given + made + parts else 0
    return (
        parts
        if name in ("output", "candidatestokencount", "responsetokencount") or parts > made
        else 0
    )


def _plain(name: Any) -> str:
    return re.sub(r"[_\-. ]", "", str(name)).lower()


def _first_name(members: dict, names: Iterable[str], like: re.Pattern) -> str:
    """The first of the names that has a count, else a member that is called in a similar way."""
    usual = next((name for name in names if _count(members.get(name)) is not None), "")
    return usual or next(
        (name for name in members if like.fullmatch(name) and _count(members[name]) is not None), ""
    )


def _count(value: Any) -> int | None:
    """A number of tokens, also in an object that has its total (Vercel's AI SDK)."""
    if isinstance(value, dict):
        value = value.get("total")
    number = _number(value)
    return int(number) if number is not None and 0 <= number <= MAX_TOKENS else None


def _number(value: Any) -> float | None:
    """A number, also as text, with commas between thousands."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(
            value.replace(",", "") if isinstance(value, str) and GROUPED.fullmatch(value) else value
        )
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _cost(members: dict) -> float | None:
    for name in COST:
        value = members.get(name)
        if isinstance(value, dict):  # Perplexity
            value = value.get("total_cost")
        number = _number(value)
        if number is not None and 0 <= number < MAX_COST_USD:
            return number
    return None


def _sum(members: dict, names: Iterable[str]) -> int:
    return sum(_count(members.get(name)) or 0 for name in names if not NO_TOKENS.search(name))


def _part(members: dict, pattern: re.Pattern) -> int:
    """The tokens of a part: providers and gateways say it under several names, and in groups of its
    own.
    """
    counts = [
        count for name, value in members.items() for count in _counts_in(name, value, pattern)
    ]
    return max(counts, default=0)


def _counts_in(name: str, value: Any, pattern: re.Pattern) -> Iterator[int]:
    if NO_TOKENS.search(name):
        return
    if not isinstance(value, dict):
        if pattern.search(name) and (count := _count(value)):
            yield count
        return
    inner = {_plain(key): item for key, item in list(value.items())[:MAX_MEMBERS]}
    if pattern.search(name):
        yield _sum(inner, inner)  # Anthropic's `cache_creation` by how long it is kept
    else:
        yield from (
            count for key, item in inner.items() if pattern.search(key) and (count := _count(item))
        )
