"""Our bounded JSON Schema on the official test suite. `python -m bench.json_schema SUITE [--all]`.

SUITE is a checkout of github.com/json-schema-org/JSON-Schema-Test-Suite. Formats are asserted,
which the suite has as an option: its tests that a format is ignored are left out. Tests whose
schema we refuse to run (references to other addresses, dialects of the suite's own) are counted
apart.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.failures import console, table
from workers.lib.errors import SpecError
from workers.lib.json_schema import JsonSchema, TooMuch

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
IGNORED_FORMATS = ("format.json", "optional/format-assertion.json", "optional/format/unknown.json")
KINDS = ("required", "optional", "formats")


def cases(suite: Path, draft: str) -> Iterator[tuple[str, str, object, dict]]:
    """(kind, where, schema, test) of all tests of a draft."""
    folder = suite / "tests" / draft
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        if name in IGNORED_FORMATS:
            continue
        kind = "formats" if "format/" in name else "optional" if "optional" in name else "required"
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft]} | schema
            for test in group["tests"]:
                yield (
                    kind,
                    f"{draft}/{name}: {group['description']}: {test['description']}",
                    schema,
                    test,
                )


def verdict(schema: object, test: dict) -> str:
    """right, wrong or refused."""
    try:
        fits = not JsonSchema(schema).problems(test["data"])
    except (SpecError, TooMuch):
        return "refused"
    return "right" if fits == test["valid"] else "wrong"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--all", action="store_true", help="name each test that is not right")
    chosen = parser.parse_args()
    counts: Counter[tuple[str, str, str]] = Counter()
    for draft in DRAFTS:
        for kind, where, schema, test in cases(chosen.suite, draft):
            found = verdict(schema, test)
            counts[draft, kind, found] += 1
            if chosen.all and found != "right":
                console.print(found, where, markup=False)
    columns = [(kind, found) for kind in KINDS for found in ("right", "wrong", "refused")]
    table(
        "JSON-Schema-Test-Suite",
        ["", *(f"{kind}: {found}" for kind, found in columns)],
        (
            [draft, *(str(counts[draft, kind, found]) for kind, found in columns)]
            for draft in DRAFTS
        ),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
