"""The right tool among similar ones, with the right arguments; two calls in order from level 4 on.
Pure.
"""

from __future__ import annotations

import json
import random

from apps.evals.capability.kinds.base import GOODS, NAMES, TOWNS, Made

# name: (description, how a user asks for it, {argument: type}); {0} and {1} are the arguments in
# their order.
TOOLS: dict[str, tuple[str, str, dict[str, str]]] = {
    "weather.now": (
        "The weather at this moment",
        "Tell me what the weather is like in {0} right now",
        {"town": "string"},
    ),
    "weather.forecast": (
        "The weather of the next days",
        "I need the weather in {0} for the next {1} days",
        {"town": "string", "days": "integer"},
    ),
    "mail.send": (
        "Sends a mail",
        "Send {0} a mail with the subject {1}",
        {"to": "string", "subject": "string"},
    ),
    "mail.search": (
        "Finds mails of a sender",
        "Find the mails that {0} sent me",
        {"sender": "string"},
    ),
    "mail.delete": ("Deletes a mail", "Delete mail number {0}", {"id": "integer"}),
    "calendar.add": (
        "Adds an appointment",
        "Put a meeting with {0} in my calendar at {1} o'clock",
        {"with": "string", "hour": "integer"},
    ),
    "calendar.move": (
        "Moves an appointment",
        "Move appointment {0} to {1} o'clock",
        {"id": "integer", "hour": "integer"},
    ),
    "calendar.cancel": ("Cancels an appointment", "Cancel appointment {0}", {"id": "integer"}),
    "orders.create": (
        "Places an order",
        "Order {1} {0} for me",
        {"item": "string", "count": "integer"},
    ),
    "orders.status": ("The state of an order", "How far is order {0}", {"id": "integer"}),
    "orders.return": ("Returns an order", "I want to send order {0} back", {"id": "integer"}),
    "stock.count": (
        "How many of an item are there",
        "How many {0} do we have in stock",
        {"item": "string"},
    ),
    "stock.reserve": (
        "Reserves items",
        "Reserve {1} {0} from the stock",
        {"item": "string", "count": "integer"},
    ),
    "trains.find": ("Finds trains to a town", "Which trains go to {0}", {"town": "string"}),
    "trains.book": (
        "Books seats to a town",
        "Book {1} seats on the train to {0}",
        {"town": "string", "seats": "integer"},
    ),
    "hotels.book": (
        "Books hotel nights",
        "Book a hotel in {0} for {1} nights",
        {"town": "string", "nights": "integer"},
    ),
    "people.phone": (
        "A person's phone number",
        "What is the phone number of {0}",
        {"name": "string"},
    ),
    "people.invite": (
        "Invites a person to a project",
        "Invite {0} to project {1}",
        {"name": "string", "project": "integer"},
    ),
    "tickets.open": (
        "Opens a support ticket",
        "Open a ticket about the {0} with priority {1}",
        {"item": "string", "priority": "integer"},
    ),
    "tickets.close": ("Closes a support ticket", "Close ticket {0}", {"id": "integer"}),
}
VALUES = {
    "town": TOWNS,
    "to": NAMES,
    "sender": NAMES,
    "with": NAMES,
    "name": NAMES,
    "subject": GOODS,
    "item": GOODS,
}


def tool_choice(rng: random.Random, level: int) -> Made:
    shown = rng.sample(list(TOOLS), (2, 5, 9, 14, 20)[level - 1])
    chosen = rng.sample(shown, 2 if level >= 4 else 1)
    asked, calls = [], []
    for name in chosen:
        _, said, arguments = TOOLS[name]
        args = {
            argument: (
                rng.choice(VALUES[argument])
                if kind == "string"
                else (
                    rng.randint(2, 9)
                    if argument in ("days", "nights", "seats", "hour", "priority")
                    else rng.randint(10, 9999)
                )
            )
            for argument, kind in arguments.items()
        }
        asked.append(said.format(*args.values()))
        calls.append({"tool": name, "args": args})
    request = (
        f"{asked[0]}, please." if len(asked) == 1 else f"First: {asked[0]}. After that: {asked[1]}."
    )
    expected = calls[0] if len(calls) == 1 else {"calls": calls, "ordered": True}
    other = next(name for name in TOOLS if name not in chosen)
    wrong = [calls[0] | {"tool": other}, *calls[1:]]
    return Made(request, expected, _answer(calls), _answer(wrong), [_tool(name) for name in shown])


def _answer(calls: list[dict]) -> str:
    return json.dumps(calls[0] if len(calls) == 1 else calls)


def _tool(name: str) -> dict:
    description, _, arguments = TOOLS[name]
    properties = {argument: {"type": kind} for argument, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
