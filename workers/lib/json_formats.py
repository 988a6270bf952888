"""The `format`s that JSON Schema asserts, by name. Bounded: RE2, and texts longer than MAX_LENGTH
have no format.

RFC 3339 (dates and times, appendix A for durations), 5321 (email), 1123 and 5890 (host names), 3986
and 3987 (URI and IRI), 6570 (URI templates), 6901 (JSON pointers), 4122 (UUID).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from warnings import catch_warnings, simplefilter

import idna

from workers.lib.patterns import MAX_PATTERN, PatternError, compiled

MAX_LENGTH = 4_000
LONGEST_HOST, LONGEST_LOCAL = 253, 64


def _full(pattern: str, text: str) -> bool:
    return compiled(f"(?:{pattern})").fullmatch(text.encode("utf-8", "replace")) is not None


def is_date(text: str) -> bool:
    if not _full(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    try:
        return date.fromisoformat(text) is not None
    except ValueError:
        return False


_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[zZ]|([+-])(\d\d):(\d\d))", re.ASCII)


def is_time(text: str) -> bool:
    """A leap second is only valid at 23:59:60 UTC."""
    if not (found := _TIME.fullmatch(text)):
        return False
    hour, minute, second, away, further = (int(found[n] or 0) for n in (1, 2, 3, 5, 6))
    offset = (away * 60 + further) * (-1 if found[4] == "-" else 1)
    if hour > 23 or minute > 59 or away > 23 or further > 59:
        return False
    return second < 60 or (second == 60 and (hour * 60 + minute - offset) % 1440 == 1439)


def is_date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and is_date(text[:10]) and is_time(text[11:])


_DAYS = r"(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)"
_HOURS = r"T(?:\d+S|\d+M(?:\d+S)?|\d+H(?:\d+M(?:\d+S)?)?)"
DURATION = rf"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|\d+W)"


def is_ipv4(text: str) -> bool:
    return _is_address(IPv4Address, text)


def is_ipv6(text: str) -> bool:
    return "%" not in text and _is_address(IPv6Address, text)


def _is_address(kind: Callable[[str], object], text: str) -> bool:
    try:
        return text.isascii() and kind(text) is not None
    except ValueError:
        return False


def is_hostname(text: str) -> bool:
    """Labels as in RFC 1123; one that begins with xn-- must be valid Punycode."""
    labels = text.split(".")
    if len(text) > LONGEST_HOST or not all(
        _full(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", it) for it in labels
    ):
        return False
    return all(_is_punycode(label) if label[2:4] == "--" else True for label in labels)


def _is_punycode(label: str) -> bool:
    try:
        return idna.ulabel(label.lower()) != ""
    except UnicodeError:  # idna.IDNAError is a subclass
        return False


_DOTS = re.compile("[。．｡]")


def is_idn_hostname(text: str) -> bool:
    text = _DOTS.sub(".", text)
    if len(text) > LONGEST_HOST or not all(text.split(".")):
        return False
    try:
        return is_hostname(idna.encode(text.lower()).decode())
    except UnicodeError:
        return False


def _is_email(text: str, host: Callable[[str], bool], more: str) -> bool:
    local, at, domain = text.rpartition("@")
    atom = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{more}-]+"
    quoted = rf'"(?:[ !#-\[\]-~{more}]|\\[ -~{more}])*"'
    if not at or len(local) > LONGEST_LOCAL or not _full(rf"{atom}(?:\.{atom})*|{quoted}", local):
        return False
    if domain.startswith("[") and domain.endswith("]"):
        inner = domain[1:-1]
        return is_ipv6(inner[5:]) if inner[:5].lower() == "ipv6:" else is_ipv4(inner)
    return host(domain)


# RFC 3986, appendix A, and the additions of RFC 3987.
_MORE = r"\x{A0}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFEF}\x{10000}-\x{EFFFD}"

_PRIVATE = r"\x{E000}-\x{F8FF}\x{F0000}-\x{FFFFD}\x{100000}-\x{10FFFD}"


def _is_reference(text: str, more: str, absolute: bool) -> bool:
    unreserved, escaped, marks = rf"A-Za-z0-9._~{more}\-", "%[0-9A-Fa-f]{2}", "!$&'()*+,;="
    char = rf"(?:[{unreserved}{marks}:@]|{escaped})"
    tail = rf"(?:\?(?:{char}|[/?{_PRIVATE if more else ''}])*)?(?:#(?:{char}|[/?])*)?"
    host = rf"(?:\[[0-9A-Fa-f:.]+\]|\[[vV][0-9A-Fa-f]+\.[{unreserved}{marks}:]+\]|(?:[{unreserved}{marks}]|{escaped})*)"  # noqa: E501
    place = rf"//(?:(?:[{unreserved}{marks}:]|{escaped})*@)?{host}(?::[0-9]*)?(?:/{char}*)*"
    scheme = r"[A-Za-z][A-Za-z0-9+.-]*:"
    rooted = rf"(?:{place}|/(?:{char}+(?:/{char}*)*)?|{char}+(?:/{char}*)*|)"
    relative = rf"(?:{place}|/(?:{char}+(?:/{char}*)*)?|(?:[{unreserved}{marks}@]|{escaped})+(?:/{char}*)*|)"  # noqa: E501
    if not _full(f"{scheme}{rooted}{tail}", text) and (
        absolute or not _full(f"{relative}{tail}", text)
    ):
        return False
    address = re.search(r"//(?:[^/?#]*@)?\[([^\]vV][^\]]*)\]", text)
    return address is None or is_ipv6(address[1])


def is_uri_template(text: str) -> bool:
    name = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"
    variable = rf"{name}(?:\*|:[1-9][0-9]{{0,3}})?"
    literal = rf"[!#$&-;=?-\[\]_a-z~{_MORE}]|%[0-9A-Fa-f]{{2}}"
    return _full(rf"(?:{literal}|\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}})*", text)


_NOT_ECMA = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:P|#|[a-zA-Z-]+\))|\\[aAZ])")


def is_regex(text: str) -> bool:
    """An ECMA 262 pattern, as far as RE2 or else Python can parse it; it is never matched with
    Python.
    """
    if _NOT_ECMA.search(text):
        return False
    try:
        return compiled(text) is not None
    except PatternError:
        pass
    try:
        with catch_warnings():
            simplefilter("ignore")
            return len(text) <= MAX_PATTERN and re.compile(text) is not None
    except (re.error, RecursionError, OverflowError):
        return False


_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
FORMATS: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "duration": partial(_full, DURATION),
    "email": lambda text: _is_email(text, is_hostname, ""),
    "idn-email": lambda text: _is_email(text, is_idn_hostname, _MORE),
    "hostname": is_hostname,
    "idn-hostname": is_idn_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "uri": lambda text: _is_reference(text, "", True),
    "uri-reference": lambda text: _is_reference(text, "", False),
    "iri": lambda text: _is_reference(text, _MORE, True),
    "iri-reference": lambda text: _is_reference(text, _MORE, False),
    "uri-template": is_uri_template,
    "regex": is_regex,
    "uuid": partial(_full, "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"),
    "json-pointer": partial(_full, _POINTER),
    "relative-json-pointer": partial(_full, rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"),
}


def has_format(text: str, name: str) -> bool:
    """Whether a text has a format; true for an unknown format."""
    check = FORMATS.get(name)
    return check is None or (len(text) <= MAX_LENGTH and check(text))
