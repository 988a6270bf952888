"""Which commands may begin an installation. All others refuse where there is none: a command that
was given without its environment would begin a second one, empty, in the default folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from flywheel import embedded, places
from flywheel.embedded import Layout, ServiceError

BEGIN = {"up", "demo", "prepare", "migrate"}
BEGIN_WHERE_NAMED = {"restore"}  # into an empty folder or database


def require_installation(command: str) -> None:
    """Raises ServiceError if the command would begin an installation and is not meant to."""
    if command in BEGIN or exists():
        return
    if command not in BEGIN_WHERE_NAMED:
        whether = "" if _is_named() else " (FLYWHEEL_DATA_DIR is not set)"
        raise ServiceError(
            f"There is no installation in {places.data_dir()}{whether}. Name the folder of yours"
            " with FLYWHEEL_DATA_DIR, or its database and broker with DATABASE_URL and BROKER_URL;"
            f" start a new installation with “{places.COMMAND} up”."
        )
    if not _is_named() and embedded.wants_postgres():
        raise ServiceError(
            f"“{places.COMMAND} {command}” needs to know where to begin an installation"
            " (FLYWHEEL_DATA_DIR is not set). Name an empty folder with FLYWHEEL_DATA_DIR, or an"
            " empty database with DATABASE_URL."
        )


def note_default_folder(command: str) -> None:
    """Says which installation a command works on, where nothing named one."""
    if command not in BEGIN and embedded.wants_postgres() and not _is_named():
        print(f"Using {places.data_dir()} (FLYWHEEL_DATA_DIR is not set).", file=sys.stderr)


def leave_nothing() -> None:
    """For a command that uses no installation: where there is none, no key is kept for one."""
    if not exists():
        os.environ.setdefault("SECRET_KEY", secrets.token_urlsafe(50))


def _is_named() -> bool:
    return bool(os.environ.get("FLYWHEEL_DATA_DIR"))


def exists() -> bool:
    """Whether the embedded services that are wanted have run in the data folder before. Raises
    ServiceError for a folder of somebody else.
    """
    layout = Layout.of(places.data_dir())
    needed = [layout.postgres] if embedded.wants_postgres() else []
    needed += [layout.broker] if embedded.wants_broker() else []
    try:
        return all(folder.exists() for folder in needed)
    except PermissionError as error:
        raise ServiceError(
            f"The data folder {layout.data} cannot be read: {error.strerror}. Give the command as"
            " the user that Flywheel runs as."
        ) from error


def described() -> str:
    """Where the installation is that this process works on."""
    from django.db import connection

    folder = f"the data folder {places.data_dir()}"
    if embedded.wants_postgres():
        return folder
    given = connection.get_connection_params()
    where = given.get("host") or "localhost"
    return f"the database {given.get('dbname')} on {where}:{given.get('port') or 5432}, {folder}"


@contextlib.contextmanager
def removed_if_failed() -> Iterator[None]:
    """A command that fails leaves nothing in a data folder that was missing or empty before."""
    layout = Layout.of(places.data_dir())
    folders = [layout.data, layout.home, layout.run.parent]
    begun = [folder for folder in dict.fromkeys(folders) if not folder.exists()]
    emptied = [folder for folder in dict.fromkeys(folders) if is_empty(folder)]
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, SystemExit) and not error.code):
            embedded.stop_unused()
            if not embedded.in_use(layout):
                remove(begun, emptied)
        raise


def is_empty(folder: Path) -> bool:
    return folder.exists() and not any(folder.iterdir())


def remove(folders: list[Path], contents_of: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for path in [path for folder in contents_of for path in folder.iterdir()]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
