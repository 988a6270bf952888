"""Rules over a row: what each finds, merged where they overlap, and replaced."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b32encode
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from apps.trajectories.redaction import presidio
from apps.trajectories.redaction.kinds import BUILTINS, anything, find, precheck_of
from apps.trajectories.redaction.names import secret_argument, secret_value
from apps.trajectories.redaction.own import compile_own
from apps.trajectories.redaction.rules import (
    ID,
    MAX_NAME,
    MAX_REPLACEMENT,
    MAX_RULES,
    Hit,
    Leaf,
    Rule,
    RuleError,
    Span,
    default_replacement,
)
from apps.trajectories.redaction.walk import (
    JSON_TOKEN,
    UNTOUCHED,
    Place,
    See,
    is_json,
    to_bytes,
    to_text,
    walk_row,
    walk_string,
)

ROUNDS = 8
SHORTEST = 6  # no built-in kind has a shorter hit, but for what the key names: a PIN
_SEPARATOR = b"\n\x00\n"
_DATA_URL = re.compile(rb"data:[A-Za-z0-9.+/;=-]{0,100};base64,[A-Za-z0-9+/=_-]*")


def _merged(spans: Iterable[Span]) -> list[Span]:
    """From the left; overlapping spans as their union, under the earliest rule."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start < merged[-1].end:
            last = merged.pop()
            span = Span(last.start, max(last.end, span.end), min(last.rule, span.rule))
        merged.append(span)
    return merged


