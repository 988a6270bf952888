"""What is taken out of a row before it is stored: personal data and secrets. Pure: no Django.

All rules look at the strings as they came; where hits overlap, the union goes and the earlier rule names it. Patterns
run on RE2, whose time is linear in the text whatever the pattern: a time limit would leave the choice between storing
unread text and losing the row. Offsets are of UTF-8 bytes inside this module and of characters in a `Hit`.

A row goes two ways. Nearly all rows only meet one combined pre-check over their JSON, a superset of the built-in rules.
Otherwise the row's strings are laid end to end and each rule reads that text once.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import ipaddress
import json
import re
from base64 import b32encode
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
import re2

MAX_PATTERN, MAX_PROGRAM, MAX_REPLACEMENT, MAX_NAME, MAX_RULES = 500, 10_000, 80, 80, 100
MAX_DEPTH = 80  # the schema refuses rows nested less deep than this
ROUNDS = 8
SHORTEST = 6  # no built-in kind has a shorter hit
UNTOUCHED = frozenset({"id", "started_at", "ended_at", "usage", "latency_ms"})
ID = "{id}"


class RuleError(Exception):
    """A rule that cannot be used; the sentence says why."""


class Rule(msgspec.Struct, frozen=True):
    """`pattern` is RE2 syntax for kind regex, entity names for presidio, and empty for the built-in kinds.

    `replacement` is put in place of a hit as it stands; empty means `[NAME]`. `{id}` in it becomes a token that is the
    same wherever the same value stands, so that a conversation stays coherent.
    """

    name: str
    kind: str
    pattern: str = ""
    replacement: str = ""


class Hit(msgspec.Struct, frozen=True):
    """What a rule found in a text: `text` is `[start, end)` in characters."""

    rule: str
    start: int
    end: int
    text: str
    replacement: str


class Span(NamedTuple):
    start: int
    end: int
    rule: int


class Leaf(NamedTuple):
    """One string of a row, and the key before it where that key tells what the string is ("phone")."""

    context: str
    text: str


def _compile(pattern: str) -> Any:
    """An RE2 pattern over bytes. Raises re2.error."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern.encode("utf-8", "replace"), options)


# -- built-in kinds: a pattern for candidates, a check of each, and a pre-check that misses none of them ---------------

Check = Callable[[bytes, int, int], "tuple[int, int] | None"]


class Builtin(NamedTuple):
    """`pattern` has `{b}` where a word begins; a group, where one took part, is the hit. `extra` is pre-check only.

    `resume` says how far into a candidate that was none the search goes on: another may start inside it.
    """

    title: str
    example: str
    pattern: str
    check: Check
    extra: str = ""
    hint: bytes = b""
    resume: Callable[[bytes], int] = lambda found: 1


def _word(char: bytes) -> bool:
    return char.isalnum() or char == b"_"


