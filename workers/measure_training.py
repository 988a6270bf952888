"""Measures how fast a model samples and trains on this machine, and how much memory it needs.
`python -m workers.measure_training spec.json` (docs/jobs.md, docs/budget.md).

Every kind of work is measured at two sizes, on prompts from the run's own data, to separate fixed
costs from those that grow with the size. The large size is the largest that fits into the time. The
result contains the measurements; apps.training.budget computes from them what a run will cost.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()  # before importing the libraries: a run waits for those too

import os  # noqa: E402
import platform  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from workers.lib.engines import Prompt, Sampling  # noqa: E402
from workers.lib.environments import load  # noqa: E402
from workers.lib.events import Emitter  # noqa: E402
from workers.lib.memory import memory_limit  # noqa: E402
from workers.lib.prefixes import Tree  # noqa: E402
from workers.lib.program import StopFlag, run_main  # noqa: E402
from workers.lib.server_rates import server_rates  # noqa: E402
from workers.lib.specs.measure_training import MeasureTraining  # noqa: E402
from workers.lib.token_rows import TokenRow  # noqa: E402
from workers.lib.training_cost import kept_tokens  # noqa: E402
from workers.ml import checkpoint  # noqa: E402
from workers.ml.chat_writer import ChatWriter  # noqa: E402
from workers.ml.four_bit import size_of  # noqa: E402
from workers.ml.models import device, load_base, lora, set_threads, training_dtype  # noqa: E402
from workers.ml.transformers_engine import TransformersEngine  # noqa: E402
from workers.ml.tree import decoder_of, logprobs_of, part_size, scored_parts  # noqa: E402

EVERY_S = 0.003  # between two readings of the process's memory
SHORT, LONG = 1, 9  # tokens of a measured answer
MOST_ANSWERS, MOST_ROWS = 64, 64


class Clock:
    """Measures a piece of work: seconds, and peak memory above that at `base`."""

    def __init__(self) -> None:
        self.base = resident()

    @contextmanager
    def over(self, found: dict[str, Any]) -> Iterator[None]:
        """Add `seconds` and `memory`, the peak in bytes, to `found`."""
        cuda = device() == "cuda"
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        before, done = resident(), threading.Event()
        peak = [before]

        def watch() -> None:
            while not done.wait(EVERY_S):
                peak[0] = max(peak[0], resident())

        thread = threading.Thread(target=watch, daemon=True)
        if not cuda:
            thread.start()
        began = time.perf_counter()
        try:
            yield
        finally:
            if cuda:
                torch.cuda.synchronize()
                peak[0] = torch.cuda.max_memory_allocated()
            found["seconds"], found["before"] = time.perf_counter() - began, before
            done.set()
            found["memory"] = max(peak[0], resident())


def resident() -> int:
    """Bytes of GPU memory, or of main memory, that the process uses."""
    if device() == "cuda":
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def machine() -> dict[str, Any]:
    found = {
        "name": platform.node(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": _processor(),
    }
    if device() == "cuda":
        free, total = torch.cuda.mem_get_info()
        return found | {
            "gpu": torch.cuda.get_device_name(),
            "memory": total,
            "available": free + torch.cuda.memory_reserved(),
        }
    return found | {"gpu": "", **memory_limit()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


class Measured:
    """The model, and the measurements of it by kind of work."""

    def __init__(self, spec: MeasureTraining, events: Emitter, stop: StopFlag) -> None:
        self.spec, self.events, self.stop, self.clock = spec, events, stop, Clock()
        self.found: dict[str, Any] = {}
        environment = load(spec.environment)
        episodes = [environment.open(task) for task in spec.tasks]
        self.prompts = [(episode.messages, episode.offered) for episode in episodes]
        set_threads(spec.engine.threads)
        torch.manual_seed(spec.seed)
        loading: dict[str, Any] = {}
        with self.clock.over(loading):
            base, tokenizer = load_base(
                spec.model.base, training_dtype(spec.engine.dtype), in_4bit=spec.lora.load_in_4bit
            )
            self.model = lora(base, spec.lora, spec.model.adapter).to(device()).eval()
        self.tokenizer = tokenizer
        self.loaded = loading

    def say(self, done: int, label: str) -> None:
        self.stop.check()
        self.events.progress(done, 4, label)

    def measure(self) -> dict[str, Any]:
        share = self.spec.seconds / 4
        self.say(0, "updates without shared prompts")
        plain = self.plain_updates(share)
        self.say(1, "sampling")
        with self.clock.over(self.loaded_tree()):
            engine = TransformersEngine(self.model, self.tokenizer, MOST_ANSWERS)
        engine.stops = torch.empty(
            0, dtype=torch.long
        )  # all answers get exactly the measured length
        engine.check = self.stop.check
        self.resting = resident()
        sampling = self.sampling(engine, share)
        self.say(2, "updates")
        rows = self.rows(engine)
        updates, forward = self.updates(rows, share), self.forward(rows)
        self.say(4, "done")
        config = self.model.get_base_model().config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        element = next(self.model.parameters()).element_size()
        decoder, head = decoder_of(self.model)
        body = sum(size_of(p) for name, p in decoder.named_parameters() if "embed" not in name)
        return {
            "machine": machine(),
            "load": self.loaded | {"seconds": self.loaded_s},
            "resting": self.resting,
            "plain": plain,
            "sampling": sampling,
            "updates": updates,
            "forward": forward,
            "part": part_size(self.model),
            "kv_bytes": 2 * config.num_hidden_layers * heads * width * element,
            "head_share": head.weight.numel() / max(1, body),
            "trained": sum(p.numel() for p in checkpoint.trained(self.model)),
        }

    def loaded_tree(self) -> dict[str, Any]:
        self.loaded_s = time.perf_counter() - BEGAN
        self.tree: dict[str, Any] = {}
        return self.tree

    def sized(
        self, work: Callable[[int], dict[str, Any]], most: int, share: float
    ) -> list[dict[str, Any]]:
        """Measure `work` at size 1, and at the largest size up to `most` that probably takes at
        most `share` seconds. If there is no time for the second, the first measurement is used
        alone, although it includes one-time preparation.
        """
        first = work(1)
        if first["seconds"] > share / 3:
            return [first]
        small = work(1)
        size = min(most, int(share / 2 / max(small["seconds"], 1e-3)))
        return [small, work(size)] if size > 1 else [small]

    def sampling(self, engine: TransformersEngine, share: float) -> list[dict[str, Any]]:
        def work(size: int) -> dict[str, Any]:
            """Four times `size` answers: to one prompt, then to several."""
            prompts = [self.prompts[at % len(self.prompts)] for at in range(max(1, size // 4))]
            each = 4 * size // len(prompts)
            asked = [Prompt(messages, list(range(each)), tools) for messages, tools in prompts]
            ids = [engine.prompt_ids(messages, tools) for messages, tools in prompts]
            found = {
                "answers": each * len(prompts),
                "prompt_tokens": len(Tree(ids)),
                "length": max(map(len, ids)),
            }
            parts = {}
            for tokens in (SHORT, LONG):
                part: dict[str, Any] = {}
                with self.clock.over(part):
                    list(engine.generate(asked, Sampling(max_new_tokens=tokens)))
                parts[tokens] = part
            step = max(0.0, parts[LONG]["seconds"] - parts[SHORT]["seconds"]) / (LONG - SHORT)
            return found | {
                "step_s": step,
                "prefill_s": max(0.0, parts[SHORT]["seconds"] - step),
                "memory": parts[LONG]["memory"],
                "before": parts[SHORT]["before"],
                "seconds": parts[LONG]["seconds"] + parts[SHORT]["seconds"],
            }

        return self.sized(work, MOST_ANSWERS // 4, share)

    def rows(self, engine: TransformersEngine) -> list[TokenRow]:
        """Two rows for each prompt, with answers of maximum length that differ from their first
        token on.
        """
        length, rows = min(self.spec.max_new_tokens, 64), []
        for at in range(MOST_ROWS):
            messages, tools = self.prompts[at // 2 % len(self.prompts)]
            row = TokenRow()
            row.given(engine.prompt_ids(messages, tools))
            generator = torch.Generator().manual_seed(at)
            ids = torch.randint(0, len(self.tokenizer), (length,), generator=generator).tolist()
            row.sampled(ids, [0.0] * length)
            rows.append(row)
        return rows

    def updates(self, rows: list[TokenRow], share: float) -> list[dict[str, Any]]:
        optimizer = torch.optim.AdamW(checkpoint.trained(self.model), lr=1e-9, weight_decay=0.0)

        def work(size: int) -> dict[str, Any]:
            some = rows[: 2 * size]
            found = counts(some, part_size(self.model))
            with self.clock.over(found):
                for scored in scored_parts(self.model, some):
                    self.stop.check()
                    (-scored.tokens.logprobs.sum() / found["learnt"]).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            return found

        return self.sized(work, MOST_ROWS // 2, share)

    def forward(self, rows: list[TokenRow]) -> dict[str, Any]:
        some = rows[:4]
        found = counts(some, part_size(self.model))
        with self.clock.over(found):
            logprobs_of(self.model, some)
        return found

    def plain_updates(self, share: float) -> list[dict[str, Any]]:
        """Whole rows side by side with all their logits, which is how TRL trains without a prefix
        tree.
        """
        tokenizer = self.tokenizer
        texts = [
            " ".join(str(message.get("content") or "") for message in messages)
            for messages, _ in self.prompts
        ]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] or [0] for text in texts]
        width = max(2, min(max(map(len, ids)), 128))

        def work(size: int) -> dict[str, Any]:
            batch = torch.tensor(
                [(ids[at % len(ids)] * width)[:width] for at in range(size)], device=device()
            )
            found: dict[str, Any] = {"tokens": batch.numel()}
            with self.clock.over(found):
                logits = self.model(input_ids=batch).logits.float()
                (-logits.log_softmax(-1).gather(-1, batch[..., None]).mean()).backward()
                del logits
            self.model.zero_grad(set_to_none=True)
            return found

        return self.sized(work, 8, share)


def counts(rows: list[TokenRow], part: int) -> dict[str, Any]:
    return {
        "distinct": len(Tree([row.ids for row in rows])),
        "tokens": sum(len(row.ids) for row in rows),
        "rows": len(rows),
        "learnt": sum(sum(row.learnt) for row in rows),
        "kept": kept_tokens([row.ids for row in rows], part),
    }


def main(spec: MeasureTraining, events: Emitter, stop: StopFlag) -> None:
    events.progress(0, 4, "loading the model")
    with stop.at_once():
        measured = Measured(spec, events, stop)
    found = measured.measure()
    if spec.rollouts:
        writer = ChatWriter(measured.tokenizer, measured.model)
        prompts = [writer.prompt_ids(messages, tools) for messages, tools in measured.prompts]
        found["servers"] = server_rates(spec.rollouts, prompts)
    events.result(measured=found)


if __name__ == "__main__":
    run_main(MeasureTraining, main)
