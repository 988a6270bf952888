"""For the soak (`--trace`): a part of `up` writes every so often where what it holds was allocated,
since the half of the days and in the last of them.
"""

import ctypes
import gc
import os
import sys
import threading
import time
from pathlib import Path

FRAMES, SHOWN = 12, 25
MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO)


def begin() -> None:
    """In a part that was just forked, which has no title yet."""
    if Path("/proc/self/comm").read_text() == "fw-forks\n":
        threading.Thread(target=trace, name="trace", daemon=True).start()


def trace() -> None:
    import tracemalloc

    time.sleep(2)
    part = Path("/proc/self/comm").read_text().strip().removeprefix("fw-")
    if part not in os.environ["FLYWHEEL_SOAK_TRACED"].split(","):
        return
    tracemalloc.start(FRAMES)
    path = Path(os.environ["FLYWHEEL_SOAK_TRACES"]) / f"{part}-{os.getpid()}.txt"
    last = None
    while True:
        time.sleep(float(os.environ["FLYWHEEL_SOAK_TRACED_S"]))
        taken = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
        )
        with path.open("a") as file:
            print(f"== {time.time():.0f} {state()}", file=file)
            if last is not None:
                for one in taken.compare_to(last, "traceback")[:SHOWN]:
                    print(f"{one.size_diff:+d} B, {one.count_diff:+d} blocks", file=file)
                    print("\n".join(one.traceback.format()), file=file)
        last = taken


def state() -> str:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo
    info = libc.mallinfo2()
    import tracemalloc

    return (
        f"traced {tracemalloc.get_traced_memory()[0] >> 10} KiB, blocks"
        f" {sys.getallocatedblocks()}, malloc in use {info.uordblks >> 10}, free"
        f" {info.fordblks >> 10}, mapped {info.hblkhd >> 10} KiB, gc {gc.get_count()}"
        f" {[one['collections'] for one in gc.get_stats()]}, objects {len(gc.get_objects())}"
    )


if "FLYWHEEL_SOAK_TRACES" in os.environ:
    os.register_at_fork(after_in_child=begin)
