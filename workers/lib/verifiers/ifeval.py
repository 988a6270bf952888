"""The 25 kinds of instructions of IFEval (Zhou et al. 2023), with the results of its reference
implementation. Light.

The reference searches for keywords with Python regular expressions, which may never end; here
anything but plain text becomes an RE2 pattern. Like the reference, it uses nltk (words, sentences)
and langdetect, which are imported on first use.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from workers.lib.patterns import PatternError, as_bytes, compiled
from workers.lib.verifiers.base import Unscorable

LONGEST_WORD = 300
_PLAIN = re.compile(
    r"[\w\s.,;:!'\"&/@#%=<>~-]*"
)  # a pattern without backtracking; the full stop stands for any character
_POSSESSIVE = re.compile(r"([*+?}])\+")
_DIVIDER, _SIX_STARS = re.compile(r"\s?\*\*\*\s?"), "******"
_STARRED = (re.compile(r"\*[^\n*]*\*"), re.compile(r"\*\*[^\n*]*\*\*"))
_SPACE = (  # Python's \s, for RE2
    r"[\s\v\x{1c}-\x{1f}\x{85}\x{a0}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
)
_BULLETS = (rf"(?m)^{_SPACE}*\*[^*][^\n]*$", rf"(?m)^{_SPACE}*-[^\n]*$")
_FENCES = ("```json", "```Json", "```JSON", "```")
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
# What the English Punkt model learned from newspapers, without its table of 20,000 words:
# abbreviations, words that begin a sentence after one, and words (and letters) that it saw both
# with a capital and without.
_ABBREVIATIONS = frozenset(
    """
a.a a.c a.d a.g a.h a.m a.m.e a.s a.t adm ala ariz aug ave b.f b.v bros c c.i.t c.o.m.b c.v calif \
chg cie co col colo
conn corp cos ct d d.c d.h d.w dec dr e e.f e.h e.l e.m f f.g f.j feb fla fri ft g g.d g.f g.k ga \
gen h h.c h.f h.m
i.m.s ill inc j.b j.c j.j j.k j.p j.r jan jr k kan ky l l.a l.f l.p lt ltd m m.b.a m.d.c m.j maj \
messrs mg mich minn
mr mrs ms n n.c n.d n.h n.j n.m n.v n.y nev nov oct ok okla ore p p.a.m p.m pa ph.d prof r r.a r.h \
r.i r.j r.k r.t rep
reps s s.a s.a.y s.c s.g s.p.a s.s sen sep sept sr st sw t t.j tenn tues u.k u.n u.s u.s.a u.s.s.r \
v va vs vt w w.c
w.r w.va w.w wash wed wis yr
""".split()  # noqa: SIM905
)
_STARTERS = frozenset(
    """
according although among both but despite even he however i if in indeed instead it many meanwhile \
moreover most
nevertheless nonetheless nor sales separately similarly since so some the there these they this \
though thus under when
while yet
""".split()  # noqa: SIM905
)
_LOWER = frozenset(
    """
