"""Compares mathematical answers for `workers.lib.maths`, one request at a time, within limits.
Never evaluates text as code.
"""

from __future__ import annotations

from workers.lib.helpers import serve
from workers.lib.maths.comparing import Comparison, check
from workers.lib.maths.reading import Unreadable, read, with_decimal_comma
from workers.lib.maths.undone import undone

MEMORY = 1 << 30  # bytes


def answer(request: dict) -> dict:
    """{"same"}, with {"undone"} for an equal answer that leaves operations to be done which the
    gold one does not; {} if only a gold answer was given; or {"gold" or "given": what cannot be
    parsed}.
    """
    try:
        gold = read(request["gold"])
        check(gold)
    except (Unreadable, RecursionError) as error:
        return {"gold": str(error)}
    if "given" not in request:
        return {}
    try:
        is_one = gold.kind == "value"
        given = read(with_decimal_comma(request["given"]) if is_one else request["given"])
        check(given)
    except (Unreadable, RecursionError) as error:
        return {"given": str(error)}
    try:
        if not Comparison(request["positive"]).same(gold, given):
            return {"same": False}
        left = sorted(undone(gold, given))
        return {"same": not left} | ({"undone": left} if left else {})
    except (Unreadable, RecursionError) as error:
        return {"given": str(error)}


if __name__ == "__main__":
    serve(answer, MEMORY, {"gold": "\\frac{1}{2}", "given": "x", "positive": False})
