"""Texts without what surrounds and separates their words: markup, and the decorations of lines and
logs. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from apps.evals.near_duplicates.calls import leaves_of
from apps.evals.near_duplicates.embedded import json_in
from apps.evals.near_duplicates.glyphs import unescaped

_TAG = re.compile(r"<!--.{0,2000}?-->|</?(?P<name>[a-zA-Z!?][\w:-]*)[^<>]{0,500}>", re.DOTALL)
_INSIDE_WORDS = frozenset(
    ["b", "i", "u", "s", "em", "strong", "mark", "font", "small", "sub", "sup", "wbr", "del", "ins"]
)  # tags that may divide a word
_LINK = re.compile(
    r"!?\[([^\[\]\n]{0,500})\](?:\((?:[^()\n]|\([^()\n]*\)){0,1000}\)|\[[^\[\]\n]{0,100}\])"
)
_BRACKETED = re.compile(
    r"\[\^[\w-]{1,20}\]|\[/?(?:b|i|u|s|url|img|quote|code|color|size)(?:=[^\[\]\n]{0,200})?\]", re.I
)
_WIKI = re.compile(r"\[\[(?:[^\[\]|\n]{0,200}\|)?([^\[\]|\n]{0,200})\]\]")
_LATEX = re.compile(r"\\[a-zA-Z]{2,20}\*?\{([^{}]{0,500})\}")
_EMPHASIS = re.compile(r"[*`~]+|(?<![^\W_])_+|_+(?![^\W_])")
_CONTROL = re.compile(  # ANSI sequences, also written out
    r"(?:\x1b|\x9b|\\(?:e|033|x1b|u001b))(?:\[[0-?]*["
    r" -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?)",
    re.I,
)
_SUBTITLE = re.compile(
    r"^(?:[ \t]*\d+[ \t]*\r?\n)?[ \t]*(?:\d+:)?\d+:\d\d[.,]\d+[ \t]*-->[^\n]*$|^["
    r" \t]*WEBVTT\b[^\n]*$",
    re.M,
)
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?)?"
_DAY = r"\d{4}[-/.]\d\d[-/.]\d\d"
_LINE = re.compile(  # a stamp or number, a level or a source, who speaks
    rf"""^[ \t>]*
    (?: \[[^\[\]\n]{{1,60}}\][ \t]* | \({_CLOCK}\)[ \t]* | {_DAY}(?:[T ]{_CLOCK})?(?:Z|[+-]\d\d:?\d\d)?[ \t,|-]*
      | {_CLOCK}[ \t,|-]+ | L?\d{{1,6}}(?:[.):][ \t]+|\t|[ \t]*[|│][ \t]?) )?
    (?: (?:\[[^\[\]\n]{{1,60}}\]|TRACE\b|DEBUG\b|INFO\b|WARN(?:ING)?\b|ERROR\b)[ \t:|-]* ){{0,2}}
    (?: [\w.@-]{{1,40}}(?:[ ][\w.@-]{{1,40}})?(?::[ \t]+|[ \t]*[|│][ \t]) )?""",  # noqa: E501
    re.VERBOSE | re.MULTILINE,
)


def plain(text: str) -> str:
    """The text without tags, link addresses and emphasis; a tag becomes a space, unless it is
    inside a word.
    """
    if not any(sign in text for sign in "<[*_`~\\&"):
        return text
    text = unescaped(text) if "&" in text else text
    text = _TAG.sub(
        lambda match: "" if (match["name"] or "").lower() in _INSIDE_WORDS else " ", text
    )
    text = _LINK.sub(r"\1", _WIKI.sub(r"\1", text))
    return _EMPHASIS.sub("", _LATEX.sub(r"\1", _BRACKETED.sub("", text)))


def undecorated(text: str) -> str:
    """The text without control sequences and what stands at the start of lines: numbers, times,
    stamps and names.
    """
    text = _CONTROL.sub("", text)
    if "\n" not in text and "\\n" not in text:
        return text
    text = text.replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")
    return _LINE.sub("", _SUBTITLE.sub("", text))


def unwrapped(text: str) -> str:
    """The text with embedded JSON replaced by its contents: without names, punctuation and
    escapes.
    """
    made: list[str] = []
    done = 0
    for start, end, found in json_in(text):
        made += [text[done:start], *(str(leaf) for _, leaf in leaves_of(found))]
        done = end
    return "\n".join([*made, text[done:]]) if made else text


def views(text: str) -> Iterator[str]:
    """The text unchanged, without markup, and also without decorations; always three, equal if
    there is nothing to remove.
    """
    yield text
    stripped = plain(_CONTROL.sub("", text))
    yield stripped
    yield plain(undecorated(text)) if "\n" in text or "\\n" in text else stripped
