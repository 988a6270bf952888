"""The meaningful words of a text, in one spelling. Pure: no Django, no torch.

Two spellings of one request give the same words: case, width, accents, invisible characters,
letters borrowed from other alphabets, punctuation, politeness, inflection, the escapes of JSON,
HTML and URLs, and the many ways to write a date, a time, a number (in digits or in words) or an
identifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from apps.evals.near_duplicates.glyphs import fold, unadorned
from apps.evals.near_duplicates.spelling import Neighbours, digits_for_words
from workers.lib.remembered import remembered


def _listed(text: str) -> list[str]:
    return text.split()


_LONG = _listed(
    "january february march april may june july august september october november december"
)
_SHORT = _listed("jan feb mar apr may jun jul aug sep oct nov dec")
MONTHS = {name: number for names in (_LONG, _SHORT) for number, name in enumerate(names, 1)} | {
    "sept": 9
}
DAYS = {
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "today",
    "tomorrow",
    "yesterday",
}
# words that reverse the meaning of a request
TURNING = frozenset({"not", "never", "without", "off", "except", "before", "after"})
# Words without meaning for a request. Those that reverse it do have one, and so does no.
FILLERS = frozenset(
    _listed("""
    a about actually again ahead also am an and any anyone are as asap at be because been bit but \
by bye can cannot
    cheers could course dear did do does doing done else every favor favour fine for from get give \
go going good got
    great had happy has have having he hello help her here hey hi him his how however i if \
immediately in into is it
    its just kind kindly let like little lot maybe me mind might mine moment much must my need \
needed needs now of
    oh ok okay on once one or other ought our out per perhaps please pls plz possible quick \
quickly rather really
    right s said say see shall she should so some somebody someone soon sorry sure t than thank \
thanks that the
    their them then there these they thing this those though time to too u um us very via want \
wanted wants was we
    well were what when where whether which who whom whose why will wish with wonder wondering \
