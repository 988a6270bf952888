"""Names for groups: the tool, and the cause as a person would put it; if no rule names a cause, the
words that its members share and other groups do not (class-based TF-IDF)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log

from apps.failures.clusters.cases import Case, sentences_of, trouble_sentences
from apps.failures.clusters.features import STOP_WORDS
from apps.failures.rules.words import word_set

SEEN = 300  # members read for a name, most typical first
SHARE = 0.6  # share of the members that must contain a phrase
TOOL_SHARE = 0.6
LONGEST = 5  # words in a phrase about what went wrong
LONGEST_WISH = 3  # words in a phrase about the request
REQUEST_READ = 400  # characters
LENGTH_BONUS = 0.25  # a longer phrase says more if both are equally frequent
REQUEST_WEIGHT = 0.5  # the request says less than what went wrong
MODE_SCORE = 0.35  # the failure mode is used if no phrase is more informative
# added to a phrase's rarity, so that phrases common to all groups are a last resort instead of
# impossible
TOO_COMMON = 0.1
SMALL_TALK = word_set(
    "ahead again also able actually could currently get give go going great here know looking make"
    " now okay one proceed provide really see still sure take tell today try trying understand"
    " unfortunately use user way"
)
EDGES = (STOP_WORDS | SMALL_TALK | {"error", "failed"}) - {"not", "no", "should"}
ENDS = EDGES | {"not", "no", "too", "than", "only", "should"}

CAUSES = {
    "acted_on_the_past": "acted on a past date",
    "answered_with_nothing": "gave an empty answer",
    "change_without_a_yes": "changed without confirmation",
    "changed_unseen": "changed without looking it up",
    "choice_not_asked": "chose without asking",
    "claimed_without_a_call": "claimed a change it never made",
    "confirmed_rule_broken": "broke a rule of the system prompt",
    "contradicts_a_tool": "misreported a tool's answer",
    "cut_off": "was cut off",
    "dangerous_without_confirmation": "dangerous call without confirmation",
    "empty_retrieval_used": "answered from an empty search",
    "ended_in_the_middle": "stopped in the middle",
    "handed_over": "handed over",
    "left_unanswered": "left the last request unanswered",
    "looped": "repeated the same call",
    "miscounted_time": "miscounted a time window",
    "never_done": "never did what was asked",
    "offer_dropped": "offered and did not do it",
    "rated_badly": "was rated badly",
    "refused_change": "did something else after a refused change",
    "request_not_served": "left part of the request undone",
    "said_again": "said the same again and again",
    "taken_on_trust": "took the user's word unchecked",
    "turn_limit": "ran out of turns",
    "turned_away": "turned the user away",
    "user_corrected": "the user had to correct it",
    "user_repeated": "the user had to repeat the request",
    "value_from_nowhere": "made up a value",
    "words_instead_of_a_call": "wrote the call as text",
}

Phrases = dict[tuple[str, ...], float]


def names(groups: Sequence[Sequence[Case]]) -> list[str]:
    """One name for each group, all different: `update_reservation_flights · payment_id missing`."""
    shares = [_shares(group[:SEEN]) for group in groups]
    spread: Counter[tuple[str, ...]] = Counter()
    for group in shares:
        spread.update(group)
    modes = [Counter(case.mode for case in group).most_common(1)[0][0] for group in groups]
    ranked = [
        _ranked(group, spread, len(groups), mode) for group, mode in zip(shares, modes, strict=True)
    ]
    ranked = [[*_cause(group), *phrases] for group, phrases in zip(groups, ranked, strict=True)]
    tools = [tool_of(group) for group in groups]
    return _made_different(
        [_parts(tool, phrases) for tool, phrases in zip(tools, ranked, strict=True)]
    )


def tool_of(group: Sequence[Case]) -> str:
    """The tool, or the two tools, that most of the members blame; empty if there is none."""
    counts = Counter(case.tool for case in group if case.tool)
    common = [tool for tool, count in counts.most_common(2) if count >= TOOL_SHARE / 2 * len(group)]
    if common and counts[common[0]] >= TOOL_SHARE * len(group):
        return common[0]
    return " / ".join(common) if len(common) == 2 else ""


def _cause(group: Sequence[Case]) -> list[str]:
    """The cause named by the rule of most members, if it names one."""
    rule, count = Counter(case.rule for case in group).most_common(1)[0]
    return [CAUSES[rule]] if rule in CAUSES and count >= SHARE * len(group) else []


def _shares(group: Sequence[Case]) -> Phrases:
    """Phrase → share of the members that contain it; phrases that occur only in the request count
    REQUEST_WEIGHT.
    """
    said: Counter[tuple[str, ...]] = Counter()
    wanted: Counter[tuple[str, ...]] = Counter()
    for case in group:
        said.update(_phrases(trouble_sentences(case), LONGEST))
        wanted.update(_wishes(case))
    least = SHARE * len(group)
    shares = {
        phrase: REQUEST_WEIGHT * count / len(group)
        for phrase, count in wanted.items()
        if count >= least
    }
    return shares | {phrase: count / len(group) for phrase, count in said.items() if count >= least}


def _phrases(lines: Iterable[str], longest: int) -> set[tuple[str, ...]]:
    """Sequences of up to `longest` words that start and end with a meaningful word."""
    found = set()
    for line in lines:
        words = line.split()
        for start, first in enumerate(words):
            if _says_nothing(first) or first in EDGES:
                continue
            for end in range(start + 1, min(start + longest, len(words)) + 1):
                if not _says_nothing(words[end - 1]) and words[end - 1] not in ENDS:
                    found.add(tuple(words[start:end]))
    return found


def _wishes(case: Case) -> set[tuple[str, ...]]:
    """Phrases of the request; a single word of it says too little."""
    found = _phrases(sentences_of([case.request[:REQUEST_READ]]), LONGEST_WISH)
    return {phrase for phrase in found if len(phrase) > 1 and not any(map(_says_nothing, phrase))}


def _says_nothing(word: str) -> bool:
    """A placeholder, or what remains of an id next to one."""
    return word[0] == "<" or word[-1] == "_"


def _ranked(shares: Phrases, spread: Counter[tuple[str, ...]], groups: int, mode: str) -> list[str]:
    """Phrases and the mode's name, best first, none repeating a word of a better one."""

    def score(phrase: tuple[str, ...]) -> float:
        rarity = log(max(1, groups / spread[phrase])) + TOO_COMMON
        return shares[phrase] * rarity * (1 + LENGTH_BONUS * (len(phrase) - 1))

    scored = [(-score(phrase), phrase) for phrase in shares]
    scored.append((-MODE_SCORE, tuple(mode.replace("_", " ").replace("-", " ").split())))
    chosen: list[tuple[str, ...]] = []
    for _, phrase in sorted(scored):
        if phrase and not any(set(phrase) & set(better) for better in chosen):
            chosen.append(phrase)
    return [
        " ".join("…" if _says_nothing(word) else word for word in phrase) for phrase in chosen[:4]
    ]


def _parts(tool: str, phrases: list[str]) -> list[str]:
    parts = [*([tool] if tool else []), *phrases]
    return parts or ["similar failures"]


def _made_different(parts: list[list[str]]) -> list[str]:
    """Two parts each; more if two groups would have the same name, and a number if words run
    out.
    """
    lengths = [2] * len(parts)
    while True:
        called = [" · ".join(words[:length]) for words, length in zip(parts, lengths, strict=True)]
        twice = {name for name, count in Counter(called).items() if count > 1}
        longer = [
            i for i, name in enumerate(called) if name in twice and lengths[i] < len(parts[i])
        ]
        if not longer:
            break
        for place in longer:
            lengths[place] += 1
    seen: Counter[str] = Counter()
    for place, name in enumerate(called):
        seen[name] += 1
        called[place] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return called
