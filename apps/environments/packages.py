"""Packages of environments (docs/own-environment.md): which there are, whether they work, and
versions made of them.
"""

from __future__ import annotations

import sys
import threading
import zipfile
from base64 import b64encode
from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

from django.conf import settings
from django.db import transaction

from apps.core.backups.parts import Part, Parts, of_folder
from apps.core.bus import on
from apps.core.models import Project
from apps.environments.actions import own_verifier, save_environment, save_verifier
from apps.environments.models import Environment, EnvironmentKind, Package, Verifier
from workers.lib.environments.packages import config_of
from workers.lib.environments.packages.checking import Checked, check, describe, tasks_of
from workers.lib.environments.packages.discovery import NAME, TAKEN, Found, discover, find
from workers.lib.environments.packages.files import (
    MAX_BYTES,
    MAX_FILES,
    Files,
    PackageProblem,
    digest_of,
    is_skipped,
)
from workers.lib.environments.packages.runners import runner_of
from workers.lib.environments.packages.template import new_package

MOST_CHECKED = 64
DATED = (2026, 1, 1, 0, 0, 0)

_checked: OrderedDict[tuple[str, str, bool], Checked] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Listed:
    """A package of this installation, and the newest version that a project has of it."""

    found: Found
    newest: Environment | None

    @property
    def is_current(self) -> bool:
        """Whether that version has the current code."""
        return self.newest is not None and self.newest.config.get("digest") == self.found.digest


def folder() -> Path:
    return Path(settings.FLYWHEEL_ENVIRONMENTS_DIR)


@on(Parts)
def operators_packages(question: Parts) -> Part:
    return of_folder("environments", folder())


def listed(project: Project) -> list[Listed]:
    """All packages of the installation. Runs none."""
    newest: dict[str, Environment] = {}
    for row in project.environments.filter(kind=EnvironmentKind.PACKAGE).order_by("version"):
        newest[row.config["package"]] = row
    return [Listed(found, newest.get(found.name)) for found in discover(folder())]


def checked(found: Found, *, again: bool = False) -> Checked:
    """The check results; cached by digest, unless `again`."""
    key = (found.name, found.digest, found.trusted)
    with _lock:
        if not again and found.digest and key in _checked:
            _checked.move_to_end(key)
            return _checked[key]
    done = check(found)
    with _lock:
        _checked[key] = done
        while len(_checked) > MOST_CHECKED:
            _checked.popitem(last=False)
    return done


@transaction.atomic
def save_package(
    *,
    project: Project,
    slug: str,
    found: Found,
    by: Any,
    verifier: Verifier | None = None,
    harness: dict | None = None,
    dataset: dict | None = None,
) -> Environment:
    """The version of an environment with this package's code: the existing one, or a new one.
    `verifier`: replaces its own.

    Raises PackageProblem if the package cannot be imported, SpecError.
    """
    described = describe(found)
    package, _ = Package.objects.get_or_create(
        project=project,
        name=found.name,
        digest=found.digest,
        defaults={"files": found.files, "created_by": by},
    )
    verifier = verifier or save_verifier(
        project=project,
        name=found.name.replace("_", "-"),
        spec=own_verifier(found.name, found.digest),
        by=by,
        note="Of the package",
    )
    own = {"system_prompt": described["system_prompt"], "max_turns": described["max_turns"]}
    harness = own | {
        name: value for name, value in (harness or {}).items() if value not in (None, "", [])
    }
    return save_environment(
        project=project,
        slug=slug,
        kind=EnvironmentKind.PACKAGE,
        harness=harness,
        verifier=verifier,
        by=by,
        package=package,
        config=config_of(found.name, found.digest, described, trusted=found.trusted),
        dataset=dataset,
    )


def found_of(name: str) -> Found:
    """An installed package. Raises PackageProblem."""
    return find(folder(), name)


