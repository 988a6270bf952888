"""The built-in kinds: a pattern for candidates, a check of each, and a pre-check over JSON that
misses none of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from stdnum import iban, luhn, numdb
from stdnum.iso7064 import mod_97_10
from stdnum.us import ssn

from apps.trajectories.redaction.keys import KEYS, KEYS_EXTRA, key
from apps.trajectories.redaction.passwords import (
    QUICK,
    ROUGH,
    ROUGH_TAGGED,
    SAID_SOON,
    TAGGED,
    TRIGGERS,
    password,
)
from apps.trajectories.redaction.rules import BUILTIN_MEMORY, compile_pattern

Check = Callable[[bytes, int, int], "tuple[int, int] | None"]


class Apart(NamedTuple):
    """A part of a pre-check. One that cannot do without some bytes has its own `rough`."""

    pattern: str
    needed: bytes = b""
    rough: str = ""


class Builtin(NamedTuple):
    """`pattern` has `{b}` where a word begins; a group, where one took part, is the hit. `extra` is
    pre-check only. `quick` and `apart` are the whole pre-check: a pattern that may be joined with
    those of other kinds, and those that may not. `rough` is a pattern of few states without which
    neither finds anything that `check` accepts; it is looked for first.

    `resume` says how far into a candidate that was none the search goes on: another may start
    inside it.
    """

    title: str
    example: str
    pattern: str
    check: Check
    extra: str = ""
    hint: bytes = b""
    resume: Callable[[bytes], int] = lambda found: 1
    quick: str = ""
    rough: str = ""
    apart: tuple[Apart, ...] = ()


def loosened(pattern: str) -> str:
    """Finds whatever the pattern does, and more, in fewer states: it counts to eight at most."""
    return re.sub(
        r"(?<!\\x)\{(\d+)(?:,\d*)?\}", lambda match: f"{{{min(int(match[1]), 8)},}}", pattern
    )


def _word(char: bytes) -> bool:
    return char.isalnum() or char == b"_"


def _around(text: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    return text[max(0, start - 1) : start], text[end : end + 1]


def _digits(text: bytes) -> bytes:
    return re.sub(rb"\D", b"", text)


def _alone(text: bytes, start: int, end: int, before: bytes = b"-#.+/") -> bool:
    """No letter, digit or joining character touches the number: it is not a part of an
    identifier.
    """
    left, right = _around(text, start, end)
    if left and (_word(left) or left in before):
        return False
    return not right or not (
        _word(right) or (right in b"-./" and text[end + 1 : end + 2].isdigit())
    )


_IMAGE = re.compile(rb"\d+x\.(png|jpe?g|gif|svg|webp|avif)$", re.I)


def _email(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    while text[start : start + 1] in (b".", b"'", b"-"):
        start += 1
    local, _, domain = text[start:end].rpartition(b"@")
    labels = domain.split(b".")
    versioned = len(labels) > 2 and labels[0].isdigit() and labels[1].isdigit()
    remote = local == b"git" and text[end : end + 1] == b":"
    return None if not local or versioned or remote or _IMAGE.match(domain) else (start, end)


_DATE = re.compile(
    rb"\D?(\d{4}([-/. ])\d{2}\2\d{2}|\d{2}([-/. ])\d{2}\3(19|20)\d\d)(?!\d)|\d{5}-\d{4}$"
)


def _phone(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    found = text[start:end]
    digits = _digits(found)
    if not 7 <= len(digits) <= 15 or _DATE.match(found) or not _alone(text, start, end):
        return None
    if found[:2] == b"00":
        # Groups of digits before it: a longer number.
        return None if re.search(rb"\d[ -]$", text[max(0, start - 2) : start]) else (start, end)
    return None if found[:1] == b"0" and not 9 <= len(digits) <= 12 else (start, end)


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
    for stop in [
        len(found),
        *(place for place in range(len(found) - 1, 12, -1) if found[place] in b" -"),
    ]:
        digits = _digits(found[:stop])
        if _ISSUERS.fullmatch(digits) and luhn.is_valid(digits.decode()):
            return start, start + stop
    return None


@lru_cache(maxsize=1024)
def _iban_length(country: str) -> int:
    """How long the IBANs of a country are, by the registry of ISO 13616; 0 without such a
    country.
    """
    _, found = numdb.get("iban").info(f"{country}00")[0]
    return 4 + sum(map(int, re.findall(r"\d+", found["bban"]))) if "bban" in found else 0


def _iban(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    length = _iban_length(text[start : start + 2].decode("ascii", "replace").upper())
    places = [place for place in range(start, end) if text[place] not in b" -"]
    if not length or len(places) < length:
        return None
    stop = places[length - 1] + 1
    if any(_word(char) for char in _around(text, start, stop)):
        return None
    code = bytes(text[place] for place in places[:length]).decode().upper()
    # The check digits first: they are quick, and the whole check costs a tenth of a millisecond.
    return (
        (start, stop)
        if mod_97_10.is_valid(code[4:] + code[:4]) and iban.is_valid(code, check_country=False)
        else None
    )


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
    if (
        six
        and b"." not in found
        and (sum(map(bool, found.split(b":"))) < 3 or not re.search(rb"\d", found))
    ):
        return None
    try:
        address = ipaddress.ip_address(found.decode())
    except ValueError:
        return None
    if (
        address.is_loopback
        or address.is_unspecified
        or address == ipaddress.ip_address("255.255.255.255")
    ):
        return None
    return None if _VERSION.search(text[max(0, start - 12) : start]) else (start, end)


def _us_ssn(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    digits = _digits(text[start:end]).decode()
    return (start, end) if ssn.is_valid(digits) and _alone(text, start, end) else None


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
PHONE_WORD = (
    r"(?i:tele?phone|phone|mobile|whatsapp|(?:{b}|_)(?:tel|cell|fax)|(?:call|text|reach|ring) me)"
)
_PHONE_LABELLED = (
    PHONE_WORD + r"(?i:s|phone)?(?i:[ _-]?(?:numbers?|no|nr|num))?(?i: at| on)?"
    r"[\s.:#='\"]{0,6}(?i:(?:is|are|at|on)\s{1,3})?['\"]?(\+?\(?\d(?:[ ./()\x{a0}-]{0,3}\d){6,14})"
)
_SSN = r"\d{3}-\d{2}-\d{4}\b"
SSN_WORD = r"(?i:ssn|social[ _]security)"
_SSN_LABELLED = (
    SSN_WORD + r"(?i:[ _]?(?:numbers?|no))?"
    r"[\s.:#='\"]{0,6}(?i:is\s{1,3})?['\"]?(\d{3}[ -]?\d{2}[ -]?\d{4})\b"
)

_CARD = r"{b}(?:\d{12,19}|\d{4}(?:S\d{4}){3}(?:S\d{1,3})?|\d{4}S\d{6}S\d{4,5})\b".replace(
    "S", r"[ \x{a0}\x{202f}\x{2013}-]"
)

BUILTINS: dict[str, Builtin] = {
    "api_key": Builtin(
        "API keys and tokens",
        "sk-…, AKIA…, ghp_…, xoxb-…, AIza…, JWT, Bearer …, PEM private keys, webhooks, fw_…",
        KEYS,
        key,
        quick=KEYS_EXTRA,
        rough=f"{KEYS_EXTRA}|{loosened(KEYS)}",
        apart=(Apart(KEYS),),
    ),
    "email": Builtin(
        "Email addresses",
        "joe.doe@example.com",
        r"[\p{L}\p{N}._%+'-]+@(?:[\p{L}\p{N}-]+\.)+(?:\p{L}{2,24}|xn--[a-z0-9-]{2,40})",
        _email,
        extra="@",
        hint=b"@",
        resume=len,
    ),
    "iban": Builtin(
        "Bank accounts (IBAN)",
        "DE89 3704 0044 0532 0130 00, by its check digits",
        r"(?i:{b}[a-z]{2}\d{2}(?:[ -]?[a-z0-9]{4}){2,7}(?:[ -]?[a-z0-9]{1,4})?)",
        _iban,
    ),
    "card": Builtin(
        "Payment cards",
        "4111 1111 1111 1111, by issuer and check digit",
        _CARD,
        _card,
        quick=_CARD,
        rough=_CARD,
    ),
    "us_ssn": Builtin(
        "US social security numbers",
        "078-05-1121",
        "{b}" + _SSN + "|" + _SSN_LABELLED,
        _us_ssn,
        extra=SSN_WORD + r"[^0-9]{0,40}\d{3}[^0-9]{0,2}\d{2}[^0-9]{0,2}\d{4}",
    ),
    "phone": Builtin(
        "Phone numbers",
        "+44 20 7946 0958, (415) 555-0132, 0171 1234567",
        _PHONE + "|" + _PHONE_LABELLED,
        _phone,
        extra=PHONE_WORD + r"[^0-9]{0,40}\d(?:[^0-9]{0,4}\d){6}",
    ),
    "ip": Builtin(
        "IP addresses",
        "203.0.113.7, 2001:db8::7",
        r"{b}\d{1,3}(?:\.\d{1,3}){3}\b|(?i:(?:[0-9a-f]{1,4}:|:){3,8}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{1,4})?)",
        _ip,
        resume=lambda found: max(1, found.rfind(b":") + 1),
    ),
    "password": Builtin(
        "Passwords and secrets by name",
        "password=…, --token …, “my password is …”, https://user:…@host, fields such as"
        " client_secret",
        TRIGGERS,
        password,
        quick=QUICK,
        rough=loosened(ROUGH),
        apart=(Apart(TAGGED, b">", ROUGH_TAGGED), Apart(SAID_SOON)),
    ),
}

# In JSON a line break before a number is `\n`, whose n would hide that a word begins.
_JSON_START = r"(?:\b|\\[bfnrt]|\\u[0-9a-f]{4})"
# JSON within JSON may spell any character as an escape. Those of other scripts are common in it.
_NESTED_ESCAPE = r"\\\\(?:/|(?i:u00(?:[2-7]|a0)|u202f))"
_HIDDEN = b"\\\\u"
_OTHER_SCRIPT = re.compile(rb"\\{2,}u(?!00[0-7])([0-9a-fA-F]{4})")


@lru_cache
def _candidates(kind: str) -> Any:
    return compile_pattern(BUILTINS[kind].pattern.replace("{b}", r"\b"), BUILTIN_MEMORY)


class Precheck:
    """Whether something is in a text that one of the kinds would find. One pattern of all of them
    has the states of each times those of the others: RE2 runs out of room, and then takes a hundred
    times as long. `start` is where a word begins, `escape` what may hide anything.
    """

    def __init__(self, kinds: frozenset[str], start: str, escape: str = "") -> None:
        builtins = {kind: BUILTINS[kind] for kind in sorted(kinds)}
        apart = [part for kind, builtin in builtins.items() for part in _apart(kind, builtin)]
        quick = [builtin.quick for builtin in builtins.values() if builtin.quick]
        rough = [builtin.rough for builtin in builtins.values()]

        def compiled(*patterns: str) -> Any:
            whole = "|".join(filter(None, patterns)).replace("{b}", start)
            return compile_pattern(whole, BUILTIN_MEMORY, captures=False) if whole else None

        self._hides = _HIDDEN if escape else b""
        hidden = re.escape(self._hides.decode())
        self._rough = compiled(escape, hidden, *rough) if all(rough) else None
        together = [compiled(escape, *quick), *(compiled(p.pattern) for p in apart if not p.needed)]
        self._parts = [pattern for pattern in together if pattern]
        self._needing = [
            (part.needed, compiled(part.rough), compiled(part.pattern))
            for part in apart
            if part.needed
        ]

    def may_hit(self, text: bytes) -> bool:
        is_near = self._rough is None or self._rough.search(text)
        if is_near and self._hides and self._hides in text:
            text = _OTHER_SCRIPT.sub(_spelled, text)
        if is_near and any(part.search(text) for part in self._parts):
            return True
        return any(
            needed in text and rough.search(text) and pattern.search(text)
            for needed, rough, pattern in self._needing
        )


def _spelled(escape: re.Match[bytes]) -> bytes:
    return chr(int(escape[1], 16)).encode("utf-8", "surrogatepass")


@lru_cache
def anything(kinds: frozenset[str]) -> Precheck:
    """Of a text."""
    return Precheck(kinds, r"\b")


@lru_cache
def precheck_of(kinds: frozenset[str]) -> Precheck:
    """Of the JSON of a row."""
    return Precheck(kinds, _JSON_START, _NESTED_ESCAPE)


def _apart(kind: str, builtin: Builtin) -> tuple[Apart, ...]:
    if builtin.quick:
        return builtin.apart
    whole = _PHONE if kind == "phone" else builtin.extra if kind == "email" else builtin.pattern
    return Apart(whole), Apart(builtin.extra or builtin.pattern)


def find(kind: str, text: bytes) -> Iterator[tuple[int, int]]:
    """Disjoint spans of a built-in kind, from the left."""
    builtin, pattern, place = BUILTINS[kind], _candidates(kind), 0
    if builtin.hint not in text:
        return
    while match := pattern.search(text, place):
        group = next((group for group in range(1, pattern.groups + 1) if match.group(group)), 0)
        if found := builtin.check(text, *match.span(group)):
            yield found
        place = found[1] if found else match.start() + builtin.resume(match.group())
