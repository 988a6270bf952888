"""Constraints on the form of a text that can be checked by rule, after IFEval (Zhou et al. 2023). Light.

A constraint is {"type", …arguments}, in the spec's `constraints`, in the task's `expected.constraints`, as the data set
has them (`metadata.instruction_id_list` and `kwargs`), or as Flywheel's tasks do (`expected.constraint`, {name: value}).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import re2

from workers.lib.checks import CONSTRAINTS, letters, words
from workers.lib.messages import json_of, unfenced
from workers.lib.patterns import LONGEST, as_bytes, compiled
from workers.lib.verifiers.base import Guarded, Options, SpecError, Unscorable, options
from workers.lib.verifiers.types import Clients, Rollout, Score

RELATIONS = ("at least", "at most", "exactly", "less than", "more than")
LONGEST_PHRASE, MOST_PHRASES, MOST_CONSTRAINTS = 200, 100, 100
PHRASES = (
    "keyword",
    "keywords",
    "forbidden_words",
    "section_spliter",
    "postscript_marker",
)  # searched in the whole text
UNCHECKED = ("response_language",)  # needs a model of languages; skipped, and said so
# These read what a model wrote: no pattern may come back to the same characters again and again.
_SENTENCE = re.compile(r"(?<![.!?。！？])[.!?。！？]++[\"'”’)\]*]*+(?=\s|$)")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|Mr|Mrs|Ms|Dr|Prof|St|No|[A-Z])\.(?=\s)")
_BULLET = re.compile(r"^[ \t]*[*•-][ \t]+\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(?<!\*)\*(?!\*)[^\n*]+\*(?!\*)|\*\*[^\n*]+\*\*")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_TITLE = re.compile(r"<<(?=[^<>\n]*[^<>\s])[^<>\n]++>>")
_RULE = re.compile(r"^[ \t]*\*\*\*[ \t]*$", re.MULTILINE)


def sentences(text: str) -> int:
    """Ends of sentences, abbreviations and initials aside; a last one without its full stop counts, too."""
    text = _ABBREVIATION.sub("_", text.strip())
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    rest = text[ends[-1] if ends else 0 :]
    return len(ends) + bool(words(rest))


def paragraphs(text: str) -> list[str]:
    """Parted by empty lines; a line of *** parts, too, and is none."""
    parts = re.split(r"\n[ \t]*\n", _RULE.sub("\n\n", text))
    return [part.strip() for part in parts if part.strip()]


def related(found: int, arguments: dict, count: int | None, default: str = "at least") -> bool:
    """Whether a number stands in the wanted relation to the wanted number."""
    if count is None:
        raise Unscorable("A constraint has no number to compare with.")
    relation = arguments.get("relation") or default
    checks = {
        "at least": found >= count, "at most": found <= count, "exactly": found == count, "less than": found < count,
        "more than": found > count,
    }  # fmt: skip
    return checks[relation]


def times(text: str, phrase: str) -> int:
    """How often a word or phrase stands in the text as whole words, whatever its case."""
    text, phrase, found, at = text.casefold(), phrase.casefold(), 0, 0
    while phrase and (at := text.find(phrase, at)) >= 0:
        end = at + len(phrase)
        whole = not (_is_letter(text[at - 1 : at]) or _is_letter(text[end : end + 1]))
        found, at = found + whole, end if whole else at + 1
    return found


def _is_letter(char: str) -> bool:
    return char.isalnum() or char == "_"


def _nth_paragraph(text: str, a: dict) -> bool:
    found, nth = paragraphs(text), a["nth_paragraph"]
    if len(found) != a.get("num_paragraphs", len(found)) or not 1 <= nth <= len(found):
        return False
    first = words(found[nth - 1])
    return bool(first) and first[0].casefold() == a["first_word"].casefold()


def _two_responses(text: str, a: dict) -> bool:
    found = [part.strip() for part in re.split(r"\*{6}", text)]
    return len(found) == 2 and all(found) and found[0] != found[1]


def _sections(text: str, a: dict) -> bool:
    name = re.escape((a.get("section_spliter") or "").strip() or "Section")  # no space at its ends: \s++ has its own
    return related(len(re.findall(rf"^[^\w\n]*{name}\s++\d", text, re.MULTILINE)), a, a.get("num_sections"))


def _repeats(text: str, a: dict) -> bool:
    return text.strip().casefold().startswith(a["prompt_to_repeat"].strip().casefold())


def _quoted(text: str, a: dict) -> bool:
    text = text.strip()
    return len(text) > 2 and (text[0], text[-1]) in (('"', '"'), ("“", "”"))


def _postscript(text: str, a: dict) -> bool:
    marker = re2.escape((a.get("postscript_marker") or "P.S.").casefold())
    return compiled(rf"(?m)^[ \t]*{marker}[ \t]*\S").search(as_bytes(text.casefold())) is not None


def _is_json(text: str, a: dict) -> bool:
    text = unfenced(text).strip()
    return text == "null" or json_of(text) is not None


def _capitals(text: str, a: dict) -> bool:
    found = sum(word.isupper() for word in words(text))
    return related(found, {"relation": a.get("capital_relation") or a.get("relation")}, a.get("capital_frequency"))


def _letter(text: str, a: dict) -> bool:
    relation = {"relation": a.get("let_relation") or a.get("relation")}
    return related(text.casefold().count(a["letter"].casefold()), relation, a.get("let_frequency"))


Check = Callable[[str, dict], bool]
TYPES: dict[str, tuple[Check, dict[str, type]]] = {
    "number_words": (lambda text, a: related(len(words(text)), a, a["num_words"]), {"num_words": int}),
    "number_sentences": (lambda text, a: related(sentences(text), a, a["num_sentences"]), {"num_sentences": int}),
    "number_paragraphs": (
        lambda text, a: related(len(paragraphs(text)), a, a["num_paragraphs"], "exactly"), {"num_paragraphs": int},
    ),
    "nth_paragraph_first_word": (_nth_paragraph, {"nth_paragraph": int, "first_word": str}),
    "existence": (lambda text, a: all(times(text, word) for word in a["keywords"]), {"keywords": list}),
    "forbidden_words": (
        lambda text, a: not any(times(text, word) for word in a["forbidden_words"]), {"forbidden_words": list},
    ),
    "frequency": (
        lambda text, a: related(times(text, a["keyword"]), a, a["frequency"]), {"keyword": str, "frequency": int},
    ),
    "letter_frequency": (_letter, {"letter": str, "let_frequency": int}),
    "english_lowercase": (lambda text, a: letters(text) and text == text.lower(), {}),
    "english_capital": (lambda text, a: letters(text) and text == text.upper(), {}),
    "capital_word_frequency": (_capitals, {"capital_frequency": int}),
    "json_format": (_is_json, {}),
    "number_bullet_lists": (
        lambda text, a: related(len(_BULLET.findall(text)), a, a["num_bullets"], "exactly"), {"num_bullets": int},
    ),
    "number_highlighted_sections": (
        lambda text, a: related(len(_HIGHLIGHT.findall(text)), a, a["num_highlights"]), {"num_highlights": int},
    ),
    "multiple_sections": (_sections, {"num_sections": int}),
    "title": (lambda text, a: _TITLE.search(text) is not None, {}),
    "postscript": (_postscript, {}),
    "number_placeholders": (
        lambda text, a: related(len(_PLACEHOLDER.findall(text)), a, a["num_placeholders"]), {"num_placeholders": int},
    ),
    "quotation": (_quoted, {}),
    "no_comma": (lambda text, a: not set(text) & set(",，、،"), {}),
    "start_phrase": (lambda text, a: text.strip().casefold().startswith(a["phrase"].strip().casefold()), {"phrase": str}),
    "end_checker": (
        lambda text, a: text.strip().strip('"').casefold().endswith(a["end_phrase"].strip().casefold()),
        {"end_phrase": str},
    ),
    "repeat_prompt": (_repeats, {"prompt_to_repeat": str}),
    "two_responses": (_two_responses, {}),
    "constrained_response": (
        lambda text, a: any(
            part.casefold() in text.casefold()
            for part in a.get("options", ("My answer is yes.", "My answer is no.", "My answer is maybe."))
        ),
        {},
    ),
}  # fmt: skip
EMPTY_FAILS = "empty answer"


def checked(item: Any, where: str) -> dict:
    """A constraint with its type known and its arguments of the right types. Raises SpecError."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        raise SpecError(f"“{where}” must be {{“type”: …}} with the type's arguments.")
    kind = item["type"].rsplit(":", 1)[-1]  # IFEval writes “punctuation:no_comma”
    if kind not in TYPES and kind not in UNCHECKED:
        raise SpecError(f"“{where}.type”: there is no constraint “{kind}”. There are {', '.join(TYPES)}.")
    for name, wanted in (TYPES[kind][1] if kind in TYPES else {}).items():
        value = item.get(name)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise SpecError(f"“{where}.{name}” is missing or of the wrong type for “{kind}”.")
        if isinstance(value, list) and not all(isinstance(part, str) and part for part in value):
            raise SpecError(f"“{where}.{name}” must be a list of texts.")
    for name in PHRASES:
        phrases = item[name] if isinstance(item.get(name), list) else [item.get(name) or ""]
        if len(phrases) > MOST_PHRASES or any(len(str(phrase)) > LONGEST_PHRASE for phrase in phrases):
            raise SpecError(f"“{where}.{name}” may have {MOST_PHRASES} texts of {LONGEST_PHRASE} characters.")
    for name in ("relation", "let_relation", "capital_relation"):
        if item.get(name) not in (None, *RELATIONS):
            raise SpecError(f"“{where}.{name}” must be one of {', '.join(RELATIONS)}.")
    return item | {"type": kind}


