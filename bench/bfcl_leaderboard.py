"""The leaderboard's own verdicts: JSON lines in, one verdict a line out. Run by the Python that has
`bfcl-eval`.

Only the table of models is replaced, by one model whose function names stay as they are: the real
one imports the client of every provider. The checker itself is used as it is installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import types

table = types.ModuleType("bfcl_eval.constants.model_config")
table.MODEL_CONFIG_MAPPING = {"bench": types.SimpleNamespace(underscore_to_dot=False)}
sys.modules[table.__name__] = table

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402


def verdict(row: dict) -> dict:
    """{"valid", "why"}: arguments that are no JSON object fail in the leaderboard's decoder, before
    its checker.
    """
    try:
        made = [{name: json.loads(text)} for name, text in row["calls"]]
    except ValueError as error:
        made = None
        why = f"decoder: {error}"
    if row["category"] == "irrelevance":  # right where nothing was decoded, or nothing was called
        return {"valid": not made, "why": "" if not made else "a function was called"}
    if made is None:
        return {"valid": False, "why": why}
    try:
        language = Language(row.get("language", "python"))
        found = ast_checker(
            row["functions"], made, row["ground_truth"], language, row["category"], "bench"
        )
    except Exception as error:  # the leaderboard counts what its checker cannot take as wrong
        return {"valid": False, "why": f"checker raised {type(error).__name__}: {error}"}
    return {
        "valid": found["valid"],
        "why": "" if found["valid"] else f"{found['error_type']}: {str(found['error'])[:300]}",
    }


def whole(row: dict) -> dict:
    """The verdict, and whether a wrong parallel answer is right with its calls in the opposite
    order.
    """
    found = verdict(row)
    turned = (
        not found["valid"]
        and row["category"] == "parallel"
        and verdict(row | {"calls": row["calls"][::-1]})["valid"]
    )
    return found | {"right_turned_round": turned}


def main() -> None:
    print(json.dumps({"bfcl-eval": importlib.metadata.version("bfcl-eval")}))
    for line in sys.stdin:
        print(json.dumps(whole(json.loads(line))))


if __name__ == "__main__":
    main()
