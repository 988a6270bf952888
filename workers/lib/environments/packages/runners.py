"""Runs the code of a package, never in the calling process. An installed package runs in separate
processes, an untrusted one in the sandbox; both answer the same requests (inside/driver.py). A run
that takes too long, prints or exits affects only itself.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from workers.lib.environments.packages.files import Files, PackageProblem, write_files
from workers.lib.framed import Framed, Lost
from workers.lib.sandbox import CodeError, Limits, SandboxError, shared

INSIDE = Path(__file__).parent / "inside"
ROOT = Path(__file__).parents[4]
PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_OFFLINE",
)
START_S = 30.0  # for importing a package
AT_ONCE = 4  # processes per package
MOST_KEPT = 8  # packages whose processes are kept by one process
MEMORY = 512 << 20  # bytes for a run in the sandbox


class PackageFailed(PackageProblem):
    """A request that the package could not answer. `kind`: one of inside/driver.py; or time, killed
    or memory; or sandbox, if the sandbox itself is missing.
    """

    def __init__(self, kind: str, text: str, where: str = "") -> None:
        super().__init__(text, _advice(kind, text), where)
        self.kind = kind


ADVICE = {
    "import": "Fix the error.",
    "definition": "Change the definition as the sentence says.",
    "crash": "Fix the code, or the data that it reads.",
    "state": "Keep in the state only what JSON has: turn sets into lists, dates into text.",
    "score": "Return a finite number, or {“reward”: number, …}.",
    "time": "Make it faster, or set tool_seconds or verify_seconds of the class.",
    "killed": "It ended its own process: remove calls of exit, and what uses too much memory.",
    "memory": "Use less memory.",
    "sandbox": "See docs/sandbox.md.",
}
CRASH_OF_A_TOOL = "Fix the code, or raise flywheel_sdk.ToolError for what the agent did wrong."
MISSING_LIBRARY = (
    "Install the library where Flywheel's web and worker processes run, or correct the import."
)
UNTRUSTED_IMPORT = (
    "An untrusted package has the standard library alone. An operator may install it, or give the"
    " sandbox packages (FLYWHEEL_SANDBOX_PACKAGES)."
)


def _advice(kind: str, text: str) -> str:
    if "ModuleNotFoundError" in text:
        return MISSING_LIBRARY
    if kind == "crash" and text.startswith("The tool "):
        return CRASH_OF_A_TOOL
    return ADVICE.get(kind, "")


class Runner(Protocol):
    def ask(self, op: str, payload: dict, seconds: float) -> Any:
        """The result of the driver's method `op`. May be called from any thread. Raises
        PackageFailed.
        """

    printed: int  # characters that its code has printed so far


def value_of(answer: dict) -> Any:
    if error := answer.get("error"):
        raise PackageFailed(error["kind"], error["text"], error["where"])
    return answer["value"]


class Beside:
    """For an installed package: up to AT_ONCE warm processes, each with one request at a time."""

    def __init__(self, name: str, files: Files) -> None:
        self.name, self.files = name, files
        self.printed = 0
        self._home: Path | None = None
        self._idle: list[Framed] = []
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(AT_ONCE)
        self._pid = os.getpid()

    def ask(self, op: str, payload: dict, seconds: float) -> Any:
        with self._process() as process:
            if not getattr(
                process, "is_warm", False
            ):  # importing the package does not count towards the call's time
                described = self._answer(
                    process, "describe", {}, max(START_S, seconds if op == "describe" else 0)
                )
                process.is_warm = True  # type: ignore[attr-defined]
                if op == "describe" or "error" in described:
                    return value_of(described)
            return value_of(self._answer(process, op, payload, seconds))

    def _answer(self, process: Framed, op: str, payload: dict, seconds: float) -> dict:
        try:
            answer = process.send({"op": op, "payload": payload}, seconds)
        except Lost as error:
            process.close()
            if "in time" in str(error):
                raise PackageFailed(
                    "time", f"{_named(op, payload)} took longer than {seconds:g} s."
                ) from error
            raise PackageFailed(
                "killed", f"{_named(op, payload)} ended the process of the package ({error})."
            ) from error
        self.printed += answer.get("printed", 0)
        return answer

    @contextmanager
    def _process(self) -> Iterator[Framed]:
        with self._places:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None or process.process.poll() is not None:
                process = self._started()
            try:
                yield process
            finally:
                if process.process.poll() is None:
                    with self._lock:
                        self._idle.append(process)

    def _started(self) -> Framed:
        with self._lock:
            if self._home is None:
                self._home = Path(tempfile.mkdtemp(prefix="flywheel-package-"))
                write_files(self.files, self._home / self.name)
        command = [
            sys.executable,
            "-I",
            str(INSIDE),
            str(ROOT),
            str(self._home / self.name),
            self.name,
        ]
        env = {name: os.environ[name] for name in PASSED if name in os.environ}
        return Framed(command, env=env | {"PYTHONDONTWRITEBYTECODE": "1"}, cwd=str(self._home))

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            idle, self._idle, home, self._home = self._idle, [], self._home, None
        for process in idle:
            process.close()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)


class Apart:
    """For a package that is not trusted: each request is a run of the sandbox, without network and
    with limits.
    """

    def __init__(self, name: str, files: Files) -> None:
        self.name, self.files = name, files
        self.printed = 0

    def ask(self, op: str, payload: dict, seconds: float) -> Any:
        driver, sdk = sources()
        limits = Limits(seconds=seconds, memory=MEMORY)
        try:
            answer = shared().call(
                driver, "apart", [sdk, self.files, self.name, op, payload], limits=limits
            )
        except SandboxError as error:
            raise PackageFailed("sandbox", str(error)) from error
        except CodeError as error:
            raise PackageFailed(*_ended(error, op, payload, seconds)) from error
        self.printed += answer.get("printed", 0)
        try:
            return value_of(answer)
        except PackageFailed as failed:
            if "ModuleNotFoundError" in failed.text:
                failed.do = UNTRUSTED_IMPORT
            raise

    def close(self) -> None:
        """Nothing is kept between runs."""


@lru_cache(maxsize=1)
def sources() -> tuple[str, str]:
    """The source code of (driver, SDK), for a run of the sandbox."""
    return (INSIDE / "driver.py").read_text(), (ROOT / "flywheel_sdk.py").read_text()


def _named(op: str, payload: dict) -> str:
    return (
        f"The tool {payload['tool']}"
        if op == "call"
        else f"{op}()"
        if op != "describe"
        else "Importing the package"
    )


def _ended(error: CodeError, op: str, payload: dict, seconds: float) -> tuple[str, str]:
    named = _named(op, payload)
    if error.reason == "time":
        return "time", f"{named} took longer than {seconds:g} s."
    if error.reason in ("memory", "output"):
        return "memory", f"{named} used more {error.reason} than it may."
    return "killed", f"{named} ended its process ({error})."


_kept: OrderedDict[tuple[bool, str, str], Runner] = OrderedDict()
_lock = threading.Lock()


def runner_of(name: str, digest: str, files: Files, *, trusted: bool) -> Any:
    """The runner for exactly these files in this process; runners that were not used for longest
    are closed.
    """
    key = (
        trusted,
        name,
        digest,
    )  # includes the name: a renamed package imports its files under the new one
    with _lock:
        if key not in _kept:
            _kept[key] = Beside(name, files) if trusted else Apart(name, files)
        _kept.move_to_end(key)
        runner = _kept[key]
        over = [_kept.popitem(last=False)[1] for _ in range(len(_kept) - MOST_KEPT)]
    for one in over:
        one.close()  # type: ignore[attr-defined]
    return runner


@atexit.register
def close_all() -> None:
    with _lock:
        runners = list(_kept.values())
        _kept.clear()
    for runner in runners:
        runner.close()  # type: ignore[attr-defined]
