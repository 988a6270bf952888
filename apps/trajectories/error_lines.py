"""Whether a reply without structure is an error, as runtimes, shells and tools print it. Pure.

A form is a whole line. A sentence about errors (“Error 404 is the code of …”) is no error.
"""

from __future__ import annotations

import errno
import os
import re
from http import HTTPStatus

MOST_LINES, LONGEST_LINE = 20, 400

# The word for “error” with a colon, in the languages that tools are written in.
WORDS = (
    r"error|exception|err|failed|failure|fatal|fehler|erreur|erro|errore|fout|fel|feil|fejl|błąd"
    r"|chyba|hiba|hata|virhe|ошибка|помилка|错误|錯誤|エラー|오류|خطأ|שגיאה|lỗi"
)
_PHRASES = "|".join(re.escape(status.phrase) for status in HTTPStatus if status >= 400)
_BARE = "|".join(
    re.escape(status.phrase)
    for status in HTTPStatus
    if status in (400, 401, 403, 405, 429) or status >= 500
)
_CODED = "|".join(f"{s.value}:? {re.escape(s.phrase)}" for s in HTTPStatus if s >= 400)
_NONE = r"(?!\W*(?:none|0|null|n/a|nothing)\W*$)"
_VERB = r"(?:is|are|was|were|means?|meant|can|could|has|have|had|may|might|will|would|should)"
_SENTENCE = rf"(?![^:\n]{{0,200}}\s{_VERB}\s)"  # a verb before any colon
_AFTER_NAME = (
    r"(?:\s{0,2}(?:[:：(\[\]!*>—]|\.\s|-> | [-–] )|\s{0,2}\.?$"
    rf"|\s\d{{1,6}}(?:\s?[:(\[.,;!–—-]|$|\s(?:{_PHRASES})))"
)
_CALL = r"(?:tool|function|command|request|execution|call|operation|action)"
_NAMED = r"(?:'[^'\n]{1,80}'|\"[^\"\n]{1,80}\"|`[^`\n]{1,80}`|[\w.:/-]{1,80})"
_BEGINS = re.compile(
    r"^[\W_]{0,6}(?:"
    rf"(?:{WORDS})\s?[:：]{_NONE}"
    rf"|[\w.$]{{0,60}}(?:error|exception){_AFTER_NAME}{_NONE}"
    r"|[\w.$]{0,60}(?:error|exception)\s(?:while|when|during|in|from|at|on|code|occurr\w+"
    r"|(?!handling|logging|reporting|tracking|checking|monitoring|correcting)\w+ing)\b"
    rf"{_SENTENCE}{_NONE}"
    r"|an? (?:\w+ ){0,2}(?:error|exception) (?:has )?occurred"
    rf"|(?:the )?{_CALL}(?: call| use| execution)?(?: to)?(?: {_NAMED})?"
    rf"(?: has| execution| call)? failed\b{_NONE}"
    rf"|(?:http(?:/[\d.]{{1,3}})?|status(?: code)?)[ :]{{1,2}}[45]\d\d\b{_SENTENCE}"
    rf"|(?:{_CODED})\b{_SENTENCE}|[45]\d\d (?:client|server) error\b"
    r"|mcp error -?\d"
    r")|^<\W?(?:\w+[_:-])?(?:error|exception)\b[^>]{0,200}(?<!/)>(?!\s*</)",
    re.IGNORECASE,
)
_ONE_LINE = re.compile(
    rf"\W{{0,3}}(?:(?:invalid|(?:failed|unable) to) \w|(?:{_BARE})\W{{0,2}}$)", re.IGNORECASE
)
_XML_BEGINS = re.compile(r"<\?xml[^>]{0,200}\?>\s*")
_RUNTIMES = re.compile(
    r"traceback \(most recent call last\)"  # Python
    r"|panic: |fatal error: |goroutine \d{1,9} \["  # Go, PHP, Swift
    r"|thread '[^'\n]{0,80}' (?:\(\d{1,9}\) )?panicked at |error\[[A-Z]\d{4}\]: "  # Rust
    r"|(?:uncaught|unhandled)(?: \(in promise\))? [\w.]{0,60}(?:error|exception|rejection)\b"
    r"|unhandled exception[.:]|exception in thread |caused by: "  # .NET, Dart, the JVM
    r"|php (?:fatal|parse|recoverable fatal) error: |(?:uncaught )?[\w\\]{1,80}exception: "
    r"|\*\* ?\(\w[\w.]{0,60}(?:error|exception)\) |\*\* exception |\*\*\* exception: "
    r"|error in [\w.:$]{1,60}\([^\n]{0,120}\) ?: "  # R
    r"|[\w./-]{1,80}:\d{1,6}:in [`'][^'\n]{0,80}': "  # Ruby
    r"|(?:\w{1,60}\.){1,6}(?:errors?|exceptions?)\.\w{1,60}(?:: |$)|ora-\d{5}: |sqlstate\b"
    r"|\d{1,4} validation errors?(?: for [\w.\[\], ]{1,80})?:?$"  # Pydantic
    r"|lua: |(?:[\w./-]{1,80}: )?line \d{1,6}: [^\n]{1,120}: command not found$"
    r"|(?:segmentation fault|aborted|bus error|illegal instruction)(?: \(core dumped\))?$",
    re.IGNORECASE,
)
_PAGE = re.compile(  # of a proxy or a web server
    r"<(?:!doctype html|html)\b[^\n]{0,400}?\n?[^\n]{0,200}?<(?:title|h1)>\s{0,9}[45]\d\d\b",
    re.IGNORECASE,
)
_RETRY = "Fix the errors and try again."  # Pydantic AI's last line, where a tool asks for a retry
_STRERRORS = "|".join(sorted(re.escape(os.strerror(number)) for number in errno.errorcode))
_SHELL = re.compile(
    rf"(?:\S[^\s:]{{0,80}}: (?:[^\n]{{0,200}}(?:: | \())?"
    rf"(?:{_STRERRORS}|command not found|not found)\)?"
    r"|\w[\w.+/-]{0,40}: command not found: \S{1,80})$"
)
_EXIT = re.compile(
    r"\W{0,3}(?:(?:the )?(?:\w+ )?(?:command|process|program|script|shell|execution|subprocess) )?"
    r"(?:(?:has )?(?:failed|exited|finished|completed|terminated|returned|ended) )?"
    r"(?:with )?(?:an? )?(?:non-?zero )?(?:exit(?:ed)?|return|status)"
    r"(?: |_)?(?:code|status|with code|value)?\s?[:=]?\s?(-?\d{1,10})\W{0,3}$",
    re.IGNORECASE,
)
HEADER_LINES = 6  # lines before the output of a command in which its exit code is written


