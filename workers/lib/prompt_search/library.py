"""GEPA's process, in its own virtual environment (`make gepa`): `python -m
workers.lib.prompt_search.library`.

It has no network, no keys and no tasks. It reads one line of JSON, {prompt, train: [ids],
validation: [ids], settings}, and asks its parent with lines: {"ask": "evaluate", prompt, tasks} is
answered with {scores, records}, {"ask": "reflect", prompt} with {text} or {error}. It reports
{"tell": "candidate", …} and, at the end, {"tell": "end"}. The order of its questions depends only
on the seed and the answers, so a search whose answers were stored can be replayed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

COMPONENT = "system_prompt"
SKIPS = 10  # rounds per proposal that may pass without one, because all tasks of a round succeed


@dataclass
class Wire:
    """Lines of JSON to and from the parent; when the parent closes them, this process ends."""

    reads: IO[str]
    writes: IO[str]

    def read(self) -> dict[str, Any]:
        line = self.reads.readline()
        if not line:
            sys.exit(0)
        return json.loads(line)

    def tell(self, **said: Any) -> None:
        self.writes.write(json.dumps(said) + "\n")
        self.writes.flush()

    def ask(self, **question: Any) -> dict[str, Any]:
        self.tell(**question)
        return self.read()


@dataclass
class Adapter:
    """The interface through which GEPA tries a candidate (gepa.core.adapter.GEPAAdapter)."""

    wire: Wire
    propose_new_texts = None

    def evaluate(
        self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        from gepa.core.adapter import EvaluationBatch

        found = self.wire.ask(ask="evaluate", prompt=candidate[COMPONENT], tasks=batch)
        return EvaluationBatch(
            outputs=[None] * len(batch),
            scores=found["scores"],
            trajectories=found["records"] if capture_traces else None,
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return dict.fromkeys(components_to_update, eval_batch.trajectories or [])


@dataclass
class Reporter:
    """Reports each proposal once it is decided. Numbers count proposals; 0 is the prompt that the
    search starts with.
    """

    wire: Wire
    proposed: int = 0
    prompt: str = ""
    parent: int = 0
    # {GEPA's index of an accepted candidate: our number}.
    numbers: dict[int, int] = field(default_factory=lambda: {0: 0})

    def on_proposal_start(self, event: Any) -> None:
        self.prompt = event["parent_candidate"][COMPONENT]

    def on_candidate_selected(self, event: Any) -> None:
        self.parent = self.numbers.get(event["candidate_idx"], 0)

    def on_proposal_end(self, event: Any) -> None:
        self.proposed += 1
        self.prompt = event["new_instructions"][COMPONENT]

    def on_candidate_rejected(self, event: Any) -> None:
        self._tell(
            "rejected",
            self.proposed,
            self.prompt,
            {"before": event["old_score"], "after": event["new_score"]},
        )

    def on_valset_evaluated(self, event: Any) -> None:
        index = event["candidate_idx"]
        number = self.proposed if index else 0
        self.numbers[index] = number
        prompt = event["candidate"][COMPONENT]
        self._tell("kept" if index else "start", number, prompt, {"score": event["average_score"]})

    def _tell(self, state: str, number: int, prompt: str, scores: dict[str, float]) -> None:
        parent = self.parent if number else None
        self.wire.tell(
            tell="candidate", state=state, number=number, parent=parent, prompt=prompt, **scores
        )


class Silent:
    def log(self, message: str) -> None:
        """GEPA logs whole prompts; everything important is reported elsewhere."""


def search(wire: Wire, start: dict[str, Any]) -> None:
    import gepa

    settings, reporter = start["settings"], Reporter(wire)

    def reflect(prompt: Any) -> str:
        answer = wire.ask(
            ask="reflect", prompt=prompt if isinstance(prompt, str) else json.dumps(prompt)
        )
        if "text" not in answer:
            raise RuntimeError(answer["error"])
        return answer["text"]

    def enough(state: Any) -> bool:
        perfect = max(state.program_full_scores_val_set, default=0.0) >= settings["perfect"]
        most = settings["proposals"]
        return perfect or reporter.proposed >= most or state.i >= SKIPS * most

    gepa.optimize(
        seed_candidate={COMPONENT: start["prompt"]},
        trainset=start["train"],
        valset=start["validation"],
        adapter=Adapter(wire),
        reflection_lm=reflect,
        reflection_minibatch_size=settings["minibatch"],
        perfect_score=settings["perfect"],
        stop_callbacks=[enough],
        callbacks=[reporter],
        logger=Silent(),
        seed=settings["seed"],
        raise_on_exception=False,
    )
    wire.tell(tell="end")


def main() -> None:
    """Redirect the library's output to stderr, so that it is not read as a question."""
    wire = Wire(sys.stdin, os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    search(wire, wire.read())


if __name__ == "__main__":
    main()
