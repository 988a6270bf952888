"""SFT: the loss is TRL's, checkpoints are whole and hold no pickle, and a stopped run goes on where
it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import warm
from tests.workers.conftest import FORGETS, Recorder, of_kind, tasks, typed
from workers import sft
from workers.lib.errors import SpecError
from workers.lib.program import Stop, StopFlag
from workers.lib.specs.sft import SftRow
from workers.lib.specs.training import Lora
from workers.lib.watching import Alarmed
from workers.ml import checkpoint, tree, trl_runs
from workers.ml.chat_writer import ChatWriter
from workers.ml.models import load_base, lora
from workers.ml.transformers_engine import TransformersEngine
from workers.ml.tree import pad, use_tree
from workers.sft import add_gradients, trl_rows

CONFIG = {
    "batch_size": 3,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "lora_alpha": 8,
    "warmup_steps": 1,
    "save_every": 2,
}
LORA = Lora(lora_rank=4, lora_alpha=8)


def main(spec: dict, events: Recorder, stop: StopFlag) -> None:
    sft.main(typed(spec, "sft"), events, stop)


def rows() -> list[dict]:
    opening = [{"role": "system", "content": "Answer with one JSON call."}]
    return [
        {"messages": opening + task["messages"], "completion": json.dumps(task["expected"])}
        for task in tasks()
    ]


def sft_spec(make_spec: Callable[..., dict], **config: Any) -> dict:
    return make_spec(rows=rows(), config=CONFIG | config)


def ids_of(tokenizer: Any, row: SftRow) -> list[int]:
    """A single answer's row up to the token that ends it: the template writes a line end after
    it.
    """
    said = [*row.messages, {"role": "assistant", "content": row.completion}]
    return tokenizer.apply_chat_template(said)["input_ids"][:-1]


def parameters(model: Any) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def gradients(model: Any) -> torch.Tensor:
    """Those that were added up since the last call."""
    found = torch.cat([parameter.grad.flatten() for parameter in parameters(model)])
    model.zero_grad()
    return found


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("tokens_at_once", [1, 1024])
@pytest.mark.parametrize(
    "prompts", [[[5, 6, 7, 8], [5, 6, 9]], [[5, 6], [7, 8, 9]], [[5, 6, 7]], [[3], [3, 4]]]
)
def test_the_loss_and_its_gradient_are_those_of_the_plain_model(
    tiny_model: Path, prompts: list[list[int]], tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a shared beginning, with none, and for one row alone; all rows together and each by
    itself; float32, relative tolerance 1e-4."""
    monkeypatch.setitem(tree.PART, "cpu", tokens_at_once)
    torch.manual_seed(1)
    model = lora(load_base(tiny_model)[0], LORA, None).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # it starts at zero, where half of the gradients vanish
            parameter.data.normal_(0, 0.1)
    completions = [[11, 12, 13], [14, 2], [15]][: len(prompts)]
    ids, real = pad([prompt + done for prompt, done in zip(prompts, completions, strict=True)], 0)
    labels = torch.full_like(ids, -100)
    for row, (prompt, done) in enumerate(zip(prompts, completions, strict=True)):
        labels[row, len(prompt) : len(prompt) + len(done)] = torch.tensor(done)
    plain = model(input_ids=ids, attention_mask=real.long(), labels=labels).loss
    plain.backward()
    plain_gradients = gradients(model)
    use_tree(model)
    metrics = add_gradients(model, ids, real, labels)
    assert metrics["train/loss"] == pytest.approx(float(plain.detach()), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(gradients(model), plain_gradients, rtol=1e-4, atol=1e-6)
    assert 0 <= metrics["train/token_accuracy"] <= 1 and metrics["train/entropy"] > 0


def test_the_first_step_reports_the_loss_that_trl_computes(
    make_spec: Callable[..., dict], events: Recorder, tiny_model: Path, tmp_path: Path
) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    main(sft_spec(make_spec, steps=1), events, StopFlag())
    ours = events.rows("metric")[0]["values"]
    model, tokenizer = load_base(tiny_model)
    data = Dataset.from_list(
        trl_rows(ChatWriter(tokenizer, model), [SftRow(**row) for row in rows()])
    )
    trainer = SFTTrainer(
        model=lora(model, LORA, None),
        processing_class=tokenizer,
        train_dataset=data,
        args=SFTConfig(
            output_dir=str(tmp_path / "trl"),
            max_steps=1,
            completion_only_loss=True,
            per_device_train_batch_size=3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
        ),
    )
    trainer.train()
    theirs = trainer.state.log_history[0]
    assert ours["train/loss"] == pytest.approx(theirs["loss"], rel=1e-4)


@pytest.mark.parametrize(
    "template", ["", "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"]
)
@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "close"}}]])
def test_a_row_is_trained_on_the_prompt_that_the_engine_would_give(
    tiny_model: Path, tools: list, template: str
) -> None:
    model, tokenizer = load_base(tiny_model)
    tokenizer.chat_template = template + tokenizer.chat_template
    row = rows()[0] | {"tools": tools}
    [made] = trl_rows(ChatWriter(tokenizer, model), [SftRow(**row)])
    prompt = made["input_ids"][: made["completion_mask"].index(1)]
    engine = TransformersEngine(model, tokenizer)
    assert prompt == engine.prompt_ids(row["messages"], tools)
    assert ("close" in tokenizer.decode(prompt)) is bool(tools)


