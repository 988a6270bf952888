"""Direct preference optimisation of a LoRA adapter with TRL. `python -m workers.dpo spec.json`
(docs/jobs.md).

The data are pairs of answers to one conversation. The loss raises the log-probability of the chosen
answer against that of the rejected one, relative to a reference: the model that the run starts
from, either its initial adapter or the bare base. Dropout is off, since policy and reference are
compared. Prompt tokens that answers share are computed once (workers.ml.shared_forward). A resumed
run gives the same result as an uninterrupted one (workers.ml.trl_runs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.lib.control_tokens import assistants
from workers.lib.errors import SpecError
from workers.lib.program import run_main
from workers.lib.row_facts import pair_facts
from workers.lib.specs.dpo import Dpo, DpoConfig
from workers.lib.specs.reward_model import RewardModel
from workers.lib.specs.rows import Pair
from workers.ml.chat_writer import ChatWriter
from workers.ml.judged_runs import Method, main_of

NAMED = {
    "rewards/chosen": "rewards/chosen",
    "rewards/rejected": "rewards/rejected",
    "rewards/margins": "rewards/margin",
    "rewards/accuracies": "rewards/accuracy",
    "logps/chosen": "train/logp_chosen",
    "logps/rejected": "train/logp_rejected",
    "entropy": "train/entropy",
}


def answers_in(row: Pair) -> list[str | dict]:
    return [*assistants(row.messages), row.chosen, row.rejected]


def pair_ids(writer: ChatWriter, row: Pair, config: Any = None) -> dict[str, list[int]]:
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


def settings(config: DpoConfig, rows: Sequence[Pair]) -> dict[str, Any]:
    """A process's share of the batch is split into micro-batches of equal size, so that their mean
    gradient is the batch's.
    """
    own = config.batch_size // config.processes
    micro = config.micro_batch or own
    return {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": own // micro,
        "beta": config.beta,
        "loss_type": [config.loss_type],
        "label_smoothing": config.label_smoothing,
    }


def refuse_pairs_without_preference(spec: Dpo | RewardModel) -> None:
    """Raises SpecError."""
    rows = [*spec.rows, *spec.validation_rows]
    same = sum(row.chosen.strip() == row.rejected.strip() for row in rows)
    if same:
        raise SpecError(
            f"{same} of {len(rows)} pairs have the same answer on both sides. Leave them out of the"
            " data set."
        )


DPO = Method(
    trl="DPO",
    what="pairs",
    named=NAMED,
    refuse=refuse_pairs_without_preference,
    answers_in=answers_in,
    ids=pair_ids,
    facts=pair_facts,
    settings=settings,
)
main = main_of(DPO)


if __name__ == "__main__":
    run_main(Dpo, main)
