"""The five tables and the directory: read from CSV, or generated from a seed. Rows are dicts of
JSON values. Light.
"""

from __future__ import annotations

import csv
import random
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

Tables = dict[str, dict[str, dict]]
"""table → id → row. The plots of the analytics table and the directory's addresses are their own
ids.
"""

EMAIL, CALENDAR, ANALYTICS, PROJECTS, CRM = (
    "email",
    "calendar",
    "analytics",
    "project_management",
    "customer_relationship_manager",
)
COMPARED = (EMAIL, CALENDAR, ANALYTICS, PROJECTS, CRM)
VISITS, DIRECTORY = "visits", "company_directory"
COLUMNS = {
    EMAIL: ("email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"),
    CALENDAR: ("event_id", "event_name", "participant_email", "event_start", "duration"),
    PROJECTS: ("task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"),
    CRM: (
        "customer_id",
        "assigned_to_email",
        "customer_name",
        "customer_email",
        "customer_phone",
        "last_contact_date",
        "product_interest",
        "status",
        "follow_up_by",
        "notes",
    ),
    VISITS: (
        "date_of_visit",
        "visitor_id",
        "page_views",
        "session_duration_seconds",
        "traffic_source",
        "user_engaged",
    ),
}
FILES = {
    EMAIL: "emails.csv",
    CALENDAR: "calendar_events.csv",
    PROJECTS: "project_tasks.csv",
    CRM: "customer_relationship_manager_data.csv",
    VISITS: "analytics_data.csv",
}
STATUSES = ("Qualified", "Won", "Lost", "Lead", "Proposal")
PRODUCTS = ("Software", "Hardware", "Services", "Consulting", "Training")
LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
SOURCES = ("direct", "referral", "search engine", "social media")
SEED = 20_260_514
MAX_TURNS = 6  # per episode
NOW = "2026-05-14 17:30:00"  # a Thursday: the current time in the made-up company


def read_tables(folder: Path) -> Tables:
    """Read CSV files named as in FILES, and `email_addresses.csv`. Empty cells are None. Raises
    OSError, KeyError.
    """
    tables: Tables = {ANALYTICS: {}}
    for table, name in FILES.items():
        with (folder / name).open(newline="", encoding="utf-8") as file:
            tables[table] = _keyed(table, [dict(row) for row in csv.DictReader(file)])
    addresses = (folder / "email_addresses.csv").read_text(encoding="utf-8").split()
    tables[DIRECTORY] = {address: {"email_address": address} for address in addresses}
    return tables


def given_tables(given: dict[str, list[dict]]) -> Tables:
    """From lists of rows, as in a spec's `config.tables`. Raises ValueError for an unknown table or
    column.
    """
    tables: Tables = {name: {} for name in (*COMPARED, VISITS, DIRECTORY)}
    for table, rows in given.items():
        columns = COLUMNS.get(table, ("email_address",) if table == DIRECTORY else None)
        if (
            columns is None
            or not isinstance(rows, list)
            or not all(set(row) == set(columns) for row in rows)
        ):
            raise ValueError(
                f"The table “{table}” is unknown, or its rows have not the columns {columns}."
            )
        if table == DIRECTORY:
            tables[table] = {str(row["email_address"]): row for row in rows}
        else:
            tables[table] = _keyed(table, rows)
    return tables


def _keyed(table: str, rows: list[dict]) -> dict[str, dict]:
    """By id; visits by their position, since a visitor may come more than once."""
    clean = [
        {column: row[column] if row[column] != "" else None for column in COLUMNS[table]}
        for row in rows
    ]
    if table == VISITS:
        return {str(number): row for number, row in enumerate(clean)}
    return {str(row[COLUMNS[table][0]]): row for row in clean}


# Generated data

FIRST = (
    "Ingrid",
    "Tomasz",
    "Wanjiru",
    "Hiroko",
    "Esteban",
    "Noor",
    "Callum",
    "Zeynep",
    "Mateus",
    "Sunita",
    "Pavel",
    "Adaeze",
    "Linnea",
    "Farid",
    "Beatriz",
    "Oskar",
)
LAST = (
    "Halvorsen",
    "Wrona",
    "Kamau",
    "Inoue",
    "Quiroga",
    "Rahimi",
    "Brodie",
    "Aydin",
    "Teles",
    "Iyer",
    "Dvorak",
    "Obi",
    "Sandberg",
    "Mansour",
    "Pinto",
    "Lehmann",
)
DOMAIN = "brightfield.example"
MEETINGS = (
    "Budget round",
    "Retro",
    "Vendor call",
    "Hiring panel",
    "Demo rehearsal",
    "Incident review",
    "One to one",
)
WORK = (
    "billing export",
    "search page",
    "sign-up form",
    "audit log",
    "invoice mail",
    "mobile menu",
    "data import",
)
DOING = ("Rewrite", "Test", "Document", "Speed up", "Redesign")
SUBJECTS = (
    "Lunch on Friday",
    "Notes from the vendor call",
    "Draft contract",
    "Travel plans",
    "Question on the forecast",
)
NOTES = (
    "Called, will think about it.",
    "Asked for a price list.",
    "Visited the office.",
    "Wants a trial.",
)


