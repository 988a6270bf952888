"""Sound and ill training runs of all methods, and what the alarms say about each.

`python -m bench.alarm_runs record [--only NAME] [--smollm2 FOLDER]` trains a tiny language model
(taught for a minute to answer support requests; a few runs use SmolLM2) with the real programs, all
alarms set to warn so that no run is cut short, and keeps the metrics of each in
`tests/workers/alarm_runs.json.gz`. `python -m bench.alarm_runs table` replays them through the
alarms' defaults and prints the table of docs/alarms.md; the suite's test replays them too.

What is ill is decided by how the run was set up, never by what it raised.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.lib.alarms import LEVELS, RULES, Watchman, metrics_of

TRACES = Path(__file__).resolve().parent.parent / "tests" / "workers" / "alarm_runs.json.gz"
EXTRA = (
    "train/rollouts",
    "train/success",
    "train/reward_mean",
    "train/reward_std",
    "validation/samples",
    "validation/pairs",
    "train/teacher_kl",
)
KEPT = {name for rule in RULES.values() for name in metrics_of(rule)} | {
    *EXTRA,
    "train/learning_rate",
}
DIGITS = 5
SAMPLED = ("grpo",)  # whose model has random weights, so that it tries everything
VOWEL = {"kind": "regex", "pattern": "[aeiou]"}
SHORT = {"kind": "regex", "pattern": "^.{1,7}$"}
NEVER = {"kind": "regex", "pattern": "^never this$"}
ALWAYS = {"kind": "regex", "pattern": "(?s).*"}


@dataclass
class Run:
    name: str
    method: str
    config: dict[str, Any]
    ill: str = ""  # what is wrong with it
    rows: Callable[[random.Random], list[dict]] | None = None
    held: Callable[[random.Random], list[dict]] | None = None
    verifier: dict = field(default_factory=lambda: VOWEL)
    environment: dict = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    large: bool = False  # on SmolLM2
    seed: int = 0


# Rows


ITEMS = ("ticket", "order", "invoice", "case", "account", "refund")
DONE = ("closed", "shipped", "paid", "assigned", "locked", "approved")


def question(draw: random.Random) -> tuple[str, str]:
    at, number = draw.randrange(len(ITEMS)), draw.randrange(100, 1000)
    return f"Is {ITEMS[at]} {number} {DONE[at]}?", f"Yes, {ITEMS[at]} {number} is {DONE[at]}."


def noise(draw: random.Random, length: int = 24) -> str:
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz 0123456789") for _ in range(length))


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def answers(n: int = 48) -> Callable[[random.Random], list[dict]]:
    """A format that the model does not use yet: JSON."""

    def rows(draw: random.Random) -> list[dict]:
        asked = [question(draw) for _ in range(n)]
        return [{"messages": user(q), "completion": json.dumps({"answer": a})} for q, a in asked]

    return rows


def noises(n: int = 8) -> Callable[[random.Random], list[dict]]:
    return lambda draw: [
        {"messages": user(question(draw)[0]), "completion": noise(draw)} for _ in range(n)
    ]


def pairs(n: int = 48, coin: bool = False) -> Callable[[random.Random], list[dict]]:
    """The short answer is better than the one with an apology; with `coin`, which one is chosen is
    chance.
    """

    def row(draw: random.Random) -> dict:
        q, a = question(draw)
        both = [a, f"Sorry! {a}"]
        if coin and draw.random() < 0.5:
            both.reverse()
        return {"messages": user(q), "chosen": both[0], "rejected": both[1]}

    return lambda draw: [row(draw) for _ in range(n)]


def labelled(n: int = 48, coin: bool = False) -> Callable[[random.Random], list[dict]]:
    def row(draw: random.Random, good: bool) -> dict:
        q, a = question(draw)
        said = a if (draw.random() < 0.5 if coin else good) else f"Sorry! {a}"
        return {"messages": user(q), "completion": said, "good": good}

    return lambda draw: [row(draw, at % 2 == 0) for at in range(n)]


# Runs

LORA = {"lora_rank": 4, "lora_alpha": 8, "save_every": 1000}
ROWS = LORA | {
    "steps": 40,
    "batch_size": 8,
    "learning_rate": 3e-3,
    "warmup_steps": 2,
    "eval_every": 10,
}
GRPO = LORA | {
    "steps": 40,
    "prompts_per_step": 4,
    "generations": 8,
    "max_new_tokens": 8,
    "learning_rate": 3e-3,
    "warmup_steps": 2,
    "sampled_outputs": 0,
}
STUDENT = LORA | {
    "steps": 40,
    "prompts_per_step": 4,
    "generations": 4,
    "max_new_tokens": 12,
    "learning_rate": 3e-3,
}
BEST = ROWS | {"samples": 8, "max_new_tokens": 48, "eval_every": 0}
WILD = {"learning_rate": 0.3, "warmup_steps": 0}
ASLEEP = {"learning_rate": 1e-9}
LARGE = {
    "steps": 24,
    "batch_size": 4,
    "learning_rate": 3e-4,
    "warmup_steps": 2,
    "lora_rank": 8,
    "eval_every": 0,
}


def sound() -> list[Run]:
    found = []
    for seed, rate in enumerate((1e-3, 3e-3, 1e-2, 3e-3)):
        found.append(
            Run(
                f"SFT, rate {rate:g}, seed {seed}",
                "sft",
                ROWS | {"learning_rate": rate},
                rows=answers(),
                held=answers(16),
                seed=seed,
            )
        )
    found.append(
        Run(
            "SFT, one row per step",
            "sft",
            ROWS | {"batch_size": 1, "steps": 80},
            rows=answers(80),
            held=answers(16),
        )
    )
    found.append(
        Run(
            "SFT, learned by heart",
            "sft",
            ROWS | {"steps": 120, "learning_rate": 1e-2, "eval_every": 0},
            rows=answers(4),
        )
    )
    found += [
        Run(f"rejection sampling, seed {seed}", "best_of_n", BEST, seed=seed) for seed in (0, 1)
    ]
    for loss in ("sigmoid", "ipo", "hinge", "robust", "apo_zero"):
        extra = {"label_smoothing": 0.1} if loss == "robust" else {}
        found.append(
            Run(
                f"DPO, {loss}",
                "dpo",
                ROWS | {"loss_type": loss, "learning_rate": 1e-3} | extra,
                rows=pairs(),
                held=pairs(16),
            )
        )
    found.append(
        Run(
            "DPO, hinge, far beyond its margin",
            "dpo",
            ROWS | {"loss_type": "hinge", "steps": 120, "eval_every": 0},
            rows=pairs(16),
        )
    )
    found.append(
        Run(
            "DPO, beta 0.5",
            "dpo",
            ROWS | {"beta": 0.5, "learning_rate": 1e-3},
            rows=pairs(),
            held=pairs(16),
            seed=1,
        )
    )
    for seed in (0, 1):
        found.append(
            Run(
                f"KTO, seed {seed}",
                "kto",
                ROWS | {"learning_rate": 1e-3},
                rows=labelled(),
                held=labelled(16),
                seed=seed,
            )
        )
        found.append(
            Run(
                f"reward model, seed {seed}",
                "reward_model",
                ROWS | {"learning_rate": 1e-3},
                rows=pairs(),
                held=pairs(16),
                seed=seed,
            )
        )
    found += [
        Run(
            f"distillation on policy, seed {seed}",
            "on_policy",
            STUDENT,
            seed=seed,
            more={"teacher": True},
        )
        for seed in (0, 1, 2)
    ]
    for seed, (loss, extra) in enumerate(
        [
            ("dapo", {}),
            ("grpo", {"beta": 0.02}),
            ("dr_grpo", {"scale_rewards": "none"}),
            ("rloo", {"baseline": "leave_one_out"}),
            ("gspo", {"updates_per_batch": 2}),
            ("dapo", {"updates_per_batch": 4}),
            ("dapo", {"dynamic_sampling": 2}),
            ("dapo", {"top_p": 0.9}),
            ("grpo", {"learning_rate": 1e-2}),
            ("gspo", {"updates_per_batch": 2, "steps": 80}),
        ]
    ):
        found.append(
            Run(
                f"GRPO {seed}: {loss} {extra or ''}".strip(),
                "grpo",
                GRPO | {"loss_type": loss} | extra,
                seed=seed,
                verifier=VOWEL if seed % 2 else SHORT,
            )
        )
    found.append(
        Run(
            "GRPO, solved and trained on",
            "grpo",
            GRPO | {"steps": 100, "learning_rate": 1e-2},
            verifier=SHORT,
            seed=3,
        )
    )
    found += [
        Run(
            f"GRPO, two turns, seed {seed}",
            "grpo",
            GRPO,
            environment={"kind": "builtin", "name": "two_turns", "verifier": {}},
            seed=seed,
        )
        for seed in (0, 1, 2)
    ]
    found.append(Run("SFT, SmolLM2", "sft", LARGE, rows=answers(), large=True))
    found.append(
        Run(
            "SFT, SmolLM2, two rows per step",
            "sft",
            LARGE | {"batch_size": 2},
            rows=answers(),
            large=True,
            seed=1,
        )
    )
    found.append(
        Run("DPO, SmolLM2", "dpo", LARGE | {"learning_rate": 1e-4}, rows=pairs(), large=True)
    )
    found.append(
        Run("KTO, SmolLM2", "kto", LARGE | {"learning_rate": 1e-4}, rows=labelled(), large=True)
    )
    return found


def ill() -> list[Run]:
    fast, none, chance = "learning rate too high", "learning rate too low", "labels are chance"
    found = [
        Run(
            f"SFT, rate {rate:g}",
            "sft",
            ROWS | WILD | {"learning_rate": rate, "eval_every": 0},
            fast,
            answers(),
            seed=seed,
        )
        for seed, rate in enumerate((0.1, 0.3, 1.0))
    ]
    found.append(
        Run(
            "SFT, late explosion",
            "sft",
            ROWS | {"learning_rate": 1.0, "warmup_steps": 39, "eval_every": 0},
            fast,
            answers(),
        )
    )
    found.append(Run("SFT, asleep", "sft", ROWS | ASLEEP, none, answers(), held=answers(16)))
    found.append(
        Run(
            "SFT on noise",
            "sft",
            ROWS | {"steps": 80, "learning_rate": 1e-2},
            "8 rows of noise by heart",
            noises(),
            held=answers(16),
        )
    )
    found.append(Run("rejection sampling, wild", "best_of_n", BEST | WILD, fast))
    for loss in ("sigmoid", "ipo", "hinge", "apo_zero"):
        found.append(
            Run(
                f"DPO, {loss}, wild",
                "dpo",
                ROWS | WILD | {"loss_type": loss, "eval_every": 0},
                fast,
                pairs(),
            )
        )
    found.append(
        Run(
            "DPO, answers become unlikely",
            "dpo",
            ROWS | {"learning_rate": 3e-2, "steps": 80, "eval_every": 0},
            "destroys both answers",
            pairs(),
        )
    )
    found.append(Run("DPO, asleep", "dpo", ROWS | ASLEEP, none, pairs()))
    found.append(
        Run(
            "DPO, chance",
            "dpo",
            ROWS | {"learning_rate": 1e-2, "steps": 80},
            chance,
            pairs(coin=True),
            held=pairs(16, coin=True),
        )
    )
    found.append(Run("KTO, wild", "kto", ROWS | WILD | {"eval_every": 0}, fast, labelled()))
    found.append(Run("KTO, asleep", "kto", ROWS | ASLEEP, none, labelled()))
    found.append(
        Run(
            "KTO, chance",
            "kto",
            ROWS | {"learning_rate": 1e-2, "steps": 80},
            chance,
            labelled(coin=True),
            held=labelled(16, coin=True),
        )
    )
    found.append(
        Run("reward model, wild", "reward_model", ROWS | WILD, fast, pairs(), held=pairs(16))
    )
    found.append(
        Run(
            "reward model, chance",
            "reward_model",
            ROWS | {"learning_rate": 1e-2, "steps": 80},
            chance,
            pairs(coin=True),
            held=pairs(16, coin=True),
        )
    )
    found.append(
        Run(
            "distillation on policy, wild",
            "on_policy",
            STUDENT | WILD,
            fast,
            more={"teacher": True},
        )
    )
    found.append(
        Run(
            "distillation on policy, asleep",
            "on_policy",
            STUDENT | ASLEEP,
            none,
            more={"teacher": True},
        )
    )
    found.append(
        Run(
            "distillation on policy, teacher is the student",
            "on_policy",
            STUDENT,
            "nothing to learn",
        )
    )
    for seed, (loss, extra) in enumerate(
        [("dapo", {}), ("gspo", {}), ("dapo", {"updates_per_batch": 8}), ("grpo", {"beta": 0.02})]
    ):
        found.append(
            Run(
                f"GRPO, {loss} {extra or ''} wild".replace("  ", " "),
                "grpo",
                GRPO | WILD | {"loss_type": loss} | extra,
                fast,
                seed=seed,
            )
        )
    found.append(
        Run("GRPO, rate 0.05", "grpo", GRPO | {"learning_rate": 0.05}, fast, verifier=SHORT)
    )
    found.append(Run("GRPO, asleep", "grpo", GRPO | ASLEEP | {"steps": 60}, none))
    found.append(
        Run(
            "GRPO, half always right, half always wrong",
            "grpo",
            GRPO | {"steps": 60},
            "no group has a spread",
            more={"halves": True},
        )
    )
    found.append(Run("GRPO, never right", "grpo", GRPO, "no output is ever right", verifier=NEVER))
    found.append(
        Run("GRPO, always right", "grpo", GRPO, "the verifier accepts everything", verifier=ALWAYS)
    )
    found.append(
        Run(
            "GRPO, all cut off and masked",
            "grpo",
            GRPO | {"max_new_tokens": 2, "mask_truncated": True},
            "every answer is cut off",
            verifier=VOWEL,
        )
    )
    found.append(
        Run(
            "GRPO, correction masks all",
            "grpo",
            GRPO
            | {
                "top_p": 0.5,
                "correction": "mis",
                "correction_min": 1.5,
                "correction_max": 1.6,
            },
            "every token is masked",
        )
    )
    found.append(
        Run(
            "GRPO, environment fails",
            "grpo",
            GRPO,
            "every third episode fails",
            environment={
                "kind": "builtin",
                "name": "two_turns",
                "config": {"crashes": 3},
                "verifier": {},
            },
        )
    )
    found.append(
        Run(
            "SFT, SmolLM2, wild",
            "sft",
            LARGE | {"learning_rate": 0.03, "warmup_steps": 0},
            fast,
            answers(),
            large=True,
        )
    )
    found.append(
        Run(
            "DPO, SmolLM2, wild",
            "dpo",
            LARGE | {"learning_rate": 0.01, "warmup_steps": 0},
            fast,
            pairs(),
            large=True,
        )
    )
    return found


# Recording


def teach(folder: Path) -> Path:
    """A tiny model that has learned to answer the questions."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.workers.conftest import make_tiny_model

    if folder.exists():
        return folder
    torch.set_num_threads(1)
    make_tiny_model(folder, initializer_range=0.05)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    draw, optimizer = random.Random(7), torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(250):
        asked = [question(draw) for _ in range(16)]
        texts = [
            tokenizer.apply_chat_template(
                [*user(q), {"role": "assistant", "content": a}], tokenize=False
            )
            for q, a in asked
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        loss = model(
            **batch, labels=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"the tiny model's loss: {float(loss):.2f}", flush=True)
    model.save_pretrained(folder)
    return folder


def tasks(run: Run, draw: random.Random, n: int, name: str) -> list[dict]:
    asked = [question(draw)[0] for _ in range(n)]
    return [
        {"id": f"{name} {at}", "messages": user(q), "expected": {"at": at}}
        for at, q in enumerate(asked)
    ]


def spec_of(run: Run, base: Path, adapter: str, out: Path) -> dict[str, Any]:
    draw = random.Random(run.seed)
    quiet = {rule.name: {"action": "warn"} for rule in RULES.values() if rule.act is not None}
    quiet |= {"weight_change": {"warn": 1e9}, "update_size": {"warn": 0.0}}  # so that it is stored
    harness = {
        "harness": {"max_new_tokens": run.config.get("max_new_tokens", 12), "temperature": 1.0}
    }
    verifier = {"kind": "by_task"} if run.more.get("halves") else run.verifier
    found: dict[str, Any] = {
        "kind": run.method,
        "job_id": "job",
        "attempt": 1,
        "seed": run.seed,
        "out_dir": str(out / "out"),
        "model": {"base": str(base), "adapter": None},
        "engine": {"kind": "transformers", "dtype": "float32", "threads": 1, "batch_size": 64},
        "config": run.config | {"alarms": quiet},
    }
    if run.rows is None:
        kind = (
            {"kind": "single_turn", "verifier": verifier}
            if not run.environment
            else run.environment
        )
        found |= {"environment": kind | harness, "tasks": tasks(run, draw, 12, "train")}
        if run.method == "grpo":
            found |= {"validation_tasks": tasks(run, draw, 8, "test")}
            found["config"] |= {"eval_every": 10, "eval_samples": 4}
        if run.method == "on_policy":
            found |= {
                "teacher": {
                    "base": run.more.get("teacher_base", str(base)),
                    "adapter": adapter if run.more.get("teacher") else None,
                }
            }
        return found
    found |= {"rows": run.rows(draw)}
    held = run.held or (answers(4) if run.method == "sft" else None)
    return found | (
        {"validation_rows": held(draw)} if held and run.config.get("eval_every") else {}
    )


def record(run: Run, base: Path, adapter: str, out: Path) -> dict[str, Any]:
    from importlib import import_module

    from tests.forms import form_of
    from tests.workers.conftest import Recorder
    from workers.lib import environments, verifiers
    from workers.lib.program import StopFlag
    from workers.lib.specs.job import checked

    environments.BUILTIN["two_turns"] = "tests.workers.two_turns:TwoTurns"
    events, error = Recorder(out / "events.jsonl"), ""
    if run.more.get("halves"):
        verifiers.KINDS["by_task"] = "bench.alarm_runs:by_task"
    try:
        import_module(f"workers.{run.method}").main(
            checked(spec_of(run, base, adapter, out), form_of(run.method)), events, StopFlag()
        )
    except Exception as failed:  # an ill run may fail by itself
        error = f"{type(failed).__name__}: {failed}"[:300]
    series = [
        [row["step"], {name: short(value) for name, value in row["values"].items() if name in KEPT}]
        for row in events.rows("metric")
    ]
    series += [
        [row["step"], {f"train/{row['name']}": row["value"]}]
        for row in events.rows("alarm")
        if row["name"] in ("weight_change", "update_size")
    ]
    return {
        "name": run.name,
        "method": run.method,
        "ill": run.ill,
        "error": error,
        "series": [one for one in series if one[1]],
    }


class HalfOfTheTasks:
    """A verifier that accepts every answer to half of the tasks, and none to the others."""

    def score(self, rollout: Any) -> Any:
        from workers.lib.verifiers import Score

        right = rollout.expected["at"] % 2 == 0
        return Score(reward=float(right), success=right, valid=True)


def by_task(*_: Any, **__: Any) -> HalfOfTheTasks:
    return HalfOfTheTasks()


def short(value: float | None) -> float | str:
    """None, which an event has in place of a number that is not finite, is NaN."""
    return float(f"{value:.{DIGITS}g}") if value is not None and abs(value) < 1e300 else "nan"


# Replaying


def load(path: Path = TRACES) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()))