def _around(text: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    return text[max(0, start - 1) : start], text[end : end + 1]


def _digits(text: bytes) -> bytes:
    return re.sub(rb"\D", b"", text)


def _alone(text: bytes, start: int, end: int, before: bytes = b"-#.+/") -> bool:
    """No letter, digit or joining character touches the number: it is not a part of an identifier."""
    left, right = _around(text, start, end)
    if left and (_word(left) or left in before):
        return False
    return not right or not (_word(right) or (right in b"-./" and text[end + 1 : end + 2].isdigit()))


_IMAGE = re.compile(rb"\d+x\.(png|jpe?g|gif|svg|webp|avif)$", re.I)


def _email(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    while text[start : start + 1] in (b".", b"'", b"-"):
        start += 1
    local, _, domain = text[start:end].rpartition(b"@")
    labels = domain.split(b".")
    versioned = len(labels) > 2 and labels[0].isdigit() and labels[1].isdigit()
    remote = local == b"git" and text[end : end + 1] == b":"
    return None if not local or versioned or remote or _IMAGE.match(domain) else (start, end)


_DATE = re.compile(rb"\D?(\d{4}([-/. ])\d{2}\2\d{2}|\d{2}([-/. ])\d{2}\3(19|20)\d\d)(?!\d)|\d{5}-\d{4}$")


def _phone(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    found = text[start:end]
    digits = _digits(found)
    if not 7 <= len(digits) <= 15 or _DATE.match(found) or not _alone(text, start, end):
        return None
    if found[:2] == b"00":
        # Groups of digits before it: a longer number.
        return None if re.search(rb"\d[ -]$", text[max(0, start - 2) : start]) else (start, end)
    return None if found[:1] == b"0" and not 9 <= len(digits) <= 12 else (start, end)


def luhn(digits: bytes) -> bool:
    """The check digit of ISO/IEC 7812."""
    doubled = (b"0516273849".index(digit) if place % 2 else digit - 48 for place, digit in enumerate(reversed(digits)))
    return sum(doubled) % 10 == 0


_ISSUERS = re.compile(
    rb"(?:4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    rb"|3(?:0[0-5]|[689]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12,15}|6(?:011|4[4-9]\d|5\d\d)\d{12,15}|62\d{14,17}"
    rb"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{8,15})"
)


def _card(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    """The longest beginning, ending with a group, that is a card number."""
    left, right = _around(text, start, end)
    if _word(left) or (left and left in b"-#.") or _word(right):
        return None
    found = text[start:end]
    for stop in [len(found), *(place for place in range(len(found) - 1, 12, -1) if found[place] in b" -")]:
        digits = _digits(found[:stop])
        if _ISSUERS.fullmatch(digits) and luhn(digits):
            return start, start + stop
    return None


# ISO 13616: the countries by the length of their IBANs.
_IBAN_COUNTRIES = {
    15: "NO", 16: "BE", 18: "DK FI FO GL NL SD FK", 19: "MK SI", 20: "AT BA EE KZ LT LU XK MN", 21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV",
    29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
}  # fmt: skip
_IBAN_LENGTHS = {code: length for length, codes in _IBAN_COUNTRIES.items() for code in codes.split()}


def _iban(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    length = _IBAN_LENGTHS.get(text[start : start + 2].decode("ascii", "replace").upper(), 0)
    places = [place for place in range(start, end) if text[place] not in b" -"]
    if not length or len(places) < length:
        return None
    stop = places[length - 1] + 1
    if any(_word(char) for char in _around(text, start, stop)):
        return None
    code = bytes(text[place] for place in places[:length]).decode().upper()
    number = "".join(str(int(char, 36)) for char in code[4:] + code[:4])
    return (start, stop) if int(number) % 97 == 1 else None


_VERSION = re.compile(rb"(?i)(?:version|ver|release|build|v)[.:=\s]*$")


def _ip(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    """A v4 or v6 address of somebody: not this machine, not a version number, not `std::vector`."""
    found = text[start:end]
    if b"::" not in found and found.endswith(b":"):
        end, found = end - 1, found[:-1]
    left, right = _around(text, start, end)
    six = b":" in found
    if _word(left) or _word(right) or left == b"." or (six and b":" in (left, right)):
        return None
    if b"." in found and right == b"." and text[end + 1 : end + 2].isdigit():
        return None
    if six and b"." not in found and (sum(map(bool, found.split(b":"))) < 3 or not re.search(rb"\d", found)):
        return None
    try:
        address = ipaddress.ip_address(found.decode())
    except ValueError:
        return None
    if address.is_loopback or address.is_unspecified or address == ipaddress.ip_address("255.255.255.255"):
        return None
    return None if _VERSION.search(text[max(0, start - 12) : start]) else (start, end)


_ANY_LENGTH = (b"-----BEGIN", b"eyJ", b"AKIA", b"ASIA")


def _api_key(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Words joined by hyphens are not a key: one without any digit is left, unless its form is enough."""
    found = text[start:end]
    return (start, end) if found.startswith(_ANY_LENGTH) or re.search(rb"\d", found) else None


def _us_ssn(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    digits = _digits(text[start:end])
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    real = area not in (b"000", b"666") and area[:1] != b"9" and group != b"00" and serial != b"0000"
    return (start, end) if real and _alone(text, start, end) else None


_SPACE = r" \x{a0}\x{202f}"
_TRUNK = r"0[1-9]\d{0,4}"
_PHONE = "|".join(
    (
        rf"\+[1-9]\d{{0,2}}(?:[{_SPACE}.()/-]{{0,3}}\d){{6,13}}",  # +49 (0)30 123456
        rf"{{b}}00[1-9]\d{{0,2}}(?:[{_SPACE}./-]\(?\d{{1,8}}\)?){{2,6}}",  # 0044 20 7946 0958
        # (415) 555-0132
        r"(?:{b}1[ .-])?(?:\(\d{3}\) ?|{b}\d{3}[.-]|{b}[2-9]\d{2} )\d{3}[ .-]\d{4}",
        rf"{{b}}0[1-9](?:(?:[{_SPACE}]\d{{2}}){{4}}|(?:\.\d{{2}}){{4}})",  # 01 23 45 67 89
        # 0171 / 1234567, 020 7946 0958
        rf"(?:{{b}}{_TRUNK}|\({_TRUNK}\))[{_SPACE}/-]{{1,3}}(?:\d{{3,4}}[{_SPACE}/-]\d{{3,8}}|\d{{5,9}})",
        rf"{{b}}0[1-9]\d{{1,4}}(?:[{_SPACE}/-]{{1,3}}\d{{2}}){{3,4}}",  # 030 12 34 56 78
    )
)
_PHONE_WORD = r"(?i:tele?phone|phone|mobile|whatsapp|(?:{b}|_)(?:tel|cell|fax)|(?:call|text|reach|ring) me)"
_PHONE_LABELLED = (
    _PHONE_WORD + r"(?i:s|phone)?(?i:[ _-]?(?:numbers?|no|nr|num))?(?i: at| on)?"
    r"[\s.:#='\"]{0,6}(?i:(?:is|are|at|on)\s{1,3})?['\"]?(\+?\(?\d(?:[ ./()\x{a0}-]{0,3}\d){6,14})"
)
_PEM = r"PRIVATE KEY(?: BLOCK)?-----"
_KEYS = (
    r"{b}sk-[A-Za-z0-9_-]{20,}|{b}[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|{b}(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|{b}gh[opusr]_[A-Za-z0-9]{36,}|{b}github_pat_[A-Za-z0-9_]{22,}|{b}glpat-[A-Za-z0-9_-]{20,}|{b}hf_[A-Za-z0-9]{30,}"
    r"|{b}xox[abeoprs]-[A-Za-z0-9-]{10,}|{b}xapp-[A-Za-z0-9-]{10,}|{b}AIza[A-Za-z0-9_-]{35}|{b}fw_[A-Za-z0-9_-]{40,}"
    r"|{b}eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|(?i:{b}bearer\s{1,4})([A-Za-z0-9._~+/=-]{16,})"
    r"|(?i:secret_?access_?key['\"]?\s{0,3}[:=]\s{0,3}['\"]?)([A-Za-z0-9/+]{40})\b"
    rf"|-----BEGIN [A-Z0-9 ]*{_PEM}(?:[A-Za-z0-9+/=\s\\:,.()]|-[A-Za-z0-9])*(?:-----END [A-Z0-9 ]*{_PEM})?"
)
_SSN = r"\d{3}-\d{2}-\d{4}\b"
_SSN_WORD = r"(?i:ssn|social[ _]security)"
_SSN_LABELLED = (
    _SSN_WORD + r"(?i:[ _]?(?:numbers?|no))?"
    r"[\s.:#='\"]{0,6}(?i:is\s{1,3})?['\"]?(\d{3}[ -]?\d{2}[ -]?\d{4})\b"
)

BUILTINS: dict[str, Builtin] = {
    "api_key": Builtin(
        "API keys and tokens", "sk-…, AKIA…, ghp_…, xoxb-…, AIza…, JWT, Bearer …, PEM private keys, fw_…", _KEYS, _api_key,
        extra=r"(?i:bearer)[^A-Za-z0-9]{1,8}|(?i:secret_?access_?key)|PRIVATE KEY",
    ),
    "email": Builtin(
        "E-mail addresses", "joe.doe@example.com",
        r"[\p{L}\p{N}._%+'-]+@(?:[\p{L}\p{N}-]+\.)+(?:\p{L}{2,24}|xn--[a-z0-9-]{2,40})", _email, extra="@", hint=b"@", resume=len,
    ),
    "iban": Builtin(
        "Bank accounts (IBAN)", "DE89 3704 0044 0532 0130 00, by its check digits",
        r"(?i:{b}[a-z]{2}\d{2}(?:[ -]?[a-z0-9]{4}){2,7}(?:[ -]?[a-z0-9]{1,4})?)", _iban,
    ),
    "card": Builtin(
        "Payment cards", "4111 1111 1111 1111, by issuer and check digit",
        r"{b}(?:\d{12,19}|\d{4}(?:[ -]\d{4}){3}(?:[ -]\d{1,3})?|\d{4}[ -]\d{6}[ -]\d{4,5})\b", _card,
    ),
    "us_ssn": Builtin(
        "US social security numbers", "078-05-1121", "{b}" + _SSN + "|" + _SSN_LABELLED, _us_ssn,
        extra=_SSN_WORD + r"[^0-9]{0,40}\d{3}[^0-9]{0,2}\d{2}[^0-9]{0,2}\d{4}",
    ),
    "phone": Builtin(
        "Phone numbers", "+44 20 7946 0958, (415) 555-0132, 0171 1234567", _PHONE + "|" + _PHONE_LABELLED, _phone,
        extra=_PHONE_WORD + r"[^0-9]{0,40}\d(?:[^0-9]{0,4}\d){6}",
    ),
    "ip": Builtin(
        "IP addresses", "203.0.113.7, 2001:db8::7",
        r"{b}\d{1,3}(?:\.\d{1,3}){3}\b|(?i:(?:[0-9a-f]{1,4}:|:){3,8}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{1,4})?)", _ip,
        resume=lambda found: max(1, found.rfind(b":") + 1),
    ),
}  # fmt: skip

# In JSON a line break before a number is `\n`, whose n would hide that a word begins.
_JSON_START = r"(?:\b|\\[bfnrt]|\\u[0-9a-f]{4})"
# JSON within JSON may spell any character as an escape.
_NESTED_ESCAPE = r"\\\\(?:/|(?i:u00(?:[2-7]|a0)|u202f))"
_DATA_URL = re.compile(rb"data:[A-Za-z0-9.+/;=-]{0,100};base64,[A-Za-z0-9+/=_-]*")
_WHOLE_DATA_URL = re.compile(r"data:[A-Za-z0-9.+/;=-]{0,100};base64,[A-Za-z0-9+/=_\s-]*\Z")


@lru_cache
def _candidates(kind: str) -> Any:
    return _compile(BUILTINS[kind].pattern.replace("{b}", r"\b"))


@lru_cache
def _anything(kinds: frozenset[str]) -> Any:
    """Finds something in a text in which one of the kinds would."""
    return _compile("|".join(BUILTINS[kind].pattern for kind in sorted(kinds)).replace("{b}", r"\b"))


@lru_cache
def _precheck(kinds: frozenset[str]) -> Any:
    """Finds something in the JSON of a row in which one of the kinds would."""
    parts = [_NESTED_ESCAPE]
    for kind in sorted(kinds):
        builtin = BUILTINS[kind]
        parts.append(_PHONE if kind == "phone" else builtin.extra if kind == "email" else builtin.pattern)
        parts.append(builtin.extra or builtin.pattern)
    return _compile("|".join(dict.fromkeys(parts)).replace("{b}", _JSON_START))


def _find(kind: str, text: bytes) -> Iterator[tuple[int, int]]:
    """Disjoint spans of a built-in kind, from the left."""
    builtin, pattern, place = BUILTINS[kind], _candidates(kind), 0
    if builtin.hint not in text:
        return
    while match := pattern.search(text, place):
        group = next((group for group in range(1, pattern.groups + 1) if match.group(group)), 0)
        if found := builtin.check(text, *match.span(group)):
            yield found
        place = found[1] if found else match.start() + builtin.resume(match.group())


# -- own patterns and Presidio -----------------------------------------------------------------------------------------


def check_pattern(pattern: str) -> Any:
    """The compiled pattern. Raises RuleError for one that is no RE2, empty, matches nothing at all, or is too large."""
    if not pattern:
        raise RuleError("The pattern is empty.")
    if len(pattern) > MAX_PATTERN:
        raise RuleError(f"The pattern has {len(pattern):,} characters; {MAX_PATTERN} are allowed.")
    if re.search(r"(?<!\\)(?:\\\\)*\\C", pattern):
        raise RuleError(r"\C (one byte) could cut a character in two. Use . for one character.")
    try:
        compiled = _compile(pattern)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        hint = " RE2 has no look-around and no back-references." if "(?" in reason or "escape" in reason else ""
        raise RuleError(f"The pattern does not compile: {reason}.{hint}") from error
    if compiled.programsize > MAX_PROGRAM:
        raise RuleError(f"Written out, the pattern has {compiled.programsize:,} steps; {MAX_PROGRAM:,} are allowed.")
    if any((match := compiled.search(sample)) and match.end() == match.start() for sample in (b"", b"a 1")):
        raise RuleError("The pattern matches empty text. Make at least one character of it necessary.")
    return compiled


def presidio_installed() -> bool:
    return importlib.util.find_spec("presidio_analyzer") is not None


SPACY_MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")


@lru_cache(maxsize=1)
def _presidio() -> Any:
    """Presidio's analyzer over a spaCy model that is already here: Presidio itself would download one. RuleError."""
    try:
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider
    except ImportError as error:
        raise RuleError("Presidio is not installed. Run `pip install presidio-analyzer` and restart.") from error
    model = next((name for name in SPACY_MODELS if importlib.util.find_spec(name)), None)
    if model is None:
        raise RuleError("Presidio needs a spaCy model. Run `python -m spacy download en_core_web_sm` and restart.")
    models = [{"lang_code": "en", "model_name": model}]
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models})
    return AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])


def _find_presidio(rule: Rule, text: str) -> Iterator[tuple[int, int]]:
    """Byte spans in `text`. What Presidio cannot read goes whole: better a lost text than a leaked one."""
    entities = re.findall(r"\w+", rule.pattern) or None
    try:
        for found in _presidio().analyze(text=_sound(text), language="en", entities=entities, score_threshold=0.5):
            yield tuple(len(_bytes(text[:place])) for place in (found.start, found.end))  # type: ignore[misc]
    except Exception:
        yield 0, len(_bytes(text))


# -- strings -----------------------------------------------------------------------------------------------------------


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _sound(text: str) -> str:
    """As many characters, none of them a lone surrogate."""
    return text.encode("utf-8", "replace").decode()


def _merged(spans: Iterable[Span]) -> list[Span]:
    """From the left; overlapping spans as their union, under the earliest rule."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start < merged[-1].end:
            last = merged.pop()
            span = Span(last.start, max(last.end, span.end), min(last.rule, span.rule))
        merged.append(span)
    return merged


_CONTEXT = re.compile(f"{_PHONE_WORD}|{_SSN_WORD}".replace("{b}", r"\b"))


@lru_cache(maxsize=4096)
def _context(key: str) -> str:
    """The key, where it says what its value is."""
    return key if len(key) <= 60 and _CONTEXT.search(key) else ""


_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|-?\d[\d.eE+-]*', re.S)


def is_json(text: str) -> bool:
    """Whether a string holds a JSON object or array."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return False
    return True


See = Callable[[Leaf], str]


def _walk(value: Any, see: See, context: str = "", keep: frozenset[str] = frozenset(), depth: int = 0) -> Any:
    """A copy of a JSON value in which every string is what `see` says of it; keys in `keep` stay with their values."""
    if isinstance(value, str):
        return _walk_string(value, see, context)
    if isinstance(value, int) and not isinstance(value, bool) and 10**6 < value < 10**19:
        seen = see(Leaf(context, str(value)))
        return value if seen == str(value) else seen
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_walk(item, see, context, keep, depth + 1) for item in value]
    if isinstance(value, dict):
        copy: dict[Any, Any] = {}
        for key, item in value.items():
            named = _free(see(Leaf("", key)), copy, key) if isinstance(key, str) else key
            copy[named] = item if key in keep else _walk(item, see, _context(str(key)), depth=depth + 1)
        return copy
    return value


def _free(key: str, taken: dict, old: str) -> str:
    """Two keys that become the same text stay two keys."""
    number, free = 2, key
    while key != old and free in taken:
        free, number = f"{key} {number}", number + 1
    return free


def _walk_string(text: str, see: See, context: str = "") -> str:
    """A string; JSON in it (the arguments of a call, the reply of a tool) stays JSON, also where it is cut."""
    if text.startswith("data:") and _WHOLE_DATA_URL.match(text):
        return text
    if not is_json(text):
        return see(Leaf(context, text))
    keys: dict[str, None] = {}
    key = context

    def token(match: re.Match[str]) -> str:
        nonlocal key
        raw = match[0]
        if raw[0] != '"':
            plain = raw.isdigit() and 6 < len(raw) < 20
            seen = see(Leaf(key, raw)) if plain else raw
            return raw if seen == raw else json.dumps(seen, ensure_ascii=False)
        colon = match[1] or ""
        old = json.loads(raw.removesuffix(colon))
        new = see(Leaf("", old)) if colon else _walk_string(old, see, key)
        if colon:
            key = _context(old)
            new = _free(new, keys, old)
            keys[new] = None
        return raw if new == old else json.dumps(new, ensure_ascii=not _encodes(new)) + colon

    return _JSON_TOKEN.sub(token, text)


def _encodes(text: str) -> bool:
    return _sound(text) == text


_MESSAGE, _CALL = frozenset({"role", "tool_call_id"}), frozenset({"id", "type"})


def _walk_message(message: Any, see: See) -> Any:
    """A message; what ties calls to replies and names the role stays."""
    if not isinstance(message, dict):
        return _walk(message, see)
    calls = message.get("tool_calls")
    copy = _walk(message, see, keep=_MESSAGE | {"tool_calls"})
    if isinstance(calls, list):
        copy["tool_calls"] = [_walk(call, see, keep=_CALL) for call in calls]
    return copy


def _walk_row(row: dict, see: See) -> dict:
    """A copy of the row. The client's `id` stays: it is the key by which a resent row is known and feedback arrives."""
    copy = dict(row)
    for name, value in row.items():
        if name in UNTOUCHED:
            continue
        if name == "messages" and isinstance(value, list):
            copy[name] = [_walk_message(message, see) for message in value]
        elif name == "outcome":
            copy[name] = _walk(value, see, keep=frozenset({"status"}))
        elif name == "interventions":
            copy[name] = _walk(value, see, keep=frozenset({"kind"}))
        else:
            copy[name] = _walk(value, see)
    return copy


def default_replacement(rule: Rule) -> str:
    return f"[{re.sub(r'[^A-Z0-9]+', '_', rule.name.upper()).strip('_') or 'REDACTED'}]"


# -- the redactor ------------------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """A rule of kind regex, and its pre-check over strings laid end to end (None: it must see each by itself)."""

    order: int
    pattern: Any
    precheck: Any


_SEPARATOR = b"\n\x00\n"
_ENDS = re.compile(r"\\[AzQ]|\(\?[a-zA-Z]*-")


class Redactor:
    """Rules, compiled once. Raises RuleError. `key` makes the `{id}` tokens: keep it secret, one per project."""

    def __init__(self, rules: Sequence[Rule], *, key: bytes = b"") -> None:
        if len(rules) > MAX_RULES:
            raise RuleError(f"There are {len(rules)} rules; {MAX_RULES} are allowed.")
        self.rules, self.key = tuple(rules), key
        self._builtins = [(order, rule.kind) for order, rule in enumerate(rules) if rule.kind in BUILTINS]
        self._own = [_own(order, rule) for order, rule in enumerate(rules) if rule.kind == "regex"]
        self._presidio = [order for order, rule in enumerate(rules) if rule.kind == "presidio"]
        for rule in rules:
            self._check(rule)
        if self._presidio:
            _presidio()
        kinds = frozenset(kind for _, kind in self._builtins)
        self._precheck, self._anything = (_precheck(kinds), _anything(kinds)) if kinds else (None, None)

    def _check(self, rule: Rule) -> None:
        if rule.kind not in BUILTINS and rule.kind not in ("regex", "presidio"):
            raise RuleError(f"There is no kind of rule “{rule.kind}”.")
        if not 0 < len(rule.name) <= MAX_NAME:
            raise RuleError(f"The name of a rule has 1 to {MAX_NAME} characters.")
        if len(rule.replacement) > MAX_REPLACEMENT:
            raise RuleError(f"The replacement has {len(rule.replacement)} characters; {MAX_REPLACEMENT} are allowed.")
        if ID in rule.replacement and not self.key:
            raise RuleError(f"{ID} in a replacement needs a secret key.")

    def __bool__(self) -> bool:
        return bool(self.rules)

    def redact(self, row: dict) -> tuple[dict, Counter[str]]:
        """The row without what the rules find, and the hits by rule. A row without a hit is returned itself."""
        counts: Counter[str] = Counter()
        if not self.rules or not isinstance(row, dict) or not self.may_hit(row):
            return row, counts
        return self._redact(row, counts)

    def may_hit(self, row: dict) -> bool:
        """False only where `redact` would find nothing. Quick; always True with rules of kind regex or presidio."""
        if self._own or self._presidio or self._precheck is None:
            return bool(self.rules)
        try:
            raw = msgspec.json.encode([value for name, value in row.items() if name not in UNTOUCHED])
        except (TypeError, ValueError, OverflowError, RecursionError):
            return True
        return self._precheck.search(raw) is not None

    def _redact(self, row: dict, counts: Counter[str]) -> tuple[dict, Counter[str]]:
        copy = self._rewrite(lambda see: _walk_row(row, see), counts)
        return (copy if counts else row), counts

    def _rewrite(self, walk: Callable[[See], Any], counts: Counter[str]) -> Any:
        """What `walk` copies, with the hits replaced and counted; two walks, since rules read all strings at once."""
        leaves: dict[Leaf, None] = {}

        def collect(leaf: Leaf) -> str:
            if self._own or self._presidio or len(leaf.text) >= SHORTEST:
                leaves[leaf] = None
            return leaf.text

        same = walk(collect)
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
        raw, out, place = _bytes(text), [], 0
        for span in spans:
            out += [raw[place : span.start], _bytes(self._replacement(span.rule, raw[span.start : span.end]))]
            place = span.end
        return _text(b"".join([*out, raw[place:]])), [self.rules[span.rule].name for span in spans]

    def _replacement(self, order: int, found: bytes) -> str:
        rule = self.rules[order]
        replacement = rule.replacement or default_replacement(rule)
        return replacement.replace(ID, self._token(rule.kind, found)) if ID in replacement else replacement

    def _token(self, kind: str, found: bytes) -> str:
        """Six characters of base 32 (30 bits), the same for two spellings of a number or an address."""
        plain = _text(found).lower()
        if kind not in ("email", "api_key", "ip", "regex", "presidio"):
            plain = re.sub(r"\W", "", plain)
        digest = hmac.new(self.key, _bytes(f"{kind}:{plain}"), hashlib.sha256).digest()
        return b32encode(digest)[:6].decode().lower()

    def _spans(self, leaves: list[Leaf], own: bool = True) -> dict[int, list[Span]]:
        """What is to be replaced, by the index of the leaf."""
        blob, starts, ends = _lay(leaves)
        found: dict[int, list[Span]] = {}

        def add(index: int, start: int, end: int, order: int) -> None:
            found.setdefault(index, []).append(Span(start, end, order))

        for order, kind in self._builtins if self._anything and self._anything.search(blob) else ():
            for start, end in _find(kind, blob):
                index = bisect_right(starts, start) - 1
                if index >= 0 and end <= ends[index]:
                    add(index, start - starts[index], end - starts[index], order)
        if own:
            for rule in self._own:
                if rule.precheck is None or rule.precheck.search(blob):
                    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
                        for match in rule.pattern.finditer(blob[start:end]):
                            if match.end() > match.start():
                                add(index, match.start(), match.end(), rule.order)
            for order in self._presidio:
                for index, leaf in enumerate(leaves):
                    for start, end in _find_presidio(self.rules[order], leaf.text):
                        add(index, start, end, order)
        if b";base64," in blob:
            _leave_data(found, blob, starts, ends)
        return {index: _merged(spans) for index, spans in found.items() if spans}

    def hits(self, text: str) -> list[Hit]:
        """What is replaced in one string, from the left."""
        if not is_json(text):
            return list(self._hits(Leaf("", text), 0))
        found: list[Hit] = []
        key = ""
        for match in _JSON_TOKEN.finditer(text):
            raw = match[0].removesuffix(match[1] or "")
            if raw[0] != '"':
                found += self._hits(Leaf(key, raw), match.start()) if raw.isdigit() and 6 < len(raw) < 20 else ()
                continue
            old = json.loads(raw)
            context, counts = "" if match[1] else key, Counter[str]()
            if old == raw[1:-1]:
                found += self._hits(Leaf(context, old), match.start() + 1)
            else:
                # Its characters do not stand in the text one by one: it is shown whole.
                new = self._rewrite(partial(_walk_string, old, context=context), counts)
                start, end = match.start() + 1, match.start() + len(raw) - 1
                found += [Hit(", ".join(counts), start, end, old, new)] if counts else []
            key = _context(old) if match[1] else key
        return found

    def _hits(self, leaf: Leaf, offset: int) -> Iterator[Hit]:
        raw = _bytes(leaf.text)
        for span in self._spans([leaf]).get(0, ()):
            before, text = _text(raw[: span.start]), _text(raw[span.start : span.end])
            start = offset + len(before)
            rule = self.rules[span.rule].name
            yield Hit(rule, start, start + len(text), text, self._replacement(span.rule, raw[span.start : span.end]))


def strings(row: dict) -> list[str]:
    """The strings of a row at which rules look, in its order; those of JSON in a string one by one."""
    found: list[str] = []

    def see(leaf: Leaf) -> str:
        found.append(leaf.text)
        return leaf.text

    _walk_row(row, see)
    return found


def _own(order: int, rule: Rule) -> Own:
    pattern = check_pattern(rule.pattern)
    return Own(order, pattern, None if _ENDS.search(rule.pattern) else _compile(f"(?m:{rule.pattern})"))


def _lay(leaves: list[Leaf]) -> tuple[bytes, list[int], list[int]]:
    """The leaves end to end, each after its context, and where the text of each begins and ends."""
    parts, starts, ends, place = [], [], [], 0
    for context, text in leaves:
        raw = _bytes(text)
        head = _bytes(context) + b": " if context else b""
        starts.append(place + len(head))
        ends.append(place + len(head) + len(raw))
        place = ends[-1] + len(_SEPARATOR)
        parts.append(head + raw)
    return _SEPARATOR.join(parts), starts, ends


def _leave_data(found: dict[int, list[Span]], blob: bytes, starts: list[int], ends: list[int]) -> None:
    """Drops the hits that lie in the base64 of a data URL: they are chance."""
    for index, spans in found.items():
        urls = [match.span() for match in _DATA_URL.finditer(blob[starts[index] : ends[index]])]
        found[index] = [
            span for span in spans if not any(left <= span.start and span.end <= right for left, right in urls)
        ]


def test(rules: Sequence[Rule], text: str, *, key: bytes = b"") -> list[Hit]:
    """What the rules would replace in a text. Raises RuleError."""
    return Redactor(rules, key=key).hits(text)


test.__test__ = False  # type: ignore[attr-defined]  # not a test of pytest's
