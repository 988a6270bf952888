"""Tokens that model calls used: one `Usage` for the usage object of any provider, gateway or SDK.
Pure and light; input is untrusted.

Providers differ in what their counts include. OpenAI, Gemini and most others count what was read
from a cache as input; Anthropic and Bedrock count it apart, and so do Langfuse's buckets. Gemini
and some gateways count reasoning apart from the output. `parse` gives all of them one meaning: the
input is everything that the model read, the output everything that it wrote. The tables below name
the members; a reported total decides in doubtful cases, and parts that are larger than the whole
are never in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

MAX_TOKENS = 2**31 - 1  # what a column holds
MAX_COST_USD = 1_000_000.0
MAX_MEMBERS = 200
MAX_DEPTH = 4  # of objects around the counts: a response, a client's `llmOutput`
USUAL_MEMBERS = 40  # of one object, whose names are remembered together


class Usage(Struct, frozen=True):
    """Tokens of one model call, or of several together. None is unknown.

    input_tokens:       all that the model read, from a cache or not
    cache_read_tokens:  the part of the input that was read from a cache
    cache_write_tokens: the part of the input that was written to a cache
    output_tokens:      all that the model wrote, shown or not
    reasoning_tokens:   the part of the output that was reasoning
    cost_usd:           as the provider or gateway reports it
    parts:              further parts that have a price of their own, by the names of
                        `prices.UNITS` (`input_audio`, `cache_write_1h`, `web_searches`)
    service_tier:       “priority”, “batch” … where the price depends on it
    billed:             (model, usage) of each request that is billed, where the provider lists them
                        and they are not simply these counts; "" is the model of the call
    unread:             the members that none of this says, as they were sent
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    parts: dict[str, int] = field(default_factory=dict)
    service_tier: str = ""
    billed: tuple[tuple[str, Usage], ...] = ()
    unread: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: Usage) -> Usage:
        return total((self, other))

    def __sub__(self, other: Usage) -> Usage:
        """What is left of the input and output."""
        return Usage(
            (self.input_tokens or 0) - (other.input_tokens or 0),
            (self.output_tokens or 0) - (other.output_tokens or 0),
        )

    def completed_by(self, other: Usage) -> Usage:
        """What this leaves out is taken from another one of the same call."""
        missing = {
            name: value
            for name in self.__struct_fields__
            if not getattr(self, name) and (value := getattr(other, name))
        }
        return replace(self, **missing) if missing else self

    def corrected_by(self, other: Usage) -> Usage:
        """Completed by another count of the same call; a side that leaves out what the other one
        counts with it (cached tokens, reasoning) is the other's. One of something else says
        nothing.
        """
        cached = (other.cache_read_tokens or 0) + (other.cache_write_tokens or 0)
        sent, made = other.input_tokens, other.output_tokens
        if not self.is_known:
            return other
        if None not in (sent, self.input_tokens) and self.input_tokens not in (sent, sent - cached):
            return self
        whole = {"input_tokens": sent} if None not in (sent, self.input_tokens) else {}
        if made is not None and self.output_tokens == made - (other.reasoning_tokens or 0):
            whole["output_tokens"] = made
        return replace(self, **whole).completed_by(other)

    @property
    def counts(self) -> dict[str, int | float]:
        """What is known, by the name of a run's column."""
        known = zip(COUNTS, _counts_of(self), strict=True)
        return {name: value for name, value in known if value is not None}

    @property
    def is_known(self) -> bool:
        """Whether it counts anything."""
        return _counts_of(self) != NOTHING

    @property
    def as_sent(self) -> dict[str, Any]:
        """A usage object that `parse` reads as this one."""
        tier = {"service_tier": self.service_tier} if self.service_tier else {}
        billed = [({"model": model} if model else {}) | each.as_sent for model, each in self.billed]
        sent = self.counts | {f"{name}_tokens": n for name, n in self.parts.items()} | tier
        return sent | ({BILLED: billed} if billed else {})

    @property
    def tokens(self) -> int:
        """Input and output, as far as they are known."""
        return (self.input_tokens or 0) + (self.output_tokens or 0)


TOKENS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
COUNTS = (*TOKENS, "cost_usd")
_counts_of = attrgetter(*COUNTS)
NOTHING = (None,) * len(COUNTS)


class Whole(Struct, frozen=True):
    """How some name the count of a side, and which members they count apart from it. Patterns of
    whole paths: names without case and punctuation, joined where objects are nested
    (`prompt_tokens_details.cached_tokens` is `prompttokensdetailscachedtokens`).
    """

    names: str
    apart: str = ""


