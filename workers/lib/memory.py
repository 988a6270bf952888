"""A process's peak memory, and which errors mean that memory ran out. Light: no torch."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NO_MORE = re.compile(
    r"out of memory|can't allocate memory|not enough memory|std::bad_alloc|cannot allocate memory",
    re.IGNORECASE,
)
ASKED = re.compile(r"tried to allocate ([\d.,]+) ?(bytes|KiB|MiB|GiB)", re.IGNORECASE)
UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def peak_memory() -> dict[str, int]:
    """{memory: the peak memory of this process in bytes, gpu_memory: that on the GPU, if it used
    one}.
    """
    found = {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found["gpu_memory"] = max(
            map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count()))
        )
    return found


def is_out_of_memory(error: BaseException) -> bool:
    """Also if a library has wrapped the error. torch has its own types, and reports it in a
    RuntimeError on the CPU.
    """
    return any(
        isinstance(one, MemoryError)
        or type(one).__name__ == "OutOfMemoryError"
        or (isinstance(one, OSError) and one.errno == errno.ENOMEM)
        or (isinstance(one, RuntimeError) and bool(NO_MORE.search(str(one))))
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def out_of_memory_sentence(error: BaseException) -> str:
    peak = peak_memory()
    had = f"{gigabytes(peak['memory'])} of memory" + (
        f" and {gigabytes(peak['gpu_memory'])} of the GPU’s" if "gpu_memory" in peak else ""
    )
    asked = next(filter(None, (ASKED.search(str(one)) for one in _chain(error))), None)
    more = f" and asked for {gigabytes(_bytes(*asked.groups()))} more" if asked else ""
    return f"The memory ran out: the process used up to {had}{more}."


def _bytes(number: str, unit: str) -> int:
    return int(float(number.replace(",", "").rstrip(".")) * UNITS[unit.lower()])


def gigabytes(count: float) -> str:
    """A size for a sentence: 5.1 GB, 640 MB."""
    return f"{count / 1e9:.1f} GB" if count >= 0.95e9 else f"{max(1, round(count / 1e6)):,} MB"


def kernel_kills() -> int | None:
    """The number of processes on this machine that the kernel has killed for lack of memory since
    it booted; None if unknown.
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None


def memory_limit() -> dict[str, int]:
    """{memory: bytes that processes here may use in total, available: bytes that are free now,
    including this process's own}.
    """
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    own = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    limits = [total, *_limits()]
    return {"memory": min(limits), "available": min(free + own, *limits)}


def _limits() -> list[int]:
    """The limits of the container and of the process, if there are any."""
    found = [resource.getrlimit(resource.RLIMIT_AS)[0]]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return [limit for limit in found if 0 < limit < 2**60]


def free_memory() -> tuple[float, float]:
    """(free, total) in one unit: of the visible GPU with the least free share, or of the machine
    without one.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # "": none
    query = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            query + ([f"--id={visible}"] if visible else []),
            capture_output=True,
            text=True,
            timeout=20,
        )
        lines = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
        rows = [
            (float(free), float(total))
            for free, total in lines
            if 0 <= float(free) <= float(total) > 0
        ]
        if done.returncode == 0 and rows and visible != "":
            return min(rows, key=lambda row: row[0] / row[1])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        pass
    limit = memory_limit()
    return float(limit["available"]), float(limit["memory"])
