"""vLLM's command, its options, and what its log says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from workers.lib.memory import free_memory
from workers.lib.specs.serve import ServedModel
from workers.lib.tailed import printable
from workers.lib.vllm import (
    OPTIONS,
    checked_options,
    command,
    read_options,
    reason,
    utilization,
    write_options,
)


def test_the_command() -> None:
    model = ServedModel(
        base="/m",
        name="n",
        lora_slots=2,
        max_lora_rank=16,
        context=512,
        options={"max-num-seqs": 8, "enforce-eager": True},
    )
    words = command("/bin/vllm", model, "127.0.0.1", 8100)
    assert words[:3] == ["/bin/vllm", "serve", "/m"]
    text = " ".join(words)
    for part in (
        "--port 8100",
        "--served-model-name n",
        "--max-model-len 512",
        "--enable-lora --max-lora-rank 16 --max-loras 2",
        "--logprobs-mode processed_logprobs",
        "--max-cpu-loras 2",
        "--max-num-seqs 8",
        "--enforce-eager",
        "--generation-config vllm",
    ):
        assert part in text, part
    bare = " ".join(command("/bin/vllm", ServedModel(base="/m", name="n"), "127.0.0.1", 1))
    assert "lora" not in bare and "max-model-len" not in bare


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"trust-remote-code": True}, "cannot be set here"),
        ({"chat-template": "/etc/passwd"}, "cannot be set here"),
        ({"host": "0.0.0.0"}, "cannot be set here"),
        ({"api-key": "x"}, "cannot be set here"),
        ({"enforce-eager": "yes"}, "takes no value"),
        ({"max-num-seqs": "many"}, "whole number"),
        ({"max-num-seqs": 1.5}, "whole number"),
        ({"max-num-seqs": True}, "whole number"),
        ({"max-num-seqs": 0}, "from 1 to"),
        ({"gpu-memory-utilization": 2}, "from 0.01 to 1"),
        ({"gpu-memory-utilization": float("nan")}, "from 0.01 to 1"),
        ({"tool-call-parser": "../x"}, "takes a name"),
        ({"tool-call-parser": "a b"}, "takes a name"),
        ({"tool-call-parser": "a\n"}, "takes a name"),
        ({"tool-call-parser": 3}, "takes a name"),
        (dict.fromkeys(map(str, range(21)), True), "At most 20"),
    ],
)
def test_options_that_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked_options(given)


def test_options_are_read_as_they_are_written() -> None:
    options = {
        "enforce-eager": True,
        "gpu-memory-utilization": 0.9,
        "max-num-seqs": 64,
        "tool-call-parser": "hermes",
    }
    assert read_options(write_options(options)) == options
    assert (
        read_options(
            "--max-num-seqs=64\n\n--enforce-eager\n tool-call-parser"
            " hermes\ngpu-memory-utilization 0.9"
        )
        == options
    )
    assert read_options("") == {} and len(OPTIONS) > 10


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "ValueError: No available memory for the cache blocks.",
            "lower it, or raise gpu-memory-utilization",
        ),
        (
            (
                "ValueError: Free memory on device (3.2/23.5 GiB) on startup is less than desired"
                " GPU memory utilization (0.92, 21.6 GiB)."
            ),
            "set gpu-memory-utilization below the free share",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "Memory ran out"),
        (
            (
                "ValueError: User-specified max_model_len (9) is greater than the derived"
                " max_model_len"
            ),
            "shorter context length",
        ),
        ("vllm: error: unrecognized arguments: --x", "does not accept one of the options"),
        ("OSError: [Errno 98] Address already in use", "The port is in use"),
        ("ModuleNotFoundError: No module named 'x'", "make vllm"),
    ],
)
def test_the_log_says_why_and_what_to_do(line: str, advice: str) -> None:
    found = reason(
        [
            "INFO 11-22 13:00:00 [x.py:1] starting",
            f"(EngineCore pid=7) ERROR 11-22 13:00:01 [core.py:9] {line}",
            "bye",
        ]
    )
    assert advice in found and line in found and "EngineCore" not in found


def test_a_line_that_points_at_another_one_is_no_reason() -> None:
    lines = [
        "ERROR ValueError: boom",
        (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core"
            " proc(s): {}"
        ),
    ]
    assert reason(lines) == "ValueError: boom"


@pytest.mark.parametrize(
    ("free", "total", "share"),
    [(24, 24, None), (23.5, 24, None), (12, 24, 0.45), (4, 24, 0.15), (143_771, 143_771, None)],
)
def test_a_machine_that_others_use_is_shared(
    free: float, total: float, share: float | None
) -> None:
    assert utilization(free, total) == share
    words = command("/opt/vllm", ServedModel(name="m", base="/models/m"), "127.0.0.1", 8000, share)
    assert ("--gpu-memory-utilization" in words) == (share is not None)
    own = ServedModel(name="m", base="/models/m", options={"gpu-memory-utilization": 0.3})
    assert "0.3" in command("/opt/vllm", own, "127.0.0.1", 8000, share)


def test_a_full_machine_is_named() -> None:
    with pytest.raises(ValueError, match="Only 2% of the memory"):
        utilization(0.5, 24)
    free, total = free_memory()
    assert 0 < free <= total


@pytest.mark.parametrize(
    ("rows", "visible", "share"),
    [
        ("20, 40\n5, 40", None, 5 / 40),
        ("0, 0\n20, 40", None, 20 / 40),
        ("0, 0", None, None),
        ("[N/A], [N/A]", None, None),
        ("nan, 40", None, None),
        ("5, 40, 3", None, None),
        ("", None, None),
        ("20, 40", "", None),
        ("20, 40", "0", 20 / 40),
    ],
)
def test_a_device_whose_memory_is_unknown_is_not_measured(
    rows: str, visible: str | None, share: float | None, tmp_path: Path, monkeypatch: Any
) -> None:
    """None: the machine's memory is measured instead."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{rows}\n'")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    free, total = free_memory()
    assert (free / total == share) if share is not None else total > 2**20
    assert utilization(0, 0) is utilization(1, 0) is utilization(float("nan"), 80) is None
    with pytest.raises(ValueError, match="Only 0%"):
        utilization(-1, 80)


