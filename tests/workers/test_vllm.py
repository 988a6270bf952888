"""vLLM's command, its options, and what its log says."""

from __future__ import annotations

from typing import Any

import pytest

from workers.lib.memory import free_memory
from workers.lib.specs import ServedModel
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
    assert reason(lines) == "ERROR ValueError: boom"


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


def test_a_log_that_nobody_foresaw() -> None:
    assert reason([]) == "" and reason(["  ", "bye"]) == "bye"
    assert reason(["RuntimeError: engine is gone", "bye"]) == "RuntimeError: engine is gone"


def test_a_line_is_shown_without_colours_and_control_characters() -> None:
    assert printable(b"\x1b[1;32mINFO\x1b[0m a\x07b\xff") == "INFO a\ufffdb\ufffd"
    assert len(printable(b"x" * 10_000)) == 401
