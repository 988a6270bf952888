"""Whether a tool's reply says that the call did not work: by its structure, else by its text. Pure.

The envelope of a reply is what it says about the call; its data is what was asked for. Facts are
read in the envelope, at any depth, in any order and spelling (`isError`, `is_error`). A record
whose own status is “failed” was read successfully.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import msgspec

from apps.trajectories.error_lines import text_is_error

MOST_READ = 200_000  # characters that are parsed
MOST_REPR = 5_000  # characters that are parsed as Python's repr
DEEPEST = 4


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# True or false says whether the call worked.
GOOD_FLAGS = _set("success ok succeeded issuccess successful issuccessful")
BAD_FLAGS = _set("haserror haserrors errored isfailure isfailed failure")
# With a text or an object, they say that it did not.
MESSAGES = _set("error exception errormessage errortype")
HTTP_CODES = _set("statuscode httpstatus httpstatuscode httpcode status")
EXIT_CODES = _set("exitcode exitstatus returncode returnstatus retcode rc")
OUTPUTS = _set("stdout stderr output logs combinedoutput")
ERROR_NAMES = _set("type code name id kind status reason title errorcode errortype errorname")
TEXTS = _set("message msg detail details description explanation errormessage hint title")
PLAIN_TEXTS = _set("message msg detail reason")
DOCS = _set("documentationurl docurl moreinfo helpurl docs")
# In these the reply of the tool lies, where another program wraps it.
WRAPPERS = _set(
    "result response toolresult toolresponse functionresponse structuredcontent returnvalue data"
    " body value payload output content metadata meta"
)
# Members of a reply about a call; any other member makes it a record that was read.
ABOUT_A_CALL = GOOD_FLAGS.union(
    BAD_FLAGS, MESSAGES, HTTP_CODES, EXIT_CODES, OUTPUTS, ERROR_NAMES, TEXTS, DOCS, WRAPPERS
) | _set(
    "iserror failed errors timestamp path requestid correlationid traceid jsonrpc stack trace link"
    " links url instance toolcallid tooluseid callid duration durationms durationseconds elapsed"
    " command cmd args cwd signal killed timedout interrupted retryable"
)
# `errorSummary`, `errcode`, `error_description`: about an error, and what says which.
_OF_AN_ERROR = re.compile(r"(?:error|err|fault|exception)[a-z]{0,20}")
_SAYS_WHICH = re.compile(
    r"fault|(?:error|err|fault|exception)(?:message|msg|summary|text|string|description|detail"
    r"|reason|code|number|type|name|title)"
)
NOTHING = frozenset(
    ("", "none", "null", "false", "ok", "success", "n/a", "na", "nil", "0", "-", "no error")
)
FAILED = _set("failed failure fail")
JSON_RPC = range(-32768, -31999)
_PHRASES = frozenset(re.sub(r"\W", "", s.phrase.casefold()) for s in HTTPStatus if s >= 400)
_ALONE = _set(  # words in the name of an error, as services and SDKs write them
    "error exception fault failure failed forbidden unauthorized unauthorised unauthenticated"
    " timeout unavailable unprocessable"
)
_BESIDE = _set(  # with another word: `invalid_grant`, `AccessDenied`
    "invalid missing bad denied exceeded conflict refused unsupported exhausted illegal malformed"
    " insufficient expired unknown"
)
_PAIRS = (("not", "found"), ("too", "many"), ("already", "exists"), ("not", "allowed"))
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def says_failed(message: Mapping[str, Any], reply: str) -> bool:
    """Whether a tool's message says that the call did not work; `reply` is its text."""
    return message.get("is_error") is True or is_error(reply)


def is_error(reply: str) -> bool:
    """Whether a tool's reply says that the call did not work."""
    return _text_says(reply, 0) is True


_STATUS_LINE = re.compile(
    r"\W{0,6}(?:http(?:/[\d.]{1,3})?|status(?: code)?|error)?[ :]{0,2}([45]\d\d)\b", re.IGNORECASE
)
# Of these the request is not the reason: the same one may work later, or elsewhere.
_NOT_THE_REQUESTS = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
    *(status for status in HTTPStatus if status >= 500),
}


def service_failed(reply: str) -> bool:
    """Whether the reply to a failed call has the HTTP status of a service that failed or asks for
    patience: nothing is wrong with the call.
    """
    return _status_of(reply[:MOST_READ].strip(), DEEPEST + 1) in _NOT_THE_REQUESTS


