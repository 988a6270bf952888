"""Finds out which turns of a model's conversations the package `renderers` can join: `python -m
workers.lib.bridge_check FOLDER PROBE…`.

Prints {probe: renderer} for the given probes of the template check. Each renderer of the model's
family is asked to continue a small conversation from its tokens for two turns, with the same check
as in a rollout. It is a separate process because a template is a program.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workers.lib.bridges import BYTES, SECONDS, Bridge, PlainTokenizer, bridges_for
from workers.lib.chat_templates import NotJoined, template_tail
from workers.lib.engines import SoFar
from workers.lib.messages import calls_of, text_of, to_text
from workers.lib.prompting import written_for
from workers.lib.template_check import (
    ASKED,
    compiled,
    family_of,
    opens_thought,
    probes,
    template_of,
)


def joined(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Raises OSError, ValueError, and anything that a template raises."""
    found = template_of(folder)
    if found is None or not (folder / "tokenizer.json").is_file():
        return {}
    template, special, stops = found
    tokenizer, made = (
        PlainTokenizer(folder / "tokenizer.json", special.get("eos_token", "")),
        compiled(template),
    )

    def render(messages: list[dict], answer: bool, tools: list[dict]) -> str:
        chat, native = written_for(template, messages, tools)
        return made.render(messages=chat, tools=native, add_generation_prompt=answer, **special)

    asked = probes(opens_thought(render(ASKED, True, [])))
    bridges = bridges_for(tokenizer, family_of(folder))
    return {
        name: bridge.name
        for bridge in reversed(bridges)
        for name in names
        if _joins(
            bridge,
            lambda messages, answer, tools=asked[name][1]: render(messages, answer, tools),
            tokenizer,
            *asked[name],
            stops,
        )
    }


def _joins(
    bridge: Bridge,
    render: Any,
    tokenizer: PlainTokenizer,
    after: list[dict],
    tools: list[dict],
    stops: list[str],
) -> bool:
    once, stop_ids = [*ASKED, *after], [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
    try:
        for answered, messages in ((ASKED, once), (once, [*once, *after])):
            tail = template_tail(render, answered, messages, stops)
            end = next(stop for stop in stops if tail.startswith(stop))
            asked = tokenizer.encode(render(answered, True))
            answer = tokenizer.encode(_as_sampled(after[0]) + end)
            so_far = SoFar(answered, tools, asked + answer, asked=len(asked))
            bridge.ids_after(render, tokenizer.encode, so_far, messages, stops, stop_ids)
    except NotJoined:
        return False
    return True


def _as_sampled(answer: dict) -> str:
    """The words and calls of an answer. How a call is written is up to the model: it stays as it
    was sampled.
    """
    return text_of(answer) + "".join(
        to_text(call.tool, call.args or {}) for call in calls_of(answer)
    )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    print(json.dumps(joined(Path(sys.argv[1]), sys.argv[2:])))
