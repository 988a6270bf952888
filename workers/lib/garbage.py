"""Makes the garbage collector run rarely while a program (`python -m workers.…`) imports torch and
other large libraries, where it took a fifth of the time.
"""

import gc
import sys

_IS_PROGRAM, _USUAL = sys.argv[:1] == ["-m"], gc.get_threshold()


def put_off_garbage_collection() -> None:
    if _IS_PROGRAM:
        gc.set_threshold(100_000, 50, 100)


def is_imported() -> None:
    """Call this when a program has imported what it needs. The garbage collector runs as usual from
    then on, but skips the objects that exist now, which stay alive anyway.
    """
    if _IS_PROGRAM:
        gc.freeze()
        gc.set_threshold(*_USUAL)
