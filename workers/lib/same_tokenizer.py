"""Whether two models use the same tokens, from their tokenizer files. Light: it only reads JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = "tokenizer.json"
PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
SHOWN = 3


def why_not_same(one: Path, other: Path) -> str:
    """The end of a sentence that says how the tokenizers of two model folders differ; "" if they do
    not, or if one has no tokenizer file.
    """
    mine, theirs = _read(one), _read(other)
    if mine is None or theirs is None:
        return (
            ""
            if one == other
            else f"{(one if mine is None else other).name} has no {FILE} to compare"
        )
    first, second = _vocabulary(mine), _vocabulary(theirs)
    if first != second:
        strange = sorted(
            token for token in first.keys() | second.keys() if first.get(token) != second.get(token)
        )
        some = ", ".join(repr(token) for token in strange[:SHOWN])
        return (
            f"{len(strange):,} of {len(first.keys() | second.keys()):,} tokens differ"
            f" ({some}{', …' if len(strange) > SHOWN else ''})"
        )
    different = [part for part in PARTS if mine.get(part) != theirs.get(part)]
    return f"they split text differently ({', '.join(different)})" if different else ""


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _vocabulary(file: dict[str, Any]) -> dict[str, int]:
    vocabulary = (file.get("model") or {}).get("vocab")
    listed = dict(enumerate(vocabulary)) if isinstance(vocabulary, list) else {}
    words = {str(token): at for at, token in listed.items()} if listed else dict(vocabulary or {})
    return words | {one["content"]: one["id"] for one in file.get("added_tokens") or []}
