"""Java and JavaScript values and `live_relevance` against BFCL's own checker, on the data that its
package carries.

`python -m bench.bfcl_languages CHECKER_PYTHON [--seed 1]`; the Python is one with `bfcl-eval` in it
(bench.bfcl). Every right value is written in the language in several ways, then made wrong; both
verdicts are compared.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apps.evals.formats.bfcl import read
from apps.evals.formats.rows import TaskRow
from bench.failures import console, share, table, told
from bench.peers import HOME
from workers.lib.messages import to_native
from workers.lib.verifiers import Rollout, build

CATEGORIES = {"simple_java": "java", "simple_javascript": "javascript"}
WHERE = "import bfcl_eval, pathlib; print(pathlib.Path(bfcl_eval.__file__).parent / 'data')"


def written(value: Any, kind: str, items: str | None, language: str, way: int) -> str:
    """A right value as the language writes it; a text where a collection is meant is a variable."""
    java = language == "java"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        parts = [literal(item, items, language) for item in value]
        if not java:
            return f"new Array({', '.join(parts)})" if way == 1 else f"[{', '.join(parts)}]"
        if kind == "ArrayList":
            adds = " ".join(f"add({part});" for part in parts)
            return (
                f"new ArrayList<Object>() {{{{ {adds} }}}}"
                if way == 1
                else f"new ArrayList<>(Arrays.asList({', '.join(parts)}))"
            )
        return f"new Object[]{{{', '.join(parts)}}}"
    if isinstance(value, dict):
        pairs = {
            name: literal(options[0], None, language)
            for name, options in value.items()
            if options[0] != ""
        }
        if java:
            return (
                "new HashMap<String, Object>() {{"
                f" {' '.join(f'put({chr(34)}{name}{chr(34)}, {item});' for name, item in pairs.items())}"  # noqa: E501
                " }}"
            )
        quote = "'" if way == 1 else '"'
        return (
            "{" + ", ".join(f"{quote}{name}{quote}: {item}" for name, item in pairs.items()) + "}"
        )
    if kind == "String" and not java:
        return f"'{value}'" if way == 1 else f'"{value}"'
    if kind in ("long", "Bigint") and isinstance(value, int):
        return f"{value}{'L' if kind == 'long' else 'n'}"
    return f"{value}f" if kind == "float" and java and not isinstance(value, str) else str(value)


def literal(value: Any, items: str | None, language: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if items in (None, "String", "any") else value
    if isinstance(value, list | dict):
        return written(
            value, "ArrayList" if isinstance(value, list) else "HashMap", None, language, 0
        )
    return f"{value}L" if items == "long" else str(value)


WRONG = {
    "native": lambda text, value: value,
    "as a text": lambda text, value: f'"{text}"',
    "longer": lambda text, value: text + "1",
    "other suffix": lambda text, value: text + "L",
    "empty": lambda text, value: "",
    "null": lambda text, value: "null",
    "JSON": lambda text, value: json.dumps(value),
    "spaces": lambda text, value: f" {text} ",
}


def answers(
    record: dict, truth: dict, language: str, chance: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, arguments): right in two ways of writing, then one argument wrong in each way."""
    properties = record["function"][0]["parameters"]["properties"]
    [accepted] = truth.values()
    right = {}
    for way in (0, 1):
        made = {}
        for name, values in accepted.items():
            schema = properties[name]
            value = chance.choice(values)
            if value != "":
                made[name] = written(
                    value, schema["type"], (schema.get("items") or {}).get("type"), language, way
                )
                right[name] = value
        yield f"right, written {'one way' if way else 'the other way'}", made
    for kind, change in WRONG.items() if made else ():
        name = chance.choice(sorted(made))
        yield kind, made | {name: change(made[name], right[name])}


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checker_python")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    python, chance = chosen.checker_python, random.Random(chosen.seed)
    data = Path(
        subprocess.run(
            [python, "-c", WHERE], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    rows, ours, kinds, tasks = [], [], [], []
    calls = build({"kind": "calls"})
    for category, language in CATEGORIES.items():
        questions, key = (
            lines(data, f"BFCL_v4_{category}.json"),
            lines(data / "possible_answer", f"BFCL_v4_{category}.json"),
        )
        imported = {row.key: row for row in read(questions, key) if isinstance(row, TaskRow)}
        truths = {item["id"]: item["ground_truth"] for item in map(json.loads, key)}
        for record in map(json.loads, questions):
            if (
                row := imported.get(record["id"])
            ) is None:  # its answer is not in the form of the file
                continue
            [tool] = truths[record["id"]][0]
            for kind, arguments in answers(record, truths[record["id"]][0], language, chance):
                message = {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [to_native(tool, arguments)],
                }
                score = calls.score(Rollout({"expected": row.expected}, [message], row.tools))
                rows.append(
                    {
                        "category": category,
                        "language": language,
                        "functions": record["function"],
                        "ground_truth": truths[record["id"]],
                        "calls": [[tool, json.dumps(arguments)]],
                    }
                )
                ours.append(score)
                kinds.append(f"{language}: {kind}")
                tasks.append(record["id"])
    program = Path(__file__).with_name("bfcl_leaderboard.py")
    body = "\n".join(map(json.dumps, rows))
    done = subprocess.run(
        [python, "-P", program], input=body, capture_output=True, text=True, check=True, cwd=HOME
    )
    verdicts = [json.loads(line) for line in done.stdout.splitlines()[1:]]
    total, same, right = Counter(kinds), Counter(), Counter()
    for kind, score, verdict, row, name in zip(kinds, ours, verdicts, rows, tasks, strict=True):
        same[kind] += score.success == verdict["valid"]
        right[kind] += verdict["valid"]
        if score.success != verdict["valid"]:
            console.print(
                kind,
                name,
                "ours",
                score.success,
                score.details,
                verdict["why"][:160],
                row["calls"],
                markup=False,
            )
    table(
        "the same verdict",
        ["answer", "agree", "right by the leaderboard"],
        ([kind, told(share(same[kind], total[kind])), right[kind]] for kind in total),
    )
    console.print(f"all: {told(share(sum(same.values()), len(rows)))}")
    found = [
        row for row in read(lines(data, "BFCL_v4_live_relevance.json")) if isinstance(row, TaskRow)
    ]
    console.print(
        f"live_relevance: {len(found)} tasks,"
        f" {sum(row.expected == {'any_call': True} for row in found)} expect any call"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
