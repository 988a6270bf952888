"""KTO of a LoRA adapter with TRL: learns from single answers that are good or bad. `python -m
workers.kto spec.json` (docs/jobs.md).

No pairs are needed (Ethayarajh et al. 2024): a good answer's reward relative to the reference is
pushed above that of the batch's mismatched answers, a bad one's below it. The reference is the
initial model. Good and bad answers have equal total weight unless the config says otherwise. A
resumed run gives the same result as an uninterrupted one, since each batch depends on the seed and
its step alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.lib.control_tokens import assistants
from workers.lib.errors import SpecError
from workers.lib.program import run_main
from workers.lib.row_facts import label_facts
from workers.lib.specs.kto import Kto, KtoConfig, Labelled
from workers.ml.chat_writer import ChatWriter
from workers.ml.judged_runs import Ids, Method, main_of

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
WEIGHTS = ("desirable_weight", "undesirable_weight")


def answers_in(row: Labelled) -> list[str | dict]:
    return [*assistants(row.messages), row.completion]


def answer_row(writer: ChatWriter, row: Labelled, config: Any = None) -> Ids:
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


def mismatched(batch: Sequence[Ids]) -> list[Ids]:
    """Give each row of a batch the answer of the row before it, as TRL does: the KL is estimated
    from them.
    """
    answers = [row["completion_ids"] for row in batch]
    return [
        row | {"KL_completion_ids": answer}
        for row, answer in zip(batch, [answers[-1], *answers[:-1]], strict=True)
    ]


def weights(rows: Sequence[Labelled], config: KtoConfig) -> tuple[float, float]:
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


def settings(config: KtoConfig, rows: Sequence[Labelled]) -> dict[str, Any]:
    shares = dict(zip(WEIGHTS, weights(rows, config), strict=True))
    return {"per_device_train_batch_size": config.batch_size, "beta": config.beta} | shares


KTO = Method(
    trl="KTO",
    what="answers",
    named=NAMED,
    refuse=lambda spec: weights(spec.rows, spec.config),
    answers_in=answers_in,
    ids=answer_row,
    facts=label_facts,
    settings=settings,
    of_batch=mismatched,
    measured=lambda run: {name: run.settings[name] for name in WEIGHTS},
)
main = main_of(KTO)


if __name__ == "__main__":
    run_main(Kto, main)