# The first of the rows that names a member is what a side is called.
INPUT = (
    # Anthropic, Bedrock; OpenAI Responses, LangChain and the AI SDK, which count nothing apart
    Whole("inputtokens(total)?", apart="cache(read|creation|write)inputtokens"),
    # OpenAI chat, Mistral, DeepSeek, Groq, xAI, OpenRouter, LiteLLM
    Whole("prompttokens"),
    # Gemini
    Whole("prompttokencount", apart="tooluseprompttokencount"),
    Whole("inputtokencount|promptevalcount|requesttokens"),
    # Langfuse's buckets
    Whole("input", apart="input.+|cache(read|creation|write)inputtokens"),
    Whole("prompt"),
    # vLLM (`num_prompt_tokens`), llama.cpp (`prompt_n`, `tokens_evaluated`), TGI, Titan …
    Whole(
        "prefill|(num|n|total)?(input|prompt|prefill)(text|eval)?(tokens?(count|n)|tokens|n|count)"
        "|tokens(in|input|prompt|evaluated)"
    ),
)
OUTPUT = (
    Whole("outputtokens(total)?"),
    Whole("completiontokens"),
    Whole("candidatestokencount|responsetokencount", apart="thoughtstokencount"),
    Whole("outputtokencount|generatedtokencount|evalcount|responsetokens"),
    Whole("output", apart="output.+"),
    Whole("completion"),
    Whole(
        "(num|n|total)?(output|completion|generated|generation|predicted|eval|new)(text)?"
        "(tokens?(count|n)|tokens|n|count)|tokens(out|output|completion|generated|predicted)"
    ),
)
# Parts of a side, whoever names them. Several names of one part say the same: the largest counts.
PARTS = {
    "cache_read_tokens": (
        r"cacheread|(?<!un)(?<!non)cached(?!etails)|cachehit|^cache(input)?tokens$"
    ),
    "cache_write_tokens": r"(cachecreation|cachewrit)(?!.*ephemeral)",
    "cache_write_5m": r"ephemeral5m|cachedetails5m|cachewrite5m",
    "cache_write_1h": r"ephemeral1h|cachedetails1h|cachewrite1h",
    "reasoning_tokens": r"reasoning|thoughts|thinking",
    "cache_audio_read": r"cache.*audio|audio.*cache",
    "cache_image_read": r"cache.*image|image.*cache",
    "input_audio": r"^(?!.*cache)(input|prompt).*audio|^audioinput",
    "input_image": r"^(?!.*cache)(input|prompt).*image|^imageinput",
    "input_video": r"^(?!.*cache)(input|prompt).*video|^videoinput",
    "output_audio": r"^(output|completion|candidates|response).*audio|^audiooutput",
    "output_image": r"^(output|completion|candidates|response).*image|^imageoutput",
    "output_video": r"^(output|completion|candidates|response).*video|^videooutput",
    "output_citation": r"^(output)?citationtokens$",  # Perplexity's, beside the output
    "web_searches": r"websearch(requests|es)|numsearchqueries",
}
COLUMNS = ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
COUNTED_APART = ("web_searches",)  # that are no tokens
NO_TOKENS = re.compile(
    "cost|price|time|duration|seconds|request|byok|unit|cachemiss|miss(tokens)?$"
)
TOTAL = ("totaltokens", "totaltokencount", "total", "totaltokenstotal")
# In USD, and in parts of it (xAI's ticks). With a key of one's own (`is_byok`) OpenRouter's cost is
# its fee, beside what the provider charges.
COST = {
    "costusd": 1.0,
    "totalcostusd": 1.0,
    "cost": 1.0,
    "totalcost": 1.0,
    "costtotalcost": 1.0,
    "costtotal": 1.0,
    "estimatedcost": 1.0,
    "costinusdticks": 1e-10,
}
OWN_KEY, UPSTREAM_COST = "isbyok", "costdetailsupstreaminferencecost"
SERVICE_TIER = ("service_tier", "serviceTier", "speed", "trafficType", "traffic_type")
USUAL_TIERS = ("", "standard", "default", "auto", "on_demand")
BILLED = "billed"  # as `as_sent` calls what providers list under names of their own
NAMESPACE = re.compile(r"^(gen_ai|llm|ai)\.(usage|token_count|aggregated_usage)\.")
INSIDE = ("tokens", "billedunits", "usage", "usagemetadata")  # Cohere and whole responses
GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")


