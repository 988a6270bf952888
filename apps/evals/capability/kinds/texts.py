"""Sorting, letters, and checkable instructions on the form of a text. Pure."""

from __future__ import annotations

import random
import string

from apps.evals.capability.kinds.base import GOODS, TOWNS, WORDS, Made

WITHOUT_E = (
    "cats",
    "dogs",
    "run",
    "jump",
    "fast",
    "among",
    "tall",
    "plants",
    "in",
    "fog",
    "and",
    "rain",
    "at",
    "dawn",
    "big",
    "birds",
)
VOWELS = "aeiou"


def sorting(rng: random.Random, level: int) -> Made:
    words = rng.sample(WORDS, (4, 7, 10, 14, 20)[level - 1])
    by_end = lambda word: (word[-1], word)  # noqa: E731
    if level == 1:
        how, right = "in alphabetical order", sorted(words)
    elif level == 2:
        how, right = "in reverse alphabetical order", sorted(words, reverse=True)
    elif level == 3:
        how, right = (
            "by length, the shortest first, and those of equal length alphabetically",
            sorted(words, key=lambda w: (len(w), w)),
        )
    elif level == 4:
        how, right = (
            "by their last letter, and those with the same last letter alphabetically",
            sorted(words, key=by_end),
        )
    else:
        chosen = [word for word in words if "r" in word]
        how = (
            "without those that have no letter r, by their last letter, and those with the same"
            " last letter alphabetically"
        )
        right = sorted(chosen, key=by_end)
    request = f"Write these words {how}, separated by commas, and nothing else: {', '.join(words)}"
    return _exactly(request, {"list": right}, ", ".join(right), ", ".join([*right[1:], right[0]]))


def letters(rng: random.Random, level: int) -> Made:
    if level == 1:
        text = "-".join(rng.choice(TOWNS).lower()[:4] + str(rng.randint(10, 99)) for _ in range(3))
        return _exactly(
            f"Repeat this exactly and write nothing else: {text}", {"exact": text}, text, text[::-1]
        )
    if level == 2:
        word = rng.choice(WORDS) + rng.choice(WORDS)
        return _exactly(
            f"Write “{word}” backwards and nothing else.", {"exact": word[::-1]}, word[::-1], word
        )
    if level == 3:
        text = "".join(rng.choice(string.ascii_lowercase[:15]) for _ in range(24))
        right = "".join(letter for letter in text if letter not in VOWELS)
        return _exactly(
            f"Write this without its vowels and nothing else: {text}",
            {"exact": right},
            right,
            right + "a",
        )
    shift, word = rng.randint(2, 11), rng.choice(WORDS) + (rng.choice(WORDS) if level == 5 else "")
    if level == 4:
        right = _shifted(word, shift)
        request = (
            f"Move each letter of “{word}” {shift} places forward in the alphabet, from z on to a."
        )
    else:
        right = _shifted(word[::-1][::2], shift)
        request = (
            f"Write “{word}” backwards, keep only its first, third, fifth, … letters, and move each"
            f" of those {shift} places forward in the alphabet, from z on to a."
        )
    return _exactly(
        f"{request} Write the result and nothing else.", {"exact": right}, right, _shifted(right, 1)
    )


def _shifted(word: str, by: int) -> str:
    return "".join(chr((ord(letter) - 97 + by) % 26 + 97) for letter in word)


def instructions(rng: random.Random, level: int) -> Made:
    """As many simultaneous conditions as the level; `right` is built to meet them."""
    count, lines = rng.randint(9, 13), rng.randint(2, 4)
    asked, name = (
        rng.sample(WITHOUT_E[:9], 2),
        rng.choice(("Ana", "Bo", "Dan", "Kai", "Lou", "Mia", "Tom")),
    )
    rest = [rng.choice(WITHOUT_E) for _ in range(count - 3)]
    words = [name, *rest, *asked]
    conditions: list[tuple[str, dict]] = [
        (f"has exactly {count} words", {"words": count}),
        (f"contains the words {asked[0]} and {asked[1]}", {"contains": asked}),
        (
            f"begins with {name} and ends with an exclamation mark",
            {"starts_with": name, "ends_with": "!"},
        ),
        ("does not contain the letter e anywhere", {"excludes": ["e"]}),
        (f"has exactly {lines} lines", {"lines": lines}),
    ]
    chosen = conditions[:level] if level > 1 else [rng.choice(conditions[:3])]
    expected = {name: value for _, part in chosen for name, value in part.items()}
    cuts = sorted(rng.sample(range(1, count), lines - 1))
    parts = (
        [words[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
        if "lines" in expected
        else [words]
    )
    right = "\n".join(" ".join(part) for part in parts) + "!"
    request = (
        f"Write a text about {rng.choice(GOODS)} that {'; that '.join(said for said, _ in chosen)}"
    )
    return _exactly(
        f"{request}. It need not make much sense. Write nothing else.",
        expected,
        right,
        "even these",
    )


def _exactly(request: str, constraint: dict, right: str, wrong: str) -> Made:
    return Made(request, {"constraint": constraint}, right, wrong)
