"""The run that DPO, KTO and reward models share: TRL trains a LoRA adapter on judged answers. What
one of them has of its own is a `Method`. Heavy: imports torch.

Tokens that prompts share are computed once (workers.ml.shared_forward). A resumed run gives the
same result as an uninterrupted one (workers.ml.trl_runs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workers.lib.events import Emitter
from workers.lib.program import StopFlag
from workers.lib.shown_progress import ShownProgress
from workers.ml import checkpoint
from workers.ml.chat_writer import ChatWriter
from workers.ml.ranks import join
from workers.ml.reward_head import prepare
from workers.ml.shared_forward import share_prompts
from workers.ml.trl_runs import (
    InParts,
    arguments,
    checkpointing,
    learnable,
    loaded,
    refuse_long_rows,
    reporting,
    row_order,
    set_reference,
    train,
)
from workers.ml.validation import Validation, Values, evaluated

Ids = dict[str, Any]  # a row as tokens, in TRL's columns
ANSWERS = ("chosen_ids", "rejected_ids", "completion_ids")


def of_trl(run: Run) -> Values:
    return evaluated(run.trainer, run.method.named)


@dataclass(frozen=True, kw_only=True)
class Method:
    """`trl`: whose trainer and config. `relative`: whether the loss is relative to the model at the
    start; otherwise the model gets a scalar head and scores whole conversations.
    """

    trl: Literal["DPO", "KTO", "Reward"]
    what: str  # the rows are, in the plural
    named: dict[str, str]  # TRL's names of metrics to ours
    relative: bool = True
    refuse: Callable[[Any], Any]  # of the spec, before the model is loaded; raises SpecError
    answers_in: Callable[[Any], list[str | dict]]
    ids: Callable[[ChatWriter, Any, Any], Ids]  # of a row, with the config
    facts: Callable[[Sequence[Any]], dict[str, float]]
    settings: Callable[[Any, Sequence[Any]], dict[str, Any]]  # for TRL, of the config and the rows
    # columns that depend on a row's batch, which then has two rows or more
    of_batch: Callable[[Sequence[Ids]], list[Ids]] | None = None
    held: Callable[[Run], Values] = of_trl  # metrics of the rows that are held back
    measured: Callable[[Run], dict[str, Any]] = lambda run: {}  # what else the result says


class Run:
    """`rows` are those that train, `held_back` the others, as tokens."""

    def __init__(self, method: Method, spec: Any, events: Emitter, stop: StopFlag) -> None:
        self.method, self.spec, self.events, self.stop = method, spec, events, stop
        config, head = spec.config, not method.relative
        self.start = checkpoint.step_of(spec.resume_from)
        method.refuse(spec)
        self.ranks = join(config.processes, in_lockstep=config.shard)
        self.model, self.tokenizer, *self.optimizers = loaded(
            spec, events, stop, self.ranks, scalar_head=head
        )
        if head:
            prepare(self.model, self.tokenizer)
        self.rows = self.learnable(spec.rows, method.what)
        aside = self.learnable(spec.validation_rows, f"validation {method.what}", required=head)
        writer = ChatWriter(self.tokenizer, self.model)
        each = ShownProgress(events, config.steps).each(
            self.start, "tokenizing examples:", self.rows
        )
        self.data = [method.ids(writer, row, config) for row in each]
        self.held_back = [method.ids(writer, row, config) for row in aside]
        writer.warn(events)
        lengths = [length_of(row) for row in [*self.data, *self.held_back]]
        refuse_long_rows(lengths, config.max_length)
        order = row_order(len(self.data), config.steps * config.batch_size, spec.seed)
        self.order = order[self.start * config.batch_size :]
        if method.of_batch:  # in the order in which they train, since a row depends on its batch
            self.data = self.by_batch([self.data[at] for at in self.order] or self.data)
            self.held_back = self.by_batch(self.held_back) if len(aside) > 1 else []
            self.order = list(range(len(self.data)))
        self.settings = method.settings(config, self.rows)

    def learnable(self, rows: list[Any], what: str, **more: Any) -> list[Any]:
        answers_in = self.method.answers_in
        return learnable(rows, answers_in, self.tokenizer, self.events, what=what, **more)

    def by_batch(self, rows: list[Ids]) -> list[Ids]:
        size = self.spec.config.batch_size
        batches = (rows[at : at + size] for at in range(0, len(rows), size))
        return [row for batch in batches for row in self.method.of_batch(batch)]

    def train(self) -> None:
        method, spec, config, model = self.method, self.spec, self.spec.config, self.model
        counted, shares = Counter[str](), method.relative and not config.shard
        self.trainer = trainer = self.trl_trainer(counted, shares)
        if method.relative:
            set_reference(model, spec.model.adapter)
        if method.of_batch:  # TRL is given the size of the whole batch
            trainer._train_batch_size = config.batch_size // self.ranks.size
        trainer.ranks, trainer.counted, trainer.shares = self.ranks, counted, shares
        if shares:
            share_prompts(trainer, recompute=config.gradient_checkpointing, check=self.stop.check)
        self.adapter = train(trainer, model, spec, self.ranks)
        metrics = {"steps": config.steps, method.what: len(self.rows)} | method.measured(self)
        self.events.result(adapter=str(self.adapter), metrics=metrics)

    def trl_trainer(self, counted: Counter[str], shares: bool) -> Any:
        import trl
        from datasets import Dataset

        spec, model, ranks, order = self.spec, self.model, self.ranks, self.order

        class InOrder(InParts, getattr(trl, f"{self.method.trl}Trainer")):  # type: ignore[misc]
            def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
                """The rows are tokens already."""
                return dataset

            def _get_train_sampler(self, train_dataset: Any = None) -> list[int]:
                return ranks.part_of_each(spec.config.batch_size, order)

        held = (lambda: self.method.held(self)) if self.held_back else None
        reporter = reporting(
            self.events,
            self.stop,
            spec,
            model,
            self.optimizers[0],
            named=self.method.named,
            measure=Validation(spec, self.events, self.stop, model, self.tokenizer, held, ranks),
            ranks=ranks,
            counted=counted,
            data=self.method.facts(self.rows),
        )
        evaluates = self.held_back and self.method.relative
        return InOrder(
            model=model,
            processing_class=self.tokenizer,
            train_dataset=Dataset.from_list(self.data),
            eval_dataset=Dataset.from_list(self.held_back) if evaluates else None,
            optimizers=tuple(self.optimizers),
            callbacks=[reporter],
            args=getattr(trl, f"{self.method.trl}Config")(
                **arguments(spec, self.start, ranks)
                | ({} if shares else checkpointing(spec.config))
                | self.settings
            ),
        )


def length_of(row: Ids) -> int:
    return len(row.get("prompt_ids", ())) + max(len(row.get(name, ())) for name in ANSWERS)


def main_of(method: Method) -> Callable[[Any, Emitter, StopFlag], None]:
    """The program of a method."""

    def main(spec: Any, events: Emitter, stop: StopFlag) -> None:
        Run(method, spec, events, stop).train()

    return main
