"""Whether this machine has a GPU, without torch."""

from pathlib import Path

DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def has_gpu() -> bool:
    return any(path.exists() for path in DEVICES)
