"""Direct preference optimisation of a LoRA adapter with TRL. `python -m workers.dpo spec.json`
(docs/jobs.md).

The data are pairs of answers to one conversation. The loss raises the log-probability of the chosen
answer against that of the rejected one, relative to a reference: the model that the run starts
from, either its initial adapter or the bare base. Dropout is off, since policy and reference are
compared. Prompt tokens that answers share are computed once (workers.ml.shared_forward). A resumed
run gives the same result as an uninterrupted one (workers.ml.trl_runs).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from workers.lib.control_tokens import assistants
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.program import StopFlag, run_main
from workers.lib.row_facts import pair_facts
from workers.lib.shown_progress import ShownProgress
from workers.lib.specs.dpo import Dpo, DpoConfig
from workers.lib.specs.rows import Pair
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
    "rewards/accuracies": "rewards/accuracy",
    "logps/chosen": "train/logp_chosen",
    "logps/rejected": "train/logp_rejected",
    "entropy": "train/entropy",
}


def main(spec: Dpo, events: Emitter, stop: StopFlag) -> None:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    class InOurOrder(InParts, DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            """The rows are tokens already."""
            return dataset

        def _get_train_sampler(self, train_dataset: Any = None) -> list[int]:
            order = row_order(len(self.train_dataset), steps * config.batch_size, spec.seed)
            return ranks.part_of_each(config.batch_size, order[start * config.batch_size :])

    config, steps, start = spec.config, spec.config.steps, checkpoint.step_of(spec.resume_from)
    aside, ranks = spec.validation_rows, join(config.processes, in_lockstep=config.shard)
    refuse_pairs_without_preference([*spec.rows, *aside])
    model, tokenizer, optimizer, scheduler = loaded(spec, events, stop, ranks)
    rows = learnable(spec.rows, answers_in, tokenizer, events, what="pairs")
    aside = learnable(aside, answers_in, tokenizer, events, what="validation pairs", required=False)
    held = (lambda: evaluated(trainer, NAMED)) if aside else None
    validation = Validation(spec, events, stop, model, tokenizer, held, ranks)
    counted, shown, writer = (
        Counter[str](),
        ShownProgress(events, steps),
        ChatWriter(tokenizer, model),
    )
    pairs = [pair_ids(writer, row) for row in shown.each(start, "tokenizing examples:", rows)]
    held_back = [pair_ids(writer, row) for row in aside]
    writer.warn(events)
    trainer = InOurOrder(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(pairs),
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
                data=pair_facts(rows),
            )
        ],
        args=DPOConfig(
            **arguments(spec, start, ranks)
            | smaller(config)
            | (checkpointing(config) if config.shard else {}),
            beta=config.beta,
            loss_type=[config.loss_type],
            label_smoothing=config.label_smoothing,
        ),
    )
    set_reference(model, spec.model.adapter)
    trainer.ranks, trainer.counted, trainer.shares = ranks, counted, not config.shard
    if not config.shard:
        share_prompts(trainer, recompute=config.gradient_checkpointing, check=stop.check)
    prepared = [*trainer.train_dataset, *(trainer.eval_dataset or ())]
    refuse_long_rows([longer_of(row) for row in prepared], config.max_length)
    adapter = train(trainer, model, spec, ranks)
    events.result(adapter=str(adapter), metrics={"steps": steps, "pairs": len(rows)})


def answers_in(row: Pair) -> list[str | dict]:
    return [*assistants(row.messages), row.chosen, row.rejected]


def pair_ids(writer: ChatWriter, row: Pair) -> dict[str, list[int]]:
    """The prompt as the model is asked, and both answers with the token that ends them. Raises
    SpecError.
    """
    answers = {
        name: {"role": "assistant", "content": getattr(row, name)}
        for name in ("chosen", "rejected")
    }
    found = {
        f"{name}_ids": writer.answer_ids(row.messages, row.tools, answer)
        for name, answer in answers.items()
    }
    return {"prompt_ids": writer.prompt_ids(row.messages, row.tools)} | found


def smaller(config: DpoConfig) -> dict[str, Any]:
    """Split a process's share of the batch into micro-batches of equal size, so that their mean
    gradient is the batch's.
    """
    own = config.batch_size // config.processes
    micro = config.micro_batch or own
    return {"per_device_train_batch_size": micro, "gradient_accumulation_steps": own // micro}


def longer_of(row: dict) -> int:
    return len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"]))


def refuse_pairs_without_preference(rows: list[Pair]) -> None:
    """Raises SpecError."""
    same = sum(row.chosen.strip() == row.rejected.strip() for row in rows)
    if same:
        raise SpecError(
            f"{same} of {len(rows)} pairs have the same answer on both sides. Leave them out of the"
            " data set."
        )


if __name__ == "__main__":
    run_main(Dpo, main)