would yes you your
    yours
    """)
)
_BESIDE_DAY = re.compile(
    r"(?P<day>\d(?:st|nd|rd|th)?\s+(?:of\s+)?)(?P<after>[a-z]{4,10})\b|\b(?P<before>[a-z]{4,10})(?P<gap>\s+)(?=\d)"
)
_ONE_OF = re.compile(
    rf"\bone(?=\s+(?:of\s+)?(?:{'|'.join(name for name in _LONG if name != 'may')})\b)"
)
_MONTH_SLIPS = Neighbours(name for name in _LONG if len(name) >= 4)
_DAY_SLIPS = Neighbours((name for name in DAYS if name.endswith("day") and len(name) > 5), 6)
_MONTH = "|".join(sorted(MONTHS, key=len, reverse=True))
_APART = r"[\s>#*_/.,\u2013\u2014-]{1,8}"  # between the parts of a date: also a quoted line's end
_TOKEN = re.compile(
    rf"""
    (?P<uuid>\b[0-9a-f]{{8}}-?(?:[0-9a-f]{{4}}-?){{3}}[0-9a-f]{{12}}\b)
  | (?P<iso>\b(?P<iy>\d{{4}})[-/.](?P<im>\d{{1,2}})[-/.](?P<id>\d{{1,2}})(?=\D|$))
  | (?P<md>\b(?P<mm>{_MONTH})\.?{_APART}(?:the\s+)?(?P<mday>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)(?:,?\s+(?P<my>\d{{4}})\b)?)
  | (?P<dm>\b(?P<dday>\d{{1,2}})(?:st|nd|rd|th)?{_APART}(?:of{_APART})?(?P<dmonth>{_MONTH})\b\.?(?:,?\s+(?P<dy>\d{{4}})\b)?)
  | (?P<ampm>\b(?P<h>\d{{1,2}})(?:[:.](?P<hm>\d{{2}}))?(?:{_APART})?(?P<half>[ap])\.?\s?m\b\.?)
  | (?P<clock>\b(?P<ch>[01]?\d|2[0-3]):(?P<cm>[0-5]\d)(?::[0-5]\d)?\b)
  | (?P<parts>\b\d+(?:\.\d+){{2,}}\b)
  | (?P<number>\b\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?\b|\b\d+\.\d+\b)
  | (?P<word>[^\W_]+(?:'[^\W_]+)?)
    """,  # noqa: E501
    re.VERBOSE,
)
_NAME = re.compile(r"(?<=[^.!?\s])\s+[\"“'(]*([^\W\d_a-z][\w'-]*)")  # a capital inside a sentence
# Scripts written without spaces: their runs are read as pairs of letters.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)


def words(text: str) -> list[str]:
    """All words in order, in canonical form; slots (see `is_slot`) keep their digits. Fillers are
    still there.
    """
    return [word for _, word in spelt_words(text)]


@remembered(characters=500_000)  # a row's texts are read as messages, as passages and as values
def spelt_words(text: str) -> tuple[tuple[str, str], ...]:
    """(as it is spelt, canonical form) of all words in order; of one that stands for several, each
    by itself.
    """
    found: list[tuple[str, str]] = []
    folded = digits_for_words(unadorned(fold(text)))
    for match in _TOKEN.finditer(_with_months(folded)):
        canonical = list(_canonical(match))
        found += [
            (match[0] if len(canonical) == 1 and match["word"] else word, word)
            for word in canonical
        ]
    return tuple(found)


def _with_months(text: str) -> str:
    """Misspelt months beside a number as they should be (they must be known before a date can be),
    and “one June” as 1 June.
    """
    return _ONE_OF.sub("1", _BESIDE_DAY.sub(_month, text))


def _month(match: re.Match[str]) -> str:
    meant = _meant_month(match["after"] or match["before"])
    return f"{match['day']}{meant}" if match["after"] else f"{meant}{match['gap']}"


@lru_cache(maxsize=50_000)
def _meant_month(word: str) -> str:
    near = [] if word in MONTHS else _MONTH_SLIPS.of(word)
    return near[0] if near else word


def names_in(text: str, *, is_strict: bool = False) -> frozenset[str]:
    """Words written like a name: with a capital letter inside a sentence. Unless `is_strict`, any
    letter that is not a to z counts as one, since some scripts have no capitals.
    """
    return frozenset(
        form
        for match in _NAME.finditer(text)
        if not is_strict or match[1][0].isupper()
        for form in words(match[1])
        if form not in FILLERS
    )


def content(text: str) -> list[str]:
    """The meaningful words: no fillers. All words if nothing else is left."""
    found = words(text)
    return [word for word in found if word not in FILLERS] or found


@lru_cache(maxsize=100_000)
def is_slot(word: str) -> bool:
    """Whether a word is a value that is filled in: it contains a digit, or names a day or a
    month.
    """
    return any(char.isdigit() for char in word) or word in DAYS or word in MONTHS


def is_unspaced(word: str) -> bool:
    """Whether a word is a pair of letters of a text without spaces."""
    return bool(_UNSPACED.fullmatch(word))


def _canonical(match: re.Match[str]) -> Iterator[str]:
    kind = (
        match.lastgroup
        if match.lastgroup in _CANON
        else next(name for name in _CANON if match[name])
    )
    yield from _CANON[kind](match)


def _date(year: str | None, month: int, day: str) -> list[str]:
    return [f"d{month:02d}-{int(day):02d}"] + ([str(int(year))] if year else [])


def _half_day(match: re.Match[str]) -> list[str]:
    hour = int(match["h"]) % 12 + (12 if match["half"] == "p" else 0)
    return [f"t{hour:02d}:{match['hm'] or '00'}"]


def _number(match: re.Match[str]) -> list[str]:
    whole, _, part = match["number"].replace(",", "").partition(".")
    part = part.rstrip("0")
    return [f"{whole}.{part}" if part else whole]


def _word(match: re.Match[str]) -> list[str]:
    word = match["word"]
    if word.isascii():
        return _plain(word)
    if not _UNSPACED.search(word):
        return [word.replace("'", "")]
    pairs = [
        run[at : at + 2] for run in _UNSPACED.findall(word) for at in range(max(1, len(run) - 1))
    ]
    return [run for run in _UNSPACED.split(word) if run] + pairs


@lru_cache(maxsize=100_000)
def _plain(word: str) -> list[str]:
    stem, _, ending = word.partition("'")
    if ending == "t" and stem.endswith("n"):
        return ["not"]
    if stem in FILLERS or is_slot(stem):
        return [stem]
    return _DAY_SLIPS.of(stem)[:1] or [_stem(stem)]


def _stem(word: str) -> str:
    """Without the commonest English endings: closes, closed and closing are one word."""
    for ending, instead in (("ies", "y"), ("ing", ""), ("ed", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending) + instead
            break
    return word.removesuffix("e") if len(word) > 3 else word


_CANON = {
    "uuid": lambda match: [match["uuid"].replace("-", "")],
    "iso": lambda match: _date(match["iy"], int(match["im"]), match["id"]),
    "md": lambda match: _date(match["my"], MONTHS[match["mm"]], match["mday"]),
    "dm": lambda match: _date(match["dy"], MONTHS[match["dmonth"]], match["dday"]),
    "ampm": _half_day,
    "clock": lambda match: [f"t{int(match['ch']):02d}:{match['cm']}"],
    "parts": lambda match: match["parts"].split("."),
    "number": _number,
    "word": _word,
}
