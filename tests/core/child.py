"""A stand-in for a training program in tests of the job's way: writes the events of docs/jobs.md on
request.

Its first argument is a script: a list of [event, fields] and of the words "die", "hang",
"stubborn", "sleep".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

script, spec = (json.loads(Path(path).read_text()) for path in sys.argv[1:])
fd = int(os.environ["FLYWHEEL_EVENTS_FD"])
seq = 0


def emit(type: str, **fields: object) -> None:
    global seq
    seq = fields.pop("seq", seq + 1)  # type: ignore[assignment]
    os.write(
        fd,
        json.dumps({"type": type, "seq": seq, "at": "2026-01-01T00:00:00+00:00", **fields}).encode()
        + b"\n",
    )


def finish(**more: object) -> None:
    adapter = Path(spec["out_dir"]) / "adapter"
    adapter.mkdir(parents=True, exist_ok=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")  # no tensors
    emit("result", adapter=str(adapter), metrics={}, **more)


def save(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"step": step}))
    emit("checkpoint", step=step, path=str(folder))


for what in script:
    if what == "die":
        time.sleep(0.3)  # the runner stores what came before
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "die unless resumed":
        if not spec["resume_from"]:
            os.kill(os.getpid(), signal.SIGKILL)
    elif what == "fail unless resumed":
        if not spec["resume_from"]:
            emit("error", message="The disk is full.", traceback="")
            sys.exit(1)
    elif what == "hang":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        time.sleep(600)
    elif what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        emit("log", level="info", message="I do not listen")
        time.sleep(600)
    elif what == "checkpoint":
        folder = Path(spec["out_dir"]) / "checkpoint-1"
        save(folder, 1)
    elif what[0] == "checkpoint at":
        folder = Path(spec["out_dir"]) / f"checkpoint-{what[1]}"
        save(folder, what[1])
    elif what == "resumed from":
        emit("log", level="info", message=str(spec["resume_from"]))
    elif what == "finish":
        finish()
    elif what[0] == "finish with":
        finish(**what[1])
    elif what == "exit 143":
        sys.exit(143)
    elif what == "fail":
        emit(
            "error",
            message="The disk is full. Free some space and start the job again.",
            traceback="",
        )
        sys.exit(1)
    elif what[0] == "raw":
        os.write(fd, what[1].encode() + b"\n")
        seq += 1
    elif what == "environment":
        emit("log", level="info", message=json.dumps(sorted(os.environ)))
    else:
        emit(what[0], **what[1])