def _status_of(value: Any, depth: int) -> int:
    """The first status of an error in the envelope; 0 if there is none."""
    if isinstance(value, str):
        if value[:1] in ("{", "[", '"') and (inner := _parsed(value)) is not None:
            return _status_of(inner, depth - 1) if depth else 0
        line = _STATUS_LINE.match(value)
        return int(line[1]) if line else 0
    if isinstance(value, list):
        return _status_of(value[0], depth - 1) if value and depth else 0
    if not isinstance(value, Mapping) or not depth:
        return 0
    members = {_plain(name[:40]): item for name, item in value.items() if isinstance(name, str)}
    codes = [members[name] for name in (*HTTP_CODES, "code", "error") if name in members]
    own = next((_number(code) for code in codes if _is_code(code)), 0)
    inside = (members[name] for name in (*MESSAGES, *WRAPPERS, "text") if name in members)
    return own or next(filter(None, (_status_of(item, depth - 1) for item in inside)), 0)


def _text_says(text: str, depth: int) -> bool | None:
    text = text[:MOST_READ]
    if text.lstrip()[:1] in ("{", "[", '"') and depth < DEEPEST:
        value = _parsed(text.strip())
        if value is not None:
            return _says(value, depth + 1)
    return True if text_is_error(text) else None


def _parsed(text: str) -> Any:
    """JSON, or the repr of a dict, as frameworks that call `str` send it; None if neither."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    if len(text) > MOST_REPR or "'" not in text:
        return _cut(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return _cut(text)


_MEMBER = re.compile(
    r"""^\{\s{0,9}["'](\w{1,40})["']\s{0,9}:\s{0,9}(true|false|"[^"]{1,200}|[{\d])""", re.IGNORECASE
)


def _cut(text: str) -> Any:
    """The first member of an object that was cut off."""
    if (member := _MEMBER.match(text)) is None:
        return None
    name, value = member[1], member[2]
    if value.lower() in ("true", "false"):
        return {name: value.lower() == "true"}
    return {name: value[1:] if value[0] == '"' else {"cut": True} if value == "{" else None}


def _says(value: Any, depth: int, *, wrapped: bool = False) -> bool | None:
    """Whether a value says that a call failed or that it worked; None if it says neither.

    A wrapped value is data, not a reply, unless everything in it is about a call.
    """
    if isinstance(value, str):
        return None if wrapped else _text_says(value, depth)
    if isinstance(value, Mapping):
        members = {_plain(name[:40]): item for name, item in value.items() if isinstance(name, str)}
        return _object_says(members, depth, wrapped)
    if isinstance(value, Sequence):
        return _list_says(value, depth)
    return None


def _object_says(members: Mapping[str, Any], depth: int, wrapped: bool) -> bool | None:
    if not any(map(_is_about_a_call, members)):
        return None  # a record: nothing below reads any other name
    if isinstance(flag := _flag(members.get("iserror")), bool):
        return flag
    pure = all(
        _is_about_a_call(name) or item in (None, "", [], {}) for name, item in members.items()
    )
    named = {"id", "name"} & members.keys() and not WRAPPERS & members.keys()
    if wrapped and (named or not pure):
        return None  # a record
    own = _says_surely(members)
    if own is not True and pure and _says_of_a_call(members):
        own = True
    if own is True or _exit_failed(members, pure):
        return True
    # What is inside was said closer to the tool than what wraps it.
    inner = [_says_inside(members, name, depth, pure) for name in WRAPPERS & members.keys()]
    return True if True in inner else own


def _says_surely(members: Mapping[str, Any]) -> bool | None:
    """Members that say so beside whatever else the reply holds."""
    flags = [_flag(members.get(name)) for name in GOOD_FLAGS]
    if any(flag is not None for flag in flags):
        return False in flags
    if members.get("failed") is True or any(_is_message(members.get(name)) for name in MESSAGES):
        return True
    return True if any(_is_code(members.get(name)) for name in (*HTTP_CODES, "error")) else None


def _says_inside(members: Mapping[str, Any], name: str, depth: int, pure: bool) -> bool | None:
    inner = members[name]
    if depth >= DEEPEST or isinstance(inner, str) or not (pure or name == "content"):
        return None
    return _says(inner, depth + 1, wrapped=name != "content" and "jsonrpc" not in members)


def _exit_failed(members: Mapping[str, Any], pure: bool) -> bool:
    """The exit code of a command. 1 without any output says “no”: nothing found, no difference."""
    outputs = [members[name] for name in OUTPUTS if isinstance(members.get(name), str)]
    nested = next(
        (members[n] for n in ("metadata", "meta") if isinstance(members.get(n), Mapping)), {}
    )
    inside = {_plain(name): item for name, item in nested.items() if isinstance(name, str)}
    names = EXIT_CODES | {"code", "status"} if {"stdout", "stderr"} & members.keys() else EXIT_CODES
    codes = [_number(of.get(name)) for of in (members, inside) for name in names]
    code = next((number for number in codes if number and number not in range(200, 300)), 0)
    if not code or not (outputs or pure):
        return False
    return code != 1 or any(map(str.strip, outputs)) or not outputs


def _says_of_a_call(members: Mapping[str, Any]) -> bool:
    """Members that say so only where the whole reply is about the call."""
    words = {
        str(members[name]).casefold()
        for name in ("status", "result")
        if isinstance(members.get(name), str)
    }
    code, errors = members.get("code"), members.get("errors") or members.get("error")
    has_text = any(isinstance(members.get(name), str) and members[name] for name in TEXTS)
    is_rpc = isinstance(code, int) and code in JSON_RPC
    nothing_else = all(members.get(name) in (None, "", [], {}) for name in ("data", "result"))
    return (
        bool(words & (FAILED | {"error"}))
        or any(_flag(members.get(name)) for name in BAD_FLAGS)
        or (has_text and (is_rpc or _is_code(code)))
        or (has_text and any(_is_error_name(members.get(name)) for name in ERROR_NAMES | TEXTS))
        or (has_text and bool(DOCS & members.keys()) and members.keys() <= DOCS | TEXTS)
        or (members.keys() <= PLAIN_TEXTS and _is_short_error(next(iter(members.values()), None)))
        or any(_SAYS_WHICH.fullmatch(name) and _is_message(item) for name, item in members.items())
        or (nothing_else and bool(errors) and isinstance(errors, list | dict))
    )


def _list_says(items: Sequence[Any], depth: int) -> bool | None:
    """Content blocks, or a reply in a list; of any other list, each item was asked for."""
    if (
        len(items) == 1
        and isinstance(items[0], Mapping)
        and not isinstance(items[0].get("type"), str)
    ):
        members = {
            _plain(name[:40]): item for name, item in items[0].items() if isinstance(name, str)
        }
        return True if all(map(_is_about_a_call, members)) and _says_surely(members) else None
    for block in items[:20]:
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            return None
        if _flag(block.get("is_error")) or _flag(block.get("isError")):
            return True
        if block["type"] == "text" and isinstance(block.get("text"), str):
            return _text_says(block["text"], depth)
    return None


def _is_about_a_call(name: str) -> bool:
    return name in ABOUT_A_CALL or _OF_AN_ERROR.fullmatch(name) is not None


def _is_message(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().casefold() not in NOTHING
    return value is True or (isinstance(value, Mapping) and bool(value))


def _flag(value: Any) -> bool | None:
    if isinstance(value, str) and value.strip().casefold() in ("true", "false"):
        return value.strip().casefold() == "true"
    return value if isinstance(value, bool) else None


def _number(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,10}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _is_code(value: Any) -> bool:
    """An HTTP status of a client's or a server's error."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return len(text) == 3 and text.isdigit() and text[0] in "45"


def _is_error_name(value: Any) -> bool:
    """`not_found`, `ResourceNotFoundException`, `Bad Request`: a name of an error, no sentence."""
    if not isinstance(value, str) or not 0 < len(value) <= 80:
        return False
    if re.sub(r"[\W_]", "", value.casefold()) in _PHRASES:
        return True
    words = [word.lower() for word in _WORD.findall(value)] if " " not in value else []
    if not words or {"free", "no", "without"} & set(words):
        return False
    return (
        words[-1].endswith(("error", "exception"))
        or bool(_ALONE & set(words))
        or (len(words) > 1 and bool(_BESIDE & set(words)))
        or any(pair in _PAIRS for pair in pairwise(words))
    )


# The whole of a message: “Record not found”, “Bad credentials.”, “Invalid region: abc”
_SHORT = re.compile(
    r"(?:[\w'\".-]{1,60} ){0,4}(?:not found|does not exist|not allowed|forbidden"
    r"|denied|exceeded)\W*$"
    r"|(?:bad|invalid|malformed|unsupported|unauthori[sz]ed) \w+(?:[^.!?\n]{0,80})[.!]?\s*$",
    re.IGNORECASE,
)


def _is_short_error(text: Any) -> bool:
    return isinstance(text, str) and _SHORT.match(text[:200]) is not None


@lru_cache(maxsize=2048)
def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())