def replay(trace: dict[str, Any]) -> tuple[str, int, dict[str, str]]:
    """(the gravest action, its step, {alarm: action}) that the alarms' defaults take for a run's
    metrics. A run that is paused or stopped ends there. Alarms that were over before that are left
    out.
    """
    watchman, raised, last = Watchman(None, trace["method"]), dict[str, str](), 0
    for step, values in trace["series"]:
        last = step
        alarms = watchman.look(step, {name: float(value) for name, value in values.items()})
        for alarm in alarms:
            if alarm.cleared:
                raised.pop(alarm.name, None)
            elif LEVELS[alarm.action] > LEVELS[raised.get(alarm.name, "ignore")]:
                raised[alarm.name] = alarm.action
        worst = max(
            (alarm for alarm in alarms if not alarm.cleared),
            key=lambda one: LEVELS[one.action],
            default=None,
        )
        if worst and worst.action in ("pause", "stop"):
            return worst.action, step, raised
    raised |= {alarm.name: alarm.action for alarm in watchman.at_end(last)}
    if trace["error"]:
        return "fails", last, raised
    return ("warn" if raised else ""), last, raised


def table() -> None:
    for title, wanted in (("Sound", False), ("Ill", True)):
        traces = [trace for trace in load() if bool(trace["ill"]) == wanted]
        print(f"\n| {title} run | {'what is wrong | ' if wanted else ''}outcome | alarms |")
        print("|---|---|---|" + ("---|" if wanted else ""))
        for trace in traces:
            action, step, raised = replay(trace)
            outcome = {"": "succeeds", "warn": "succeeds, warned", "fails": "fails at its end"}.get(
                action, f"{action} at step {step}"
            )
            names = ", ".join(f"`{name}`" for name in raised)
            print(
                f"| {trace['name']} | {trace['ill'] + ' | ' if wanted else ''}{outcome} | {names} |"
            )
        ended = sum(replay(trace)[0] in ("pause", "stop", "fails") for trace in traces)
        quiet = sum(not replay(trace)[0] for trace in traces)
        print(
            f"\n{len(traces)} runs: {ended} ended by an alarm or an error, {quiet} without any"
            " alarm."
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("record", "table"))
    parser.add_argument(
        "--only",
        default="",
        help="runs whose name or method begins with this; several with semicolons",
    )
    parser.add_argument("--home", type=Path, help="a folder that keeps the models between calls")
    parser.add_argument("--into", type=Path, default=TRACES)
    parser.add_argument("--smollm2", type=Path)
    given = parser.parse_args()
    if given.what == "table":
        table()
        return
    from tests.workers.conftest import make_tiny_model

    found = {trace["name"]: trace for trace in (load(given.into) if given.into.exists() else [])}
    begins = tuple(given.only.split(";"))
    runs = [run for run in sound() + ill() if run.large == bool(given.smollm2)]
    runs = [run for run in runs if run.name.startswith(begins) or run.method.startswith(begins)]
    with tempfile.TemporaryDirectory() as made:
        home = given.home or Path(made)
        base = given.smollm2 or teach(home / "model")
        adapter = "" if given.smollm2 else teacher(base, home)
        raw = base if given.smollm2 else make_tiny_model(home / "raw")
        for at, run in enumerate(runs):
            if run.name in found:
                continue
            out = Path(made) / f"run-{at}"
            out.mkdir()
            found[run.name] = trace = record(
                run, raw if run.method in SAMPLED else base, adapter, out
            )
            print(
                f"{run.ill or 'sound'} | {run.name} | {trace['error'] or 'ended'} |"
                f" {replay(trace)}",
                flush=True,
            )
            kept = [found[one.name] for one in sound() + ill() if one.name in found]
            given.into.write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))


def teacher(base: Path, home: Path) -> str:
    """An adapter that answers in JSON."""
    run = Run(
        "teacher",
        "sft",
        ROWS | {"steps": 80, "learning_rate": 1e-2, "eval_every": 0},
        rows=answers(),
    )
    out = home / "teacher"
    if not out.exists():
        out.mkdir()
        record(run, base, "", out)
    return str(out / "out" / "adapter")


if __name__ == "__main__":
    main()
