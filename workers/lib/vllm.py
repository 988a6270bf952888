"""vLLM's command for a model, the options that may be set, and why it ended; and the same for our
own server, which has fewer options. Pure; light: no torch, no vllm.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workers.lib.log_cause import cause
from workers.lib.specs.serve import ServedModel

RANKS = (
    8,
    16,
    32,
    64,
    128,
    256,
    320,
    512,
)  # the values that vLLM supports for the maximum LoRA rank
DTYPES = ("auto", "bfloat16", "float16", "float32")
MOST_OPTIONS = 20
IDLE_SHARE, LEAST_SHARE = 0.97, 0.05  # of a device's memory that is free
MARK = "—"  # begins a line of the log that the keeper of the server wrote
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}", re.ASCII)


@dataclass(frozen=True)
class Option:
    """`form`: flag, whole, share or name. Options that run code, read files or open other addresses
    are not supported.
    """

    form: str
    least: float = 0
    most: float = 0


FLAG, SHARE, WORD = Option("flag"), Option("share", 0.01, 1), Option("name")
OPTIONS = {
    "enable-auto-tool-choice": FLAG,
    "tool-call-parser": WORD,
    "reasoning-parser": WORD,
    "enforce-eager": FLAG,
    "enable-prefix-caching": FLAG,
    "no-enable-prefix-caching": FLAG,
    "enable-chunked-prefill": FLAG,
    "no-enable-chunked-prefill": FLAG,
    "gpu-memory-utilization": SHARE,
    "kv-cache-dtype": WORD,
    "quantization": WORD,
    "block-size": Option("whole", 1, 1024),
    "max-num-seqs": Option("whole", 1, 65_536),
    "max-num-batched-tokens": Option("whole", 1, 10_000_000),
    "max-logprobs": Option("whole", 0, 1000),
    "seed": Option("whole", 0, 2**31),
    "tensor-parallel-size": Option("whole", 1, 64),
    "pipeline-parallel-size": Option("whole", 1, 64),
    "data-parallel-size": Option("whole", 1, 64),
}
OWN_OPTIONS = {"max-num-seqs": Option("whole", 1, 1024)}  # of our own server

# Phrase in vLLM's log → what to do about it.
ADVICE = (
    (
        r"[Ff]ree memory on device|less than desired .*memory utilization",
        (
            "Other programs use memory on that machine: set gpu-memory-utilization below the free"
            " share, or free memory."
        ),
    ),
    (
        (
            r"No available memory for the cache|KV cache is needed|larger than the maximum number"
            r" of tokens"
        ),
        (
            "There is not enough memory for this context length: lower it, or raise"
            " gpu-memory-utilization (on a CPU: VLLM_CPU_KVCACHE_SPACE)."
        ),
    ),
    (
        (
            r"out of memory|OutOfMemory|can't allocate memory|Cannot allocate memory|MemoryError"
            r"|bad_alloc"
        ),
        (
            "Memory ran out: choose a smaller context length, fewer LoRA slots or a smaller model,"
            " or free memory on that machine."
        ),
    ),
    (
        r"max_model_len .* is greater than|max_model_len .*derived",
        "The model has a shorter context length: lower it, or leave it empty.",
    ),
    (
        r"unrecognized arguments|invalid choice|argument --",
        "This vLLM does not accept one of the options: change or remove it.",
    ),
    (r"[Aa]ddress already in use", "The port is in use."),
    (r"are not supported|not supported for", "This vLLM does not support this model or option."),
    (
        r"Illegal instruction|status 132\b",
        "This build of vLLM uses instructions that this processor does not have.",
    ),
    (r"status 137\b", "It was killed: perhaps memory ran out on that machine."),
    (
        r"ModuleNotFoundError|ImportError|PackageNotFoundError",
        "vLLM's environment is not complete: run “make vllm” again on that machine.",
    ),
)


def checked_options(given: dict[str, Any], known: dict[str, Option] = OPTIONS) -> dict[str, Any]:
    """{name: True, a number or a word}, in the form in which they are stored. Raises ValueError
    with a sentence.
    """
    if len(given) > MOST_OPTIONS:
        raise ValueError(f"At most {MOST_OPTIONS} options.")
    return {name: _checked(name, value, known) for name, value in sorted(given.items())}


def _checked(name: str, value: Any, known: dict[str, Option]) -> Any:
    option = known.get(name)
    if option is None:
        raise ValueError(
            f"The option “{name[:60]}” cannot be set here. These can: {', '.join(sorted(known))}."
        )
    if option.form == "flag":
        if value is not True:
            raise ValueError(f"{name} takes no value.")
        return True
    if option.form == "name":
        if not (isinstance(value, str) and NAME.fullmatch(value)):
            raise ValueError(f"{name} takes a name: small letters, digits, - _ and dots.")
        return value
    whole = option.form == "whole"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"{name} takes a {'whole ' if whole else ''}number.")
    if not option.least <= value <= option.most:
        raise ValueError(f"{name} must be from {option.least:g} to {option.most:g}.")
    return value


def read_options(text: str) -> dict[str, Any]:
    """Options from a form: one per line, with or without dashes and “=”, not yet checked."""
    given: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, value = line.lstrip("-").replace("=", " ", 1).partition(" ")
        given[name] = _value(value.strip())
    return given


def _value(text: str) -> Any:
    if not text:
        return True
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def write_options(options: dict[str, Any]) -> str:
    return "\n".join(
        name if value is True else f"{name} {value}" for name, value in options.items()
    )


def utilization(free: float, total: float) -> float | None:
    """The share of a device's memory that vLLM may use, where others use some of it: 90% of what is
    free, in steps of 0.01. None where the device is idle or its memory is unknown, for vLLM's own
    default. Raises ValueError if almost nothing is free.
    """
    share = max(free, 0.0) / total if total > 0 else math.nan
    if math.isnan(share) or share >= IDLE_SHARE:
        return None
    if share < LEAST_SHARE:
        raise ValueError(
            f"Only {share:.0%} of the memory of that machine is free. Stop other programs, or"
            " choose another machine."
        )
    return math.floor(90 * share) / 100


def command(
    executable: str, model: ServedModel, host: str, port: int, share: float | None = None
) -> list[str]:
    """`generation-config vllm`: otherwise the model's folder would set penalties and sampling
    defaults that nobody asked for. `processed_logprobs`: those of the distribution that is sampled.
    `share`: of the device's memory, unless the model's options say another.
    """
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "served-model-name": model.name,
        "dtype": model.dtype,
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "disable-uvicorn-access-log": True,
    }
    if share is not None:
        given["gpu-memory-utilization"] = share
    if model.context:
        given["max-model-len"] = model.context
    if model.lora_slots:
        given |= {"enable-lora": True, "max-lora-rank": model.max_lora_rank}
        given |= {"max-loras": model.lora_slots, "max-cpu-loras": model.lora_slots}
    return [executable, "serve", model.base, *_words(given | checked_options(model.options))]


def own_command(model: ServedModel, host: str, port: int) -> list[str]:
    """The command of `workers.model_server`."""
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "served-model-name": model.name,
        "dtype": model.dtype,
    }
    given |= {
        "max-model-len": model.context,
        "max-loras": model.lora_slots,
        "max-lora-rank": model.max_lora_rank,
    }
    options = checked_options(model.options, OWN_OPTIONS)
    return [sys.executable, "-m", "workers.model_server", model.base, *_words(given | options)]


def _words(given: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in given.items()
        for word in ([f"--{name}"] if value is True else [f"--{name}", f"{value}"])
    ]


def reason(lines: Iterable[str]) -> str:
    """Why its last start ended, from its last lines: the error, and what to do about it. Lines that
    begin with `MARK` are ours. "" if it wrote nothing.
    """
    log = list(lines)
    begun = max(
        (at for at, line in enumerate(log) if line.startswith(f"{MARK} started")), default=0
    )
    written = [line for line in log[begun:] if not line.startswith(MARK)]
    ending = " ".join(line.strip(f"{MARK} ") for line in log[begun + 1 :] if line.startswith(MARK))
    found = cause(written)
    if not found.text:
        return ""
    for of in (ending, found.text if found.kind == "error" else ""):
        if advice := next((advice for pattern, advice in ADVICE if re.search(pattern, of)), None):
            return f"{advice} It said: {found.text}"
    if found.kind == "error":
        return found.text
    ending = f" ({ending})" if ending else ""
    return f"Its last lines do not contain the cause{ending}. It said: {found.text}"