class Plan(Struct, frozen=True):
    """Which members of an object say what, found by their names alone."""

    input: str
    input_apart: tuple[str, ...]
    output: str
    output_apart: tuple[str, ...]
    total: tuple[str, ...]
    parts: dict[str, tuple[str, ...]]
    cost: tuple[str, ...]
    read: frozenset[str]


def parse(usage: Any, *, includes_cache: bool = False) -> Usage:
    """What a usage object says. `includes_cache`: its convention says that the input includes what
    was cached, under whatever names (OpenTelemetry's).
    """
    if not usage or not isinstance(usage, dict):
        return Usage()
    if len(usage) <= USUAL_MEMBERS and set(map(type, usage.values())) == {int}:
        return _parsed_numbers(tuple(usage.items()), includes_cache)
    return _parsed(usage, includes_cache)


@lru_cache(2_000)
def _parsed_numbers(usage: tuple[tuple[str, int], ...], includes_cache: bool) -> Usage:
    """A call's counts are read several times on their way from a span to the columns of a run."""
    return _parsed(dict(usage), includes_cache)


def counting(usage: dict[str, Any]) -> dict[str, Any]:
    """Only the members that may count something: most of a step are something else."""
    silent = _silent(tuple(usage)) if len(usage) <= USUAL_MEMBERS else frozenset()
    return {
        name: value
        for name, value in usage.items()
        if name not in silent or isinstance(value, dict | list)
    }


