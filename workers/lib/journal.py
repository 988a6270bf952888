"""The questions that a job has asked and paid for, as lines of JSON on disk: a job whose worker was
killed does not ask them again, and questions that were open when it died count as spent.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from workers.lib.spending import NOTHING, Account, Usage


class Journal:
    """Answers by key. A line that is incomplete or invalid counts as not written."""

    def __init__(self, path: Path) -> None:
        self.answers: dict[str, Any] = {}
        self.lines = _read(path)
        for line in self.lines:
            if "key" in line:
                self.answers[line["key"]] = line["answer"]
        whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
        self.file = path.open("a")
        if not whole:
            self.file.write("\n")

    def keep(self, key: str, answer: Any) -> None:
        self.answers[key] = answer
        self.write({"key": key, "answer": answer})

    def write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _read(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            read = json.loads(line)
        except ValueError:
            continue
        if isinstance(read, dict):
            found.append(read)
    return found


def key_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class KeptAccount(Account):
    """An account whose bookings are stored in the journal. `before` is the known usage of earlier
    attempts, which the journal on another machine may not contain.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        most_tokens: int,
        most_usd: float,
        before: tuple[Usage, float] = (NOTHING, 0.0),
    ) -> None:
        super().__init__(most_tokens=most_tokens, most_usd=most_usd)
        self.journal = journal
        used, usd = _spent(journal.lines)
        self.used = Usage(
            max(used.input_tokens, before[0].input_tokens),
            max(used.output_tokens, before[0].output_tokens),
        )
        self.used_usd = max(usd, before[1])

    async def book(self, most: Usage, usd: float) -> None:
        await super().book(most, usd)
        self.journal.write({"booked": [most.input_tokens, most.output_tokens, usd]})

    def settle(self, most: Usage, most_usd: float, used: Usage, usd: float) -> None:
        super().settle(most, most_usd, used, usd)
        returned = most - used
        self.journal.write(
            {"returned": [returned.input_tokens, returned.output_tokens, most_usd - usd]}
        )


def _spent(lines: list[dict[str, Any]]) -> tuple[Usage, float]:
    """Everything booked minus everything returned: a question that was open when its worker died
    counts with its maximum cost.
    """
    used, usd = NOTHING, 0.0
    for line in lines:
        for name, sign in (("booked", 1), ("returned", -1)):
            if name in line:
                asked, answered, cost = line[name]
                used, usd = used + Usage(sign * asked, sign * answered), usd + sign * cost
    return used, usd