a about after all also an and another any are as at b be because before both by c can could d did \
do each every few
first for from had has have her here his how into is its last later let like more my never new \
next no not now of
often on once one only or other our out over perhaps s she should sometimes soon such that their \
then those three to
today two until up was we well were what where which who why will with would you your z
""".split()  # noqa: SIM905
)


def related(found: int, arguments: dict, count: int | None, relation: str | None = None) -> bool:
    """Whether a number has the required relation to the required number."""
    if count is None:
        raise Unscorable("A constraint has no number to compare with.")
    checks = {
        "at least": found >= count,
        "at most": found <= count,
        "exactly": found == count,
        "less than": found < count,
        "more than": found > count,
    }
    return checks[relation or arguments.get("relation") or "at least"]


def _finder(pattern: str, around: str = "") -> Callable[[str], Iterator]:
    """A function that finds a keyword, which the reference treats as a pattern, ignoring case."""
    if not _PLAIN.fullmatch(pattern):
        pattern = _POSSESSIVE.sub(
            r"\1", pattern
        )  # Python 3.11 reads C++ as “C, possessively repeated”
        try:
            found = compiled(f"{around}(?:{pattern}){around}", case=False)
            return lambda text: found.finditer(as_bytes(text, found))
        except PatternError:
            pattern = re.escape(pattern)
    return re.compile(f"{around}{pattern}{around}", re.IGNORECASE).finditer


def _times(text: str, pattern: str, around: str = "") -> int:
    try:
        return sum(1 for _ in _finder(pattern, around)(text))
    except PatternError as error:
        raise Unscorable(str(error)) from error


def _count(pattern: str, text: str) -> int:
    return sum(1 for _ in compiled(pattern).finditer(as_bytes(text)))


@lru_cache(maxsize=1)
def _sentence_splitter() -> Any:
    from nltk.tokenize.punkt import _ORTHO_LC, _ORTHO_UC, PunktParameters, PunktSentenceTokenizer

    known = PunktParameters()
    known.abbrev_types, known.sent_starters = set(_ABBREVIATIONS), set(_STARTERS)
    for word in _STARTERS | _LOWER:
        known.ortho_context[word] = _ORTHO_LC | _ORTHO_UC
    return PunktSentenceTokenizer(known)


def sentences(text: str) -> int:
    return sum(1 for _ in _sentence_splitter().span_tokenize(text))


@lru_cache(maxsize=1)
def _word_splitter() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()


def _in_capitals(text: str) -> int:
    """The number of tokens in capitals. Parts without capitals are not tokenized, and parts longer
    than any word count as one.
    """
    parts = Counter(part for part in text.split() if part != part.lower())
    return sum(count * _capitals_of(part) for part, count in parts.items())


def _capitals_of(part: str) -> int:
    if len(part) > LONGEST_WORD:
        return int(part.isupper())
    return sum(word.isupper() for word in _word_splitter().tokenize(part))


@lru_cache(maxsize=1)
def _detector() -> Any:
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0  # otherwise langdetect is random

    def language(text: str) -> str | None:
        try:
            return detect(text[:20_000])  # after cleaning, langdetect reads 10,000 characters
        except LangDetectException:
            return None

    return language


def is_language(text: str, code: str) -> bool:
    """Whether langdetect detects the language; if it cannot decide, the text passes, as in the
    reference.
    """
    return _detector()(text) in (code, None)


def _paragraphs(text: str) -> int:
    """The number of paragraphs separated by lines of three stars; -1 if one in the middle is
    empty.
    """
    parts = [bool(part.strip()) for part in _DIVIDER.split(text)]
    return sum(parts) if all(parts[1:-1]) else -1


def _first_word(text: str, a: dict) -> bool:
    parts, nth = text.split("\n\n"), a["nth_paragraph"]
    count = sum(bool(part.strip()) for part in parts)
    if not 1 <= nth <= count or not parts[nth - 1].strip():
        return False
    word = parts[nth - 1].split()[0].lstrip("'").lstrip('"')
    word = re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower()
    return count == a.get("num_paragraphs", count) and word == a["first_word"].lower()


def _highlights(text: str) -> int:
    return sum(
        bool(found.strip("*").strip()) for pattern in _STARRED for found in pattern.findall(text)
    )


def _titled(text: str) -> bool:
    found = compiled(r"<<[^\n]+>>").findall(as_bytes(text))
    return any(title.decode("utf-8", "replace").lstrip("<").rstrip(">").strip() for title in found)


def _sections(text: str, a: dict) -> bool:
    name = (a.get("section_spliter") or "Section").strip()
    if not _PLAIN.fullmatch(name):
        name = re.escape(name)
    return related(len(re.findall(rf"\s?{name}\s?\d+\s?", text)), a, a.get("num_sections"))


def _postscript(text: str, a: dict) -> bool:
    marker = (a.get("postscript_marker") or "P.S.").strip()
    pattern = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(marker)
    return (
        re.search(pattern, text.lower()) is not None
        if pattern
        else _times(text.lower(), marker.lower()) > 0
    )


def _is_json(text: str) -> bool:
    text = text.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split(_SIX_STARS)]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


def _ends(text: str, phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(phrase.strip().lower())


def _begins(text: str, phrase: str) -> bool:
    return text.strip().lower().startswith(phrase.strip().lower())


Check = Callable[[str, dict], bool]
TYPES: dict[str, tuple[Check, dict[str, type]]] = {
    "number_words": (
        lambda text, a: related(len(re.findall(r"\w+", text)), a, a["num_words"]),
        {"num_words": int},
    ),
    "number_sentences": (
        lambda text, a: related(sentences(text), a, a["num_sentences"]),
        {"num_sentences": int},
    ),
    "number_paragraphs": (
        lambda text, a: related(
            _paragraphs(text), a, a["num_paragraphs"], a.get("relation") or "exactly"
        ),
        {"num_paragraphs": int},
    ),
    "nth_paragraph_first_word": (_first_word, {"nth_paragraph": int, "first_word": str}),
    "existence": (
        lambda text, a: all(_times(text, word) for word in a["keywords"]),
        {"keywords": list},
    ),
    "forbidden_words": (
        lambda text, a: not any(_times(text, word, r"\b") for word in a["forbidden_words"]),
        {"forbidden_words": list},
    ),
    "frequency": (
        lambda text, a: related(_times(text, a["keyword"].strip()), a, a["frequency"]),
        {"keyword": str, "frequency": int},
    ),
    "letter_frequency": (
        lambda text, a: related(
            text.lower().count(a["letter"].lower()),
            a,
            a.get("let_frequency"),
            a.get("let_relation"),
        ),
        {"letter": str},
    ),
    "response_language": (lambda text, a: is_language(text, a["language"]), {"language": str}),
    "english_lowercase": (lambda text, a: text.islower() and is_language(text, "en"), {}),
    "english_capital": (lambda text, a: text.isupper() and is_language(text, "en"), {}),
    "capital_word_frequency": (
        lambda text, a: related(
            _in_capitals(text), a, a.get("capital_frequency"), a.get("capital_relation")
        ),
        {},
    ),
    "json_format": (lambda text, a: _is_json(text), {}),
    "number_bullet_lists": (
        lambda text, a: related(
            sum(_count(p, text) for p in _BULLETS),
            a,
            a["num_bullets"],
            a.get("relation") or "exactly",
        ),
        {"num_bullets": int},
    ),
    "number_highlighted_sections": (
        lambda text, a: related(_highlights(text), a, a["num_highlights"]),
        {"num_highlights": int},
    ),
    "multiple_sections": (_sections, {"num_sections": int}),
    "title": (lambda text, a: _titled(text), {}),
    "postscript": (_postscript, {}),
    "number_placeholders": (
        lambda text, a: related(_count(r"\[[^\n]*?\]", text), a, a["num_placeholders"]),
        {"num_placeholders": int},
    ),
    "quotation": (
        lambda text, a: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
        {},
    ),
    "no_comma": (lambda text, a: "," not in text, {}),
    "end_checker": (lambda text, a: _ends(text, a["end_phrase"]), {"end_phrase": str}),
    "repeat_prompt": (
        lambda text, a: _begins(text, a["prompt_to_repeat"]),
        {"prompt_to_repeat": str},
    ),
    "two_responses": (lambda text, a: _two_responses(text), {}),
    "constrained_response": (
        lambda text, a: any(part in text for part in a.get("options", _CHOICES)),
        {},
    ),
    "start_phrase": (
        lambda text, a: _begins(text, a["phrase"]),
        {"phrase": str},
    ),  # our own addition, the only one
}
"""type → how it is checked, and the arguments that it needs."""


def loosened(text: str) -> Iterator[str]:
    """IFEval's loose criterion: also without the first line, the last, both, and each of these
    without asterisks.
    """
    rows = text.split("\n")
    for part in (text, *("\n".join(part).strip() for part in (rows[1:], rows[:-1], rows[1:-1]))):
        yield from (part, part.replace("*", ""))
