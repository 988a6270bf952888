"""Which revision of our own scoring code a verifier's scores come from. Light.

A spec does not change when the code that reads it does, so a revision is raised whenever a kind or
a place of the answer scores some output otherwise. It is part of the scorer: people then judge
scores of the present code before it trains.
"""

from __future__ import annotations

from typing import Any

REVISIONS = {
    "kind": {"math": 2, "number": 2},
    "answer_in": {"hashes": 2, "last_number": 2},
}
"""Those above 1, by the option that names them."""


def revisions(spec: Any) -> dict[str, int]:
    """The revisions above 1 that a spec uses, at any depth: {"math": 2}."""
    if isinstance(spec, dict):
        used = {
            name: known[name]
            for option, known in REVISIONS.items()
            if isinstance(name := spec.get(option), str) and name in known
        }
        return used | revisions(list(spec.values()))
    if isinstance(spec, list):
        return {name: revision for part in spec for name, revision in revisions(part).items()}
    return {}