def loosened(text: str) -> Iterator[str]:
    """IFEval's loose reading: also without the first line, the last, both, and each of these without asterisks."""
    rows = text.split("\n")
    for part in (rows, rows[1:], rows[:-1], rows[1:-1]):
        made = "\n".join(part).strip()
        yield from (made, made.replace("*", ""))


class ConstraintsOptions(Options):
    constraints: list[dict] | None = None
    partial: bool = False
    loose: bool = False


class Constraints(Guarded):
    """1 where all hold, else 0; with `partial` the share that holds. An empty answer holds to nothing."""

    def __init__(self, chosen: ConstraintsOptions, path: str) -> None:
        given = chosen.constraints
        self.items = None if given is None else [checked(x, f"{path}.constraints[{at}]") for at, x in enumerate(given)]
        self.partial, self.loose = chosen.partial, chosen.loose

    def judge(self, rollout: Rollout) -> Score:
        text = rollout.output[:LONGEST]
        checks = list(self.checks(rollout))
        if not checks:
            raise Unscorable("There is no constraint to check, neither in the verifier nor in the task.")
        readings = list(loosened(text)) if self.loose else [text]
        held = {name: bool(text.strip()) and any(check(item) for item in readings) for name, check in checks}
        part = sum(held.values()) / len(held)
        success = part == 1.0
        details = [f"not held: {name}" for name, fine in held.items() if not fine]
        return Score(
            reward=part if self.partial else float(success), components={name: float(v) for name, v in held.items()},
            success=success, valid=True, details=details if text.strip() else [EMPTY_FAILS],
        )  # fmt: skip

    def checks(self, rollout: Rollout) -> Iterator[tuple[str, Callable[[str], bool]]]:
        """(name, check) of each constraint; names of equal types are numbered."""
        seen: dict[str, int] = {}
        items = self.items if self.items is not None else of_task(rollout)
        for item in items:
            kind = item["type"]
            if kind in UNCHECKED:
                continue
            seen[kind] = seen.get(kind, 0) + 1
            name = kind if seen[kind] == 1 else f"{kind}.{seen[kind]}"
            yield name, (lambda text, item=item, check=TYPES[kind][0]: check(text, item))
        if self.items is None:
            yield from own_checks(rollout.expected.get("constraint"))