def _day(rng: random.Random, first: str, days: int) -> str:
    return (datetime.fromisoformat(first) + timedelta(days=rng.randrange(days))).strftime(
        "%Y-%m-%d"
    )


@lru_cache(maxsize=4)
def invented(seed: int = SEED) -> Tables:
    """A generated company; the same seed gives the same one. Do not change it: an Office layers its
    changes on top.
    """
    rng = random.Random(seed)
    people = [f"{first}.{last}@{DOMAIN}".lower() for first, last in zip(FIRST, LAST, strict=True)]
    tables = {
        EMAIL: _keyed(EMAIL, _emails(rng, people)),
        CALENDAR: _keyed(CALENDAR, _events(rng, people)),
        ANALYTICS: {},
        PROJECTS: _keyed(PROJECTS, _work(rng, people)),
        CRM: _keyed(CRM, _customers(rng, people)),
        VISITS: _keyed(VISITS, _visits(rng)),
    }
    return tables | {DIRECTORY: {person: {"email_address": person} for person in people}}


def _emails(rng: random.Random, people: list[str]) -> list[dict]:
    rows = []
    for _ in range(160):
        person, subject = (
            rng.choice(people),
            rng.choice((*SUBJECTS, f"{rng.choice(DOING)} the {rng.choice(WORK)}")),
        )
        sent = (
            f"{_day(rng, '2026-04-01', 43)}"
            f" {rng.randint(7, 18):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
        )
        body = (
            f"Hi,\n\nthis is about “{subject}”. Could you have a"
            f" look?\n\n{person.split('.')[0].title()}"
        )
        rows.append(
            {
                "inbox/outbox": "inbox",
                "sender/recipient": person,
                "subject": subject,
                "sent_datetime": sent,
                "body": body,
            }
        )
    rows.sort(key=lambda row: row["sent_datetime"])
    return [{"email_id": f"{number:08d}"} | row for number, row in enumerate(rows)]


def _events(rng: random.Random, people: list[str]) -> list[dict]:
    """No two of them begin at the same time, so that “the last of a day” is unambiguous."""
    starts = [
        f"{datetime(2026, 5, 1) + timedelta(days=day):%Y-%m-%d} {hour:02d}:{half}:00"
        for day in range(40)
        for hour in range(9, 17)
        for half in ("00", "30")
    ]
    chosen = sorted(rng.sample(starts, 100))
    return [
        {
            "event_id": f"{number:08d}",
            "event_name": rng.choice(MEETINGS),
            "participant_email": rng.choice(people),
            "event_start": start,
            "duration": rng.choice(("30", "60")),
        }
        for number, start in enumerate(chosen)
    ]


def _work(rng: random.Random, people: list[str]) -> list[dict]:
    names = [
        f"{doing} the {what} ({part})"
        for doing in DOING
        for what in WORK
        for part in ("first part", "rest")
    ]
    rng.shuffle(names)
    return [
        {
            "task_id": f"{number:08d}",
            "task_name": name,
            "assigned_to_email": rng.choice(people),
            "list_name": rng.choice(LISTS),
            "due_date": _day(rng, "2026-05-01", 40),
            "board": rng.choice(BOARDS),
        }
        for number, name in enumerate(names)
    ]


def _customers(rng: random.Random, people: list[str]) -> list[dict]:
    given = ("Ana", "Bo", "Cem", "Dana", "Eli", "Fay", "Gus", "Hana", "Ivo", "Jun")
    family = ("Arden", "Birch", "Colt", "Drake", "Ember", "Frost", "Glenn", "Haven")
    names = [f"{first} {last}" for first in given for last in family]
    rng.shuffle(names)
    rows = []
    for number, name in enumerate(names):
        contact = _day(rng, "2026-03-01", 70)
        rows.append(
            {
                "customer_id": f"{number:08d}",
                "assigned_to_email": rng.choice(people),
                "customer_name": name,
                "customer_email": (
                    f"{name.replace(' ', '.').lower()}@{rng.choice(('oakline', 'tidewell', 'ferrous'))}.example"  # noqa: E501
                ),
                "customer_phone": (
                    None if rng.random() < 0.3 else f"555-{rng.randrange(10_000):04d}"
                ),
                "last_contact_date": f"{contact} 12:00:00",
                "product_interest": rng.choice(PRODUCTS),
                "status": rng.choice(STATUSES),
                "follow_up_by": f"{_day(rng, '2026-05-15', 30)} 12:00:00",
                "notes": f"{contact}: {rng.choice(NOTES)}",
            }
        )
    return rows


def _visits(rng: random.Random) -> list[dict]:
    return [
        {
            "date_of_visit": _day(rng, "2026-04-01", 43),
            "visitor_id": f"{rng.randrange(10_000):04d}",
            "page_views": str(rng.randint(1, 20)),
            "session_duration_seconds": str(rng.randint(0, 120)),
            "traffic_source": rng.choice(SOURCES),
            "user_engaged": str(rng.random() < 0.5),
        }
        for _ in range(300)
    ]
