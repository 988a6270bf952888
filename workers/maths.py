"""Compares mathematical answers for `workers.lib.maths`, one request at a time, within limits.
Never evaluates text as code.

The kernel ends the process if a request exceeds its CPU time: no Python code runs during arithmetic
with huge numbers that could stop it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from workers.lib.garbage import is_imported
from workers.lib.maths import CPU_SECONDS, MEMORY
from workers.lib.maths.comparing import Comparison, check
from workers.lib.maths.reading import Unreadable, read, with_decimal_comma
from workers.lib.maths.undone import undone


def answer(request: dict) -> dict:
    """{"same"}, with {"undone"} for an equal answer that leaves operations to be done which the
    gold one does not; {} if only a gold answer was given; or {"gold" or "given": what cannot be
    parsed}.
    """
    try:
        gold = read(request["gold"])
        check(gold)
    except (Unreadable, RecursionError) as error:
        return {"gold": str(error)}
    if "given" not in request:
        return {}
    try:
        is_one = gold.kind == "value"
        given = read(with_decimal_comma(request["given"]) if is_one else request["given"])
        check(given)
    except (Unreadable, RecursionError) as error:
        return {"given": str(error)}
    try:
        if not Comparison(request["positive"]).same(gold, given):
            return {"same": False}
        left = sorted(undone(gold, given))
        return {"same": not left} | ({"undone": left} if left else {})
    except (Unreadable, RecursionError) as error:
        return {"given": str(error)}


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    seconds = float(os.environ.get("FLYWHEEL_MATHS_CPU_SECONDS", CPU_SECONDS))
    while head := source.read(4):
        request = json.loads(source.read(struct.unpack(">I", head)[0]))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            found: dict[str, Any] = answer(request)
        except MemoryError:
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        body = json.dumps(found).encode()
        sink.write(struct.pack(">I", len(body)) + body)
        sink.flush()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries' output must not be mistaken for an answer
    answer({"gold": "\\frac{1}{2}", "given": "x", "positive": False})  # builds the parser's tables
    is_imported()
    serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
