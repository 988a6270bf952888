"""The file in which `workers.best_of_n` stores the samples of each task. Light: no torch."""

from __future__ import annotations

import json
from pathlib import Path

SAMPLED = "sampled.jsonl"  # a line for each task
SETTINGS = (
    "samples",
    "keep",
    "temperature",
    "top_p",
    "max_new_tokens",
    "teacher_answers_as",
)  # that the samples depend on


def read(file: Path) -> dict[str, dict]:
    """{task: its line}; the last line may be half written."""
    found = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[one["task"]] = one
    return found


def count(file: Path) -> int:
    """The number of tasks in the file, which may be large, so without parsing it."""
    if not file.is_file():
        return 0
    with file.open("rb") as lines:
        return sum(line.endswith(b"}\n") for line in lines)
