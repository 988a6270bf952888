"""What a Flywheel channel runs, pulled: kept on disk, verified, and served from there while
Flywheel is away. Standard library only.

    live = pull("production", "/var/cache/flywheel") live["prompt"], live["folder"]  # the prompt as
    JSON; the adapter as a PEFT folder, None where there is none live["stale"]                   #
    "", or why this is what an earlier call got

FLYWHEEL_URL and FLYWHEEL_API_KEY (scope read) say where from. Call it at the start and every minute
or so. `keep`, or by hand

    python pull.py production /var/cache/flywheel --keep 3

leaves that many adapters on disk: what the channel runs, and those that it ran last. Without it all
of them stay.
"""

import argparse
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

WRONG = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    RecursionError,
    http.client.HTTPException,
    tarfile.TarError,
)


def pull(channel, cache, keep=None):
    """Raises one of WRONG only where nothing whole is on disk yet. Several processes may share a
    cache. `keep`: at least 2 where a server may still load the version before."""
    home, stale = Path(cache) / channel, ""
    live = kept(home)
    headers = {"Authorization": f"Bearer {os.environ['FLYWHEEL_API_KEY']}"} | (
        {"If-None-Match": live["etag"]} if live else {}
    )
    try:
        with urlopen(
            Request(
                f"{os.environ['FLYWHEEL_URL'].rstrip('/')}/api/v1/channels/{channel}/",
                headers=headers,
            ),
            timeout=10,
        ) as answer:
            fresh = json.load(answer) | {"etag": answer.headers["ETag"]}
        if not is_whole(home, fresh):
            fetch(home, fresh)
        live = note(home, fresh)
    except WRONG as error:
        if live is None:
            raise
        if getattr(error, "code", None) != 304:
            stale = f"{type(error).__name__}: {error}"
            logging.warning(
                "Flywheel cannot be asked (%s); %s is served from %s.", stale, live["model"], home
            )
    if keep and not stale:
        with suppress(*WRONG):
            tidy(home, keep)
    return live | {
        "stale": stale,
        "folder": str(home / live["adapter"]) if live["adapter"] else None,
    }


def kept(home):
    """What an earlier call got; None where there is nothing, or it was damaged."""
    with suppress(*WRONG):
        live = json.loads((home / "live.json").read_text())
        if live["etag"] and is_whole(home, live):
            return live
    return None


def is_whole(home, live):
    """Every file is there with its SHA-256, and the list of files has the adapter's. Raises one of
    WRONG for what is no channel's answer.
    """
    live["model"], live["prompt"]
    listed = hashlib.sha256(
        json.dumps(live["files"], sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    paths = [(home / str(live["adapter"]) / file["path"], file["sha256"]) for file in live["files"]]
    return not live["adapter"] or (
        listed == live["adapter"] and all(p.is_file() and sha256(p) == right for p, right in paths)
    )


def sha256(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(home, live):
    """The archive, complete or not at all: only files that were announced, and only if they are
    what was announced.
    """
    home.mkdir(parents=True, exist_ok=True)
    sizes = {file["path"]: file["size"] for file in live["files"]} | {"README.md": 2**22}
    with (
        tempfile.TemporaryDirectory(dir=home) as made,
        urlopen(live["download"]["url"], timeout=60) as answer,
    ):
        folder = Path(made) / live["adapter"]
        with tarfile.open(fileobj=answer, mode="r|") as archive:
            for member in archive:
                path = Path(os.path.normpath(folder / member.name))
                if (
                    member.isfile()
                    and member.size <= sizes.get(member.name, -1)
                    and path.is_relative_to(os.path.normpath(folder))
                ):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.extractfile(member) as content, path.open("wb") as file:
                        shutil.copyfileobj(content, file)
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


def note(home, live):
    """Written under a name of its own and synced before it is the one that counts: a crash leaves
    the old one or the new one.
    """
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=home, prefix="live-", delete=False) as file:
        json.dump(live | {"download": None}, file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(home / "live.json")
    return live | {"download": None}


def tidy(home, keep):
    """Leaves `keep` adapters: never without what live.json names now, which another process may
    have written, then those used last.
    """
    current = json.loads((home / "live.json").read_text())["adapter"]
    if current:
        os.utime(home / current)
    adapters = [
        path
        for path in home.iterdir()
        if re.fullmatch("[0-9a-f]{64}", path.name) and path.name != current
    ]
    for folder in sorted(adapters, key=lambda path: path.stat().st_mtime, reverse=True)[
        max(0, keep - bool(current)) :
    ]:
        with tempfile.TemporaryDirectory(dir=home) as gone:  # so that nobody finds half of it
            folder.rename(Path(gone) / folder.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Pulls what a Flywheel channel runs, and prints it as JSON."
    )
    parser.add_argument("channel")
    parser.add_argument("cache")
    parser.add_argument(
        "--keep", type=int, help="how many adapters stay on disk, the current one among them"
    )
    given = parser.parse_args()
    print(json.dumps(pull(given.channel, given.cache, given.keep)))
