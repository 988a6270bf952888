"""`python send_result.py [FOLDER]`: sends an adapter back to Flywheel, with its metrics. Standard
library only.

Needs FLYWHEEL_API_KEY with the scope `manage`, of the project that this folder was exported from.
Sends the newest adapter_model.safetensors in FOLDER; by default, it looks in `result` and
`checkpoints` here.
"""

import json
import os
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent


def newest(folders):
    found = [path for folder in folders for path in Path(folder).rglob("adapter_model.safetensors")]
    if not found:
        raise SystemExit(
            f"No adapter_model.safetensors below {', '.join(map(str, folders))}. Name the folder"
            " that holds it."
        )
    return max(found, key=lambda path: path.stat().st_mtime).parent


def main(argv):
    adapter = newest(argv or [HERE / "result", HERE / "checkpoints"])
    files = {
        "manifest": HERE / "manifest.json",
        "config": adapter / "adapter_config.json",
        "weights": adapter / "adapter_model.safetensors",
        "metrics": HERE / "metrics.jsonl",
    }
    body, kind = multipart({name: path for name, path in files.items() if path.is_file()})
    environment = json.loads((HERE / "environment.json").read_text(encoding="utf-8"))
    server = os.environ.get("FLYWHEEL_URL", environment["server"]).rstrip("/")
    headers = {
        "Content-Type": kind,
        "Authorization": f"Bearer {os.environ.get('FLYWHEEL_API_KEY', '')}",
    }
    request = urllib.request.Request(f"{server}/api/v1/training-runs/import/", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            print("Registered:", json.load(answer)["model_version"])
    except urllib.error.HTTPError as error:
        raise SystemExit(
            f"Flywheel refused it ({error.code}): {error.read(2000).decode(errors='replace')}"
        ) from error


def multipart(files):
    """(body, content type) of a form with these files."""
    boundary = uuid.uuid4().hex
    parts = b"".join(part(name, path, boundary) for name, path in files.items())
    return parts + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def part(name, path, boundary):
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{path.name}"\r\n'
    )
    return (
        head.encode()
        + b"Content-Type: application/octet-stream\r\n\r\n"
        + path.read_bytes()
        + b"\r\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