@lru_cache(2_000)
def _silent(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(
        name for name in names if name not in SERVICE_TIER and not _may_count(plain_name(name))
    )


def _parsed(usage: dict[str, Any], includes_cache: bool) -> Usage:
    counted = _nearest_with_counts(usage, MAX_DEPTH) or usage
    members = dict(_members(counted))
    paths = tuple(members)
    plan = _plan(paths) if len(paths) <= USUAL_MEMBERS else _plan.__wrapped__(paths)
    parts = {name: max(int(members[path]) for path in paths) for name, paths in plan.parts.items()}
    input_tokens, output_tokens = _sides(plan, members, parts, includes_cache)
    used = Usage(
        input_tokens,
        output_tokens,
        *(parts.pop(name, None) for name in COLUMNS),
        _cost(plan, members),
        {name: count for name, count in parts.items() if count},
        _service_tier(counted) or _service_tier(usage),
        (),
        _unread(usage, plan.read) if counted is usage else usage,
    )
    return _with_billed(used, usage, counted)


def _with_billed(used: Usage, usage: dict[str, Any], counted: dict[str, Any]) -> Usage:
    """With the requests that are billed. Anthropic lists those of a call as `iterations`, some of
    which (compaction, an advisor of another model) its counts leave out; Cohere bills fewer tokens
    than the model read.
    """
    listed, units = counted.get(BILLED), usage.get("billed_units")
    if isinstance(listed, list):
        return replace(used, billed=_requests(used, listed))
    if isinstance(units, dict) and counted is not units:
        billed = parse(units)
        return replace(used, billed=(("", billed),)) if billed.is_known else used
    requests = _requests(used, counted.get("iterations"))
    together = total(each for _, each in requests)
    more = together - used
    if min(more.input_tokens or 0, more.output_tokens or 0) < 0 or not more.tokens:
        return used
    whole = {name: count for name, count in together.counts.items() if name in TOKENS}
    return replace(used, **whole, parts=used.parts | together.parts, billed=requests)


def _requests(used: Usage, listed: Any) -> tuple[tuple[str, Usage], ...]:
    """Each with the service tier of the call. What is priced and is no tokens (searches) is only
    known of the call: the last one has it.
    """
    rows = listed[:MAX_MEMBERS] if isinstance(listed, list) else []
    requests = [
        (model if isinstance(model := row.get("model"), str) else "", parse(row))
        for row in rows
        if isinstance(row, dict)
    ]
    requests = [(model, each) for model, each in requests if each.is_known]
    apart = {name: used.parts[name] for name in COUNTED_APART if name in used.parts}
    return tuple(
        (
            model,
            replace(
                each,
                service_tier=each.service_tier or used.service_tier,
                parts=each.parts | (apart if number == len(requests) else {}),
                unread={},
            ),
        )
        for number, (model, each) in enumerate(requests, start=1)
    )


def total(usages: Iterable[Usage]) -> Usage:
    """Several together: the sum of what is known. A service tier that not all have is none."""
    usages = list(usages)
    sums: dict[str, Any] = {}
    for name in COUNTS:
        known = [value for usage in usages if (value := getattr(usage, name)) is not None]
        if known:
            sums[name] = min(sum(known), MAX_COST_USD if name == "cost_usd" else MAX_TOKENS)
    parts: dict[str, int] = {}
    for usage in usages:
        for name, count in usage.parts.items():
            parts[name] = parts.get(name, 0) + count
    tiers = {usage.service_tier for usage in usages}
    return Usage(**sums, parts=parts, service_tier=tiers.pop() if len(tiers) == 1 else "")


def _sides(
    plan: Plan, members: dict[str, float], parts: dict[str, int], includes_cache: bool
) -> tuple[int | None, int | None]:
    """(input, output), each with what its count leaves out."""
    written = [parts.pop("cache_write_5m", 0) + parts.get("cache_write_1h", 0)]
    if written[0] or "cache_write_tokens" in parts:
        parts["cache_write_tokens"] = max(*written, parts.get("cache_write_tokens", 0))
    sent, made = _int(members.get(plan.input)), _int(members.get(plan.output))
    whole = next((int(members[name]) for name in plan.total), None)
    if sent is not None and made is None and whole is not None and whole >= sent:
        made = whole - sent
    elif made is not None and sent is None and whole is not None and whole >= made:
        sent = whole - made
    inputs = _readings(
        sent,
        sum(int(members[name]) for name in plan.input_apart),
        (parts.get("cache_read_tokens") or 0) + (parts.get("cache_write_tokens") or 0),
        includes_cache,
    )
    outputs = _readings(
        made,
        sum(int(members[name]) for name in plan.output_apart),
        parts.get("reasoning_tokens") or 0,
        False,
    )
    agreed = next(
        ((one, other) for one in inputs for other in outputs if (one or 0) + (other or 0) == whole),
        (inputs[0], outputs[0]),
    )
    return tuple(None if count is None else min(count, MAX_TOKENS) for count in agreed)


def _readings(count: int | None, apart: int, parts: int, is_whole: bool) -> tuple[int | None, ...]:
    """What a count of a side may mean, the usual first. `apart`: members that are counted beside
    it; `parts`: those that may be in it or not.
    """
    if count is None:
        return (None,)
    if apart > count:
        return (count + apart,)
    if not apart:
        return (count + parts,) if parts > count else (count, count + parts)
    return (count, count + apart) if is_whole else (count + apart, count)


def _nearest_with_counts(usage: dict, levels: int) -> dict:
    """The object itself, else the nearest one inside it, that has a count of input or output; {} if
    none has.
    """
    members = list(usage.items())[:MAX_MEMBERS]
    if any(is_side(plain_name(name)) and _is_count(value) for name, value in members):
        return usage
    named = {plain_name(name): value for name, value in members}
    inner = [name for name, value in named.items() if isinstance(value, dict)]
    inner.sort(key=lambda name: INSIDE.index(name) if name in INSIDE else len(INSIDE))
    for name in inner if levels else ():
        if name.endswith("details") and name != "details":
            continue
        if found := _nearest_with_counts(named[name], levels - 1):
            return found
    return {}


def _is_count(value: Any) -> bool:
    if isinstance(value, dict):  # the AI SDK's `{"total", "cacheRead", …}`
        value = value.get("total")
    return isinstance(value, list) or _number(value) is not None


@lru_cache(1_000)
def is_side(name: str) -> bool:
    return any(re.fullmatch(whole.names, name) for whole in (*INPUT, *OUTPUT))


def _members(value: dict, prefix: str = "", levels: int = 3) -> Iterator[tuple[str, float]]:
    """(path, number) of all numbers from 0, in nested objects too; `is_byok` where it is true."""
    for key, item in list(value.items())[:MAX_MEMBERS]:
        name = prefix + plain_name(key)
        if isinstance(item, dict):
            if levels:
                yield from _members(item, name, levels - 1)
        elif isinstance(item, list):
            yield from _listed(name, item)
        elif not _may_count(name):
            continue
        elif (item is True and name == OWN_KEY) or (
            (number := _number(item)) is not None and _is_plausible(name, number)
        ):
            yield name, 1.0 if item is True else number


@lru_cache(5_000)
def _may_count(name: str) -> bool:
    """Whether any of the tables names it: most members of a step are something else."""
    patterns = [pattern for whole in (*INPUT, *OUTPUT) for pattern in (whole.names, whole.apart)]
    return (
        name in (*TOTAL, *COST, OWN_KEY, UPSTREAM_COST)
        or any(re.fullmatch(pattern, name) for pattern in patterns)
        or any(re.search(pattern, name) for pattern in PARTS.values())
    )


def _is_plausible(name: str, number: float) -> bool:
    if "cost" in name:
        return 0 <= number * COST.get(name, 1.0) < MAX_COST_USD
    return 0 <= number <= MAX_TOKENS and number.is_integer()


def _listed(name: str, items: list) -> Iterator[tuple[str, float]]:
    """Counts by kind (Gemini's `promptTokensDetails`, Bedrock's `cacheDetails`); of the tokens
    themselves (TGI's `prefill`) their number.
    """
    if name == "prefill" and items:
        yield name, float(len(items))
    for item in items[:MAX_MEMBERS]:
        kind = item.get("modality") or item.get("ttl") if isinstance(item, dict) else None
        if isinstance(kind, str):
            counts = [count for value in item.values() if (count := _number(value)) is not None]
            kind = name + plain_name(kind)
            yield from ((kind, count) for count in counts[:1] if _is_plausible(kind, count))


@lru_cache(2_000)
def _plan(paths: tuple[str, ...]) -> Plan:
    sides = [_side(table, paths) for table in (INPUT, OUTPUT)]
    tokens = [path for path in paths if not NO_TOKENS.search(path)]
    parts = {}
    for name, pattern in PARTS.items():
        among = paths if name in COUNTED_APART else tokens
        if found := tuple(path for path in among if re.search(pattern, path)):
            parts[name] = found
    known_cost = tuple(path for path in COST if path in paths)[:1]
    if known_cost and OWN_KEY in paths and UPSTREAM_COST in paths:
        known_cost += (UPSTREAM_COST,)
    total_names = tuple(name for name in TOTAL if name in paths)
    (sent, sent_apart), (made, made_apart) = sides
    read = {sent, *sent_apart, made, made_apart and made, *made_apart, *total_names, *known_cost}
    return Plan(
        sent,
        sent_apart,
        made,
        made_apart,
        total_names,
        parts,
        known_cost,
        frozenset(read.union(*parts.values()) - {""}),
    )


def _side(table: tuple[Whole, ...], paths: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(the member that counts a side, those that are counted apart from it)."""
    for whole in table:
        name = next((path for path in paths if re.fullmatch(whole.names, path)), "")
        if name:
            apart = (
                path
                for path in paths
                if path != name and not NO_TOKENS.search(path) and re.fullmatch(whole.apart, path)
            )
            return name, tuple(apart)
    return "", ()


def _unread(usage: dict, read: frozenset[str]) -> dict[str, Any]:
    """The members that say something which was not read, whole."""
    return {
        name: value
        for name, value in usage.items()
        if value and not _is_read(plain_name(name), value, read)
    }


def _is_read(name: str, value: Any, read: frozenset[str]) -> bool:
    if isinstance(value, dict | list):
        paths = [path for path, number in _members({name: value}) if number]
        return bool(paths) and read.issuperset(paths)
    if name not in read or (number := _number(value)) is None:
        return False
    return _is_plausible(name, number)


def _cost(plan: Plan, members: dict[str, float]) -> float | None:
    if not plan.cost:
        return None
    return sum(members[name] * COST.get(name, 1.0) for name in plan.cost)


def _service_tier(usage: dict) -> str:
    """The tier that changes the price, if one of the members says one: Anthropic says `standard`
    beside `speed: fast`, Vertex `ON_DEMAND_FLEX`.
    """
    found = (usage.get(name) for name in SERVICE_TIER)
    tiers = [tier[:40] for tier in found if isinstance(tier, str) and tier]
    named = [tier.lower().removeprefix("on_demand_") for tier in tiers]
    return next((tier for tier in named if tier not in USUAL_TIERS), next(iter(tiers), ""))


@lru_cache(1_000)
def is_part(name: str) -> bool:
    """Whether a plain name says a part of the input or output."""
    return not NO_TOKENS.search(name) and any(
        re.search(pattern, name) for pattern in PARTS.values()
    )


def plain_name(name: Any) -> str:
    """The name of a member without case, punctuation and namespace."""
    return _plain_text(name) if isinstance(name, str) and len(name) <= 200 else ""


@lru_cache(5_000)
def _plain_text(name: str) -> str:
    return re.sub(r"[_\-. ]", "", NAMESPACE.sub("", name)).lower()


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _number(value: Any) -> float | None:
    """A finite number, also as text, with commas between thousands."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(
            value.replace(",", "") if isinstance(value, str) and GROUPED.fullmatch(value) else value
        )
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
