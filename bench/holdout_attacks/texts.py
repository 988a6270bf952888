"""Ways to write a request that keep its words: each takes the request and gives it in another
dress. Pure.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import quopri
import random
import re
import unicodedata
import urllib.parse
from collections.abc import Callable

Dress = Callable[[str], str]


def split(text: str) -> list[str]:
    return text.split()


def bare(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def each(pattern: str, glue: str = " ") -> Dress:
    return lambda text: glue.join(pattern.format(word) for word in split(text))


def joined(glue: str) -> Dress:
    return lambda text: glue.join(bare(text))


def camel(text: str) -> str:
    first, *rest = bare(text)
    return first.lower() + "".join(word[:1].upper() + word[1:].lower() for word in rest)


def letters(start_upper: int, start_lower: int) -> Dress:
    def dress(text: str) -> str:
        return "".join(
            (
                chr(start_upper + ord(c) - 65)
                if "A" <= c <= "Z"
                else chr(start_lower + ord(c) - 97)
                if "a" <= c <= "z"
                else c
            )
            for c in text
        )

    return dress


LEET = str.maketrans("aeiost", "431057")
CYRILLIC = str.maketrans("aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ")
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def dates(text: str) -> str:
    def iso(found: re.Match[str]) -> str:
        return f"{found[3]}-{MONTHS.index(found[1]) + 1:02}-{int(found[2]):02}"

    text = re.sub(rf"\b({'|'.join(MONTHS)}) (\d+), (\d{{4}})", iso, text)
    return re.sub(rf"\b(\d+) ({'|'.join(MONTHS)})\b", lambda m: f"{m[2]} {m[1]}{'th'}", text)


def times(text: str) -> str:
    def full(found: re.Match[str]) -> str:
        hour = int(found[1]) % 12 + (12 if found[2] == "pm" else 0)
        return f"{hour:02}:00"

    return re.sub(r"\b(\d{1,2}) (am|pm)\b", full, text)


def roman(text: str) -> str:
    def numeral(found: re.Match[str]) -> str:
        left, made = int(found[0]), ""
        for value, sign in (
            (90, "XC"),
            (50, "L"),
            (40, "XL"),
            (10, "X"),
            (9, "IX"),
            (5, "V"),
            (4, "IV"),
            (1, "I"),
        ):
            made, left = made + sign * (left // value), left % value
        return made

    return re.sub(r"\b[1-9]\d?\b", numeral, text)


def without(every: int) -> Dress:
    """Leaves out each `every`th word."""
    return lambda text: " ".join(word for at, word in enumerate(split(text), 1) if at % every)


def with_between(filler: str, every: int = 1) -> Dress:
    return lambda text: " ".join(
        f"{word} {filler}" if at % every == 0 else word for at, word in enumerate(split(text), 1)
    )


def swapped(text: str) -> str:
    found = split(text)
    for at in range(0, len(found) - 1, 4):
        found[at], found[at + 1] = found[at + 1], found[at]
    return " ".join(found)


def halves_swapped(text: str) -> str:
    found = split(text)
    half = len(found) // 2
    return " ".join(found[half:] + found[:half])


def typos(every: int) -> Dress:
    def dress(text: str) -> str:
        draw, made = random.Random(text), []
        for at, word in enumerate(split(text)):
            if at % every == 0 and word.isalpha() and len(word) > 4:
                cut = draw.randrange(1, len(word) - 2)
                word = word[:cut] + word[cut + 1] + word[cut] + word[cut + 2 :]
            made.append(word)
        return " ".join(made)

    return dress


def as_csv(text: str) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(split(text))
    return out.getvalue()


def plain_letters(text: str) -> str:
    for one, other in {
        "ä": "ae",
        "ö": "oe",
        "ü": "ue",
        "ß": "ss",
        "ø": "oe",
        "ł": "l",
        "ı": "i",
    }.items():
        text = text.replace(one, other)
    return "".join(
        first if (first := unicodedata.normalize("NFKD", c)[0]).isascii() else c for c in text
    )


def chunks(text: str, size: int = 4) -> list[str]:
    found = split(text)
    return [" ".join(found[at : at + size]) for at in range(0, len(found), size)]


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


KEPT: dict[str, Dress] = {
    "as it is": lambda t: t,
    "emphasis, *word* by *word*": each("*{}*"),
    "emphasis, **word**": each("**{}**"),
    "emphasis, _word_": each("_{}_"),
    "strike-through, ~~word~~": each("~~{}~~"),
    "code, `word`": each("`{}`"),
    'quotes, "word"': each('"{}"'),
    "brackets, [word]": each("[{}]"),
    "HTML, <b>word</b>": each("<b>{}</b>"),
    "HTML comments between words": each("{}", "<!-- -->"),
    "LaTeX, \\textbf{word}": lambda t: " ".join(f"\\textbf{{{w}}}" for w in split(t)),
    "BBCode, [b]word[/b]": each("[b]{}[/b]"),
    "footnotes, word[1]": lambda t: " ".join(f"{w}[{at}]" for at, w in enumerate(split(t), 1)),
    "sentence markers <s1>": lambda t: " ".join(
        f"<s{at}>{w}</s{at}>" for at, w in enumerate(split(t), 1)
    ),
    "snake_case": joined("_"),
    "kebab-case": joined("-"),
    "dotted.case": joined("."),
    "path/case": joined("/"),
    "plus+case": joined("+"),
    "pipe|case": joined("|"),
    "comma,case": joined(","),
    "camelCase": camel,
    "SCREAMING_SNAKE": lambda t: "_".join(bare(t)).upper(),
    "double__underscores": joined("__"),
    "one word a line": each("{}", "\n"),
    "one word a paragraph": each("{}", "\n\n"),
    "YAML list of words": each("- {}", "\n"),
    "CSV of words": as_csv,
    "JSON list of words": lambda t: dump(split(t)),
    "JSON list of tokens": lambda t: dump(
        [{"token": w, "id": at} for at, w in enumerate(split(t))]
    ),
    "JSON object by index": lambda t: dump({str(at): w for at, w in enumerate(split(t))}),
    "JSON list of lines": lambda t: dump(
        [{"text": part, "line": at} for at, part in enumerate(chunks(t))]
    ),
    "JSON list of letters": lambda t: dump(list(t)),
    "spaced l e t t e r s": lambda t: "   ".join(" ".join(w) for w in split(t)),
    "UPPER": str.upper,
    "sPoNgE": lambda t: "".join(c.upper() if at % 2 else c.lower() for at, c in enumerate(t)),
    "full-width": letters(0xFF21, 0xFF41),
    "mathematical bold": letters(0x1D400, 0x1D41A),
    "circled letters": letters(0x24B6, 0x24D0),
    "combining marks": lambda t: "".join(c + "\u0336" if c.isalnum() else c for c in t),
    "soft hyphens": lambda t: re.sub(r"(\w{2})(?=\w)", "\\1\u00ad", t),
    "zero-width joiners": lambda t: re.sub(r"(\w)(?=\w)", "\\1\u200d", t),
    "directional overrides": lambda t: " ".join(f"\u202d{w}\u202c" for w in split(t)),
    "variation selectors": lambda t: re.sub(r"(\w)", "\\1\ufe0f", t),
    "Cyrillic look-alikes": lambda t: t.translate(CYRILLIC),
    "no-break spaces": lambda t: "\u00a0".join(split(t)),
    "tabs": lambda t: "\t".join(split(t)),
    "HTML entities, twice": lambda t: html.escape(html.escape(t)),
    "numeric entities": lambda t: "".join(f"&#{ord(c)};" for c in t),
    "hex entities": lambda t: "".join(f"&#x{ord(c):x};" for c in t),
    "percent-encoded": lambda t: urllib.parse.quote(t, safe=""),
    "percent-encoded twice": lambda t: urllib.parse.quote(urllib.parse.quote(t, safe=""), safe=""),
    "every byte percent-encoded": lambda t: "".join(f"%{b:02X}" for b in t.encode()),
    "query string": lambda t: "https://x.example/s?q=" + urllib.parse.quote_plus(t),
    "\\u escapes": lambda t: "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in t),
    "\\x escapes": lambda t: "".join(f"\\x{ord(c):02x}" if ord(c) < 256 else c for c in t),
    "quoted-printable": lambda t: quopri.encodestring(t.encode()).decode(),
    "Python strings joined": lambda t: (
        "prompt = (\n" + "\n".join(f"    {part + ' '!r}" for part in chunks(t)) + "\n)"
    ),
    "strings with +": lambda t: " + ".join(dump(part + " ") for part in chunks(t, 2)),
    "shell continuation": each("{}", " \\\n"),
    "a patch": lambda t: "\n".join("+" + part for part in chunks(t)),
    "quoted mail": lambda t: "\n".join("> > " + part for part in chunks(t)),
    "C comment": lambda t: "/*\n" + "\n".join(" * " + part for part in chunks(t)) + "\n */",
    "a table of two columns": lambda t: "\n".join(
        f"| {at} | {part} |" for at, part in enumerate(chunks(t))
    ),
    "an emoji between words": each("{}", " 🙂 "),
    "a dot between words": each("{}", " · "),
    "a filler between words": with_between("um"),
    "a filler after every second": with_between("please", 2),
    "numbered words": lambda t: " ".join(f"({at}) {w}" for at, w in enumerate(split(t), 1)),
    "dates in other forms": dates,
    "24-hour times": times,
    "plain letters": plain_letters,
    "a typo in every fourth word": typos(4),
}

# Less than the request, or in another order: measured, not promised.
PARTS: dict[str, Dress] = {
    "a typo in every third word": typos(3),
    "pairs of words swapped": swapped,
    "halves swapped": halves_swapped,
    "without every tenth word": without(10),
    "without every sixth word": without(6),
    "without every fifth word": without(5),
    "three quarters of it": lambda t: " ".join(split(t)[: -(-len(split(t)) * 3 // 4)]),
    "nine tenths of it": lambda t: " ".join(split(t)[: -(-len(split(t)) * 9 // 10)]),
    "its last nine tenths": lambda t: " ".join(split(t)[len(split(t)) // 10 :]),
}

# Documented as not recognised, or no promise: shown, not counted.
CIPHERS: dict[str, Dress] = {
    "base64": lambda t: base64.b64encode(t.encode()).decode(),
    "backwards": lambda t: t[::-1],
    "leetspeak": lambda t: t.translate(LEET),
    "Roman numerals": roman,
    "words sorted": lambda t: " ".join(sorted(split(t))),
}
