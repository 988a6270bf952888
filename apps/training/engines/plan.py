"""What an exported run says, whatever engine runs it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from workers.lib.specs import Training


class ExportError(ValueError):
    """A plan that an engine cannot train; a sentence for the screen."""


@dataclass(frozen=True)
class Row:
    """One task as the agent is given it; `gym` is the row that the environment's /verify takes."""

    key: str
    messages: list[dict]
    tools: list[dict]
    completion: str
    gym: dict[str, Any]


@dataclass(frozen=True)
class Adapter:
    """The files of an adapter that training continues from, {name: bytes}."""

    rank: int
    files: dict[str, bytes]


@dataclass(frozen=True)
class Plan:
    """`facts` go into the manifest as they are. `path` is where the environment is served below the server's address."""

    name: str
    method: str
    config: Training
    seed: int
    base: str
    server: str
    path: str
    multi_turn: bool
    max_turns: int
    rows: list[Row]
    validation: list[Row]
    facts: dict[str, Any]
    adapter: Adapter | None = None
    layers: tuple[str, ...] = ()  # names of the base's linear layers, "" unknown
    exclude: tuple[str, ...] = ()  # patterns of layers that must not be adapted
    tool_parser: str = ""
    renderer: str = ""
    context: int = 0  # tokens of a prompt, as an upper bound

    @property
    def alpha(self) -> int:
        return self.config.lora_alpha or 2 * self.config.lora_rank

    @property
    def targets(self) -> list[str]:
        """Names of layers to adapt; empty for every linear one."""
        chosen = self.config.target_modules
        return [] if chosen == "all-linear" and not self.exclude else self.named_targets

    @property
    def named_targets(self) -> list[str]:
        """The same, all-linear spelt out."""
        chosen = self.config.target_modules
        names = list(self.layers) if chosen == "all-linear" else list(chosen)
        left_out = {pattern.strip("*") for pattern in self.exclude}
        return [name for name in names if name not in left_out]

    @property
    def prompt_tokens(self) -> int:
        return self.context

    @property
    def total_tokens(self) -> int:
        return self.context + getattr(self.config, "max_new_tokens", 0)


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "replace")


def chat_rows(rows: list[Row]) -> bytes:
    """Conversations that end with the answer to learn."""
    return jsonl(
        [
            {"messages": [*row.messages, {"role": "assistant", "content": row.completion}]}
            | ({"tools": row.tools} if row.tools else {})
            for row in rows
        ]
    )


def prompt_rows(rows: list[Row]) -> bytes:
    """What `render.py` and `train.py` read: the prompt in parts, and the environment's row as text."""
    return jsonl(
        [
            {"index": index, "key": row.key, "messages": row.messages, "tools": row.tools, "completion": row.completion,
             "row": json.dumps(row.gym, ensure_ascii=False)}
            for index, row in enumerate(rows)
        ]
    )  # fmt: skip


def gym_rows(rows: list[Row]) -> bytes:
    return jsonl([row.gym for row in rows])
