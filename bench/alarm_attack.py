"""Runs that try the alarms with other illnesses and seeds than `bench.alarm_runs`, by someone who
had not written the alarms.

`python -m bench.alarm_attack record [--only NAME]` trains them; `table` replays them. What is ill
is decided by how the run was set up. An ill run counts as noticed only if it fails, or raises an
alarm that hardly more than a quarter of the sound runs of its method raise, too (`common`), or that
says what it has measurably not achieved (`RESULTS`). `--vary` draws other words, rates, sizes and
numbers of steps from the seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import alarm_runs
from bench.alarm_runs import (
    ASLEEP,
    GRPO,
    ROWS,
    STUDENT,
    VOWEL,
    Run,
    answers,
    labelled,
    load,
    noise,
    noises,
    pairs,
    question,
    record,
    replay,
    teach,
    teacher,
    user,
)

TRACES = Path(__file__).resolve().parent.parent / "tests" / "workers" / "alarm_attack.json.gz"
# Alarms that say what a run has not achieved, so they are right about a sound run, too.
RESULTS = {
    "no_progress",
    "no_learning",
    "validation_loss",
    "validation_drop",
    "lost_gain",
    "reward_lost",
    "weight_change",
}
USUAL = 0.25  # an alarm of more sound runs of a method than this is no sign that one is ill
LATE = {"learning_rate": 1.0, "warmup_steps": 38, "eval_every": 0}
FEW = {"steps": 6, "warmup_steps": 0, "eval_every": 0}
FAST, NONE, CHANCE = "learning rate too high", "learning rate too low", "labels are chance"
Rows = Callable[[random.Random], list[dict]]


def words(n: int = 48) -> Rows:
    """What the tiny model already answers."""
    return lambda draw: [
        {"messages": user(q), "completion": a} for q, a in (question(draw) for _ in range(n))
    ]


def constant(text: str, n: int = 48) -> Rows:
    return lambda draw: [
        {"messages": user(question(draw)[0]), "completion": text} for _ in range(n)
    ]


def shuffled(n: int = 48) -> Rows:
    """Each question with the answer to another one."""

    def rows(draw: random.Random) -> list[dict]:
        asked = [question(draw) for _ in range(n)]
        return [
            {"messages": user(q), "completion": asked[at - 1][1]} for at, (q, _) in enumerate(asked)
        ]

    return rows


def each(rows: Rows, change: Callable[[dict], dict]) -> Rows:
    return lambda draw: [change(row) for row in rows(draw)]


def both(rows: Rows, change: Callable[[dict], dict]) -> Rows:
    """Each row and its opposite, next to each other."""
    return lambda draw: [one for row in rows(draw) for one in (row, change(row))]


def turned(row: dict) -> dict:
    return row | {"chosen": row["rejected"], "rejected": row["chosen"]}


def relabelled(row: dict) -> dict:
    return row | {"good": not row["good"]}


def numbers(n: int = 48) -> Rows:
    """Pairs whose difference nothing in the question explains."""

    def row(draw: random.Random) -> dict:
        q, a = question(draw)
        one, other = noise(draw, 6), noise(draw, 6)
        return {"messages": user(q), "chosen": a + one + "x", "rejected": a + other + "x"}

    return lambda draw: [row(draw) for _ in range(n)]


def long_chosen(n: int = 48) -> Rows:
    return each(pairs(n), lambda row: row | {"chosen": row["chosen"] + " ok" * 40})


def lopsided(n: int = 48) -> Rows:
    return lambda draw: [row | {"good": at > 0} for at, row in enumerate(labelled(n)(draw))]


def kto_all_good(n: int = 24) -> Rows:
    return each(labelled(n), lambda row: row | {"good": True})


def sound() -> list[Run]:
    mild = {"learning_rate": 1e-3}
    found = [
        Run("sft: two rows", "sft", ROWS | {"batch_size": 2}, rows=answers(), seed=11),
        Run("sft: short", "sft", ROWS | {"steps": 12}, rows=answers(), seed=12),
        Run("sft: wide", "sft", ROWS | mild | {"lora_rank": 32}, rows=answers(), seed=13),
        Run("sft: constant rate", "sft", ROWS | {"final_lr_share": 1.0}, rows=answers(), seed=14),
        Run("sft: one word", "sft", ROWS | {"eval_every": 0}, rows=constant("ok"), seed=15),
        Run("sft: micro-batches", "sft", ROWS | {"micro_batch": 2}, rows=answers(), seed=16),
        Run("sft: one row", "sft", ROWS | {"batch_size": 1, "eval_every": 0}, rows=answers(1)),
    ]
    for at, extra in enumerate(
        [
            {"batch_size": 2},
            {"beta": 0.01},
            {"loss_type": "ipo", "beta": 0.5},
            {"loss_type": "apo_zero", "steps": 80},
            {"loss_type": "robust", "label_smoothing": 0.3},
            {"steps": 120, "batch_size": 4},
        ]
    ):
        config = ROWS | mild | extra
        name = " ".join(f"{key} {value}" for key, value in extra.items())
        found.append(Run(f"dpo: {name}", "dpo", config, rows=pairs(), held=pairs(16), seed=20 + at))
    for at, extra in enumerate(
        [{"batch_size": 2}, {"beta": 0.5}, {"steps": 12}, {"steps": 100}, {"learning_rate": 3e-3}]
    ):
        config = ROWS | mild | extra
        name = " ".join(f"{key} {value}" for key, value in extra.items())
        found.append(
            Run(f"kto: {name}", "kto", config, rows=labelled(), held=labelled(16), seed=30 + at)
        )
        center = {"center_rewards": 0.01} if at == 1 else {}
        if at == 1:
            name, config = "centered", ROWS | mild
        found.append(
            Run(
                f"rm: {name}",
                "reward_model",
                {key: value for key, value in config.items() if key != "beta"} | center,
                rows=pairs(),
                held=pairs(16),
                seed=40 + at,
            )
        )
    letter = {"kind": "regex", "pattern": "[xyz]"}
    digit = {"kind": "regex", "pattern": "[0-9]"}
    for at, (extra, verifier) in enumerate(
        [
            ({"loss_type": "gspo", "updates_per_batch": 3}, digit),
            ({"loss_type": "gspo", "beta": 0.01}, letter),
            ({"beta": 0.1, "steps": 80, "learning_rate": 1e-2}, VOWEL),
            ({"kl_every": 0}, letter),
            ({"updates_per_batch": 2, "clip_high": 0.5}, digit),
            ({"steps": 120, "learning_rate": 1e-2}, letter),
            ({"generations": 4, "prompts_per_step": 2}, VOWEL),
            ({"loss_type": "rloo", "baseline": "leave_one_out", "dynamic_sampling": 2}, digit),
        ]
    ):
        name = " ".join(f"{key} {value}" for key, value in extra.items())
        found.append(Run(f"grpo: {name}", "grpo", GRPO | extra, verifier=verifier, seed=50 + at))
    for at, extra in enumerate(
        [
            {"learning_rate": 1e-3},
            {"generations": 1, "prompts_per_step": 8},
            {"steps": 100},
            {"max_new_tokens": 40},
            {"steps": 60, "learning_rate": 1e-2},
        ]
    ):
        name = " ".join(f"{key} {value}" for key, value in extra.items())
        found.append(
            Run(f"opd: {name}", "on_policy", STUDENT | extra, seed=60 + at, more={"teacher": True})
        )
    return found


def ill() -> list[Run]:
    hot = ROWS | {"learning_rate": 1e-2}
    nan = {"nan_at": 17}
    found = [
        Run("sft: shuffled", "sft", hot, "wrong answers", shuffled(), held=words(16), seed=111),
        Run("sft: NaN once", "sft", ROWS, "a gradient is NaN", answers(), more=nan, seed=112),
        Run("sft: constant", "sft", hot, "one token only", constant("a"), held=words(16), seed=113),
        Run("sft: late", "sft", ROWS | LATE, FAST, answers(), seed=114),
        Run(
            "sft: not clipped",
            "sft",
            ROWS | {"learning_rate": 0.2, "max_grad_norm": 1e6, "eval_every": 0},
            FAST,
            words(),
            seed=115,
        ),
        Run("sft: short, asleep", "sft", ROWS | ASLEEP | FEW, NONE, answers(), seed=116),
        Run(
            "sft: long, asleep",
            "sft",
            ROWS | ASLEEP | {"steps": 80, "batch_size": 1, "eval_every": 0},
            NONE,
            answers(),
            seed=117,
        ),
        Run(
            "sft: noise, long rows",
            "sft",
            hot | {"steps": 80},
            "noise by heart",
            noises(24),
            held=words(16),
            seed=118,
        ),
        Run(
            "dpo: flipped",
            "dpo",
            ROWS | {"learning_rate": 3e-3},
            "labels are flipped",
            each(pairs(), turned),
            held=pairs(16),
            seed=121,
        ),
        Run(
            "dpo: contradictory",
            "dpo",
            ROWS,
            "each pair both ways",
            both(pairs(24), turned),
            seed=122,
        ),
        Run("dpo: late", "dpo", ROWS | LATE, FAST, pairs(), seed=123),
        Run("dpo: NaN once", "dpo", ROWS, "a gradient is NaN", pairs(), more=nan, seed=124),
        Run(
            "dpo: same answers",
            "dpo",
            ROWS,
            "chosen = rejected",
            each(pairs(), lambda row: row | {"rejected": row["chosen"]}),
            seed=125,
        ),
        Run(
            "dpo: one pair",
            "dpo",
            ROWS | {"learning_rate": 3e-2, "steps": 80, "eval_every": 0},
            "one pair again and again",
            pairs(1),
            seed=126,
        ),
        Run(
            "dpo: longer is better",
            "dpo",
            ROWS | {"learning_rate": 1e-2, "steps": 80, "eval_every": 0},
            "chosen is padding",
            long_chosen(),
            seed=127,
        ),
        Run(
            "dpo: beta 20, wild",
            "dpo",
            ROWS | {"beta": 20, "learning_rate": 0.1, "eval_every": 0, "loss_type": "hinge"},
            FAST,
            pairs(),
            seed=128,
        ),
        Run("dpo: short, asleep", "dpo", ROWS | ASLEEP | FEW, NONE, pairs(), seed=129),
        Run("dpo: ipo, late", "dpo", ROWS | LATE | {"loss_type": "ipo"}, FAST, pairs(), seed=120),
        Run("kto: one class", "kto", ROWS, "all labels good", kto_all_good(), seed=131),
        Run(
            "kto: contradictory",
            "kto",
            ROWS,
            "each answer good and bad",
            both(labelled(24), relabelled),
            seed=132,
        ),
        Run(
            "kto: flipped",
            "kto",
            ROWS | {"learning_rate": 3e-3},
            "labels are flipped",
            each(labelled(), relabelled),
            held=labelled(16),
            seed=133,
        ),
        Run("kto: late", "kto", ROWS | LATE, FAST, labelled(), seed=134),
        Run("kto: NaN once", "kto", ROWS, "a gradient is NaN", labelled(), more=nan, seed=135),
        Run(
            "kto: lopsided",
            "kto",
            hot | {"steps": 80, "eval_every": 0},
            "47 good, 1 bad, both kinds good",
            lopsided(),
            seed=136,
        ),
        Run("kto: short, asleep", "kto", ROWS | ASLEEP | FEW, NONE, labelled(), seed=137),
        Run(
            "kto: wild",
            "kto",
            ROWS | {"learning_rate": 0.1, "eval_every": 0},
            FAST,
            labelled(),
            seed=138,
        ),
        Run("kto: asleep", "kto", ROWS | ASLEEP | {"eval_every": 0}, NONE, labelled(), seed=139),
        Run(
            "rm: flipped",
            "reward_model",
            ROWS | {"learning_rate": 3e-3},
            "labels are flipped",
            each(pairs(), turned),
            held=pairs(16),
            seed=141,
        ),
        Run(
            "rm: contradictory",
            "reward_model",
            ROWS,
            "each pair both ways",
            both(pairs(24), turned),
            held=pairs(16),
            seed=142,
        ),
        Run(
            "rm: late",
            "reward_model",
            ROWS | LATE | {"eval_every": 10},
            FAST,
            pairs(),
            held=pairs(16),
            seed=143,
        ),
        Run(
            "rm: NaN once",
            "reward_model",
            ROWS,
            "a gradient is NaN",
            pairs(),
            held=pairs(16),
            more=nan,
            seed=144,
        ),
        Run(
            "rm: no difference", "reward_model", ROWS, CHANCE, numbers(), held=numbers(16), seed=145
        ),
        Run("rm: asleep", "reward_model", ROWS | ASLEEP, NONE, pairs(), held=pairs(16), seed=146),
        Run(
            "rm: short, asleep",
            "reward_model",
            ROWS | ASLEEP | FEW | {"eval_every": 2},
            NONE,
            pairs(),
            held=pairs(16),
            seed=147,
        ),
        Run(
            "rm: wild",
            "reward_model",
            ROWS | {"learning_rate": 0.1},
            FAST,
            pairs(coin=True),
            held=pairs(16),
            seed=148,
        ),
    ]
    for at, (name, extra, what, verifier, more) in enumerate(
        [
            (
                "constant text",
                {"learning_rate": 2e-2, "steps": 80},
                "pays the letter a",
                "letter",
                {},
            ),
            (
                "constant text, gspo",
                {"learning_rate": 2e-2, "steps": 80, "loss_type": "gspo", "updates_per_batch": 2},
                "pays the letter a",
                "letter",
                {},
            ),
            (
                "longer is better",
                {"learning_rate": 1e-2, "steps": 60, "max_new_tokens": 24},
                "pays length",
                "length",
                {},
            ),
            (
                "shorter is better",
                {"learning_rate": 1e-2, "steps": 80, "max_new_tokens": 24},
                "pays the empty answer",
                "empty",
                {},
            ),
            ("chance", {"steps": 60}, "the reward is chance", "chance", {}),
            ("halves with KL", {"beta": 0.05, "steps": 60}, "no group has a spread", "halves", {}),
            ("never, with KL", {"beta": 0.05}, "no output is ever right", "never", {}),
            (
                "never, gspo",
                {"loss_type": "gspo", "updates_per_batch": 2},
                "no output is ever right",
                "never",
                {},
            ),
            ("halves, dynamic", {"dynamic_sampling": 2}, "no group has a spread", "halves", {}),
            ("cold", {"temperature": 0.01}, "all answers of a group are equal", "vowel", {}),
            ("late", {"learning_rate": 1.0, "warmup_steps": 38}, FAST, "vowel", {}),
            (
                "late, no KL",
                {"learning_rate": 1.0, "warmup_steps": 38, "kl_every": 0},
                FAST,
                "vowel",
                {},
            ),
            (
                "wild, no KL",
                {"learning_rate": 0.1, "warmup_steps": 0, "kl_every": 0},
                FAST,
                "vowel",
                {},
            ),
            ("NaN once", {}, "a gradient is NaN", "vowel", nan),
            (
                "verifier turns",
                {"learning_rate": 1e-2, "steps": 60},
                "right becomes wrong after half",
                "turns",
                {},
            ),
            (
                "verifier decays",
                {"learning_rate": 1e-2, "steps": 80},
                "pays one in four after half",
                "decays",
                {},
            ),
            ("verifier dies", {}, "masked after half", "dies", {}),
            ("all masked", {"steps": 12}, "nothing can be scored", "dead", {}),
            (
                "asleep, gspo",
                {"loss_type": "gspo", "updates_per_batch": 2, "steps": 60} | ASLEEP,
                NONE,
                "vowel",
                {},
            ),
            ("short, asleep", {"steps": 6} | ASLEEP, NONE, "vowel", {}),
            ("short, never", {"steps": 4}, "no output is ever right", "never", {}),
            (
                "no clip range",
                {
                    "clip_low": 0.0,
                    "clip_high": 0.0,
                    "updates_per_batch": 4,
                    "learning_rate": 0.1,
                    "warmup_steps": 0,
                },
                FAST,
                "vowel",
                {},
            ),
            ("always, with KL", {"beta": 0.05}, "all is right", "always", {}),
            ("one spread in ten, asleep", {"steps": 60} | ASLEEP, NONE, "halves", {}),
        ]
    ):
        found.append(
            Run(
                f"grpo: {name}",
                "grpo",
                GRPO | extra,
                what,
                verifier={"kind": "attack", "way": verifier},
                seed=150 + at,
                more=more,
            )
        )
    for at, (name, extra, what, more) in enumerate(
        [
            ("teacher is the student", {"steps": 12}, "nothing to learn", {"teacher": ""}),
            ("wild", {"learning_rate": 0.1}, FAST, {"teacher": True}),
            ("late", {"learning_rate": 1.0, "warmup_steps": 38}, FAST, {"teacher": True}),
            ("asleep", ASLEEP, NONE, {"teacher": True}),
            ("short, asleep", ASLEEP | {"steps": 6}, NONE, {"teacher": True}),
            ("NaN once", {}, "a gradient is NaN", {"teacher": True} | nan),
            (
                "random teacher",
                {"steps": 80, "learning_rate": 1e-2},
                "the teacher is noise",
                {"raw_teacher": True},
            ),
            ("same with rate 0.1", {"learning_rate": 0.1}, "nothing to learn", {"teacher": ""}),
        ]
    ):
        found.append(
            Run(f"opd: {name}", "on_policy", STUDENT | extra, what, seed=160 + at, more=more)
        )
    return found


class Attack:
    """A verifier that pays what it should not, by `way`."""

    def __init__(self, way: str, half: int) -> None:
        self.way, self.half, self.seen, self.draw = way, half, 0, random.Random(5)

    def score(self, rollout: Any) -> Any:
        from workers.lib.verifiers import Score

        self.seen += 1
        text, late = rollout.output, self.seen > self.half
        vowel = any(letter in "aeiou" for letter in text)
        right = {
            "never": False,
            "always": True,
            "halves": rollout.expected["at"] % 2 == 0,
            "vowel": vowel,
            "chance": self.draw.random() < 0.5,
            "turns": vowel == late,
            "decays": vowel and (not late or self.draw.random() < 0.25),
            "dies": vowel,
        }.get(self.way, False)
        paid = {
            "letter": text.count("a") / max(1, len(text)),
            "length": min(1.0, len(text) / 60),
            "empty": 1 / (1 + len(text)),
        }.get(self.way, float(right))
        if self.way == "dead" or (self.way == "dies" and late):
            return Score(
                reward=0.0, success=False, valid=False, masked=True, mask_reason="no reply"
            )
        return Score(reward=paid, success=right, valid=True)


def attack(spec: dict, *_: Any) -> Attack:
    return Attack(spec["way"], spec["half"])


@contextmanager
def broken(run: Run) -> Iterator[None]:
    """The run's own verifier, and a gradient that is NaN in one update."""
    from workers.lib import verifiers
    from workers.ml import checkpoint

    original = checkpoint.optimizer_of
    half = run.config["steps"] * 32 // 2
    verifiers.KINDS["attack"] = "bench.alarm_attack:attack"
    if "way" in run.verifier:
        run.verifier["half"] = half

    def optimizer_of(model: Any, *rest: Any) -> Any:
        import torch

        calls = 0

        def poison(grad: Any) -> Any:
            nonlocal calls
            calls += 1
            return torch.full_like(grad, float("nan")) if calls == run.more["nan_at"] else grad

        if "nan_at" in run.more:
            checkpoint.trained(model)[0].register_hook(poison)
        return original(model, *rest)

    checkpoint.optimizer_of = optimizer_of
    try:
        yield
    finally:
        checkpoint.optimizer_of = original