def tasks_in(environment: Environment) -> list[dict]:
    """The tasks of a version's package, as `checking.task_of` gives them. Raises PackageProblem."""
    package, config = environment.package, environment.config
    if package is None:
        raise PackageProblem(
            f"{environment} is not a package, so it has no tasks of its own.",
            "Import tasks from a file.",
        )
    return tasks_of(
        runner_of(package.name, package.digest, package.files, trusted=bool(config.get("trusted")))
    )


# Packages that are sent


def uploaded(name: str, files: Files) -> Found:
    """A package that somebody sent: never trusted. Raises PackageProblem."""
    if not NAME.fullmatch(name):
        raise PackageProblem(
            f"“{name[:80]}” is not a valid package name.",
            "Use lowercase letters, digits and _, starting with a letter.",
        )
    if name in sys.stdlib_module_names:
        raise PackageProblem(TAKEN.format(name), "Rename the package.")
    if "__init__.py" not in files:
        raise PackageProblem(
            f"There is no {name}/__init__.py.",
            "Send the package's folder, or the project around it.",
        )
    if len(files) > MAX_FILES or sum(map(len, files.values())) * 3 // 4 > MAX_BYTES:
        raise PackageProblem(
            f"The package has more than {MAX_FILES} files or {MAX_BYTES // 2**20} MB.",
            "Keep what it needs to run.",
        )
    return Found(name, "uploaded", trusted=False, files=files, digest=digest_of(files))


def from_texts(name: str, texts: dict[str, str]) -> Found:
    """Of {path: text}. Raises PackageProblem."""
    for path in texts:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise PackageProblem(
                f"The file “{path[:200]}” would not lie in the package.",
                "Give paths below its folder.",
            )
    return uploaded(
        name,
        {
            path: b64encode(text.encode()).decode()
            for path, text in texts.items()
            if not is_skipped(PurePosixPath(path))
        },
    )


def from_zip(file: IO[bytes]) -> Found:
    """Of a zip of the project (NAME/NAME/__init__.py) or of the package alone (NAME/__init__.py).
    Raises PackageProblem.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return _unpacked(archive)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise PackageProblem(
            f"The zip file cannot be read: {error}.", "Zip the project's folder."
        ) from error


def _unpacked(archive: zipfile.ZipFile) -> Found:
    inits = [PurePosixPath(info.filename) for info in archive.infolist()]
    homes = [
        path.parent
        for path in inits
        if path.name == "__init__.py" and path.parent.name and path.parent.name != "tests"
    ]
    if not homes:
        raise PackageProblem(
            "There is no __init__.py in a folder of the zip.",
            "Zip the package's folder, or the project around it.",
        )
    depth = min(len(home.parts) for home in homes)
    tops = [home for home in homes if len(home.parts) == depth]
    if len(tops) > 1:
        raise PackageProblem(
            f"There are several packages: {', '.join(map(str, tops[:5]))}.", "Zip one."
        )
    files: Files = {}
    left = MAX_BYTES
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if info.is_dir() or tops[0] not in path.parents:
            continue
        inner = path.relative_to(tops[0])
        if ".." in inner.parts:
            raise PackageProblem(
                f"The file “{path}” leads out of the package.", "Zip its folder alone."
            )
        if is_skipped(inner):
            continue
        if len(files) >= MAX_FILES:
            raise PackageProblem(
                f"The package has more than {MAX_FILES} files.", "Keep what it needs to run."
            )
        with archive.open(info) as member:
            content = member.read(left + 1)
        left -= len(content)
        if left < 0:
            raise PackageProblem(
                f"The package has more than {MAX_BYTES // 2**20} MB.", "Keep what it needs to run."
            )
        files[str(inner)] = b64encode(content).decode()
    return uploaded(tops[0].name, files)


def zipped(name: str) -> bytes:
    """A new package as a zip. Raises PackageProblem for a name that cannot be one."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in new_package(name).items():
            archive.writestr(zipfile.ZipInfo(f"{name}/{path}", DATED), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
