"""Model servers that keep a log of their own, written where tokens are sampled, below HTTP: of each
answer its prompt's ids and the ids that were sampled.

`python token_log.py vllm|transformers LOG ARGUMENTS…`; the first with vLLM's Python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO


def read(log: Path) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [(tuple(prompt), tuple(sampled)) for prompt, sampled in rows]


def vllm(log: TextIO) -> None:
    """What the engine's core hands to vLLM's output processor, before any text is made of it."""
    from vllm.entrypoints.cli.main import main
    from vllm.v1.engine.output_processor import OutputProcessor

    open_: dict[str, tuple[list[int], list[int]]] = {}
    add, process = OutputProcessor.add_request, OutputProcessor.process_outputs

    def added(self: Any, request: Any, *given: Any, **more: Any) -> None:
        open_[request.request_id] = (list(request.prompt_token_ids), [])
        add(self, request, *given, **more)

    def processed(self: Any, outputs: list, *given: Any, **more: Any) -> Any:
        for output in outputs:
            open_[output.request_id][1].extend(output.new_token_ids)
            if output.finish_reason is not None:
                print(json.dumps(open_.pop(output.request_id)), file=log, flush=True)
        return process(self, outputs, *given, **more)

    OutputProcessor.add_request, OutputProcessor.process_outputs = added, processed
    main()


def transformers(log: TextIO) -> None:
    """What the batches hand out after each step."""
    from workers import model_server
    from workers.ml.batches import Token

    sampled: dict[Any, list[int]] = {}
    deliver = model_server.Served._deliver

    def delivered(self: Any, found: list) -> None:
        for ask, token in found:
            if isinstance(token, Token):
                sampled.setdefault(ask, []).append(token.id)
                if token.end:
                    print(json.dumps([ask.ids, sampled.pop(ask)]), file=log, flush=True)
        deliver(self, found)

    model_server.Served._deliver = delivered
    model_server.main()


def in_process(patch: Any, log: TextIO) -> None:
    """What the engine of the program that samples generates."""
    from workers.ml.transformers_engine import TransformersEngine

    generate = TransformersEngine._batch

    def generated(self: Any, prompts: list[list[int]], *given: Any, **more: Any) -> Any:
        found = generate(self, prompts, *given, **more)
        for prompt, outputs in zip(prompts, found, strict=True):
            for output in outputs:
                print(json.dumps([prompt, output.token_ids]), file=log, flush=True)
        return found

    patch.setattr(TransformersEngine, "_batch", generated)


if __name__ == "__main__":
    kind, path, *arguments = sys.argv[1:]
    sys.argv = [kind, *arguments]
    with Path(path).open("a") as log:
        {"vllm": vllm, "transformers": transformers}[kind](log)
