"""While a program (`python -m workers.…`) imports torch and the like, the garbage collector runs seldom: it took a fifth of that time."""

import gc
import sys

_IS_PROGRAM, _USUAL = sys.argv[:1] == ["-m"], gc.get_threshold()


def put_off_garbage_collection() -> None:
    if _IS_PROGRAM:
        gc.set_threshold(100_000, 50, 100)


def is_imported() -> None:
    """Called once a program has what it starts with: that stays, and from now on the garbage collector runs as usual, past it."""
    if _IS_PROGRAM:
        gc.freeze()
        gc.set_threshold(*_USUAL)
