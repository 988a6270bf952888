"""The 27 tools as an agent sees them: names and arguments as in NeMo Gym's Workplace Assistant,
descriptions our own. Light.
"""

from __future__ import annotations

from typing import Any

from workers.lib.environments.workplace_assistant.handlers import HANDLERS, PLOTS, PLOTTED
from workers.lib.environments.workplace_assistant.tables import (
    BOARDS,
    CALENDAR,
    COLUMNS,
    CRM,
    EMAIL,
    LISTS,
    PRODUCTS,
    PROJECTS,
    SOURCES,
    STATUSES,
)

DAY = "Day as YYYY-MM-DD"
TIME = "Time as YYYY-MM-DD HH:MM:SS"


def _one_of(values: tuple[str, ...]) -> str:
    return "One of: " + ", ".join(values)


def _fields(table: str, first: int = 0) -> dict[str, str]:
    return {"field": _one_of(COLUMNS[table][first:])}


_ID = {
    "email_id": "The email's ID",
    "event_id": "The event's ID",
    "task_id": "The task's ID",
    "customer_id": "The customer's ID",
}
_PAGE = {"page": "Which page, from 1", "page_size": "How many on a page"}
_SPAN = {"time_min": f"First day. {DAY}", "time_max": f"Last day. {DAY}"}
_EVENT = {
    "event_name": "What it is called",
    "participant_email": "Who takes part, as email address",
    "event_start": TIME,
    "duration": "Minutes",
}
_TASK = {
    "task_name": "What is to be done",
    "assigned_to_email": "Who does it, as email address",
    "list_name": _one_of(LISTS),
    "due_date": DAY,
    "board": _one_of(BOARDS),
}
_CUSTOMER = {
    "customer_name": "Name",
    "assigned_to_email": "Who of us is in charge, as email address",
    "status": _one_of(STATUSES),
    "customer_email": "Email address",
    "customer_phone": "Phone number",
    "last_contact_date": f"Last contact. {DAY}",
    "product_interest": _one_of(PRODUCTS),
    "notes": "Notes",
    "follow_up_by": f"Next contact. {DAY}",
}
_SEARCHED = {
    name: _CUSTOMER[name]
    for name in (
        "customer_name",
        "customer_email",
        "product_interest",
        "status",
        "assigned_to_email",
    )
}
_BOUNDS = {
    f"{field}_{end}": f"{'Earliest' if end == 'min' else 'Latest'} {what}. {DAY}"
    for field, what in (("last_contact_date", "last contact"), ("follow_up_by", "next contact"))
    for end in ("min", "max")
}
_CHANGE = {"new_value": "What it shall be"}

