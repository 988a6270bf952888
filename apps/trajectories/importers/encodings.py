"""Which encoding a text has. UTF-8, UTF-16 and UTF-32 can be known; any other is a guess, which a
person confirms.
"""

from __future__ import annotations

import codecs
import unicodedata

ENCODINGS = {  # the usual ones first: they win where two read a text equally well
    "utf-8": "UTF-8",
    "cp1252": "Western European (Windows-1252)",
    "cp1250": "Central European (Windows-1250)",
    "iso8859_2": "Central European (ISO 8859-2)",
    "cp1251": "Cyrillic (Windows-1251)",
    "koi8_r": "Cyrillic (KOI8-R)",
    "cp866": "Cyrillic (DOS)",
    "cp1253": "Greek (Windows-1253)",
    "cp1254": "Turkish (Windows-1254)",
    "cp1255": "Hebrew (Windows-1255)",
    "cp1256": "Arabic (Windows-1256)",
    "cp1257": "Baltic (Windows-1257)",
    "iso8859_15": "Western European (ISO 8859-15)",
    "tis_620": "Thai (TIS-620)",
    "cp932": "Japanese (Shift JIS)",
    "euc_jp": "Japanese (EUC-JP)",
    "gb18030": "Chinese, simplified (GB 18030)",
    "big5": "Chinese, traditional (Big5)",
    "cp949": "Korean (EUC-KR)",
    "mac_roman": "Western European (Mac)",
    "cp850": "Western European (DOS)",
}
LOOKED_AT = 64 * 1024
MAX_GUESSES = 6
# UTF-32 first: its little-endian mark begins like that of UTF-16.
WIDE = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def wide_encoding(head: bytes) -> str:
    """The encoding of a file in UTF-16 or UTF-32, also where UTF-16 has no byte order mark; "" for
    any other.
    """
    for mark, encoding in WIDE.items():
        if head.startswith(mark):
            return encoding
    head = head[: min(len(head), 400) // 2 * 2]
    for encoding, zeros, others in (
        ("utf-16-le", head[1::2], head[::2]),
        ("utf-16-be", head[::2], head[1::2]),
    ):
        if zeros.count(0) * 10 > len(zeros) * 8 and not others.count(0):
            return encoding
    return ""


def guesses(sample: bytes) -> list[str]:
    """The encodings that a text may have, best first; none where it is UTF-8, or not a text.

    A text some of whose lines are UTF-8 beyond ASCII is UTF-8, with damage.
    """
    sample = sample[:LOOKED_AT]
    if _is_binary(sample) or any(_is_utf8(line) for line in sample.splitlines()):
        return []
    cut = sample[: sample.rfind(b"\n") + 1] or sample
    if cut.isascii():
        return []
    from charset_normalizer import from_bytes  # only here: few files need it

    usual = list(ENCODINGS)
    words = b" ".join(line for line in cut.splitlines() if not line.isascii())
    found = {
        name: round(_oddness(_decoded(words, name)) + one.chaos - one.coherence / 2, 2)
        for one in from_bytes(cut, cp_isolation=[name for name in ENCODINGS if name != "utf-8"])
        for name in (one.encoding, *one.could_be_from_charset)
        if name in ENCODINGS
    }
    best = sorted(found, key=lambda name: (found[name], usual.index(name)))
    others = [name for name in usual[1:] if name not in found and _fits(cut, name)]
    return [*best, *others][:MAX_GUESSES] or usual[1:2]


def _fits(sample: bytes, encoding: str) -> bool:
    try:
        return bool(sample.decode(encoding))
    except UnicodeDecodeError:
        return False


def _oddness(text: str) -> float:
    """The share of the letters beyond ASCII that do not stand so in words: marks that nothing comes
    before, capitals after small letters, letters of another script than the one before, and what
    hardly any text has (“¤”, half-width kana, syllables that Korean words do not).
    """
    odd = beyond = 0
    before = " "
    for letter in text:
        if not letter.isascii():
            beyond += 1
            kind = unicodedata.category(letter)
            odd += kind[0] in "SCN" or (kind[0] == "M" and not before.isalpha())
            odd += _is_rare(letter)
            if letter.isalpha() and before.isalpha():
                odd += (letter.isupper() and before.islower()) or (
                    not before.isascii() and _script(letter) != _script(before)
                )
        before = letter
    return odd / max(1, beyond)


def _is_rare(letter: str) -> bool:
    if _script(letter) == "HANGUL" and unicodedata.category(letter) == "Lo":
        return len(letter.encode("euc_kr", "ignore")) != 2  # not of the 2,350 of its standard
    return letter == "¤" or "\uff61" <= letter <= "\uff9f"


def _script(letter: str) -> str:
    """Japanese words mix kana and Chinese characters."""
    script = unicodedata.name(letter, "").split(" ", 1)[0]
    return "CJK" if script in ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") else script


def _is_binary(sample: bytes) -> bool:
    """Control characters do not stand in texts."""
    control = sum(byte < 0x20 and byte not in b"\t\r\n\f" for byte in sample[:4096])
    return control * 50 > len(sample[:4096])


def _is_utf8(line: bytes) -> bool:
    if line.isascii():
        return False
    try:
        return bool(line.decode())
    except UnicodeDecodeError:
        return False


def _decoded(sample: bytes, encoding: str) -> str:
    return sample.decode(encoding, "replace")


def examples(sample: bytes, names: list[str]) -> list[dict[str, str]]:
    """[{name, label, example}]: how the first line beyond ASCII reads in each encoding."""
    lines = (line for line in sample[:LOOKED_AT].splitlines() if not line.isascii())
    line = next(lines, b"")
    return [
        {"name": name, "label": ENCODINGS[name], "example": _decoded(line, name).strip()[:160]}
        for name in names
    ]