def common(traces: list[dict[str, Any]]) -> dict[str, set[str]]:
    """For each method, the alarms that its sound runs usually raise, too."""
    raised: dict[str, list[set[str]]] = {}
    for trace in traces:
        if not trace["ill"]:
            raised.setdefault(trace["method"], []).append(set(replay(trace)[2]))
    return {
        method: {
            name
            for name in set().union(*runs) - RESULTS
            if sum(name in run for run in runs) > USUAL * len(runs)
        }
        for method, runs in raised.items()
    }


def ended(trace: dict[str, Any]) -> bool:
    return replay(trace)[0] in ("fails", "pause", "stop")


def signs(trace: dict[str, Any], usual: dict[str, set[str]]) -> set[str]:
    return set(replay(trace)[2]) - usual.get(trace["method"], set())


def noticed(trace: dict[str, Any], usual: dict[str, set[str]]) -> bool:
    return ended(trace) or bool(signs(trace, usual))


OTHER_WORDS = {
    "ITEMS": ("parcel", "booking", "device", "ticket", "voucher", "report"),
    "DONE": ("ready", "lost", "signed", "expired", "merged", "waiting"),
}
RATES = {FAST: (1.0, 2.0, 3.0), NONE: (0.1, 1.0)}


def varied(run: Run) -> Run:
    """The run with another rate, rank, batch size and number of steps, drawn by its seed; none of
    them changes what is wrong with it.
    """
    draw, config = random.Random(f"{run.name} {run.seed}"), dict(run.config)
    rate = config["learning_rate"] * draw.choice(RATES.get(run.ill, (0.5, 1.0, 1.5)))
    config["learning_rate"] = min(1.0, rate)  # the largest that a config may have
    if config["lora_rank"] == 4:
        config["lora_rank"] = draw.choice((2, 4, 8))
        config["lora_alpha"] = 2 * config["lora_rank"]
    if config.get("batch_size") == 8:
        config["batch_size"] = draw.choice((4, 8, 16))
    if config["steps"] >= 40:
        config["steps"] = int(config["steps"] * draw.choice((0.75, 1.0, 1.5)))
        if config.get("warmup_steps", 0) > 10:
            config["warmup_steps"] = config["steps"] - 2
    return replace(run, config=config)


