"""KTO of a LoRA adapter with TRL: learns from single answers that are good or bad. `python -m
workers.kto spec.json` (docs/jobs.md).

No pairs are needed (Ethayarajh et al. 2024): a good answer's reward relative to the reference is
pushed above that of the batch's mismatched answers, a bad one's below it. The reference is the
initial model. Good and bad answers have equal total weight unless the config says otherwise. A
resumed run gives the same result as an uninterrupted one, since each batch depends on the seed and
its step alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from workers.lib.control_tokens import assistants
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.program import StopFlag, run_main
from workers.lib.row_facts import label_facts
from workers.lib.shown_progress import ShownProgress
from workers.lib.specs.kto import Kto, KtoConfig, Labelled
from workers.ml import checkpoint
from workers.ml.chat_writer import ChatWriter
from workers.ml.ranks import join
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
from workers.ml.validation import Validation, evaluated

NAMED = {
    "rewards/chosen": "rewards/chosen",
    "rewards/rejected": "rewards/rejected",
    "rewards/margins": "rewards/margin",
    "kl": (
        "rewards/kl"
    ),  # nats per mismatched answer, not per token, so it is not the number that the alarms read
    "logps/chosen": "train/logp_chosen",
    "logps/rejected": "train/logp_rejected",
    "entropy": "train/entropy",
}


def main(spec: Kto, events: Emitter, stop: StopFlag) -> None:
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    class AsTheyCome(InParts, KTOTrainer):
        def _prepare_dataset(self, dataset: Any, _: Any, args: Any, *__: Any) -> Any:
            """The rows are tokens already; only the mismatched answers are missing."""
            return dataset.map(
                mismatched, batched=True, batch_size=args.per_device_train_batch_size
            )

        def _get_train_sampler(self, train_dataset: Any = None) -> list[int]:
            return ranks.part_of_each(config.batch_size, range(len(self.train_dataset)))

    config, steps, start = spec.config, spec.config.steps, checkpoint.step_of(spec.resume_from)
    ranks = join(config.processes, in_lockstep=config.shard)
    weights(spec.rows, config)  # refused before the model is loaded
    model, tokenizer, optimizer, scheduler = loaded(spec, events, stop, ranks)
    learned = learnable(spec.rows, answers_in, tokenizer, events, what="answers")
    desirable, undesirable = weights(learned, config)
    aside = learnable(
        spec.validation_rows,
        answers_in,
        tokenizer,
        events,
        what="validation answers",
        required=False,
    )
    aside = aside if len(aside) > 1 else []  # a single answer has no mismatched one
    held = (lambda: evaluated(trainer, NAMED)) if aside else None
    validation = Validation(spec, events, stop, model, tokenizer, held, ranks)
    counted, shown, writer = (
        Counter[str](),
        ShownProgress(events, steps),
        ChatWriter(tokenizer, model),
    )
    rows = [answer_row(writer, row) for row in shown.each(start, "tokenizing examples:", learned)]
    held_back = [answer_row(writer, row) for row in aside]
    writer.warn(events)
    # The answers of each batch are mismatched when the rows are prepared, so the rows are passed in
    # the order in which they train.
    order = row_order(len(rows), steps * config.batch_size, spec.seed)
    trainer = AsTheyCome(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [rows[at] for at in order[min(start, steps - 1) * config.batch_size :]]
        ),
        eval_dataset=Dataset.from_list(held_back) if held_back else None,
        optimizers=(optimizer, scheduler),
        callbacks=[
            reporting(
                events,
                stop,
                spec,
                model,
                optimizer,
                named=NAMED,
                measure=validation,
                ranks=ranks,
                counted=counted,
                data=label_facts(learned),
            )
        ],
        args=KTOConfig(
            **arguments(spec, start, ranks)
            | {"per_device_train_batch_size": config.batch_size}
            | (checkpointing(config) if config.shard else {}),
            beta=config.beta,
            desirable_weight=desirable,
            undesirable_weight=undesirable,
        ),
    )
    set_reference(model, spec.model.adapter)
    trainer.ranks, trainer.counted, trainer.shares = ranks, counted, not config.shard
    trainer._train_batch_size = (
        config.batch_size // ranks.size
    )  # after whole batches have been mismatched
    if not config.shard:
        share_prompts(trainer, recompute=config.gradient_checkpointing, check=stop.check)
    prepared = [*trainer.train_dataset, *(trainer.eval_dataset or ())]
    refuse_long_rows(
        [len(row["prompt_ids"]) + len(row["completion_ids"]) for row in prepared], config.max_length
    )
    adapter = train(trainer, model, spec, ranks)
    used = {"desirable_weight": desirable, "undesirable_weight": undesirable}
    events.result(adapter=str(adapter), metrics={"steps": steps, "answers": len(rows)} | used)


def answers_in(row: Labelled) -> list[str | dict]:
    return [*assistants(row.messages), row.completion]


def answer_row(writer: ChatWriter, row: Labelled) -> dict[str, Any]:
    """The prompt as the model is asked, and the answer with the token that ends it. Raises
    SpecError.
    """
    answer = {"role": "assistant", "content": row.completion}
    ids = writer.answer_ids(row.messages, row.tools, answer)
    return {
        "prompt_ids": writer.prompt_ids(row.messages, row.tools),
        "completion_ids": ids,
        "label": row.good,
    }


def mismatched(batch: dict[str, list]) -> dict[str, list]:
    """Give each row of a batch the answer of the row before it, as TRL does: the KL is estimated
    from them.
    """
    answers = batch["completion_ids"]
    return batch | {"KL_completion_ids": [answers[-1], *answers[:-1]]}


def weights(rows: list[Labelled], config: KtoConfig) -> tuple[float, float]:
    """(weight of good answers, weight of bad ones): the rarer side's is raised until both sides
    weigh the same (equation 8 of the paper, at its lower bound). Raises SpecError if there is only
    one side.
    """
    good = sum(row.good for row in rows)
    bad = len(rows) - good
    if not good or not bad:
        raise SpecError(
            f"KTO needs good and bad answers, and all {len(rows)} of this data set are"
            f" {'good' if good else 'bad'}."
        )
    desirable, undesirable = max(1.0, bad / good), max(1.0, good / bad)
    return config.desirable_weight or desirable, config.undesirable_weight or undesirable


if __name__ == "__main__":
    run_main(Kto, main)
