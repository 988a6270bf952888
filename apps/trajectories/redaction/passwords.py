"""Passwords, tokens and secrets by what stands before them in a text. Pure.

TRIGGERS (RE2, linear in the text) say where to look; a parser that is anchored there reads the
value, and `names` says whether it can be one. All repetitions are bounded, so that no text makes a
parser slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from apps.trajectories.redaction.names import (
    BEFORE_CODE,
    BEFORE_KEY,
    HALF_NAMES,
    LIKELY,
    NAMES,
    SURE,
    TRAILING,
    address,
    looks,
    named,
    no_token,
    path,
    placeholder,
    random_looking,
    secret_value,
)

Span = tuple[int, int]

_NAME = "|".join(
    (
        *sorted(NAMES | HALF_NAMES | {"pin", "mot de passe"}, key=len, reverse=True),
        rf"(?:{'|'.join(sorted(BEFORE_KEY))})[ _.-]?(?:access[ _.-]?)?key",
        rf"(?:{'|'.join(sorted(BEFORE_CODE))})[ _.-]?code",
        r"pass[ _-]?word",
    )
)
_SUREST = (
    r"password|passwort|passwd|kennwort|passphrase|secret[_ ]?key|secret_access_key|api[_"
    r" ]?key|access[_ ]?token|auth[_ ]?token|пароль|psk"
)
_REST = rf"(?:[_-]?(?:{'|'.join(sorted(TRAILING))})){{0,2}}"
_MARKS = r"(?:[\\\"'`*]|&quot;){0,8}\]?"
_GAP = r"(?:[ \t]|\\t){0,20}"
_SIGN = r"(?::[ ]?&?\w[\w\[\]|<>]{0,30} =|:=|=>|->|→|[:=]|：| (?:–|—|-|\|) )"
_IS = (
    r"(?:is|was|ist|lautet|war|est|es|é|è|now|to|as|=)(?:\s(?:now|still|jetzt|set to|currently))?:?"
)
_TOOLS = (
    r"(?:sshpass|mysql(?:dump|admin|sh)?|mariadb|docker"
    r" login|redis-cli|mongo(?:sh|dump|restore)?|az login)"
)
_OTHER_TOOLS = (
    r"(?:curl|wget|echo|htpasswd|securestring|smbclient|ldap\w{3,8}|net"
    r" use|unzip|zip|7za?|sqlcmd|bcp)"
)
_PARAMETER = r"(?:sig|signature|x-amz-signature|x-goog-signature|x-amz-security-token|access_token|token|api_?key|key|auth|code|secret|password|pwd)"  # noqa: E501
_TYPED = r"\)?\.(?:fill|type|press_?sequentially|send_?keys)\("
_PGPASS = r":(?:\d{2,5}|\*):[\w*-]{1,80}:[\w.*@-]{1,80}:\S"  # host:port:database:user:password
_PHRASE = r"(?:mnemonic|(?:seed|recovery|secret)[ _-]?phrase)"

_TAGGED = rf"(?:{_NAME}){_REST}[^<>\n]{{0,80}}(?:</\w+)?>"
_AFTER_NAME = (
    rf"(?:{_NAME}){_REST}{_MARKS}{_GAP}{_SIGN}",
    rf"(?:{_NAME})(?:\s[^\n.:=]{{1,60}}?)?\s{{1,3}}{_IS}\s",
    # define('NAME', 'value'), PASSWORD('value')
    rf"(?:{_NAME}){_REST}[\"'][,] ?[\"']|password\([\"']",
    # name: PASSWORD, value: …
    (
        rf"(?:{_NAME}){_REST}[\"']?\s{{0,12}},?\s{{0,8}}"
        r"[\"']?(?:value|default)[\"']?[ \t]?[:=]"
    ),
    rf"(?:{_NAME}){_REST}{_MARKS}{_TYPED}",  # getByLabel('Password').fill('value')
    rf"(?:{_SUREST}){_REST}\)?\s|-(?:{_NAME})(?:\s|=)",
)
_OTHERS = (
    rf"\b{_TOOLS}\b|\b{_OTHER_TOOLS}\s|\s/p:|{_PHRASE}|\bsecrets?(?:manager)?\s",
    r"identified\s|with\s+(?:encrypted\s+)?password\s|set\s+password\s|\slogin\s|\bbasic\s",
    rf"(?m:^[\w.*-]{{1,80}}{_PGPASS})",
    rf"\buse\s\S{{6,80}}\sas\s(?:the|your|my|a|its)?\s?(?:{_NAME})",
    rf"://[^\s/:@\"'<>]{{0,80}}:[^\s/\"'<>]*@|[?&]{_PARAMETER}=",
)


def _any(patterns: Iterable[str]) -> str:
    return f"(?i:{'|'.join(patterns)})"


# <Password>value, <name>…password</name> <value>value
TRIGGERS = _any((*_AFTER_NAME, _TAGGED, *_OTHERS))
# In JSON, what is a line break, a quote or a < in the text is an escape; keys of a JSON Web Key
# stand alone.
_BREAK = r"(?:\s|\\[nrt])"
_SAID_SOON = rf"(?:{_NAME})[^\n.:=]{{0,60}}?{_BREAK}{{1,3}}{_IS}{_BREAK}"
_JSON_AFTER_NAME = (
    rf"-(?:{_NAME})\\[nrt]",
    (
        rf"(?:{_NAME}){_REST}(?:[^A-Za-z0-9]|\\[nrt]){{1,24}}(?:value|text|default)|(?:{_NAME}){_REST}[\\\"'(,]{{1,6}}"
        r" ?[\\\"']"
    ),
    (
        rf"(?:{_NAME}){_REST}{_MARKS}[ \t]{{0,3}}:["
        rf" *|>+-]{{0,5}}\\[nr]|(?:{_SUREST}){_REST}\)?\\[nrt]"
    ),
)
_JSON_OTHERS = (
    rf"[\w.*-]{_PGPASS}|\"[dk]\\{{0,3}}\"\s?:|(?:basic|login|identified|password|curl|wget|echo)\\[nrt]|(?:&|\\u0026){_PARAMETER}=",
    rf"\b{_OTHER_TOOLS}\\{{0,3}}\"|\"-[pPuwaUHb]\\{{0,3}}\"\s?,",
    r"secrets?(?:manager)?\\{0,3}\"\s?,|\\u00",
)
# The pre-check's. From a name to what is far behind it there are many ways, which would multiply
# the states of the others.
QUICK = _any((*_AFTER_NAME, *_OTHERS, *_JSON_AFTER_NAME, *_JSON_OTHERS))
TAGGED, SAID_SOON = _any([_TAGGED]), _any([_SAID_SOON])
# What all of QUICK begin with or consist of, in few states. A name is a word, so that no letter
# follows but for those of a word that changes nothing; up to a tag, anything may follow.
ROUGH = _any(
    (
        rf"(?:{_NAME})(?:[_-]?(?:{'|'.join(sorted(TRAILING))}))*(?:[^a-z]|\z)",
        *_OTHERS,
        *_JSON_OTHERS,
    )
)
ROUGH_TAGGED = _any([rf"(?:{_NAME})[^<>\n]*(?:</\w+)?>"])


def _parser(*parts: str | bytes) -> re.Pattern[bytes]:
    return re.compile(
        b"(?i)" + b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    )


_OPEN, _CLOSE = "(?:&quot;|“|„|«)", "(?:&quot;|”|“|»)"
_QUOTED = rf"(?:\\{{0,3}}(?P<mark>[\"']{{3}}|[\"'`])(?P<quoted>[^\n]{{1,300}}?)\\{{0,3}}(?P=mark)|{_OPEN}\s?(?P<marked>[^\n]{{1,300}}?)\s?{_CLOSE})"  # noqa: E501
_PLAIN = r"(?P<plain>[^\s\"'`,;<>\\]{3,300})"
_VALUE = rf"(?:(?:Secret\w{{0,10}}\()?[brfu@$]?{_QUOTED}|{_PLAIN})"
_NAMED = rf"(?P<name>{_NAME})(?P<tail>{_REST})"

_ASSIGNED = (
    _parser(_NAMED, _MARKS, _GAP, rf"(?P<sign>{_SIGN})", _GAP, r"\*{0,2}", _GAP, _VALUE),
    _parser(_NAMED, r"(?P<sign>[\"'], ?|\()", _QUOTED),
    _parser(_NAMED, _MARKS, rf"(?P<sign>{_TYPED})", _QUOTED),
    _parser(
        _NAMED,
        r"(?P<sign>)[^<>\n]{0,80}(?:</\w+)?>\s{0,8}(?:</?[\w:]+>\s{0,8}){0,2}(?P<plain>[^<&\s][^<\s]{2,300})(?=\s{0,8}<)",
    ),
    _parser(
        _NAMED,
        r"[\"']?\s{0,12},?\s{0,8}[\"']?(?:value|default)[\"']?[ \t]?(?P<sign>[:=])[ \t]?",
        _VALUE,
    ),
)
_SAID = _parser(
    rf"(?:{_NAME})(?:\s[^\n.:=]{{1,60}}?)?\s{{1,3}}{_IS}\s{{1,4}}(?:(?:\\{{0,3}}[\"'`]|{_OPEN})\s?)?",
    rb"(?P<plain>[^\s\"'`\xe2\xc2]\S{3,120})",
)
_OPTION = _parser(rf"-(?:{_NAME})(?:\s{{1,3}}|=)[\"']?", r"(?P<plain>[^\s\"'`-][^\s\"'`]{2,300})")
_BELOW = _parser(
    rf"(?:{_NAME}){_REST}{_MARKS}[ \t]{{0,3}}:\*{{0,2}}[ \t]{{0,3}}(?:[|>][+-]?)?["
    r" \t]{0,3}\r?\n\s{0,20}",
    r"(?P<plain>[^\s=:]{6,120})(?=\s|\Z|\x00)",
)
_FOLLOWED = _parser(
    rf"(?:{_SUREST}){_REST}\)?", r"\s{1,3}(?:\d\s)?[\"'(`*]{0,2}(?P<plain>[^\s\"'`]{8,120})"
)
_BASIC = _parser(r"basic\s{1,3}(?P<plain>[A-Za-z0-9+/_-]{8,300}={0,2})")
_QUERY = _parser(r"[?&](?P<name>[a-z_-]{1,40})=(?P<plain>[^&\s\"'<>\\]{6,2000})")
_BY_PLACE = tuple(  # nothing but its place says that it is one
    map(
        _parser,
        (
            (
                rf"{_TOOLS}\b[^\n|]{{0,120}}?\s(?-i:-[pa])[ =]?"
                r"[\"']?(?P<plain>[^\s\"'-][^\s\"']{2,300})"
            ),
            (
                r"(?:curl|wget)\s[^\n|]{0,200}?(?:-u|--user)["
                r" =]?[\"']?[^\s:\"']{1,80}:(?P<plain>[^\s\"']{3,300})"
            ),
            (
                # cookies; without “=” it is a file of them
                r"(?:curl|wget)\s(?:[^\n|]{0,200}?\s)?(?:(?-i:-b)|--cookie)[ =]?[\"']?"
                r"(?P<plain>[\w.-]{1,80}=[^\s\"']{8,2000})"
            ),
            (
                r"(?:secrets?(?:manager)?|securestring)\s(?:[^\n|]{0,160}?\s)?"
                r"(?:(?:-b|--body|--value|--secret-string)[ =]"
                r"|--from-literal[ =][\w.-]{1,80}=)[\"']?(?P<plain>[^\s\"'-][^\s\"']{5,2000})"
            ),
            (
                r"(?:unzip|zip|sqlcmd|bcp)\b[^\n|]{0,120}?\s(?-i:-P)"
                r" ?[\"']?(?P<plain>[^\s\"'-][^\s\"']{2,300})"
            ),
            r"7za?\b[^\n|]{0,120}?\s-p[\"']?(?P<plain>[^\s\"']{3,300})",
            r"ldap\w{3,8}\b[^\n|]{0,120}?\s-w ?[\"']?(?P<plain>[^\s\"'-][^\s\"']{2,300})",
            r"smbclient\b[^\n|]{0,120}?\s-U ?[\"']?[^\s%]{1,60}%(?P<plain>[^\s\"']{3,300})",
            r"securestring\s{1,3}(?:-string\s{1,3})?[\"'](?P<plain>[^\"'\n]{3,300})[\"']",
            r"htpasswd\s{1,3}(?:-\w{1,9}\s{1,3}){0,4}-\w{0,4}b\w{0,4}\s{1,3}(?:-\w{1,9}\s{1,3}){0,4}(?:[^\s-]\S{0,200}\s{1,3}){2}(?P<plain>\S{3,300})",
            r"echo\s{1,3}(?:-n\s{1,3})?[\"']?(?:[\w.@-]{1,80}:)?(?P<plain>[^\"'\n|$]{3,100}?)[\"']?\s{0,3}\|\s{0,3}"
            r"(?:sudo\s{1,3}-\w{0,4}S|(?:sudo\s{1,3})?chpasswd|[^\n|]{0,80}--password-stdin)",
            r"net use\b[^\n|]{0,160}?/user:\S{1,80}\s{1,3}(?P<plain>[^\s/]\S{2,300})",
            r"\s/p:(?P<plain>\S{3,300})",
            r"(?:identified\s{1,5}(?:with\s{1,5}\S{1,80}\s{1,5})?by|with\s{1,5}(?:encrypted\s{1,5})?password|set\s{1,5}password)"
            r"\s{1,5}(?:=\s{0,5})?\\?['\"](?P<plain>[^'\"\n\\]{3,300})",
            r"identified\s{1,5}by\s{1,5}(?P<plain>[^\s'\";\\]{3,300})",
            r"\slogin\s{1,5}\S{1,200}\s{1,5}password\s{1,5}(?P<plain>\S{3,300})",
            (
                r"[\w.*-]{1,80}:(?:\d{2,5}|\*):[\w*-]{1,80}:[\w.*@-]{1,80}:(?P<plain>\S{3,300})["
                r" \t]{0,9}(?=\n|\Z|\x00)"
            ),
            r"://(?P<plain>[^\s/:@\"'<>]{20,80}):x-oauth-basic@",
            r"://[^\s/:@\"'<>]{0,80}:(?P<plain>[^\s/\"'<>]{2,200})@[a-z0-9\[]",
            r"use\s[\"'`]?(?P<plain>[^\s\"'`]{6,80})[\"'`]?\sas\s",
            _PHRASE
            + r"[\"'\\]{0,4}\s{0,3}(?:[:=]|is)\s{0,3}[\"'\\]{0,4}(?P<plain>(?:[a-z]{3,8}\s{1,3}){11,23}[a-z]{3,8})",  # noqa: E501
        ),
    )
)
_BEFORE = re.compile(rb"[\w.\xc3-]{0,40}\Z")
_COOKIES = re.compile(rb"[^\r\n\"']{12,2000}")
_CREDENTIALS = re.compile(
    rb"(?:[A-Za-z][\w-]{1,20}\s{1,3})?(?P<plain>[^\s\"',\\]{8,2000})"
)  # of a header: after its scheme
_PUNCTUATION = re.compile("(?:[.,;:)\\]}\"'`]|”|»)+\\Z".encode())
_CODE = re.compile(rb"(?i)\b(?:pin|cvv2?|cvc|code)\b")
_CODE_NAME = re.compile(r"(?i)(?:pin|cvv2?|cvc|code)$")
_DIGITS = re.compile(r"\d{3,8}")
_NUMBER = re.compile(r"[\d/.:,-]+(?:st|nd|rd|th|am|pm|h|d|s|min|%)?")


def password(text: bytes, start: int, end: int) -> Span | None:
    """The span of the secret that a trigger at `start` announces; None if there is none."""
    if found := _first(_ASSIGNED, text, start):
        return _assigned(text, found)
    if found := _first(_BY_PLACE, text, start):
        value = _plain(found)
        return None if placeholder(value) or path(value) else found.span("plain")
    if found := _BELOW.match(text, start):
        return (
            found.span("plain")
            if random_looking(_plain(found)) and not placeholder(_plain(found))
            else None
        )
    if found := _BASIC.match(text, start):
        return (
            found.span("plain")
            if found["plain"].endswith(b"=") or looks(_plain(found), 12)
            else None
        )
    if found := _QUERY.match(text, start):
        least = 6 if named(found["name"].decode()) == SURE else 16
        return (
            found.span("plain")
            if looks(_plain(found), least) and not placeholder(_plain(found))
            else None
        )
    if found := _SAID.match(text, start) or _OPTION.match(text, start):
        before = text[max(0, start - 30) : start] + re.split(rb"\s", found[0], maxsplit=1)[0]
        return None if no_token(before.decode("utf-8", "replace")) else _plain_span(found)
    found = _FOLLOWED.match(text, start)
    return _plain_span(found) if found and random_looking(_plain(found)) else None


def _first(
    parsers: tuple[re.Pattern[bytes], ...], text: bytes, start: int
) -> re.Match[bytes] | None:
    return next((found for parser in parsers if (found := parser.match(text, start))), None)


def _plain(found: re.Match[bytes]) -> str:
    return found["plain"].decode("utf-8", "replace")


def _plain_span(found: re.Match[bytes]) -> Span | None:
    """Of a sentence or an option: without the punctuation after it."""
    raw = _PUNCTUATION.sub(b"", found["plain"])
    value = raw.decode("utf-8", "replace")
    code = _CODE.search(found[0]) and _DIGITS.fullmatch(value)
    if not code and (
        placeholder(value) or address(value) or _NUMBER.fullmatch(value) or not looks(value, 4)
    ):
        return None
    return found.start("plain"), found.start("plain") + len(raw)


def _assigned(text: bytes, found: re.Match[bytes]) -> Span | None:
    """Of `name = value`: a header, a quoted string, or a word that stands by itself."""
    before = _BEFORE.search(text, max(0, found.start() - 40), found.start())
    name = ((before[0] if before else b"") + found["name"] + found["tail"]).decode(
        "utf-8", "replace"
    )
    parts = found.groupdict()
    part = next(part for part in ("quoted", "marked", "plain") if parts.get(part) is not None)
    start, raw = found.start(part), found[part]
    if name.lower().endswith("cookie"):
        header = _COOKIES.match(text, start)
        return header.span() if header and b"=" in header[0] else None
    if name.lower().endswith("authorization"):
        header = _CREDENTIALS.match(text, start)
        return (
            header.span("plain")
            if header and looks(_plain(header), 8) and not placeholder(_plain(header))
            else None
        )
    if part == "plain" and (form := re.search(rb"&[\w.-]+=", raw)):
        raw = raw[: form.start()]
    value = raw.decode("utf-8", "replace")
    right = _word(name, found["sign"], value) if part == "plain" else secret_value(name, value)
    return (start, start + len(raw)) if right else None


def _word(name: str, sign: bytes, value: str) -> bool:
    sure = named(name)
    if (
        not sure
        or placeholder(value)
        or (name in ("PWD", "OLDPWD") and value.startswith(("/", "~")))
    ):
        return False
    if _CODE_NAME.search(name):
        return _DIGITS.fullmatch(value) is not None
    if sure == LIKELY:
        return looks(value, 12)
    # NAME=word of a file of settings, but not name=word of code
    return (
        looks(value, 4)
        or value.count("-") > 2
        or (sign == b"=" and name[:1].isupper() and value.isalpha())
    )
