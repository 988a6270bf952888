"""The similarity of two texts, in [0, 1], with the metrics of OpenAI's text_similarity grader.

The hosted service does not publish its tokenisers; each function states ours. Checked against NLTK
and rouge-score.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

_WORDS = re.compile(r"\w+|[^\w\s]")
_ROUGE_WORDS = re.compile(r"[a-z0-9]+")
# characters of either text, since some metrics take time proportional to the product of the lengths
LONGEST = 20_000
EPSILON = 0.1  # count for an n-gram order without a match: Chen & Cherry 2014, smoothing 1


def words(text: str) -> list[str]:
    """Words and single punctuation marks."""
    return _WORDS.findall(text)


def ngrams(tokens: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))


def fuzzy_match(text: str, reference: str) -> float:
    """RapidFuzz's WRatio over lower-cased letters and digits, as in the hosted guide's own example,
    scaled to [0, 1].
    """
    from rapidfuzz import fuzz, utils

    return fuzz.WRatio(text, reference, processor=utils.default_process) / 100.0


def bleu(text: str, reference: str) -> float:
    """Sentence BLEU-4 with brevity penalty (Papineni et al. 2002), smoothing 1 of Chen & Cherry
    2014; case matters.
    """
    made, wanted = words(text), words(reference)
    logs, matched = [], 0
    for size in range(1, 5):
        found, true = ngrams(made, size), ngrams(wanted, size)
        right = (found & true).total()
        matched += right
        if size == 1 and not right:
            return 0.0
        logs.append(math.log((right or EPSILON) / max(1, found.total())))
    penalty = 1.0 if len(made) > len(wanted) else math.exp(1 - len(wanted) / len(made))
    return min(1.0, penalty * math.exp(sum(logs) / 4))


def gleu(text: str, reference: str) -> float:
    """Google BLEU (Wu et al. 2016): the smaller of precision and recall over all n-grams of 1 to 4;
    case matters.
    """
    made, wanted = words(text), words(reference)
    right = found = true = 0
    for size in range(1, 5):
        ours, theirs = ngrams(made, size), ngrams(wanted, size)
        right, found, true = (
            right + (ours & theirs).total(),
            found + ours.total(),
            true + theirs.total(),
        )
    return right / max(found, true) if right else 0.0


def rouge_n(text: str, reference: str, size: int) -> float:
    """ROUGE-N's F1 (Lin 2004) over lower-cased runs of a–z and 0–9, without stemming."""
    ours, theirs = (ngrams(_ROUGE_WORDS.findall(side.lower()), size) for side in (text, reference))
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L's F1 (Lin 2004): the longest common subsequence of the same tokens."""
    from rapidfuzz.distance import LCSseq

    made, wanted = (_ROUGE_WORDS.findall(side.lower()) for side in (text, reference))
    return _f1(LCSseq.similarity(made, wanted), len(made), len(wanted))


def _f1(right: int, found: int, true: int) -> float:
    return 2 * right / (found + true) if right else 0.0


def meteor(text: str, reference: str) -> float:
    """METEOR (Banerjee & Lavie 2005) with NLTK's α 0.9, β 3, γ 0.5: equal words, then equal Porter
    stems; no synonyms.

    Lower-cased. If a word occurs several times, the last occurrences are matched first.
    """
    made, wanted = words(text.lower()), words(reference.lower())
    pairs = _aligned(made, wanted)
    if not pairs:
        return 0.0
    precision, recall = len(pairs) / len(made), len(pairs) / len(wanted)
    mean = precision * recall / (0.9 * precision + 0.1 * recall)
    breaks = sum((one[0] + 1, one[1] + 1) != two for one, two in pairwise(pairs))
    return mean * (1 - 0.5 * ((breaks + 1) / len(pairs)) ** 3)


def _aligned(made: list[str], wanted: list[str]) -> list[tuple[int, int]]:
    """Pairs of matching positions, each position at most once, in order."""
    from snowballstemmer import stemmer

    stem: Callable[[str], str] = stemmer("porter").stemWord
    pairs: dict[int, int] = {}
    for form in (str, stem):
        places: dict[str, list[int]] = {}
        taken = set(pairs.values())
        for at, word in enumerate(wanted):
            if at not in taken:
                places.setdefault(form(word), []).append(at)
        for at in reversed([at for at in range(len(made)) if at not in pairs]):
            if found := places.get(form(made[at])):
                pairs[at] = found.pop()
    return sorted(pairs.items())


METRICS: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    "meteor": meteor,
    "rouge_l": rouge_l,
} | {
    f"rouge_{size}": lambda text, reference, size=size: rouge_n(text, reference, size)
    for size in range(1, 6)
}