def test_it_learns_and_tells_each_step(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path, tiny_model: Path
) -> None:
    main(sft_spec(make_spec, steps=20), events, StopFlag())
    metrics = events.rows("metric")
    assert [row["step"] for row in metrics] == list(range(1, 21))
    counts = ("tokens", "distinct_tokens")
    names = {
        f"train/{name}"
        for name in ("loss", "learning_rate", "grad_norm", "entropy", "token_accuracy", *counts)
    }
    assert all(set(row["values"]) == names for row in metrics[1:])
    assert set(metrics[0]["values"]) - names == {"data/uses"}
    assert metrics[-1]["values"]["train/loss"] < metrics[0]["values"]["train/loss"] - 0.5
    # The batch is all rows; what they begin with is computed once.
    tokenizer = load_base(tiny_model)[1]
    ids = [ids_of(tokenizer, SftRow(**row)) for row in rows()]
    counted = [metrics[-1]["values"][f"train/{name}"] for name in counts]
    assert counted == [sum(map(len, ids)), len(tree.Tree(ids))] and counted[0] > counted[1]
    progress = events.rows("progress")
    assert [(row["done"], row["total"]) for row in progress][-1] == (20, 20)
    labels = [row["label"] for row in progress if row["done"] == 0]
    assert labels[0] == "loading the model" and labels[-2:] == [
        "tokenizing examples: 3 of 3",
        "training",
    ]
    result = events.rows()[-1]
    assert result["type"] == "result" and Path(result["adapter"]) == tmp_path / "out" / "adapter"
    assert {path.name for path in Path(result["adapter"]).iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_checkpoints_are_whole_and_hold_no_pickle(
    make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    main(sft_spec(make_spec, steps=5), events, StopFlag())
    told = [(row["step"], row["path"]) for row in events.rows("checkpoint")]
    assert told == [(step, str(tmp_path / "out" / f"checkpoint-{step}")) for step in (2, 4)]
    for _, folder in told:
        assert {path.name for path in Path(folder).iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
            "optimizer.safetensors",
            "state.json",
        }
    assert not [
        path
        for path in (tmp_path / "out").rglob("*")
        if path.suffix in (".pt", ".pth", ".bin", ".pkl")
    ]
    assert not list((tmp_path / "out").glob("*.incoming"))


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(
    dropout: float, make_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    """The checkpoint is in the middle of the second epoch, and batches hold only some of the
    rows.
    """
    spec = sft_spec(make_spec, steps=5, batch_size=2, save_every=2, lora_dropout=dropout)
    main(spec, events, StopFlag())
    again = Recorder(tmp_path / "again.jsonl")
    resume = str(tmp_path / "out" / "checkpoint-2")
    main(spec | {"resume_from": resume, "out_dir": str(tmp_path / "resumed")}, again, StopFlag())
    resumed, unbroken = again.rows("metric"), events.rows("metric")[2:]
    assert [row["step"] for row in resumed] == [3, 4, 5]
    assert [row["values"] for row in resumed] == [row["values"] for row in unbroken]
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("out", "resumed")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again.rows("progress")[0]["done"] == 2


def test_each_epoch_goes_through_all_rows() -> None:
    order = sft.row_order(5, 12, seed=3)
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5)) and order[:5] != order[5:10]
    assert len(order) == 12 and sft.row_order(5, 7, seed=3) == order[:7]


def test_rows_that_are_too_long_are_refused_before_training(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    spec = sft_spec(make_spec, steps=2, max_length=200)
    spec["rows"][1]["messages"][-1]["content"] = "x" * 500
    with pytest.raises(
        SpecError, match=r"1 of 3 rows are longer than config.max_length \(200 tokens"
    ):
        main(spec, events, StopFlag())
    assert not events.rows("metric")


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(
    make_spec: Callable[..., dict],
    events: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main(sft_spec(make_spec, steps=3), events, StopFlag())
    folder = tmp_path / "out" / "checkpoint-2"
    before = load_file(folder / "adapter_model.safetensors")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    model = lora(load_base(make_spec()["model"]["base"])[0], LORA, None)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(folder, step=9, model=model, optimizer=torch.optim.AdamW(parameters(model)))
    assert checkpoint.step_of(str(folder)) == 2
    after = load_file(folder / "adapter_model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list(folder.parent.glob("*.incoming"))


def test_a_stop_while_trl_is_imported_is_heard_before_the_model_loads(
    make_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_runs, "load_base", None)
    stop = StopFlag()
    stop.is_set = True
    with pytest.raises(Stop):
        main(sft_spec(make_spec, steps=1), events, stop)


def test_sigterm_leaves_a_checkpoint_and_status_143(
    make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps(of_kind(sft_spec(make_spec, steps=100_000, save_every=100_000), "sft"))
    )
    process = warm.Program(
        ["workers.sft", str(spec)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"FLYWHEEL_EVENTS_FD": "", "OMP_NUM_THREADS": "1"},
    )
    seen = []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(json.loads(line))  # nothing but events is written there
        if seen[-1]["type"] == "metric" and seen[-1]["step"] == 3:
            process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143
    [saved] = [row for row in seen if row["type"] == "checkpoint"]
    assert saved["step"] >= 3 and checkpoint.step_of(saved["path"]) == saved["step"]
    assert seen[-1]["type"] == "log" and seen[-1]["message"] == "Stopped on request."
    assert not any(row["type"] in ("result", "error") for row in seen)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("where", ["a step", "a step, by the signal"])
def test_interrupted_in_the_middle_of_a_step_is_uninterrupted_in_the_end(
    where: str, make_spec: Callable[..., dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sft_spec(make_spec, steps=4, save_every=100)
    whole, broken, rest = (
        Recorder(tmp_path / f"{name}.jsonl") for name in ("whole", "broken", "rest")
    )
    main(spec | {"out_dir": str(tmp_path / "whole")}, whole, StopFlag())
    stop, real, calls = StopFlag(), sft.add_gradients, iter(range(1, 100))

    def broken_off(*arguments: Any) -> Any:
        found = real(*arguments)
        if next(calls) == 3:
            if "signal" in where:
                stop._set(signal.SIGTERM, None)  # raises here and now
            stop.is_set = True
            stop.check()
        return found

    monkeypatch.setattr(sft, "add_gradients", broken_off)
    with pytest.raises(Stop):
        main(spec | {"out_dir": str(tmp_path / "broken")}, broken, stop)
    monkeypatch.setattr(sft, "add_gradients", real)
    (saved,) = broken.rows("checkpoint")
    assert saved["step"] == 2
    main(spec | {"out_dir": str(tmp_path / "rest"), "resume_from": saved["path"]}, rest, StopFlag())

    def curve(*recorders: Recorder) -> dict:
        return {
            row["step"]: row["values"] for recorder in recorders for row in recorder.rows("metric")
        }

    assert curve(broken, rest) == curve(whole) and len(curve(whole)) == 4
    first, second = (weights_of(tmp_path / name / "adapter") for name in ("whole", "rest"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_step_that_would_write_nan_is_not_applied(
    make_spec: Callable[..., dict],
    events: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = sft.add_gradients, iter(range(1, 100))

    def exploding(model: Any, *arguments: Any) -> Any:
        found = real(model, *arguments)
        if next(calls) == 3:
            parameters(model)[0].grad[0] = float("nan")
        return found

    monkeypatch.setattr(sft, "add_gradients", exploding)
    with pytest.raises(Alarmed, match="NaN or infinity in the update"):
        main(sft_spec(make_spec, steps=9, save_every=2), events, StopFlag())
    assert [row["step"] for row in events.rows("checkpoint")] == [2]
    assert all(
        bool(one.isfinite().all())
        for one in weights_of(Path(events.rows("checkpoint")[0]["path"])).values()
    )


def test_an_absurd_learning_rate_is_stopped_with_finite_weights(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    spec = typed(sft_spec(make_spec, steps=60, save_every=100), "sft")
    spec.config.learning_rate = 1e3  # beyond what a spec may say
    with pytest.raises(Alarmed, match=r"Gradient norm is zero|NaN or infinity in the update"):
        sft.main(spec, events, StopFlag())
    (saved,) = events.rows("checkpoint")
    assert saved["step"] < 20
    assert all(bool(one.isfinite().all()) for one in weights_of(Path(saved["path"])).values())


def turns() -> list[dict]:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "close", "arguments": '{"id": 12}'},
    }
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Closed."},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "Bye."},
    ]


def test_of_several_turns_the_agents_answers_are_learnt(tiny_model: Path) -> None:
    model, tokenizer = load_base(tiny_model)
    row = SftRow(messages=rows()[0]["messages"], turns=turns())
    [made] = trl_rows(ChatWriter(tokenizer, model), [row])
    learnt = tokenizer.decode(
        [i for i, mine in zip(made["input_ids"], made["completion_mask"], strict=True) if mine]
    )
    assert learnt == '{"tool": "close", "args": {"id": 12}}<|im_end|>Done.<|im_end|>Bye.<|im_end|>'
    whole = tokenizer.decode(made["input_ids"])
    assert (
        "Result:"
        " Closed.<|im_end|>\n<|im_start|>assistant\nDone.<|im_end|>\n<|im_start|>user\nThanks."
        in whole
    )


def test_a_template_that_forgets_gives_a_row_for_each_answer(tiny_model: Path) -> None:
    model, tokenizer = load_base(tiny_model)
    tokenizer.chat_template = FORGETS
    row = SftRow(messages=rows()[0]["messages"], turns=turns())
    made = trl_rows(ChatWriter(tokenizer, model), [row])
    texts = [
        tokenizer.decode(
            [i for i, mine in zip(one["input_ids"], one["completion_mask"], strict=True) if mine]
        )
        for one in made
    ]
    assert texts == [
        '{"tool": "close", "args": {"id": 12}}<|im_end|>',
        "Done.<|im_end|>",
        "Bye.<|im_end|>",
    ]
    assert "assistant\n{<|im_end|>" in tokenizer.decode(made[1]["input_ids"])


def test_single_answers_among_episodes_are_the_same_tokens_as_alone(tiny_model: Path) -> None:
    model, tokenizer = load_base(tiny_model)
    single, episode = SftRow(**rows()[0]), SftRow(messages=rows()[1]["messages"], turns=turns())
    made = trl_rows(ChatWriter(tokenizer, model), [single, episode])[0]
    chat = [*single.messages, {"role": "assistant", "content": single.completion}]
    whole = tokenizer.apply_chat_template(chat, tokenize=False).removesuffix("\n")
    assert made["input_ids"] == tokenizer(whole, add_special_tokens=False)["input_ids"]


@pytest.mark.proof
def test_episodes_are_learnt(make_spec: Callable[..., dict], events: Recorder) -> None:
    spec = sft_spec(make_spec, steps=15)
    spec["rows"] = [{"messages": row["messages"], "turns": turns()} for row in spec["rows"]]
    main(spec, events, StopFlag())
    losses = [row["values"]["train/loss"] for row in events.rows("metric")]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize(
    "fields", [{}, {"completion": "x", "turns": turns()}, {"turns": turns()[1:2]}]
)
def test_a_row_has_either_a_completion_or_turns(
    fields: dict, make_spec: Callable[..., dict], events: Recorder
) -> None:
    spec = sft_spec(make_spec, steps=1)
    spec["rows"][1] = {"messages": rows()[1]["messages"]} | fields
    with pytest.raises(SpecError, match=r"rows\[1\].*either a completion or turns"):
        main(spec, events, StopFlag())
