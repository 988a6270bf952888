"""The GPUs of this machine, without torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
ASKED_S = 20


def has_gpu() -> bool:
    return any(path.exists() for path in DEVICES)


def gpus() -> list[dict[str, Any]]:
    """[{name, memory_mb}] of those that this process may use; [] where nvidia-smi is absent or does
    not answer.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    chosen = [f"--id={visible}"] if visible else []
    try:
        done = subprocess.run([*query, *chosen], capture_output=True, text=True, timeout=ASKED_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return read(done.stdout) if done.returncode == 0 else []


def read(text: str) -> list[dict[str, Any]]:
    """Lines such as “NVIDIA H200, 143771”."""
    rows = (line.rpartition(",") for line in text.splitlines() if line.strip())
    return [
        {"name": name.strip(), "memory_mb": int(float(memory))}
        for name, _, memory in rows
        if memory.strip().replace(".", "", 1).isdigit()
    ]
