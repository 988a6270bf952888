"""How many requests in other words are found to be the same, and how many other wishes are not.

`python -m bench.same_requests DATA [--show]`: DATA is the folder with `tau_bench/`. Each row of
`data/same_requests.jsonl` puts a request of tau-bench (airline) in other words or another language,
gives it another customer's identifiers, or words another wish alike. It is compared with the
requests of all tasks in the file, once with the changes that should result known, as in an episode,
and once without, as in a rubric.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.evals.effects import effects_of
from apps.evals.proposals.alike import likest

if TYPE_CHECKING:
    from apps.evals.proposals.same import Request

ROWS = Path(__file__).parent / "data" / "same_requests.jsonl"
RUNS = "gpt-4o-airline-trials-0-1.json"
UNKNOWN: dict[str, Any] = {}


def expected_of(actions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    effects = effects_of([])
    calls = [{"tool": item["name"], "args": item["kwargs"]} for item in actions]
    return {"calls": [call for call in calls if not effects.is_lookup(call["tool"])], "lookups": []}


def expected_in(row: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    if row["as"] == "other":
        return {"calls": row["calls"], "lookups": []}
    text = json.dumps(original)
    for mine, theirs in row.get("ids", {}).items():
        text = text.replace(mine, theirs)
    return json.loads(text)


def found_for(request: Request, others: dict[int, Request], of: int) -> str:
    certain = [task for task, other in others.items() if request.is_same(other)]
    if certain:
        return "merged" if of in certain else "merged with another"
    like = likest(request.wish, ((task, other.wish) for task, other in others.items()))
    if like is None:
        return "new"
    return "suggested" if like[0] == of else "another suggested"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--show", action="store_true", help="each row")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from apps.evals.proposals.same import Request

    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    runs: dict[int, dict[str, Any]] = {}
    for run in json.loads((options.data / "tau_bench" / RUNS).read_text()):
        runs.setdefault(run["task_id"], run)
    users, truth = {}, {}
    for task in {row["of"] for row in rows}:
        users[task] = [turn for turn in runs[task]["traj"] if turn["role"] == "user"]
        truth[task] = expected_of(runs[task]["info"]["task"]["actions"])
    for is_known in (True, False):
        others = {
            task: Request(f"task {task}", said, truth[task] if is_known else UNKNOWN, {})
            for task, said in users.items()
        }
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            said = [{"role": "user", "content": row["text"]}]
            expected = expected_in(row, truth[row["of"]]) if is_known else UNKNOWN
            found = found_for(Request("new", said, expected, {}), others, row["of"])
            counts[row["as"]][found] += 1
            if options.show:
                print(f"{row['of']:>3} {row['as']:<10}{found:<18}{row['text'][:80]}")
        print("changes known" if is_known else "changes unknown")
        for kind, tally in counts.items():
            print(f"  {kind:<10}{dict(tally)}")


if __name__ == "__main__":
    main()
