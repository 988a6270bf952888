"""Tasks for the made-up company: templates filled from its tables, with the correct calls.
`metadata.gold` is an episode that scores 1 and looks up what the request does not say; a task has
none if that takes more turns than available. Light: no torch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime

from workers.lib.environments.workplace_assistant.tables import (
    CALENDAR,
    CRM,
    DIRECTORY,
    EMAIL,
    MAX_TURNS,
    NOW,
    PRODUCTS,
    PROJECTS,
    SEED,
    SOURCES,
    STATUSES,
    VISITS,
    Tables,
    invented,
)

PER_TEMPLATE = 3
DRAWS = 10_000  # draws in a row without a new request, after which generation gives up
SYSTEM = (
    f"It is Thursday, {NOW[:10]}, {NOW[11:]}. You work for Brightfield and use the tools to do what"
    " you are asked. Meetings are between 09:00 and 18:00. Do what was asked and nothing more,"
    " then say in a sentence what you did."
)
Made = tuple[str, list[dict], list[dict]]
"""What is asked, the calls that look up what they need, the calls that are right."""


def _call(tool: str, **args: str | int) -> dict:
    return {"tool": tool, "args": args}


def _address_of(person: str) -> dict:
    return _call("company_directory_find_email_address", name=_name(person))


def _mails_of(person: str, count: int) -> dict:
    return _call("email_search_emails", query=_name(person), page_size=count)


def _name(address: str) -> str:
    return address.split(".")[0].title()


def _person(rng: random.Random, tables: Tables) -> str:
    return rng.choice(list(tables[DIRECTORY]))


def _reply(rng: random.Random, tables: Tables) -> Made:
    row = rng.choice(list(tables[EMAIL].values()))
    mine = [
        other
        for other in tables[EMAIL].values()
        if other["sender/recipient"] == row["sender/recipient"]
    ]
    last = max(mine, key=lambda other: other["sent_datetime"])
    text = rng.choice(("I will look at it on Monday.", "Fine with me.", "Please ask Linnea."))
    said = f"Answer the last mail from {_name(row['sender/recipient'])} with “{text}”"
    find = _mails_of(row["sender/recipient"], 1)
    return said, [find], [_call("email_reply_email", email_id=last["email_id"], body=text)]


def _delete_mails(rng: random.Random, tables: Tables) -> Made:
    person = _person(rng, tables)
    mine = [row for row in tables[EMAIL].values() if row["sender/recipient"] == person]
    newest = sorted(mine, key=lambda row: row["sent_datetime"])[-2:]
    said = f"Throw away the two newest mails from {_name(person)}."
    deleted = [_call("email_delete_email", email_id=row["email_id"]) for row in newest]
    return said, [_mails_of(person, 2)], deleted


def _forward(rng: random.Random, tables: Tables) -> Made:
    sender, to = rng.sample(list(tables[DIRECTORY]), 2)
    mine = [row for row in tables[EMAIL].values() if row["sender/recipient"] == sender]
    last = max(mine, key=lambda row: row["sent_datetime"])
    said = f"Forward the most recent mail of {_name(sender)} to {_name(to)}."
    find = [_mails_of(sender, 1), _address_of(to)]
    return said, find, [_call("email_forward_email", email_id=last["email_id"], recipient=to)]


def _rename(rng: random.Random, tables: Tables) -> Made:
    day = rng.choice(sorted({row["event_start"][:10] for row in tables[CALENDAR].values()}))
    last = max(
        (row for row in tables[CALENDAR].values() if row["event_start"][:10] == day),
        key=lambda row: row["event_start"],
    )
    name = rng.choice(("Planning for autumn", "Open questions", "Release check"))
    said = f"Rename my last event on {datetime.fromisoformat(day):%B %d} to {name}."
    change = {"event_id": last["event_id"], "field": "event_name", "new_value": name}
    span = {"time_min": f"{day} 00:00:00", "time_max": f"{day} 23:59:59"}
    return (
        said,
        [_call("calendar_search_events", **span, page_size=20)],
        [_call("calendar_update_event", **change)],
    )


def _meet(rng: random.Random, tables: Tables) -> Made:
    person, hour, length = _person(rng, tables), rng.randint(9, 16), rng.choice(("30", "60"))
    name = rng.choice(("Forecast", "Interview notes", "Office move"))
    said = f"Put a {length} minute meeting “{name}” with {_name(person)} at {hour}:00 tomorrow."
    start = f"2026-05-15 {hour:02d}:00:00"
    made = {
        "event_name": name,
        "participant_email": person,
        "event_start": start,
        "duration": length,
    }
    return said, [_address_of(person)], [_call("calendar_create_event", **made)]


def _hand_over(rng: random.Random, tables: Tables) -> Made:
    old, new, product = *rng.sample(list(tables[DIRECTORY]), 2), rng.choice(PRODUCTS)
    rows = [
        row
        for row in tables[CRM].values()
        if row["assigned_to_email"] == old and row["product_interest"] == product
    ]
    said = (
        f"{_name(new)} takes over all customers of {_name(old)} who are interested in"
        f" {product.lower()}."
    )
    change = {"field": "assigned_to_email", "new_value": new}
    find = _call(_SEARCH, assigned_to_email=_name(old), product_interest=product)
    return (
        said,
        [find, _address_of(new)],
        [_call(_UPDATE, customer_id=row["customer_id"], **change) for row in rows],
    )


_SEARCH = "customer_relationship_manager_search_customers"
_UPDATE = "customer_relationship_manager_update_customer"


def _status(rng: random.Random, tables: Tables) -> Made:
    row, status = rng.choice(list(tables[CRM].values())), rng.choice(STATUSES)
    said = f"Set the status of our customer {row['customer_name']} to {status}."
    find = _call(_SEARCH, customer_name=row["customer_name"])
    return (
        said,
        [find],
        [_call(_UPDATE, customer_id=row["customer_id"], field="status", new_value=status)],
    )


def _new_customer(rng: random.Random, tables: Tables) -> Made:
    person, product = _person(rng, tables), rng.choice(PRODUCTS)
    name = f"{rng.choice(('Kit', 'Lou', 'Max'))} {rng.choice(('Irons', 'Jasper', 'Knoll', 'Lark'))}"
    said = f"{name} is a new lead for {product.lower()}. Add them and give them to {_name(person)}."
    made = {
        "customer_name": name,
        "assigned_to_email": person,
        "status": "Lead",
        "product_interest": product,
    }
    return (
        said,
        [_address_of(person)],
        [_call("customer_relationship_manager_add_customer", **made)],
    )


def _finish(rng: random.Random, tables: Tables) -> Made:
    open_ones = [
        row for row in tables[PROJECTS].values() if row["list_name"] in ("In Progress", "In Review")
    ]
    row = rng.choice(open_ones)
    said = f"“{row['task_name']}” is done, move it to Completed."
    change = {"task_id": row["task_id"], "field": "list_name", "new_value": "Completed"}
    find = _call("project_management_search_tasks", task_name=row["task_name"])
    return said, [find], [_call("project_management_update_task", **change)]


def _plot(rng: random.Random, tables: Tables) -> Made:
    """What to plot depends on a count that has to be looked up."""
    source = rng.choice(SOURCES)
    since = rng.choice(("2026-05-01", "2026-05-04", "2026-04-20"))
    visits = [row for row in tables[VISITS].values() if row["date_of_visit"] >= since]
    parts, share = rng.choice(((4, "a quarter"), (6, "a sixth")))
    many = sum(row["traffic_source"] == source for row in visits) * parts > len(visits)
    said = (
        f"If more than {share} of our visits since {since} came by {source}, make a bar chart of"
        " these visits since then until today, else a line chart of all visits of that time."
    )
    value = f"visits_{source.replace(' ', '_')}" if many else "total_visits"
    made = {
        "time_min": since,
        "time_max": NOW[:10],
        "value_to_plot": value,
        "plot_type": "bar" if many else "line",
    }
    find = [
        _call("analytics_traffic_source_count", time_min=since, traffic_source=source),
        _call("analytics_total_visits_count", time_min=since),
    ]
    return said, find, [_call("analytics_create_plot", **made)]


TEMPLATES: dict[str, Callable[[random.Random, Tables], Made]] = {
    "email/reply": _reply,
    "email/delete": _delete_mails,
    "email/forward": _forward,
    "calendar/rename": _rename,
    "calendar/create": _meet,
    "customers/hand-over": _hand_over,
    "customers/status": _status,
    "customers/add": _new_customer,
    "projects/finish": _finish,
    "analytics/plot": _plot,
}


def make_tasks(
    seed: int = SEED, per_template: int = PER_TEMPLATE, templates: Sequence[str] = tuple(TEMPLATES)
) -> list[dict]:
    """`per_template` different requests of each template, all of which change something; the same
    seed gives the same ones. A larger number extends the smaller set. Raises ValueError if a
    template has fewer.
    """
    tables, tasks = invented(), []
    for template in templates:
        draw = TEMPLATES[template]
        rng, found, idle = random.Random(f"{seed}/{template}"), {}, 0
        while len(found) < per_template and idle < DRAWS:
            said, look_up, calls = draw(rng, tables)
            idle += 1
            if said not in found and _changes_something(calls, tables):
                found[said], idle = (look_up, calls), 0
        if len(found) < per_template:
            raise ValueError(f"The template {template} has only {len(found)} different requests.")
        tasks += [_task(template, number, *one) for number, one in enumerate(found.items(), 1)]
    return tasks


def _changes_something(calls: list[dict], tables: Tables) -> bool:
    """False if there is nothing to do, or if a field already has its new value."""
    changed = [call for call in calls if call["args"].get("field")]
    rows = tables[CRM] | {}
    return (
        bool(calls)
        and len(calls) <= 5
        and not any(
            call["tool"] == _UPDATE
            and rows[call["args"]["customer_id"]][call["args"]["field"]]
            == call["args"]["new_value"]
            for call in changed
        )
    )


def _task(template: str, number: int, said: str, made: tuple[list[dict], list[dict]]) -> dict:
    look_up, calls = made
    steps = [{"call": call["tool"], "args": call["args"]} for call in [*look_up, *calls]]
    gold = {"gold": [*steps, {"say": "Done."}]} if len(steps) < MAX_TURNS else {}
    return {
        "id": f"{template.replace('/', '-')}-{number}",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": said}],
        "expected": {"calls": calls},
        "metadata": {"template": template} | gold,
    }
