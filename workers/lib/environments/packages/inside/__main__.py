"""Started as `python -I inside ROOT FOLDER NAME`: answers requests about one package over the
original stdin and stdout.

In both directions a message is four bytes of length, big endian, and JSON (workers.lib.framed).
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time

LOOKS_EVERY_S = 1.0


def end_with(parent: int) -> None:
    """End this process when its parent ends, even while the package's code runs forever. The
    kernel's parent-death signal would not do: it is sent when the thread that started this process
    ends, and request threads end with their request.
    """
    while os.getppid() == parent:
        time.sleep(LOOKS_EVERY_S)
    os._exit(0)


def exactly(handle: int, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        piece = os.read(handle, count - len(parts))
        if not piece:
            os._exit(0)
        parts += piece
    return parts


def main() -> None:
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    root, folder, name = sys.argv[1:]
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (
        0,
        1,
        2,
    ):  # what the package prints, even below Python, must not be taken for messages
        os.dup2(nowhere, number)
    sys.path[:0] = [root, os.path.dirname(os.path.abspath(__file__))]  # noqa: PTH100, PTH120
    import driver

    made: list = []

    def one() -> driver.Driver:
        if not made:
            made.append(driver.Driver(folder, name))
        return made[0]

    me = os.getpid()
    while True:
        request = json.loads(exactly(incoming, struct.unpack(">I", exactly(incoming, 4))[0]))
        body = json.dumps(driver.answered(one, request["op"], request["payload"])).encode()
        if (
            os.getpid() != me
        ):  # the package's code has forked: two processes would answer the same request
            os._exit(0)
        data = struct.pack(">I", len(body)) + body
        while data:
            data = data[os.write(outgoing, data) :]


main()
