"""The job on a Ray cluster: puts the base model where launch.sh expects it, trains, and sends the
adapter to Flywheel.

Standard library only. FLYWHEEL_RUN_TOKEN is valid for this run's base model and for one result.
FLYWHEEL_BASES names a folder that contains the base model; otherwise the model is downloaded once
per node into ~/.cache/flywheel.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import send_result

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600


def request(path, body=None, headers=None):
    environment = json.loads((HERE / "environment.json").read_text(encoding="utf-8"))
    server = os.environ.get("FLYWHEEL_URL", environment["server"]).rstrip("/")
    run = json.loads((HERE / "base.json").read_text(encoding="utf-8"))["run"]
    given = {"Authorization": f"Bearer {os.environ.get('FLYWHEEL_RUN_TOKEN', '')}"} | (
        headers or {}
    )
    return urllib.request.Request(f"{server}/api/v1/training-runs/{run}/{path}", body, given)


def base_model():
    """The folder of the base model on this node."""
    base = json.loads((HERE / "base.json").read_text(encoding="utf-8"))
    if os.environ.get("FLYWHEEL_BASES"):
        found = Path(os.environ["FLYWHEEL_BASES"]) / base["folder"]
        if not (found / "config.json").is_file():
            raise SystemExit(
                f"The base model is missing on this node: there is no {found}/config.json."
            )
        return found
    home = (
        Path(os.environ.get("FLYWHEEL_CACHE") or Path.home() / ".cache" / "flywheel")
        / base["digest"]
    )
    if not home.is_dir():
        download(base["files"], home)
    return home


def download(files, home):
    """The folder is complete or absent, since other jobs may download it at the same time."""
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=home.parent))
    for file in files:
        print(f"Downloading {file['path']} ({file['size'] / 2**20:.0f} MiB)", flush=True)
        target = beside / file["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(request(f"base/{file['path']}"), timeout=TIMEOUT_S) as answer,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(answer, out)
        if target.stat().st_size != file["size"]:
            raise SystemExit(f"{file['path']} came incomplete. Start the run again.")
    try:
        beside.rename(home)
    except OSError:
        shutil.rmtree(beside)
        if not home.is_dir():
            raise


def send():
    adapter = send_result.newest([HERE / "result", HERE / "checkpoints"])
    body, kind = send_result.multipart(
        {
            "config": adapter / "adapter_config.json",
            "weights": adapter / "adapter_model.safetensors",
        }
    )
    with urllib.request.urlopen(
        request("result/", body, {"Content-Type": kind}), timeout=TIMEOUT_S
    ) as answer:
        answer.read()
    print("The adapter is with Flywheel.", flush=True)


def main():
    try:
        model = base_model()
        status = subprocess.call(
            ["bash", "launch.sh"], cwd=HERE, env=os.environ | {"MODEL": str(model)}
        )
        if status:
            raise SystemExit(f"The training ended with status {status}.")
        send()
    except urllib.error.HTTPError as error:
        raise SystemExit(
            f"Flywheel refused it ({error.code}): {error.read(500).decode(errors='replace')}"
        ) from error
    except urllib.error.URLError as error:
        raise SystemExit(f"Flywheel cannot be reached from this node: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