def own_checks(given: Any) -> Iterator[tuple[str, Callable[[str], bool]]]:
    for name, value in (given if isinstance(given, dict) else {}).items():
        if name not in CONSTRAINTS:
            raise Unscorable(f"There is no constraint “{name}”. There are {', '.join(CONSTRAINTS)}.")
        yield name, (lambda text, value=value, check=CONSTRAINTS[name]: check(text, value))


def of_task(rollout: Rollout) -> list[dict]:
    """The task's constraints. Raises Unscorable for one there is not."""
    given = rollout.expected.get("constraints")
    metadata = rollout.task.get("metadata") or {}
    if given is None and isinstance(metadata.get("instruction_id_list"), list):
        arguments = metadata.get("kwargs") or [{}] * len(metadata["instruction_id_list"])
        pairs = zip(metadata["instruction_id_list"], arguments, strict=False)
        given = [{k: v for k, v in (extra or {}).items() if v is not None} | {"type": kind} for kind, extra in pairs]
    try:
        return [checked(item, f"expected.constraints[{at}]") for at, item in enumerate(given or [])]
    except SpecError as error:
        raise Unscorable(str(error)) from error


def from_spec(spec: dict, clients: Clients, path: str) -> Constraints:
    return Constraints(options(spec, path, ConstraintsOptions), path)