class Redactor:
    """Rules, compiled once. Raises RuleError. `key` makes the `{id}` tokens: keep it secret, one
    per project.
    """

    def __init__(self, rules: Sequence[Rule], *, key: bytes = b"") -> None:
        if len(rules) > MAX_RULES:
            raise RuleError(f"There are {len(rules)} rules; {MAX_RULES} are allowed.")
        self.rules, self.key = tuple(rules), key
        self._builtins = [
            (order, rule.kind) for order, rule in enumerate(rules) if rule.kind in BUILTINS
        ]
        self._own = [
            compile_own(order, rule) for order, rule in enumerate(rules) if rule.kind == "regex"
        ]
        self._presidio = [
            (order, presidio.settings_of(rule.pattern))
            for order, rule in enumerate(rules)
            if rule.kind == "presidio"
        ]
        self._by_name = next((order for order, kind in self._builtins if kind == "password"), None)
        for rule in rules:
            self._check(rule)
        for _, settings in self._presidio:
            presidio.engine_of(settings)
        kinds = frozenset(kind for _, kind in self._builtins)
        self._precheck, self._anything = (
            (precheck_of(kinds), anything(kinds)) if kinds else (None, None)
        )

    def _check(self, rule: Rule) -> None:
        if rule.kind not in BUILTINS and rule.kind not in ("regex", "presidio"):
            raise RuleError(f"Unknown rule kind “{rule.kind}”.")
        if not 0 < len(rule.name) <= MAX_NAME:
            raise RuleError(f"Rule names must have 1 to {MAX_NAME} characters.")
        if len(rule.replacement) > MAX_REPLACEMENT:
            raise RuleError(
                f"The replacement has {len(rule.replacement)} characters; {MAX_REPLACEMENT} are"
                " allowed."
            )
        if ID in rule.replacement and not self.key:
            raise RuleError(f"{ID} in a replacement needs a secret key.")

    def __bool__(self) -> bool:
        return bool(self.rules)

    def redact(self, row: dict) -> tuple[dict, Counter[str]]:
        """The row without what the rules find, and the hits by rule. A row without a hit is
        returned itself.
        """
        counts: Counter[str] = Counter()
        if not self.rules or not isinstance(row, dict) or not self.may_hit(row):
            return row, counts
        return self._redact(row, counts)

    def may_hit(self, row: dict) -> bool:
        """False only where `redact` would find nothing. Quick; always True with rules of kind regex
        or presidio.
        """
        if self._own or self._presidio or self._precheck is None:
            return bool(self.rules)
        try:
            raw = msgspec.json.encode(
                [value for name, value in row.items() if name not in UNTOUCHED]
            )
        except (TypeError, ValueError, OverflowError, RecursionError):
            return True
        return self._precheck.may_hit(raw)

    def _redact(self, row: dict, counts: Counter[str]) -> tuple[dict, Counter[str]]:
        copy = self._rewrite(lambda see: walk_row(row, see), counts)
        return (copy if counts else row), counts

    def _rewrite(self, walk: Callable[[See], Any], counts: Counter[str]) -> Any:
        """What `walk` copies, with the hits replaced and counted; two walks, since rules read all
        strings at once.
        """
        leaves: dict[Leaf, None] = {}

        def collect(leaf: Leaf) -> str:
            if self._own or self._presidio or leaf.context or len(leaf.text) >= SHORTEST:
                leaves[leaf] = None
            return leaf.text

        same = walk(collect)
        if self._presidio and sum(len(leaf.text) for leaf in leaves) > presidio.LARGEST:
            raise presidio.TooLong(
                f"The text has more than {presidio.LARGEST:,} characters, the most that Presidio is"
                " asked about."
            )
        changed = self._replace(list(leaves))

        def put(leaf: Leaf) -> str:
            new, names = changed.get(leaf, (leaf.text, ()))
            counts.update(names)
            return new

        return walk(put) if changed else same

    def _replace(self, leaves: list[Leaf]) -> dict[Leaf, tuple[str, list[str]]]:
        """The leaves that change: their new text and the rules that hit."""
        changed: dict[Leaf, tuple[str, list[str]]] = {}
        now = [(leaf, leaf) for leaf in leaves]
        for again in range(ROUNDS):
            # A replacement is a new neighbour: what it makes visible is found in the next round.
            spans = self._spans([leaf for _, leaf in now], own=not again)
            following = []
            for index, found in spans.items():
                first, leaf = now[index]
                text, names = self._apply(leaf.text, found)
                changed[first] = text, changed.get(first, ("", []))[1] + names
                following.append((first, Leaf(leaf.context, text)))
            if not following:
                break
            now = following
        return changed

    def _apply(self, text: str, spans: list[Span]) -> tuple[str, list[str]]:
        raw, out, place = to_bytes(text), [], 0
        for span in spans:
            out += [
                raw[place : span.start],
                to_bytes(self._replacement(span.rule, raw[span.start : span.end])),
            ]
            place = span.end
        return to_text(b"".join([*out, raw[place:]])), [
            self.rules[span.rule].name for span in spans
        ]

    def _replacement(self, order: int, found: bytes) -> str:
        rule = self.rules[order]
        replacement = rule.replacement or default_replacement(rule)
        return (
            replacement.replace(ID, self._token(rule.kind, found))
            if ID in replacement
            else replacement
        )

    def _token(self, kind: str, found: bytes) -> str:
        """Six characters of base 32 (30 bits), the same for two spellings of a number or an
        address.
        """
        plain = to_text(found).lower()
        if kind not in ("email", "api_key", "ip", "regex", "presidio"):
            plain = re.sub(r"\W", "", plain)
        digest = hmac.new(self.key, to_bytes(f"{kind}:{plain}"), hashlib.sha256).digest()
        return b32encode(digest)[:6].decode().lower()

    def _spans(self, leaves: list[Leaf], own: bool = True) -> dict[int, list[Span]]:
        """What is to be replaced, by the index of the leaf."""
        blob, starts, ends = _lay(leaves)
        found: dict[int, list[Span]] = {}

        def add(index: int, start: int, end: int, order: int) -> None:
            found.setdefault(index, []).append(Span(start, end, order))

        for order, kind in (
            self._builtins if self._anything and self._anything.may_hit(blob) else ()
        ):
            for start, end in find(kind, blob):
                index = bisect_right(starts, start) - 1
                if index >= 0 and end <= ends[index]:
                    add(index, start - starts[index], end - starts[index], order)
        for index, leaf in enumerate(leaves) if self._by_name is not None else ():
            if leaf.context and (secret_argument if leaf.context.endswith(" ") else secret_value)(
                *leaf
            ):
                add(index, 0, ends[index] - starts[index], self._by_name)
        if own:
            for rule in self._own:
                if rule.precheck is None or rule.precheck.search(blob):
                    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
                        for match in rule.pattern.finditer(blob[start:end]):
                            if match.end() > match.start():
                                add(index, match.start(), match.end(), rule.order)
            for order, settings in self._presidio:
                for index, leaf in enumerate(leaves):
                    for span in presidio.find(settings, leaf.text):
                        start, end = (len(to_bytes(leaf.text[:place])) for place in span)
                        add(index, start, end, order)
        if b";base64," in blob:
            _leave_data(found, blob, starts, ends)
        return {index: _merged(spans) for index, spans in found.items() if spans}

    def hits(self, text: str) -> list[Hit]:
        """What is replaced in one string, from the left."""
        if not is_json(text):
            return list(self._hits(Leaf("", text), 0))
        found: list[Hit] = []
        place = Place()
        for match in JSON_TOKEN.finditer(text):
            raw = match[0].removesuffix(match[1] or "")
            if raw in "{}":
                place.brace(raw)
                continue
            if raw[0] != '"':
                found += (
                    self._hits(Leaf(place.key, raw), match.start())
                    if raw.isdigit() and 6 < len(raw) < 20
                    else ()
                )
                continue
            old = json.loads(raw)
            context, counts = "" if match[1] else place.context(old), Counter[str]()
            if old == raw[1:-1]:
                found += self._hits(Leaf(context, old), match.start() + 1)
            else:
                # Its characters do not stand in the text one by one: it is shown whole.
                new = self._rewrite(partial(walk_string, old, context=context), counts)
                start, end = match.start() + 1, match.start() + len(raw) - 1
                found += [Hit(", ".join(counts), start, end, old, new)] if counts else []
            place.read(old, is_key=bool(match[1]))
        return found

    def _hits(self, leaf: Leaf, offset: int) -> Iterator[Hit]:
        raw = to_bytes(leaf.text)
        for span in self._spans([leaf]).get(0, ()):
            before, text = to_text(raw[: span.start]), to_text(raw[span.start : span.end])
            start = offset + len(before)
            rule = self.rules[span.rule].name
            yield Hit(
                rule,
                start,
                start + len(text),
                text,
                self._replacement(span.rule, raw[span.start : span.end]),
            )