POINTS = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
FRAME = '  File "/opt/vllm/x.py", line 1, in run'


def logged(process: str, level: str, *lines: str) -> list[str]:
    """As vLLM's processes write them."""
    return [f"({process} pid=7) {level} 11-22 13:00:01 [core.py:9] {line}" for line in lines]


def raised(error: str, *code: str) -> list[str]:
    return ["Traceback (most recent call last):", FRAME, *(code or ["    run()"]), error]


HANDLING = "During handling of the above exception, another exception occurred:"
FROM = "The above exception was the direct cause of the following exception:"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param([], "", id="empty"),
        pytest.param(
            ["RuntimeError: engine is gone", "bye"], "RuntimeError: engine is gone", id="1"
        ),
        pytest.param(
            ["  ", "bye"], "Its last lines do not contain the cause. It said: bye", id="no error"
        ),
        pytest.param(
            [POINTS],
            f"Its last lines do not contain the cause. It said: {POINTS}",
            id="pointer",
        ),
        pytest.param(
            [
                "OSError: [Errno 28] No space left on device",
                "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
            ],
            "OSError: [Errno 28] No space left on device",
            id="another pointer",
        ),
        pytest.param(
            [
                *logged("EngineCore", "ERROR", "It failed to start.", *raised("KeyError: 'w'")),
                *(f"(APIServer pid=1) {line}" for line in raised(POINTS)),
            ],
            "KeyError: 'w'",
            id="two processes",
        ),
        pytest.param(
            [
                line
                for pair in zip(
                    logged("Worker_TP1", "ERROR", *raised("OSError: disk")),
                    logged("Worker_TP0", "ERROR", *raised("OSError: disc")),
                    strict=True,
                )
                for line in pair
            ],
            "OSError: disk",
            id="two processes at once",
        ),
        pytest.param(
            logged("EngineCore", "ERROR", FRAME, "    run()", "app.BadConfig: no rope")
            + raised("ValueError: gone"),
            "app.BadConfig: no rope",
            id="the beginning was cut off",
        ),
        pytest.param(
            ["\x1b[0;36m(Core pid=9)\x1b[0;0m ERROR 11-29 08:00:01 [core.py:1] KeyError: 'x'"],
            "KeyError: 'x'",
            id="colours",
        ),
        pytest.param(
            [
                "INFO 11-29 08:00:01 [x.py:1] Free memory on device cuda:0: 139 GiB",
                "KeyError: 'foo'",
            ],
            "KeyError: 'foo'",
            id="information is no cause",
        ),
        pytest.param(
            [
                "WARNING 11-29 08:00:01 [x.py:1] FlashInfer not supported for this",
                "ValueError: tokenizer broken",
            ],
            "ValueError: tokenizer broken",
            id="nor a warning",
        ),
        pytest.param(
            [
                "INFO: CUDA out of memory is avoided",
                "[W1129 08:00:01.1 a.cpp:3] Error: a",
            ],
            "Its last lines do not contain the cause. It said: Error: a",
            id="nor two of them",
        ),
        pytest.param(
            [*logged("EngineCore", "WARNING", *raised("ImportError: flash")), "ValueError: b"],
            "ValueError: b",
            id="nor the traceback of a warning",
        ),
        pytest.param(
            ["Exception ignored in: <function A.__del__>", *raised("TypeError: a"), "OSError: b"],
            "OSError: b",
            id="nor one that Python ignored",
        ),
        pytest.param(
            [*raised("KeyError: 'qwen9'"), HANDLING, *raised("ValueError: unknown type qwen9")],
            "KeyError: 'qwen9' → ValueError: unknown type qwen9",
            id="raised while another was handled",
        ),
        pytest.param(
            [*raised("OSError: gated repo"), FROM, *raised("RuntimeError: cannot load")],
            "OSError: gated repo",
            id="raised from another",
        ),
        pytest.param(
            [
                "  + Exception Group Traceback (most recent call last):",
                f"  | {FRAME}",
                "  | ExceptionGroup: failed (1 sub-exception)",
                "  +-+---------------- 1 ----------------",
                "    | Traceback (most recent call last):",
                f"    | {FRAME}",
                "    | OSError: port",
            ],
            "OSError: port",
            id="an exception group",
        ),
        pytest.param(
            [
                "pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "  Value error, Model architectures ['A'] are not supported for now.",
                "    For further information visit https://errors.pydantic.dev/2/v/value_error",
            ],
            "This vLLM does not support this model or option. It said: pydantic_core.Validation"
            "Error: 1 validation error for ModelConfig Value error, Model architectures ['A'] are"
            " not supported for now.",
            id="a message of several lines",
        ),
        pytest.param(
            [
                '{"level": "error", "msg": "ValueError: boom"}',
                '{"level": "info", "msg": "a"}',
            ],
            "ValueError: boom",
            id="JSON",
        ),
        pytest.param(
            ["2026-11-29 08:00:01.123 | ERROR    | app.engine:run:12 - OSError: boom"],
            "OSError: boom",
            id="loguru",
        ),
        pytest.param(
            ["2026-11-29 08:00:01,123 - app.engine - ERROR - OSError: boom", "INFO:app:bye"],
            "OSError: boom",
            id="Python",
        ),
        pytest.param(
            ["ERROR:    model folder is empty", "INFO:     Application shutdown"],
            "model folder is empty",
            id="an error without an exception",
        ),
        pytest.param(
            ["terminate called after throwing an instance of 'c10::Error'", "nanobind: leaked 2"],
            "terminate called after throwing an instance of 'c10::Error'",
            id="C++",
        ),
        pytest.param(
            [
                "terminate called after throwing an instance of 'c10::Error'",
                "  what():  boom",
                "Exception raised from load at /src/load.cpp:12 (most recent call first):",
                "frame #0: c10::Error::Error(c10::SourceLocation) + 0x98 (0x7f in /x/libc10.so)",
                "Aborted (core dumped)",
            ],
            "boom",
            id="the message of an exception in C++",
        ),
        pytest.param(
            [
                "thread 'main' panicked at src/loader.rs:12:40:",
                "called `Result::unwrap()` on an `Err` value: boom",
                "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
                "fatal runtime error: aborting",
            ],
            "called `Result::unwrap()` on an `Err` value: boom",
            id="a panic in Rust",
        ),
        pytest.param(
            [
                "— started at 1 —",
                "KeyError: 'old'",
                "— it ended with status 1 —",
                "— started at 2 —",
                "OSError: new",
                "— it ended with status 1 —",
            ],
            "OSError: new",
            id="the last start",
        ),
        pytest.param(
            [
                "— started at 1 —",
                "INFO 11-22 13:00:00 [x.py:1] load",
                "— it ended with status 137 —",
            ],
            "It was killed: perhaps memory ran out on that machine. It said: load",
            id="killed",
        ),
        pytest.param(
            ["— started at 1 —", "INFO 11-22 13:00:00 [x.py:1] load", "— no answer for 9 s —"],
            "Its last lines do not contain the cause (no answer for 9 s). It said: load",
            id="silent",
        ),
        pytest.param(["— started at 1 —", "— it ended with status 1 —"], "", id="nothing written"),
    ],
)
def test_the_cause_is_quoted_and_not_what_stands_beside_it(lines: list[str], says: str) -> None:
    assert reason(lines) == says


def test_a_line_is_shown_without_colours_and_control_characters() -> None:
    assert printable(b"\x1b[1;32mINFO\x1b[0m a\x07b\xff") == "INFO a\ufffdb\ufffd"
    assert printable(b"\x1b[?25l\x1b]0;title\x07\x1b(Ba\x1b[K") == "a"
    assert len(printable(b"x" * 10_000)) == 401
