"""The forked child: runs a program as `__main__`, or calls a function and sends back its result."""

from __future__ import annotations

import os
import sys
import traceback
from json import dumps
from types import ModuleType

DETAILS = 4_000


def details() -> str:
    """The end of the current error's traceback."""
    return traceback.format_exc(limit=-8)[-DETAILS:]


def own_module(name: str) -> dict:
    """The namespace of a new module with this name, in which the code runs: dataclasses, pickle and
    type hints look names up there.
    """
    module = sys.modules[name] = ModuleType(name)
    module.__dict__["__builtins__"] = __builtins__
    return module.__dict__


def call(request: dict) -> dict:
    """{"value": JSON} of a function in the source, or {"error": text, "kind": name of the
    exception}.
    """
    try:
        names = own_module("grader")
        exec(compile(request["source"], "grader.py", "exec"), names)
        function = names.get(request["function"])
        if not callable(function):
            raise NameError(f"the source has no function “{request['function']}”")
        value = function(*request["arguments"])
        dumps(value)
        return {"value": value}
    except BaseException as error:
        return {"error": details(), "kind": type(error).__name__}


def run(request: dict) -> tuple[int, str]:
    """(exit code, what stopped the program: "ok", "memory" or "processes"); exits as Python itself
    would.
    """
    watched = {"started": False}
    sys.addaudithook(lambda event, _: watched.update(started=True) if event in STARTS else None)
    code, reason = 0, "ok"
    try:
        exec(compile(request["source"], "main.py", "exec"), own_module("__main__"))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        if isinstance(error, MemoryError):
            reason = "memory"
        elif watched["started"] and isinstance(error, PermissionError | BlockingIOError):
            reason = "processes"
        traceback.print_exc()
    _finish()
    return code, reason


STARTS = {
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.exec",
    "os.system",
    "subprocess.Popen",
    "pty.spawn",
}


def _finish() -> None:
    """Wait for threads and run exit functions, as at the end of any program."""
    import atexit

    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def answer(request: dict, channel: int, nonce: bytes) -> None:
    """Handle the request and send nonce + JSON on the channel, once. Never returns."""
    code = 0
    try:
        if request["mode"] == "call":
            result = call(request)
        else:
            code, reason = run(request)
            result = {"code": code, "reason": reason}
        data = nonce + dumps(result).encode()
        while data:
            data = data[os.write(channel, data) :]
    finally:
        os._exit(code & 0xFF)
