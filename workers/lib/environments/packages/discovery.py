"""The packages of this installation: those in a folder, and those that installed distributions
register under the entry point group `flywheel.environments`. Looked up on each call; no package
code runs here.

A subfolder is a project: NAME/pyproject.toml next to NAME/NAME/__init__.py; or NAME/__init__.py
alone.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from workers.lib.environments.packages.files import Files, PackageProblem, digest_of, read_files
from workers.lib.environments.packages.runners import Runner, runner_of

GROUP = "flywheel.environments"
NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
TAKEN = (
    "The name {} is taken by Python's standard library, so imports of either would give the other."
)


@dataclass(frozen=True)
class Found:
    """One package, with its location and contents, or with the problem that makes it unusable."""

    name: str
    source: str  # where it was found, for people
    folder: Path | None = None  # the package's own folder
    project: Path | None = None  # the project folder with its tests, if there is one
    trusted: bool = True
    files: Files = field(default_factory=dict, repr=False)
    digest: str = ""
    problem: PackageProblem | None = None

    @property
    def runner(self) -> Runner:
        return runner_of(self.name, self.digest, self.files, trusted=self.trusted)


def discover(folder: Path) -> list[Found]:
    """All packages by name. Packages that cannot be read have a problem, and so do packages with
    the same name.
    """
    found = [read(one) for one in [*in_folder(folder), *installed()]]
    named = Counter(one.name for one in found)
    twice = {name for name, count in named.items() if count > 1}
    return sorted(
        (_taken(one, found) if one.name in twice else one for one in found),
        key=lambda one: (one.name, one.source),
    )


def find(folder: Path, name: str) -> Found:
    """The package of this name. Raises PackageProblem: there is none, or it cannot be read."""
    same = [one for one in discover(folder) if one.name == name]
    if not same:
        names = ", ".join(one.name for one in discover(folder)) or "none"
        raise PackageProblem(
            f"There is no package “{name}”. Packages: {names}.",
            f"Make it with manage.py new_environment, or put it into {folder}.",
        )
    if same[0].problem:
        raise same[0].problem
    return same[0]


def _taken(one: Found, found: list[Found]) -> Found:
    others = ", ".join(other.source for other in found if other.name == one.name)
    return replace(
        one,
        problem=PackageProblem(
            f"Several packages are named {one.name}: {others}.", "Rename or remove all but one."
        ),
    )


def in_folder(folder: Path) -> Iterator[Found]:
    for home in sorted(folder.iterdir()) if folder.is_dir() else ():
        if home.name.startswith((".", "_")) or not home.is_dir():
            continue
        inner = home / home.name
        has_inner = (inner / "__init__.py").is_file()
        package, project = (inner, home) if has_inner else (home, None)
        one = Found(home.name, str(home), package, project)
        if not NAME.fullmatch(home.name):
            one = replace(
                one,
                problem=PackageProblem(
                    f"“{home.name}” is not a valid package name.",
                    "Rename the folder: small letters, digits and _, a letter first.",
                ),
            )
        elif home.name in sys.stdlib_module_names:
            one = replace(
                one, problem=PackageProblem(TAKEN.format(home.name), "Rename the folder.")
            )
        elif not (package / "__init__.py").is_file():
            one = replace(
                one,
                problem=PackageProblem(
                    f"There is neither {home.name}/{home.name}/__init__.py nor"
                    f" {home.name}/__init__.py.",
                    "Make a package with manage.py new_environment, or remove the folder.",
                ),
            )
        yield one


def installed() -> Iterator[Found]:
    for point in entry_points(group=GROUP):
        yield _installed(point)


def _installed(point: EntryPoint) -> Found:
    """Find the folder without importing the package or a parent (so it must be a top-level
    package).
    """
    source = f"{point.dist.name} {point.dist.version}" if point.dist else "an installed package"
    module = point.value.partition(":")[0]
    one = Found(point.name, source)
    if not NAME.fullmatch(point.name) or "." in module:
        do = (
            f'[project.entry-points."{GROUP}"] needs NAME = "PACKAGE", both of small letters,'
            " digits and _."
        )
        return replace(
            one,
            problem=PackageProblem(
                f"Its entry point {point.name} = {point.value} is not of the right form.", do
            ),
        )
    try:
        spec = util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return replace(
            one, problem=PackageProblem(f"There is no package {module}.", "Install it again.")
        )
    return replace(one, folder=Path(next(iter(spec.submodule_search_locations))))


def read(one: Found) -> Found:
    """Read the files and whether the package is trusted."""
    if one.problem or one.folder is None:
        return one
    try:
        files = read_files(one.folder)
        return replace(
            one, files=files, digest=digest_of(files), trusted=not _is_marked(one.project)
        )
    except PackageProblem as problem:
        return replace(one, problem=problem)
    except OSError as error:
        return replace(
            one,
            problem=PackageProblem(
                f"It cannot be read: {error.strerror}.", f"Check the rights of {one.folder}."
            ),
        )


def _is_marked(project: Path | None) -> bool:
    """Whether pyproject.toml says `[tool.flywheel] untrusted = true`. Raises PackageProblem if it
    cannot be read.
    """
    path = project / "pyproject.toml" if project else None
    if path is None or not path.is_file():
        return False
    try:
        return bool(
            tomllib.loads(path.read_text())
            .get("tool", {})
            .get("flywheel", {})
            .get("untrusted", False)
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise PackageProblem(f"pyproject.toml cannot be read: {error}.", "Correct it.") from error
