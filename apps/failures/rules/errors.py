"""Whether a tool's reply says that the call did not work: by its structure where it has one, else
by how it begins. Pure.

Members are read at the top level, in any order and spelling (`isError`, `is_error`). What only may
be a failure is none: a record whose own status is “failed” was read successfully.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

MOST_READ = 200_000  # characters that are parsed
MOST_REPR = 5_000  # characters that are parsed as Python's repr
DEEPEST = 3
FLAGS = ("iserror", "failed", "success", "ok", "succeeded")  # true or false says it
GOOD_FLAGS = FLAGS[2:]
MESSAGES = (
    "error",
    "exception",
    "errormessage",
    "errortype",
)  # with a text or an object, they say it
CODES = ("statuscode", "httpstatus", "httpstatuscode", "httpcode", "status")
# Members of a reply about a call; any other member makes it a record that was read.
ABOUT_A_CALL = frozenset(
    (
        *FLAGS,
        *MESSAGES,
        *CODES,
        "errors",
        "errorcode",
        "code",
        "message",
        "msg",
        "detail",
        "details",
        "reason",
        "description",
        "title",
        "type",
        "instance",
        "timestamp",
        "path",
        "requestid",
        "traceid",
        "jsonrpc",
        "id",
        "stack",
        "trace",
        "hint",
        "data",
        "result",
    )
)
NOTHING = frozenset(("", "none", "null", "false", "ok", "n/a", "na", "nil", "0", "-"))
FAILED = frozenset(("failed", "failure", "fail"))
JSON_RPC = range(-32768, -31999)

# The word for “error” with a colon, in the languages that tools are written in.
WORDS = (
    "error",
    "exception",
    "err",
    "failed",
    "failure",
    "fatal",
    "fehler",
    "erreur",
    "erro",
    "errore",
    "fout",
    "fel",
    "feil",
    "fejl",
    "błąd",
    "chyba",
    "hiba",
    "hata",
    "virhe",
    "ошибка",
    "помилка",
    "错误",
    "錯誤",
    "エラー",
    "오류",
    "خطأ",
    "שגיאה",
    "lỗi",
)
_PHRASES = "|".join(
    f"{status.value}:? {re.escape(status.phrase)}" for status in HTTPStatus if status >= 400
)
_NONE = r"(?!\W*(?:none|0|null|n/a|nothing)\W*(?:$|\n))"
_BEGINS = re.compile(
    r"^[\W_]{0,6}(?:"
    rf"(?:{'|'.join(WORDS)})\s?[:：]{_NONE}"
    r"|[\w.]{0,60}(?:error|exception)(?:\b\s{0,2}(?:[:(\[\]!*\->—–.,\d]|$|\n)"
    r"|\s(?:while|when|during|in|from|at|on|code|occurr\w+"
    r"|(?!handling|logging|reporting|tracking|checking|monitoring|correcting)\w+ing)\b)"
    + _NONE
    + r"|an? (?:\w+ ){0,2}(?:error|exception) (?:has )?occurred"
    r"|traceback \(|invalid \w"
    r"|(?:the )?(?:tool|function|command|request|execution|call|operation|action)(?: call| use|"
    r" execution)?"
    r"(?: to)?(?: (?:'[^'\n]{1,80}'|\"[^\"\n]{1,80}\"|`[^`\n]{1,80}`|[\w.:/-]{1,80}))?(?: has|"
    r" execution| call)? failed\b"
    + _NONE
    + r"|(?:http(?:/[\d.]{1,3})?|status(?: code)?)[ :]{1,2}[45]\d\d\b"
    rf"|(?:{_PHRASES})\b|[45]\d\d (?:client|server) error\b"
    r")|^<\W?(?:\w+[_:-])?(?:error|exception)\b[^>]{0,200}(?<!/)>(?!\s*</)",
    re.IGNORECASE,
)


def is_error(reply: str) -> bool:
    """Whether a tool's reply says that the call did not work."""
    return _text_says(reply, 0)


def _text_says(text: str, depth: int) -> bool:
    text = text[:MOST_READ].strip()
    if text[:1] in ("{", "[", '"') and depth < DEEPEST:
        value = _parsed(text)
        if value is not None:
            return _says(value, depth + 1)
    return _BEGINS.match(text[:400]) is not None


def _parsed(text: str) -> Any:
    """JSON, or the repr of a Python dict, as frameworks that call `str` send it; None if it is
    neither.
    """
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


def _says(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return _text_says(value, depth)
    if isinstance(value, Mapping):
        return _object_says(
            {_plain(name[:40]): item for name, item in value.items() if isinstance(name, str)},
            depth,
        )
    if isinstance(value, Sequence):
        return _blocks_say(value, depth)
    return False


def _object_says(members: Mapping[str, Any], depth: int) -> bool:
    if isinstance(members.get("iserror"), bool):
        return members["iserror"]
    flags = [members[name] for name in GOOD_FLAGS if isinstance(members.get(name), bool)]
    if flags:
        return not all(flags)
    if members.get("failed") is True or any(_is_message(members.get(name)) for name in MESSAGES):
        return True
    if any(_is_code(members.get(name)) for name in CODES):
        return True
    about_a_call = all(
        name in ABOUT_A_CALL or item in (None, "", [], {}) for name, item in members.items()
    )
    if about_a_call and _says_of_a_call(members):
        return True
    inner = members.get("result") if "jsonrpc" in members else members.get("content")
    if isinstance(inner, Mapping):
        return depth < DEEPEST and _says(inner, depth + 1)
    return isinstance(inner, list) and _blocks_say(inner, depth)


def _says_of_a_call(members: Mapping[str, Any]) -> bool:
    """Members that say so only where the whole reply is about the call."""
    words = {
        str(members[name]).casefold()
        for name in ("status", "result")
        if isinstance(members.get(name), str)
    }
    code, errors = members.get("code"), members.get("errors")
    has_text = any(
        isinstance(members.get(name), str) and members[name] for name in ("message", "msg")
    )
    is_rpc = isinstance(code, int) and code in JSON_RPC
    nothing_else = members.get("data") in (None, "", [], {}) and members.get("result") in (
        None,
        "",
        [],
        {},
    )
    return (
        bool(words & (FAILED | {"error"}))
        or (has_text and (is_rpc or _is_code(code)))
        or (nothing_else and bool(errors) and isinstance(errors, list | dict))
    )


def _blocks_say(blocks: Sequence[Any], depth: int) -> bool:
    """A list of content blocks; of any other list, each item is something that was asked for."""
    for block in blocks[:20]:
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            return False
        if block.get("is_error") is True or block.get("isError") is True:
            return True
        if block["type"] == "text" and isinstance(block.get("text"), str):
            return _text_says(block["text"], depth)
    return False


def _is_message(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().casefold() not in NOTHING
    return value is True or (isinstance(value, Mapping) and bool(value))


def _is_code(value: Any) -> bool:
    """An HTTP status of a client's or a server's error."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return len(text) == 3 and text.isdigit() and text[0] in "45"


@lru_cache(maxsize=2048)
def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())
