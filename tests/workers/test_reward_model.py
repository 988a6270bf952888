"""A reward model: its loss is Bradley and Terry's, it ranks what it was taught, scores as it was
trained, and altered weights score nothing."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import warm
from tests.amounts import amount
from tests.workers.conftest import Recorder, tasks, typed
from tests.workers.test_dpo import an_adapter, pairs
from workers import reward_model
from workers.lib import framed
from workers.lib.errors import JobError, SpecError
from workers.lib.folder_digest import folder_digest
from workers.lib.program import StopFlag
from workers.lib.reward_scorer import CannotScore, RewardScorer
from workers.lib.specs.environment import RewardModelFolder
from workers.lib.verifiers import Rollout, build
from workers.ml import checkpoint
from workers.ml.reward_head import FACTS, load_scorer, scores
from workers.score_rewards import Scorer

CONFIG = {
    "batch_size": 3,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "lora_alpha": 8,
    "warmup_steps": 1,
    "save_every": 2,
}


def spec_of(make_spec: Callable[..., dict], **config: Any) -> dict:
    return make_spec(rows=pairs(), validation_rows=pairs()[:2], config=CONFIG | config)


def main(spec: dict, events: Recorder, stop: StopFlag | None = None) -> None:
    reward_model.main(typed(spec, "reward_model"), events, stop or StopFlag())


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RewardModelFolder:
    """A reward model of twenty steps."""
    folder = tmp_path_factory.mktemp("reward")
    recorder = Recorder(folder / "events.jsonl")
    spec = {
        "out_dir": str(folder / "out"),
        "model": {"base": str(tiny_model), "adapter": None},
        "rows": pairs(),
        "validation_rows": pairs(),
        "config": CONFIG | {"steps": 20},
        "engine": {"kind": "transformers", "dtype": "float32", "threads": 1, "batch_size": 8},
    }
    main(spec, recorder)
    adapter = folder / "out" / "adapter"
    return RewardModelFolder(
        name="tiny-v1", base=str(tiny_model), adapter=str(adapter), digest=folder_digest(adapter)
    )


def test_it_ranks_what_is_chosen_first_and_measures_what_was_kept_aside(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    main(spec_of(make_spec, steps=20, eval_every=10), events)
    metrics = {row["step"]: {} for row in events.rows("metric")}
    for row in events.rows("metric"):
        metrics[row["step"]] |= row["values"]
    assert {step for step, values in metrics.items() if "validation/accuracy" in values} == {
        0,
        10,
        20,
    }
    last = metrics[20]
    assert last["train/loss"] < 0.1 and last["rewards/accuracy"] == 1 and last["rewards/margin"] > 1
    assert (
        last["validation/accuracy"] == 1 and last["validation/loss"] < metrics[0]["validation/loss"]
    )
    result = events.rows("result")[-1]
    measured = result["metrics"]
    assert (
        measured["aside"],
        measured["aside_right"],
        measured["chosen_passed"],
        measured["rejected_passed"],
    ) == (
        2,
        2,
        2,
        0,
    )
    assert (
        measured["lowest"] < measured["threshold"] < measured["highest"] and measured["slope"] > 0
    )
    assert {path.name for path in Path(result["adapter"]).iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        FACTS,
    }


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("from_adapter", [False, True])
def test_the_loss_is_bradley_and_terrys_of_the_scores_at_the_last_token(
    from_adapter: bool,
    make_spec: Callable[..., dict],
    events: Recorder,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    """The second step's loss from the scores of the first step's checkpoint, each conversation
    alone and without padding.
    """
    start = an_adapter(tiny_model, tmp_path / "start") if from_adapter else None
    spec = spec_of(make_spec, steps=2, save_every=1) | {
        "model": {"base": str(tiny_model), "adapter": start}
    }
    main(spec, events)
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    plain = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    plain = PeftModel.from_pretrained(plain, tmp_path / "out" / "checkpoint-1").eval()

    def score(messages: list[dict], answer: str) -> float:
        ids = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}])[
            "input_ids"
        ]
        with torch.no_grad():
            hidden = plain.base_model.model.model(input_ids=torch.tensor([ids])).last_hidden_state[
                0, -1
            ]
            return float(plain.base_model.model.score(hidden))

    margins = [
        score(row["messages"], row["chosen"]) - score(row["messages"], row["rejected"])
        for row in pairs()
    ]
    found = events.rows("metric")[1]["values"]
    assert found["rewards/margin"] == pytest.approx(sum(margins) / 3, rel=1e-3, abs=1e-4)
    assert found["train/loss"] == pytest.approx(
        sum(math.log1p(math.exp(-m)) for m in margins) / 3, rel=1e-3
    )


def test_it_starts_from_the_adapter_of_a_policy(tiny_model: Path, tmp_path: Path) -> None:
    from workers.lib.specs.training import Lora
    from workers.ml.models import load_base
    from workers.ml.reward_head import lora_with_head

    start = an_adapter(tiny_model, tmp_path / "start")
    base, _ = load_base(tiny_model, scalar_head=True)
    model = lora_with_head(base, Lora(lora_rank=2), start=start, resume=None)
    theirs = load_file(Path(start) / "adapter_model.safetensors")
    ours = {name.replace(".default", ""): value for name, value in model.named_parameters()}
    assert theirs and all(torch.equal(value, ours[name]) for name, value in theirs.items())
    assert [
        name for name, value in model.named_parameters() if value.requires_grad and "score" in name
    ]


@pytest.mark.proof
@pytest.mark.parametrize("from_adapter", [False, True])
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(
    from_adapter: bool,
    make_spec: Callable[..., dict],
    events: Recorder,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    start = an_adapter(tiny_model, tmp_path / "start") if from_adapter else None
    spec = spec_of(make_spec, steps=5, batch_size=2, eval_every=2)
    spec["model"] = {"base": str(tiny_model), "adapter": start}
    main(spec, events)
    again = Recorder(tmp_path / "again.jsonl")
    main(
        spec
        | {
            "resume_from": str(tmp_path / "out" / "checkpoint-2"),
            "out_dir": str(tmp_path / "resumed"),
        },
        again,
    )
    after = [row["values"] for row in events.rows("metric") if row["step"] > 2]
    assert [row["values"] for row in again.rows("metric") if row["step"] > 2] == after
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("out", "resumed")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    facts = [(tmp_path / name / "adapter" / FACTS).read_text() for name in ("out", "resumed")]
    assert facts[0] == facts[1]


@pytest.mark.proof
def test_a_score_does_not_depend_on_what_it_is_computed_beside(trained: RewardModelFolder) -> None:
    model, tokenizer, _ = load_scorer(trained.base, trained.adapter)
    rows = [tokenizer.apply_chat_template(row["messages"])["input_ids"] for row in pairs()]
    together = scores(model, tokenizer, rows)
    assert together == pytest.approx([scores(model, tokenizer, [row])[0] for row in rows], abs=1e-4)
    assert len(set(together)) == 3


def conversation(row: dict, answer: str) -> dict:
    return {"messages": [*row["messages"], {"role": "assistant", "content": answer}], "tools": []}


class Warm:
    """In place of `subprocess`: what it starts has torch loaded."""

    PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL

    @staticmethod
    def Popen(command: list[str], **options: Any) -> subprocess.Popen:
        return warm.Program(command[2:], **options)


@pytest.mark.more
def test_its_process_scores_what_many_threads_ask(
    trained: RewardModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framed, "subprocess", amount(Warm, subprocess))
    scorer = RewardScorer(trained)
    try:
        with ThreadPoolExecutor(8) as pool:
            asked = [
                conversation(row, row[side]) for side in ("chosen", "rejected") for row in pairs()
            ] * 4
            found = list(pool.map(lambda one: scorer.scores([one])[0], asked))
        assert found == scorer.scores(asked)
        assert all(
            good["calibrated"] > bad["calibrated"]
            for good, bad in zip(found[:3], found[3:6], strict=True)
        )
        [long, short] = scorer.scores([conversation(pairs()[0], "x" * 5000), asked[0]])
        assert "reads 2048" in long["error"] and short == found[0]
        scorer.process.process.kill()  # type: ignore[union-attr]
        assert scorer.scores([asked[0]]) == found[:1]
    finally:
        scorer.close()


def test_altered_weights_score_nothing(trained: RewardModelFolder, tmp_path: Path) -> None:
    folder = tmp_path / "altered"
    shutil.copytree(trained.adapter, folder)
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1e-3}, folder / "adapter_model.safetensors")
    altered = RewardModelFolder(
        name="tiny-v1", base=trained.base, adapter=str(folder), digest=trained.digest
    )
    with pytest.raises(JobError, match="tiny-v1 are missing or were altered"):
        Scorer(altered)
    with pytest.raises(CannotScore, match="were altered"):
        RewardScorer(altered).scores([conversation(pairs()[0], "x")])


def verifier(trained: RewardModelFolder, scorer: Any, **options: Any) -> Any:
    spec = {"kind": "trained_reward", "version": trained.name, "digest": trained.digest} | options
    return build(spec, clients={"reward_models": {trained.digest: scorer} if scorer else {}})


def test_as_a_verifier_it_pays_the_probability_or_the_raw_score(trained: RewardModelFolder) -> None:
    model, task = Scorer(trained), tasks()[0] | {"messages": pairs()[0]["messages"]}
    good, bad = (Rollout.of_text(task, pairs()[0][side]) for side in ("chosen", "rejected"))
    cut = model.facts.calibration.threshold
    calibrated = verifier(trained, model, threshold=model.facts.calibration.probability(cut))
    [paid, unpaid] = calibrated.score_group([good, bad])
    assert paid.success and not unpaid.success and 0 <= unpaid.reward < paid.reward <= 1
    raw = verifier(trained, model, scale="raw", threshold=cut)
    assert raw.score(good).success and not raw.score(bad).success
    assert raw.score(good).reward == paid.components["raw"] > cut


def test_a_native_call_is_scored_as_the_text_that_was_trained(trained: RewardModelFolder) -> None:
    model, task = Scorer(trained), tasks()[0]
    calls = [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "tickets.close", "arguments": '{"id": 1234}'},
        }
    ]
    native = Rollout(
        task=task, messages=[{"role": "assistant", "content": None, "tool_calls": calls}]
    )
    text = Rollout.of_text(task, json.dumps({"tool": "tickets.close", "args": {"id": 1234}}))
    scored = verifier(trained, model)
    assert scored.score(native).reward == scored.score(text).reward is not None


def test_where_it_cannot_be_asked_a_sample_is_masked_and_what_it_cannot_read_fails(
    trained: RewardModelFolder,
) -> None:
    task = tasks()[0]
    absent = verifier(trained, None).score(Rollout.of_text(task, "x"))
    assert absent.masked and "scores in jobs only" in absent.mask_reason
    long = verifier(trained, Scorer(trained)).score(Rollout.of_text(task, "x" * 5000))
    assert (
        not long.masked
        and long.reward == 0
        and not long.success
        and "reads 2048" in long.details[0]
    )


def test_pairs_without_a_preference_and_too_long_ones_are_refused(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    spec = spec_of(make_spec, steps=2, max_length=800)
    spec["validation_rows"][0] |= {"chosen": "same", "rejected": " same"}
    with pytest.raises(SpecError, match="have the same answer on both sides"):
        main(spec, events)
    spec = spec_of(make_spec, steps=2, max_length=800)
    spec["validation_rows"][0]["rejected"] = "x" * 900
    with pytest.raises(SpecError, match=r"1 of 5 rows are longer than config\.max_length"):
        main(spec, events)
    with pytest.raises(SpecError, match="validation_rows"):
        main(spec | {"validation_rows": []}, events)


def test_a_stop_leaves_a_checkpoint(make_spec: Callable[..., dict], events: Recorder) -> None:
    from workers.lib.program import Stop

    stop, progress = StopFlag(), events.progress

    def asks_after_a_step(done: int, total: int, label: str) -> None:
        progress(done, total, label)
        stop.is_set = done == 1

    events.progress = asks_after_a_step  # type: ignore[method-assign]
    with pytest.raises(Stop):
        main(spec_of(make_spec, steps=50, save_every=50), events, stop)
    [saved] = events.rows("checkpoint")
    assert saved["step"] == 1 == checkpoint.step_of(saved["path"])
