"""What an exported run contains, independent of the engine. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from workers.lib.specs.training import Training


class ExportError(ValueError):
    """A plan that an engine cannot train. The message is a sentence for the page."""


@dataclass(frozen=True)
class Row:
    """One task or example as the agent sees it. `gym` is the row that the environment's /verify
    takes. What is learned is `completion` (for KTO together with `good`), the answers in `turns`
    (everything that follows in an episode), or the preference of `chosen` over `rejected`.
    """

    key: str
    messages: list[dict]
    tools: list[dict]
    completion: str = ""
    gym: dict[str, Any] = field(default_factory=dict)
    turns: list[dict] = field(default_factory=list)
    chosen: str = ""
    rejected: str = ""
    good: bool | None = None


@dataclass(frozen=True)
class Adapter:
    """The files of the adapter that training continues from, {name: bytes}."""

    rank: int
    files: dict[str, bytes]


@dataclass(frozen=True)
class Plan:
    """`facts` are copied into the manifest. `path` is where the environment is served, relative to
    the server's address.
    """

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
    layers: tuple[str, ...] = ()  # names of the base's linear layers; empty if unknown
    exclude: tuple[str, ...] = ()  # patterns of layers that must not be adapted
    tool_parser: str = ""
    renderer: str = ""
    context: int = 0  # upper bound of a prompt, in tokens
    # why the base's template does not keep the turns of such a conversation as they were; "" where
    # it does
    changes_turns: str = ""
    text_arguments: bool = True  # whether the template also accepts the arguments of calls as text

    @property
    def alpha(self) -> int:
        return self.config.lora_alpha or 2 * self.config.lora_rank

    @property
    def targets(self) -> list[str]:
        """Names of the layers to adapt; empty for all linear layers."""
        chosen = self.config.target_modules
        return [] if chosen == "all-linear" and not self.exclude else self.named_targets

    @property
    def named_targets(self) -> list[str]:
        """Names of the layers to adapt, with “all-linear” expanded."""
        chosen = self.config.target_modules
        names = list(self.layers) if chosen == "all-linear" else list(chosen)
        left_out = {pattern.strip("*") for pattern in self.exclude}
        return [name for name in names if name not in left_out]

    @property
    def episodes(self) -> bool:
        """Whether rows can have several answers to learn."""
        return any(row.turns for row in self.rows) or (
            self.method == "sft" and self.multi_turn and not self.rows
        )

    @property
    def prompt_tokens(self) -> int:
        return self.context

    @property
    def total_tokens(self) -> int:
        return self.context + getattr(self.config, "max_new_tokens", 0)


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(
        "utf-8", "replace"
    )


def chat_rows(rows: list[Row], packed: bool = False) -> bytes:
    """Conversations that end with the answer to learn, or contain all answers of an episode.
    `packed`: tools and arguments of calls as JSON text, for engines whose reader gives every row
    the fields of all others, filled with null.
    """
    return jsonl([chat_row(row, packed) for row in rows])


def chat_row(row: Row, packed: bool) -> dict[str, Any]:
    messages = [*row.messages, *(row.turns or [{"role": "assistant", "content": row.completion}])]
    tools: Any = row.tools
    if packed:
        messages, tools = (
            [packed_calls(message) for message in messages],
            json.dumps(row.tools, ensure_ascii=False),
        )
    return {"messages": messages} | ({"tools": tools} if row.tools else {})


def packed_calls(message: dict) -> dict:
    calls = []
    for call in message.get("tool_calls") or []:
        given = call["function"]["arguments"]
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        calls.append(call | {"function": call["function"] | {"arguments": text}})
    return message | ({"tool_calls": calls} if calls else {})


def prompt_rows(rows: list[Row]) -> bytes:
    """The rows that `render.py` and `train.py` read: the prompt in parts, what is learned, and the
    environment's row as text.
    """
    return jsonl([prompt_row(index, row) for index, row in enumerate(rows)])


def prompt_row(index: int, row: Row) -> dict[str, Any]:
    asked = {"index": index, "key": row.key, "messages": row.messages, "tools": row.tools}
    if row.turns:
        return asked | {"turns": row.turns}
    if row.chosen:
        return asked | {"chosen": row.chosen, "rejected": row.rejected}
    labelled = {} if row.good is None else {"label": row.good}
    gym = {"row": json.dumps(row.gym, ensure_ascii=False)} if row.gym else {}
    return asked | {"completion": row.completion} | labelled | gym


def gym_rows(rows: list[Row]) -> bytes:
    return jsonl([row.gym for row in rows])
