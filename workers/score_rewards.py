"""Scores conversations with a reward model version for `workers.lib.reward_scorer`, one request at
a time, through standard input and output. The first request names the folders; altered weights are
refused.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from workers.lib.errors import JobError, sentence
from workers.lib.folder_digest import folder_digest
from workers.lib.garbage import is_imported
from workers.lib.specs.environment import RewardModelFolder
from workers.lib.typed import convert

DIGITS = 4  # further digits depend on what else is in the batch


class Scorer:
    def __init__(self, folder: RewardModelFolder) -> None:
        if (
            not Path(folder.adapter).is_dir()
            or folder_digest(Path(folder.adapter)) != folder.digest
        ):
            raise JobError(
                f"The weights of the reward model {folder.name} are missing or were altered, so it"
                " scores nothing."
            )
        from workers.ml.reward_head import load_scorer

        self.model, self.tokenizer, self.facts = load_scorer(
            folder.base, folder.adapter, folder.dtype
        )

    def scores(self, conversations: list[dict]) -> list[dict[str, Any]]:
        from workers.ml.reward_head import scores

        read = [self.read(one) for one in conversations]
        found = iter(
            scores(self.model, self.tokenizer, [row for row in read if isinstance(row, list)])
        )
        return [
            self.score(next(found)) if isinstance(row, list) else {"error": row} for row in read
        ]

    def score(self, raw: float) -> dict[str, float]:
        return {
            "raw": round(raw, DIGITS),
            "calibrated": round(self.facts.calibration.probability(raw), DIGITS),
        }

    def read(self, one: dict) -> list[int] | str:
        """The tokens of a conversation, or why it cannot be scored."""
        from workers.ml.reward_head import conversation_ids

        try:
            ids = conversation_ids(
                self.tokenizer, one["messages"], one["tools"] if self.facts.show_tools else []
            )
        except (
            Exception
        ) as error:  # one conversation that the template rejects says nothing about the others
            return f"The chat template cannot write this conversation: {error}"
        limit = self.facts.max_length
        return (
            ids
            if len(ids) <= limit
            else f"The conversation has {len(ids)} tokens; this reward model reads {limit}."
        )


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    scorer: Scorer | None = None
    while head := source.read(4):
        request = json.loads(source.read(struct.unpack(">I", head)[0]))
        try:
            if scorer is None:
                scorer, found = Scorer(convert(request, RewardModelFolder)), dict[str, Any]()
                is_imported()
            else:
                found = {"scores": scorer.scores(request["conversations"])}
        except Exception as error:
            if scorer is not None:
                raise  # the next request starts a new process
            found = {"error": sentence(error)}
        body = json.dumps(found).encode()
        sink.write(struct.pack(">I", len(body)) + body)
        sink.flush()


def main() -> None:
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries' output must not be mistaken for an answer
    serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