def table(path: Path) -> None:
    recorded = load(path)
    usual = common(recorded)
    for title, wanted in (("Sound", False), ("Ill", True)):
        traces = [trace for trace in recorded if bool(trace["ill"]) == wanted]
        print(f"\n| {title} run | {'what is wrong | ' if wanted else ''}outcome | alarms |")
        print("|---|---|---|" + ("---|" if wanted else ""))
        for trace in traces:
            action, step, raised = replay(trace)
            outcome = {
                "": "succeeds",
                "warn": "succeeds, warned",
                "fails": "fails at its end",
            }.get(action, f"{action} at step {step}")
            if wanted and not noticed(trace, usual):
                outcome += " (unnoticed)"
            names = ", ".join(f"`{name}`" for name in raised)
            what = f"{trace['ill']} | " if wanted else ""
            print(f"| {trace['name']} | {what}{outcome} | {names} |")
        counts(traces, usual, ill=wanted)


def counts(traces: list[dict[str, Any]], usual: dict[str, set[str]], *, ill: bool) -> None:
    print(f"\n| Method | runs | ended | warned by their result alone |{' unnoticed |' * ill}")
    print("|---|---|---|---|" + "---|" * ill)
    for method in [*sorted({trace["method"] for trace in traces}), ""]:
        own = [trace for trace in traces if trace["method"] == method or not method]
        going = [signs(trace, usual) for trace in own if not ended(trace)]
        cells = [
            len(own),
            len(own) - len(going),
            sum(bool(one) and one <= RESULTS for one in going),
        ]
        cells += [sum(not one for one in going)] * ill
        print(f"| {method or 'all'} | " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("record", "table"))
    parser.add_argument("--only", default="", help="names that begin so; several with semicolons")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--seeds", type=int, default=0, help="added to each run's seed")
    parser.add_argument("--vary", action="store_true", help="other words, rates, sizes and steps")
    parser.add_argument("--into", type=Path, default=TRACES)
    given = parser.parse_args()
    if given.what == "table":
        table(given.into)
        return
    from tests.workers.conftest import make_tiny_model

    traces = {trace["name"]: trace for trace in (load(given.into) if given.into.exists() else [])}
    names = tuple(given.only.split(";"))
    runs = [run for run in sound() + ill() if run.name.startswith(names)]
    for run in runs:
        run.seed += given.seeds
    if given.vary:
        alarm_runs.ITEMS, alarm_runs.DONE = OTHER_WORDS["ITEMS"], OTHER_WORDS["DONE"]
        runs = [varied(run) for run in runs]
    with tempfile.TemporaryDirectory() as made:
        home = given.home or Path(made)
        base, raw = teach(home / "model"), home / "raw"
        adapter = teacher(base, home)
        make_tiny_model(raw)
        for at, run in enumerate(runs):
            key = ("ill " if run.ill else "sound ") + run.name
            if key in traces:
                continue
            out = Path(made) / f"run-{at}"
            out.mkdir()
            if "raw_teacher" in run.more:
                run.more["teacher_base"] = str(raw)
            with broken(run):
                trace = record(run, raw if run.method == "grpo" else base, adapter, out)
            trace["name"] = key
            traces[key] = trace
            print(f"{key} | {run.ill} | {trace['error'] or 'ended'} | {replay(trace)}", flush=True)
            given.into.write_bytes(
                gzip.compress(json.dumps(list(traces.values())).encode(), mtime=0)
            )


if __name__ == "__main__":
    main()
