"""What a Flywheel channel runs, pulled: kept on disk, verified, and served from there while Flywheel is away. Standard library only.

    live = pull("production", "/var/cache/flywheel")
    live["prompt"], live["folder"]  # the prompt as JSON; the adapter as a PEFT folder, None where there is none
    live["stale"]                   # "", or why this is what an earlier call got

FLYWHEEL_URL and FLYWHEEL_API_KEY (scope read) say where from. Call it at the start and every minute or so.
"""

import hashlib
import http.client
import json
import logging
import os
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

WRONG = (OSError, ValueError, TypeError, LookupError, RecursionError, http.client.HTTPException, tarfile.TarError)


def pull(channel, cache):
    """Raises one of WRONG only where nothing whole is on disk yet. Several processes may share a cache."""
    home, stale = Path(cache) / channel, ""
    live = kept(home)
    headers = {"Authorization": f"Bearer {os.environ['FLYWHEEL_API_KEY']}"} | (
        {"If-None-Match": live["etag"]} if live else {}
    )
    try:
        with urlopen(
            Request(f"{os.environ['FLYWHEEL_URL'].rstrip('/')}/api/v1/channels/{channel}/", headers=headers), timeout=10
        ) as answer:
            fresh = json.load(answer) | {"etag": answer.headers["ETag"]}
        if not is_whole(home, fresh):
            fetch(home, fresh)
        live = keep(home, fresh)
    except WRONG as error:
        if live is None:
            raise
        if getattr(error, "code", None) != 304:
            stale = f"{type(error).__name__}: {error}"
            logging.warning("Flywheel cannot be asked (%s); %s is served from %s.", stale, live["model"], home)
    return live | {"stale": stale, "folder": str(home / live["adapter"]) if live["adapter"] else None}


def kept(home):
    """What an earlier call got; None where there is nothing, or it was damaged."""
    with suppress(*WRONG):
        live = json.loads((home / "live.json").read_text())
        if live["etag"] and is_whole(home, live):
            return live
    return None


def is_whole(home, live):
    """Every file is there with its SHA-256, and the list of files has the adapter's. Raises one of WRONG for what is no channel's answer."""
    live["model"], live["prompt"]
    listed = hashlib.sha256(json.dumps(live["files"], sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    paths = [(home / str(live["adapter"]) / file["path"], file["sha256"]) for file in live["files"]]
    return not live["adapter"] or (
        listed == live["adapter"] and all(p.is_file() and sha256(p) == right for p, right in paths)
    )


def sha256(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(home, live):
    """The archive, complete or not at all: only files that were announced, and only if they are what was announced."""
    home.mkdir(parents=True, exist_ok=True)
    sizes = {file["path"]: file["size"] for file in live["files"]} | {"README.md": 2**22}
    with tempfile.TemporaryDirectory(dir=home) as made, urlopen(live["download"]["url"], timeout=60) as answer:
        folder = Path(made) / live["adapter"]
        with tarfile.open(fileobj=answer, mode="r|") as archive:
            for member in archive:
                if member.isfile() and member.size <= sizes.get(member.name, -1):
                    archive.extract(member, folder, filter="data")
        if not is_whole(Path(made), live):
            raise ValueError("the download is not what the channel announced")
        if is_whole(home, live):  # another process was first
            return
        with suppress(FileNotFoundError):
            (home / live["adapter"]).rename(Path(made) / "damaged")
        try:
            folder.rename(home / live["adapter"])
        except OSError:
            if not is_whole(home, live):
                raise


def keep(home, live):
    """Written under a name of its own and synced before it is the one that counts: a crash leaves the old one or the new one."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=home, prefix="live-", delete=False) as file:
        json.dump(live | {"download": None}, file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(home / "live.json")
    return live | {"download": None}