def strings(row: dict) -> list[str]:
    """The strings of a row at which rules look, in its order; those of JSON in a string one by
    one.
    """
    found: list[str] = []

    def see(leaf: Leaf) -> str:
        found.append(leaf.text)
        return leaf.text

    walk_row(row, see)
    return found


def _lay(leaves: list[Leaf]) -> tuple[bytes, list[int], list[int]]:
    """The leaves end to end, each after its context, and where the text of each begins and ends."""
    parts, starts, ends, place = [], [], [], 0
    for context, text in leaves:
        raw = to_bytes(text)
        head = to_bytes(context if context.endswith(" ") else f"{context}: ") if context else b""
        starts.append(place + len(head))
        ends.append(place + len(head) + len(raw))
        place = ends[-1] + len(_SEPARATOR)
        parts.append(head + raw)
    return _SEPARATOR.join(parts), starts, ends


def _leave_data(
    found: dict[int, list[Span]], blob: bytes, starts: list[int], ends: list[int]
) -> None:
    """Drops the hits that lie in the base64 of a data URL: they are chance."""
    for index, spans in found.items():
        urls = [match.span() for match in _DATA_URL.finditer(blob[starts[index] : ends[index]])]
        found[index] = [
            span
            for span in spans
            if not any(left <= span.start and span.end <= right for left, right in urls)
        ]


def test(rules: Sequence[Rule], text: str, *, key: bytes = b"") -> list[Hit]:
    """What the rules would replace in a text. Raises RuleError."""
    return Redactor(rules, key=key).hits(text)


test.__test__ = False  # type: ignore[attr-defined]  # not a test of pytest's