def text_is_error(text: str) -> bool:
    """Whether a text is what a call that failed prints."""
    if text.startswith((" " * 4, "\t")):
        return False  # a piece out of the middle of something
    text = _XML_BEGINS.sub("", text.strip(), count=1)
    lines = [line.rstrip()[:LONGEST_LINE] for line in _head(text)]
    if not lines:
        return False
    if _BEGINS.match(lines[0]) or _RUNTIMES.match(lines[0].lstrip("\"'")):
        return True
    if (len(lines) == 1 and _ONE_LINE.match(lines[0])) or _PAGE.match(text[:900]):
        return True
    if text.endswith(_RETRY):
        return True
    written = [line for line in lines if line.strip()]
    return all(map(_SHELL.match, written)) or _exit_says(text, written)


def _head(text: str) -> list[str]:
    return text[: MOST_LINES * LONGEST_LINE].splitlines()[:MOST_LINES]


def _exit_says(text: str, lines: list[str]) -> bool:
    """An exit code before the output or in the last line; 1 without output says “no”."""
    last = text[-LONGEST_LINE:].splitlines()[-1]
    for line in (*lines[:HEADER_LINES], last):
        if code := _EXIT.match(line):
            return int(code[1]) not in (0, 1) or (int(code[1]) == 1 and len(lines) > 1)
    return False
