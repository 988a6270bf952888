"""The effects of the tools on an Office. Light and pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from workers.lib.environments.workplace_assistant.office import (
    ADDRESS,
    FORMATS,
    Office,
    OfficeError,
    checked,
    moment,
)
from workers.lib.environments.workplace_assistant.tables import (
    ANALYTICS,
    CALENDAR,
    COLUMNS,
    CRM,
    DIRECTORY,
    EMAIL,
    PROJECTS,
    SOURCES,
    VISITS,
)

PAGE_SIZE = 5
PLOTTED = (
    "total_visits",
    "session_duration_seconds",
    "user_engaged",
    "visits_direct",
    "visits_referral",
    "visits_search_engine",
    "visits_social_media",
)
PLOTS = ("bar", "line", "scatter", "histogram")


def _page(found: list[dict], name: str, page: int | None, size: int | None) -> Any:
    if not found:
        return f"No {name} found."
    page, size = max(1, page or 1), min(1000, max(1, size or PAGE_SIZE))
    pages = math.ceil(len(found) / size)
    here = found[(page - 1) * size : page * size]
    counts = {f"total_{name}": len(found), "page": page, "page_size": size, "total_pages": pages}
    return {name: here, "pagination": counts}


def _within(day: str | None, low: str | None, high: str | None) -> bool:
    """Compares text, which sorts ISO dates correctly; a bound that is a day includes all of it."""
    if day is None:
        return not low and not high
    return (not low or day[: len(low)] >= low) and (not high or day[: len(high)] <= high)


def _has_all(query: str | None, *texts: str | None) -> bool:
    everything = " ".join(text or "" for text in texts).lower()
    return all(word in everything for word in (query or "").lower().split())


def _one_field(office: Office, table: str, name: str, field: str, what: str) -> dict:
    row = office.find(table, name, what)
    if field not in row:
        raise OfficeError(f"“{field}” is no field. Fields: {', '.join(COLUMNS[table])}.")
    return {field: row[field]}


# Directory and mail


def find_email_address(office: Office, name: str = "") -> Any:
    return [
        address for address in office.tables[DIRECTORY] if name.lower() in address.lower()
    ] or "No address found."


def get_email(office: Office, email_id: str, field: str) -> Any:
    return _one_field(office, EMAIL, email_id, field, "email")


def search_emails(
    office: Office,
    query: str | None = None,
    date_min: str | None = None,
    date_max: str | None = None,
    page: int | None = None,
    page_size: int | None = None,
) -> Any:
    found = [
        row
        for row in office.rows(EMAIL)
        if _has_all(query, row["subject"], row["body"], row["sender/recipient"])
        and _within(row["sent_datetime"], date_min, date_max)
    ]
    found.sort(key=lambda row: row["sent_datetime"] or "", reverse=True)
    return _page(found, "emails", page, page_size)


def _deliver(office: Office, recipient: str, subject: str, body: str) -> None:
    recipient = recipient.lower()
    if not ADDRESS.fullmatch(recipient):
        raise OfficeError(f"“{recipient}” is no email address.")
    sent = {"inbox/outbox": "outbox", "sender/recipient": recipient, "subject": subject}
    office.add(EMAIL, **sent, sent_datetime=office.now, body=body)


def send_email(office: Office, recipient: str, subject: str, body: str) -> str:
    _deliver(office, recipient, subject, body)
    return "Email sent successfully."


def delete_email(office: Office, email_id: str) -> str:
    office.find(EMAIL, email_id, "email")
    office.put(EMAIL, email_id, None)
    return "Email deleted successfully."


def forward_email(office: Office, email_id: str, recipient: str) -> str:
    row = office.find(EMAIL, email_id, "email")
    _deliver(office, recipient, f"FW: {row['subject']}", row["body"])
    return "Email forwarded successfully."


def reply_email(office: Office, email_id: str, body: str) -> str:
    row = office.find(EMAIL, email_id, "email")
    _deliver(office, row["sender/recipient"], str(row["subject"]), body)
    return "Email replied successfully."


# Calendar


def get_event(office: Office, event_id: str, field: str) -> Any:
    return _one_field(office, CALENDAR, event_id, field, "event")


def _ends(row: dict) -> str:
    start = moment(row["event_start"], FORMATS["event_start"], "event_start")
    return str(start + timedelta(minutes=int(row["duration"])))


def search_events(
    office: Office,
    query: str | None = None,
    time_min: str | None = None,
    time_max: str | None = None,
    page: int | None = None,
    page_size: int | None = None,
) -> Any:
    """`time_min` bounds an event's end, `time_max` its start, so that every event that overlaps the
    period is found.
    """
    found = [
        row
        for row in office.rows(CALENDAR)
        if _has_all(query, row["event_name"], row["participant_email"])
        and (not time_min or _within(_ends(row), time_min, None))
        and _within(row["event_start"], None, time_max)
    ]
    return _page(found, "events", page, page_size)


def create_event(office: Office, **fields: str) -> str:
    return office.add(CALENDAR, **{name: checked(name, value) for name, value in fields.items()})


def delete_event(office: Office, event_id: str) -> str:
    office.find(CALENDAR, event_id, "event")
    office.put(CALENDAR, event_id, None)
    return "Event deleted successfully."


def update_event(office: Office, event_id: str, field: str, new_value: str) -> str:
    office.set(CALENDAR, event_id, field, new_value, "event")
    return "Event updated successfully."


# Analytics


def get_visitor(office: Office, visitor_id: str) -> Any:
    return [
        row for row in office.rows(VISITS) if row["visitor_id"] == visitor_id
    ] or "Visitor not found."


def _visits_in(office: Office, time_min: str | None, time_max: str | None) -> list[dict]:
    return [row for row in office.rows(VISITS) if _within(row["date_of_visit"], time_min, time_max)]


def _counted(rows: list[dict]) -> dict:
    days = Counter(row["date_of_visit"] for row in rows)
    return {"total": len(rows), "by_day": dict(sorted(days.items()))}


def total_visits(office: Office, time_min: str | None = None, time_max: str | None = None) -> Any:
    return _counted(_visits_in(office, time_min, time_max))


def engaged_users(office: Office, time_min: str | None = None, time_max: str | None = None) -> Any:
    return _counted(
        [
            row
            for row in _visits_in(office, time_min, time_max)
            if str(row["user_engaged"]) == "True"
        ]
    )


def traffic_source(
    office: Office,
    time_min: str | None = None,
    time_max: str | None = None,
    traffic_source: str | None = None,
) -> Any:
    if traffic_source and traffic_source not in SOURCES:
        raise OfficeError(f"“{traffic_source}” is no traffic source. One of: {', '.join(SOURCES)}.")
    rows = _visits_in(office, time_min, time_max)
    return _counted(
        [row for row in rows if not traffic_source or row["traffic_source"] == traffic_source]
    )


def average_session(
    office: Office, time_min: str | None = None, time_max: str | None = None
) -> Any:
    rows = _visits_in(office, time_min, time_max)
    seconds = [float(row["session_duration_seconds"]) for row in rows]
    return round(sum(seconds) / len(seconds), 2) if seconds else 0


def create_plot(
    office: Office, time_min: str, time_max: str, value_to_plot: str, plot_type: str
) -> str:
    for field, value in (("time_min", time_min), ("time_max", time_max)):
        moment(value, "%Y-%m-%d", field)
    if value_to_plot not in PLOTTED or plot_type not in PLOTS:
        raise OfficeError(f"Plot one of {', '.join(PLOTTED)} as one of {', '.join(PLOTS)}.")
    path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
    number = str(len(office.changes.get(ANALYTICS, {})))
    office.put(ANALYTICS, number, {"file_path": path})
    return path


# Projects


def get_task(office: Office, task_id: str, field: str) -> Any:
    return _one_field(office, PROJECTS, task_id, field, "task")


def _matching(office: Office, table: str, wanted: dict[str, str | None]) -> list[dict]:
    """Rows that contain each of the given texts, ignoring case."""
    return [
        row
        for row in office.rows(table)
        if all(
            not text or text.lower() in str(row[name] or "").lower()
            for name, text in wanted.items()
        )
    ]


def search_tasks(office: Office, **wanted: str) -> Any:
    return _matching(office, PROJECTS, wanted) or "No tasks found."


def create_task(office: Office, **fields: str) -> str:
    return office.add(PROJECTS, **{name: checked(name, value) for name, value in fields.items()})


def delete_task(office: Office, task_id: str) -> str:
    office.find(PROJECTS, task_id, "task")
    office.put(PROJECTS, task_id, None)
    return "Task deleted successfully."


def update_task(office: Office, task_id: str, field: str, new_value: str) -> str:
    office.set(PROJECTS, task_id, field, new_value, "task")
    return "Task updated successfully."


# Customers

_BOUNDS = ("last_contact_date_min", "last_contact_date_max", "follow_up_by_min", "follow_up_by_max")


def search_customers(
    office: Office, page: int | None = None, page_size: int | None = None, **wanted: str
) -> Any:
    bounds = {name: wanted.pop(name, None) for name in _BOUNDS}
    found = [
        row
        for row in _matching(office, CRM, wanted)
        if all(
            _within(row[field], bounds[f"{field}_min"], bounds[f"{field}_max"])
            for field in ("last_contact_date", "follow_up_by")
        )
    ]
    return _page(found, "customers", page, page_size)


def update_customer(office: Office, customer_id: str, field: str, new_value: str) -> str:
    office.set(CRM, customer_id, field, new_value, "customer")
    return "Customer updated successfully."


def add_customer(office: Office, **fields: str) -> str:
    blank: dict[str, str | None] = dict.fromkeys(COLUMNS[CRM][1:])
    return office.add(CRM, **blank | {name: checked(name, value) for name, value in fields.items()})


def delete_customer(office: Office, customer_id: str) -> str:
    office.find(CRM, customer_id, "customer")
    office.put(CRM, customer_id, None)
    return "Customer deleted successfully."


HANDLERS: dict[str, Callable[..., Any]] = {
    "company_directory_find_email_address": find_email_address,
    "email_get_email_information_by_id": get_email,
    "email_search_emails": search_emails,
    "email_send_email": send_email,
    "email_delete_email": delete_email,
    "email_forward_email": forward_email,
    "email_reply_email": reply_email,
    "calendar_get_event_information_by_id": get_event,
    "calendar_search_events": search_events,
    "calendar_create_event": create_event,
    "calendar_delete_event": delete_event,
    "calendar_update_event": update_event,
    "analytics_get_visitor_information_by_id": get_visitor,
    "analytics_create_plot": create_plot,
    "analytics_total_visits_count": total_visits,
    "analytics_engaged_users_count": engaged_users,
    "analytics_traffic_source_count": traffic_source,
    "analytics_get_average_session_duration": average_session,
    "project_management_get_task_information_by_id": get_task,
    "project_management_search_tasks": search_tasks,
    "project_management_create_task": create_task,
    "project_management_delete_task": delete_task,
    "project_management_update_task": update_task,
    "customer_relationship_manager_search_customers": search_customers,
    "customer_relationship_manager_update_customer": update_customer,
    "customer_relationship_manager_add_customer": add_customer,
    "customer_relationship_manager_delete_customer": delete_customer,
}
