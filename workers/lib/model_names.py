"""Check by the model name in a server's answers whether the requested model answers. Pure.

The name often differs for good reasons: OpenAI answers a request for `gpt-4o` as
`gpt-4o-2024-08-06`, proxies (LiteLLM, OpenRouter) add or remove the vendor, and vLLM may return the
first of its `--served-model-name`s. An alias (`teacher`, an Azure deployment) says nothing about
the model behind it. `gpt-4o-mini` instead of `gpt-4o` is another model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

Likeness = Literal["same", "unclear", "other"]

IF_WANTED = "If that is the model you want, fork this run with teacher_answers_as set to its name."
LONGEST = 400  # characters of a name that are read
SHOWN = 80  # characters of a name in a sentence
MOST_NAMES = 20  # that are counted; a server could send a new one with each answer
_FAMILIES = (
    "gpt chatgpt o claude gemini gemma llama codellama qwen qwq mistral mixtral ministral magistral"
    " codestral devstral deepseek phi command grok nemotron smollm glm chatglm kimi granite olmo"
    " falcon yi jamba nova minimax hunyuan ernie vicuna zephyr hermes"
)
FAMILIES = frozenset(_FAMILIES.split())
_ALSO_WORDS = "o phi command falcon yi nova granite vicuna zephyr hermes"
ALSO_WORDS = frozenset(_ALSO_WORDS.split())  # which may be a team's alias, too
_VARIANTS = (
    "mini nano micro tiny lite small medium large xlarge pro plus max ultra flash turbo haiku"
    " sonnet opus scout maverick coder code math vision vl omni thinking reasoner reasoning"
    " distill r"
)
VARIANTS = frozenset(_VARIANTS.split())
VENDOR = re.compile(
    r"^(?:[a-z]{2,6}\.)?(?:anthropic|meta|amazon|mistral|cohere|deepseek|ai21|openai|google|qwen)\.(?=[a-z])"
)
TAG = re.compile(r":(?:latest|free|nitro|floor|extended|beta)$")
SNAPSHOT = re.compile(
    r"[-@](?:(?P<moving>latest|default|v\d+(?::\d+)?)|20\d\d-?[01]\d-?[0-3]\d|[01]\d-20\d\d|[01]\d-[0-3]\d|[0-2]\d[0-3]\d|00\d)$"
)


def likeness(asked: str, answered: str) -> Likeness:
    """“unclear”: a name does not say which model it is, or both may be the same."""
    one, other = _plain(asked), _plain(answered)
    if one == other or asked.endswith(
        f":{answered}"
    ):  # SGLang answers for base:adapter as the adapter
        return "same"
    (one, snapshot), (other, other_snapshot) = _split(one), _split(other)
    if one == other:
        return "other" if snapshot and other_snapshot and snapshot != other_snapshot else "same"
    ours, theirs = _words(one), _words(other)
    if not _names_a_model(ours) or not _names_a_model(theirs):
        return "unclear"
    if not ours & theirs & FAMILIES:
        return "other"
    lost, added = _telling(ours - theirs), _telling(theirs - ours)
    if not lost and ours <= FAMILIES:  # “claude” is any of them
        return "unclear"
    if not any(map(_is_number, ours)):  # “claude-sonnet” is any version of it
        added = {word for word in added if not _is_number(word)}
    return "other" if lost or added else "unclear"


def _plain(name: str) -> str:
    """Without vendor and tag, in lower case."""
    last = name.strip().lower().rstrip("/").rsplit("/", 1)[-1]
    return TAG.sub("", VENDOR.sub("", last))


def _split(name: str) -> tuple[str, str]:
    """(the name without its snapshot, the snapshot; "" for “latest” and the like)."""
    fixed = ""
    while found := SNAPSHOT.search(name):
        name = name[: found.start()]
        fixed = fixed or ("" if found["moving"] else found[0].strip("-@").replace("-", ""))
    return name, fixed


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+|\d+[a-z]*", name))


def _names_a_model(words: set[str]) -> bool:
    """False for an alias."""
    return bool(words & FAMILIES - ALSO_WORDS) or (
        bool(words & ALSO_WORDS) and bool(_telling(words))
    )


def _telling(words: set[str]) -> set[str]:
    """The words that distinguish models of one family: variants, versions, sizes."""
    return {word for word in words if word in VARIANTS or (_is_number(word) and word != "0")}


def _is_number(word: str) -> bool:
    return word[0].isdigit()


class Answering:
    """The model names in the answers of a teacher's server. `asked`: the requested name.
    `expected`: the name that answers must have, if it is known. `exact`: accept only the requested
    name, for an adapter, since a server that ignores it would answer as the base. `note` is called
    with a sentence for each new name that may be another model.
    """

    def __init__(
        self,
        asked: str,
        expected: str = "",
        *,
        exact: bool = False,
        note: Callable[[str], None] = lambda said: None,
    ) -> None:
        self.asked, self.expected, self.exact, self.note = asked, expected, exact, note
        self.names = Counter[str]()

    def why_not(self, answered: Any) -> str:
        """The end of a sentence if this is another model; "" if it is the requested one or may be,
        or if no name is given.
        """
        if not isinstance(answered, str) or not answered.strip():
            return ""
        answered = answered.strip()[:LONGEST]
        known, shown, wanted = self.names.keys(), answered[:SHOWN], self.expected or self.asked
        found = likeness(wanted, answered)
        strange = self.exact and not f":{wanted}".endswith(f":{answered}")
        if found == "other" or strange or (self.expected and found == "unclear"):
            return (
                f"answered as “{shown}” when “{wanted}” was"
                f" {'expected' if self.expected else 'asked for'}. {IF_WANTED}"
            )
        if changed := next((name for name in known if likeness(name, answered) == "other"), ""):
            return f"answered as “{changed}” first and as “{shown}” now, which is another model."
        if shown not in known and len(known) < MOST_NAMES:
            if found == "unclear":
                self.note(
                    f"“{self.asked}” answers as “{shown}”. Check that this is the model you meant;"
                    " the run records the name."
                )
            self.names[shown] = 0
        if shown in self.names:
            self.names[shown] += 1
        return ""
