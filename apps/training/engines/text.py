"""Text in other languages (YAML, TOML, shell), written so that no name or text of a task can escape
its context. Pure.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import yaml

from workers.lib.storable import storable

BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def as_yaml(value: Any) -> bytes:
    """ASCII with escapes: as Unicode, PyYAML writes U+0085 so that it is read as a space."""
    return yaml.safe_dump(value, sort_keys=False, width=120).encode()


def as_toml(table: dict[str, Any]) -> bytes:
    """Tables, lists of tables, and plain values; None is left out."""
    return "\n".join(_table(table, ())).strip().encode() + b"\n"


def _table(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {
        name: value for name, value in table.items() if value is not None and not _is_table(value)
    }
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    for name, value in table.items():
        here = (*path, name)
        for one in (
            value
            if isinstance(value, list) and _is_table(value)
            else [value]
            if isinstance(value, dict)
            else []
        ):
            head = ".".join(map(_key, here))
            lines += [
                "",
                f"[[{head}]]" if isinstance(value, list) else f"[{head}]",
                *_table(one, here),
            ]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)
    )


def _key(name: str) -> str:
    return name if BARE.match(name) else _value(name)


def _value(value: Any) -> str:
    """TOML's strings are JSON's, without surrogates and with DEL escaped."""
    if isinstance(value, str):
        clean = value.encode("utf-8", "replace").decode()
        return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def command(*words: Any, **options: Any) -> str:
    """One shell command, one word per line; every word is quoted. `options` become `name=value`
    words.
    """
    given = [*words, *(f"{name}={value}" for name, value in options.items())]
    return " \\\n  ".join(shlex.quote(storable(str(word), "")) for word in given)


def script(*parts: str, needs_key: bool) -> bytes:
    """A bash script that stops at the first error, in its own folder, with the base model at
    `model`.
    """
    lines = [
        "#!/usr/bin/env bash",
        "# Written by Flywheel. README.md says what it needs.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        'export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"',
        'if [ -n "${MODEL:-}" ]; then ln -sfn "$MODEL" model; fi',
        (
            'if [ ! -e model/config.json ]; then echo "Put the base model into the folder model, or'
            ' name it: MODEL=/path ./launch.sh" >&2; exit 2; fi'
        ),
    ]
    if needs_key:
        lines.append(
            ': "${FLYWHEEL_API_KEY:?Set it to an API key of the project with the scope evaluate}"'
        )
    return ("\n".join([*lines, *parts]) + "\n").encode()
