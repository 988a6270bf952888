"""What differs between two versions of an environment. Pure but for the rows it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator

from apps.core.diffing import changed_lines
from apps.environments.models import Environment
from workers.lib.environments.packages.files import text_of

CONTEXT = 2


def content_of(environment: Environment) -> str:
    """All that the hash is of, as JSON lines."""
    shown = {
        "kind": environment.kind,
        "builtin": environment.builtin,
        "verifier": {"name": str(environment.verifier), "spec": environment.verifier.spec},
        "harness": environment.harness,
        "config": environment.config,
        "dataset": environment.dataset,
    }
    return json.dumps(shown, ensure_ascii=False, indent=2, sort_keys=True)


def code_of(environment: Environment) -> str:
    """The files of a package as text, each below its name; "" for other kinds."""
    files = environment.package.files if environment.package else {}
    return "".join(f"\n\n{path}\n{text_of(content)}" for path, content in sorted(files.items()))


def changes(older: Environment, newer: Environment) -> Iterator[tuple[str, str]]:
    """(kind, line) as `changed_lines` has them, of all that the hash is of."""
    before, now = content_of(older) + code_of(older), content_of(newer) + code_of(newer)
    return changed_lines(before.split("\n"), now.split("\n"), CONTEXT)