# tool: (description, its arguments, how many of the first ones are required)
_TOOLS: dict[str, tuple[str, dict[str, str], int]] = {
    "company_directory_find_email_address": (
        "Looks up colleagues' email addresses by a part of the name.",
        {"name": "Name or part of it"},
        0,
    ),
    "email_get_email_information_by_id": (
        "Gives one field of an email.",
        {"email_id": _ID["email_id"]} | _fields(EMAIL),
        2,
    ),
    "email_search_emails": (
        "Finds emails, the newest first, that have all the words in subject, body or sender.",
        {
            "query": "Words to look for",
            "date_min": f"Not before. {DAY}",
            "date_max": f"Not after. {DAY}",
        }
        | _PAGE,
        0,
    ),
    "email_send_email": (
        "Sends an email.",
        {"recipient": "Email address", "subject": "Subject", "body": "Text"},
        3,
    ),
    "email_delete_email": ("Deletes an email.", {"email_id": _ID["email_id"]}, 1),
    "email_forward_email": (
        "Forwards an email.",
        {"email_id": _ID["email_id"], "recipient": "Email address"},
        2,
    ),
    "email_reply_email": ("Answers an email.", {"email_id": _ID["email_id"], "body": "Text"}, 2),
    "calendar_get_event_information_by_id": (
        "Gives one field of an event.",
        {"event_id": _ID["event_id"]} | _fields(CALENDAR),
        2,
    ),
    "calendar_search_events": (
        "Finds events that have all the words in name or participant.",
        {
            "query": "Words to look for",
            "time_min": f"Ends not before. {TIME}",
            "time_max": f"Starts not after. {TIME}",
        }
        | _PAGE,
        0,
    ),
    "calendar_create_event": ("Puts an event into the calendar.", _EVENT, 4),
    "calendar_delete_event": ("Deletes an event.", {"event_id": _ID["event_id"]}, 1),
    "calendar_update_event": (
        "Changes one field of an event.",
        {"event_id": _ID["event_id"]} | _fields(CALENDAR, 1) | _CHANGE,
        3,
    ),
    "analytics_get_visitor_information_by_id": (
        "Gives all visits of a visitor.",
        {"visitor_id": "The visitor's ID"},
        1,
    ),
    "analytics_create_plot": (
        "Plots a value over a span of days.",
        _SPAN | {"value_to_plot": _one_of(PLOTTED), "plot_type": _one_of(PLOTS)},
        4,
    ),
    "analytics_total_visits_count": ("Counts visits, in all and by day.", _SPAN, 0),
    "analytics_engaged_users_count": (
        "Counts visits of engaged users, in all and by day.",
        _SPAN,
        0,
    ),
    "analytics_traffic_source_count": (
        "Counts visits from one source.",
        _SPAN | {"traffic_source": _one_of(SOURCES)},
        0,
    ),
    "analytics_get_average_session_duration": (
        "Gives the mean length of visits in seconds.",
        _SPAN,
        0,
    ),
    "project_management_get_task_information_by_id": (
        "Gives one field of a task.",
        {"task_id": _ID["task_id"]} | _fields(PROJECTS),
        2,
    ),
    "project_management_search_tasks": ("Finds tasks.", _TASK, 0),
    "project_management_create_task": ("Makes a task.", _TASK, 5),
    "project_management_delete_task": ("Deletes a task.", {"task_id": _ID["task_id"]}, 1),
    "project_management_update_task": (
        "Changes one field of a task.",
        {"task_id": _ID["task_id"]} | _fields(PROJECTS, 1) | _CHANGE,
        3,
    ),
    "customer_relationship_manager_search_customers": (
        "Finds customers.",
        _SEARCHED | _BOUNDS | _PAGE,
        0,
    ),
    "customer_relationship_manager_update_customer": (
        "Changes one field of a customer.",
        {"customer_id": _ID["customer_id"]} | _fields(CRM, 1) | _CHANGE,
        3,
    ),
    "customer_relationship_manager_add_customer": ("Adds a customer.", _CUSTOMER, 3),
    "customer_relationship_manager_delete_customer": (
        "Deletes a customer.",
        {"customer_id": _ID["customer_id"]},
        1,
    ),
}
INTEGERS = ("page", "page_size")


def _tool(name: str, what: str, arguments: dict[str, str], required: int) -> dict:
    properties = {
        argument: {"type": "integer" if argument in INTEGERS else "string", "description": says}
        for argument, says in arguments.items()
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(arguments)[:required],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": what, "parameters": parameters},
    }


TOOLS = [_tool(name, *_TOOLS[name]) for name in HANDLERS]
LOOKUPS = frozenset(  # the others change a table
    name for name in HANDLERS if {"find", "get", "search", "count"} & set(name.split("_"))
)
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def coerced(tool: str, args: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the types that the tool expects: a number given for a text becomes text,
    "2" for a page becomes 2; nulls are left out.

    Raises ValueError that names what is missing, unknown or of the wrong type.
    """
    wanted = PARAMETERS[tool]
    given = {name: value for name, value in args.items() if value is not None}
    unknown = sorted(given.keys() - wanted["properties"].keys())
    missing = [name for name in wanted["required"] if name not in given]
    if unknown or missing:
        raise ValueError(
            f"missing: {', '.join(missing) or 'none'}; unknown:"
            f" {', '.join(unknown)[:200] or 'none'}"
        )
    return {name: _coerced(name, value) for name, value in given.items()}


def _coerced(name: str, value: Any) -> Any:
    if name in INTEGERS:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} must be a whole number")
        return max(-(10**9), min(10**9, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name} must be a text")
    return value if isinstance(value, str) else str(value)[:100]
