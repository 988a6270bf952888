"""Records: writing them as JSON, finding things in many of them. Pure."""

from __future__ import annotations

import json
import random
from typing import Any

from apps.evals.capability.kinds.base import GOODS, LAST_LINE, NAMES, TOWNS, Made, number

STATES = ("open", "paid", "sent", "cancelled")


def json_record(rng: random.Random, level: int) -> Made:
    def person() -> dict[str, Any]:
        return {"name": rng.choice(NAMES), "age": rng.randint(20, 70), "town": rng.choice(TOWNS)}

    one = person()
    said = f"{one['name']} is {one['age']} years old and lives in {one['town']}."
    value: Any = one
    keys = "name, age (a number) and town"
    if level == 2:
        goods = rng.sample(GOODS, 3)
        value = one | {"likes": goods}
        said += f" {one['name']} likes {goods[0]}, {goods[1]} and {goods[2]}."
        keys += ", and likes, a list in this order"
    if level == 3:
        boss = person()
        value = {
            "name": one["name"],
            "age": one["age"],
            "town": one["town"],
            "manager": {"name": boss["name"], "town": boss["town"]},
        }
        said += (
            f" The manager of {one['name']} is {boss['name']} from {boss['town']}, aged"
            f" {boss['age']}."
        )
        keys += ", and manager, an object with name and town"
    if level >= 4:
        orders = [
            {"item": rng.choice(GOODS), "count": rng.randint(2, 40), "price": rng.randint(3, 90)}
            for _ in range(level)
        ]
        value = {
            "customer": one["name"],
            "orders": orders,
            "total": sum(row["count"] * row["price"] for row in orders),
        }
        said += " " + " ".join(
            f"{one['name']} ordered {row['count']} {row['item']} at {row['price']} euros each."
            for row in orders
        )
        keys = (
            "customer, orders (a list in the order of the text, each with item, count and price)"
            " and total (count times price, summed)"
        )
        if level == 5:
            value["largest"] = max(orders, key=lambda row: row["count"] * row["price"])["item"]
            value["phone"] = None
            keys += (
                ", largest (the item of the order worth the most) and phone (null where the text"
                " does not say it)"
            )
    request = f"{said} Answer with one JSON object with the keys {keys}, and nothing else."
    right = json.dumps(value, ensure_ascii=False)
    return Made(
        request, {"constraint": {"json": value}}, right, right.replace(str(one["name"]), "Zoe")
    )


def extraction(rng: random.Random, level: int) -> Made:
    rows = [
        {
            "id": 1000 + at * 7 + rng.randrange(7),
            "name": rng.choice(NAMES[:8]),
            "town": rng.choice(TOWNS[:6]),
            "count": rng.randint(2, 98),
            "state": rng.choice(STATES),
        }
        for at in range((3, 6, 12, 24, 40)[level - 1])
    ]
    rng.shuffle(rows)
    table = "\n".join(
        "order {id} | {name} | {town} | {count} pieces | {state}".format(**row) for row in rows
    )
    one = rng.choice(rows)
    if level == 1:
        other = next(town for town in TOWNS if town != one["town"])
        return Made(
            f"{table}\nTo which town does order {one['id']} go? {LAST_LINE}",
            {"answer": [one["town"]]},
            one["town"],
            other,
        )
    same = [row for row in rows if row["town"] == one["town"]]
    if level == 2:
        return number(f"{table}\nHow many orders go to {one['town']}?", len(same))
    if level == 3:
        return number(
            f"{table}\nHow many pieces go to {one['town']} in all?",
            sum(row["count"] for row in same),
        )
    left = [row for row in same if row["state"] != "cancelled"]
    if level == 4:
        return number(
            f"{table}\nHow many pieces go to {one['town']} in all, cancelled orders left out?",
            sum(row["count"] for row in left),
        )
    totals = {
        name: sum(
            row["count"] for row in rows if row["name"] == name and row["state"] != "cancelled"
        )
        for name in NAMES[:8]
    }
    most = max(totals.values())
    return number(
        f"{table}\nFor each person add up the pieces of all orders that are not cancelled. What is"
        " the largest of these sums?",
        most,
    )
