"""Requests to the workplace assistant, generated from templates. Light: no torch.

A request is an instance of a template: the template and the values of its slots. `group` names the
instance; requests of one group are the same wish, so that a split by group never separates them.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable

from workers.lib.environments.workplace import DAYS, FOLDERS, PEOPLE, PRIORITIES

SUBJECTS = (
    "the budget",
    "the launch plan",
    "the hiring round",
    "the quarterly review",
    "the new office",
    "travel costs",
    "the security audit",
    "the design sprint",
    "the offsite",
    "the press release",
    "our roadmap",
    "the invoice",
)
PROBLEMS = (
    "printer is broken",
    "VPN does not connect",
    "laptop is slow",
    "badge does not open the door",
    "screen flickers",
    "password expired",
    "coffee machine leaks",
    "wifi drops",
    "keyboard is sticky",
    "projector has no sound",
)
FILES = (
    "budget.xlsx",
    "roadmap.pdf",
    "contract.docx",
    "photos.zip",
    "minutes.txt",
    "slides.pptx",
    "salaries.xlsx",
    "logo.svg",
    "plan.md",
    "report.pdf",
)
CHORES = (
    "call the bank",
    "water the plants",
    "book the flights",
    "pay the rent",
    "review the draft",
    "order lunch",
    "back up the laptop",
    "renew the passport",
    "call mom",
    "submit the timesheet",
)
REPEATS = 5000  # draws in a row without a new request, after which generation gives up
Slots = dict[str, str | int]


def _time(rng: random.Random) -> tuple[str, str]:
    """A time as people say it and as the tools expect it."""
    hour = rng.randint(9, 17)
    return f"{(hour - 1) % 12 + 1} {'AM' if hour < 12 else 'PM'}", f"{hour:02d}:00"


def _event(rng: random.Random) -> tuple[Slots, dict]:
    said, time = _time(rng)
    person, day = rng.choice(PEOPLE), rng.choice(DAYS)
    return {"person": person, "day": day, "time": said}, {
        "attendee": person,
        "day": day,
        "time": time,
    }


def _send(rng: random.Random) -> tuple[Slots, dict]:
    person, subject = rng.choice(PEOPLE), rng.choice(SUBJECTS)
    return {"person": person, "subject": subject}, {"to": person, "subject": subject}


def _archive(rng: random.Random) -> tuple[Slots, dict]:
    folder = rng.choice(FOLDERS)
    # Naming the day makes more distinct wishes without changing what is right. Tasks with the same
    # correct call are one task to the hold-out, so many folders are needed: with five, nearly all
    # of this tool's tasks were held out, and a model trained on the others deleted mailboxes
    # instead.
    return {"folder": folder, "day": rng.choice(DAYS)}, {"folder": folder}


def _delete(rng: random.Random) -> tuple[Slots, dict]:
    person = rng.choice(PEOPLE)
    return {"person": person, "day": rng.choice(DAYS)}, {"owner": person}


def _ticket(rng: random.Random) -> tuple[Slots, dict]:
    problem, priority = rng.choice(PROBLEMS), rng.choice(PRIORITIES)
    return {"problem": problem, "priority": priority}, {"title": problem, "priority": priority}


def _close(rng: random.Random) -> tuple[Slots, dict]:
    number = rng.randint(1000, 4999)
    return {"number": number}, {"id": number}


def _share(rng: random.Random) -> tuple[Slots, dict]:
    file, person = rng.choice(FILES), rng.choice(PEOPLE)
    return {"file": file, "person": person}, {"file": file, "person": person}


def _remind(rng: random.Random) -> tuple[Slots, dict]:
    said, time = _time(rng)
    chore = rng.choice(CHORES)
    return {"chore": chore, "time": said}, {"text": chore, "time": time}


# tool: (weight, slots and expected arguments, phrasings)
KINDS: dict[str, tuple[int, Callable[[random.Random], tuple[Slots, dict]], tuple[str, ...]]] = {
    "calendar.create_event": (
        3,
        _event,
        (
            "Create a calendar event with {person} on {day} at {time}.",
            "Book {person} for {day}, {time}.",
            "I need to meet {person} {day} at {time}.",
            "Put a meeting with {person} in my calendar, {day} at {time}.",
            "Can you schedule {person} at {time} on {day}?",
            "Set up a call with {person} on {day} at {time}, please.",
        ),
    ),
    "email.send": (
        3,
        _send,
        (
            "Write to {person} about {subject}.",
            "Send {person} an email about {subject}.",
            "Email {person}, the subject is {subject}.",
            "Drop {person} a line about {subject}.",
            "Please mail {person} regarding {subject}.",
            "Let {person} know about {subject} by email.",
        ),
    ),
    "email.archive": (
        2,
        _archive,
        (
            "It is {day}, clean the {folder} out of my mailbox.",
            "Archive my {folder} this {day}.",
            "Get rid of the {folder} in my mailbox by {day}.",
            "Tidy up: put the {folder} mails away on {day}.",
            "My mailbox is full of {folder}. Clear them {day}.",
            "{day} cleaning: move all {folder} to the archive.",
        ),
    ),
    "email.delete_mailbox": (
        1,
        _delete,
        (
            "{person} left on {day}. Delete the mailbox.",
            "Remove the mailbox of {person} for ever, {day} was the last day.",
            "IT confirmed on {day}: delete {person}'s mailbox.",
            "Please delete the whole mailbox of {person}, gone since {day}.",
            "{person}'s account closed on {day}, so wipe that mailbox.",
            "Since {day} nobody needs the mailbox of {person}. Delete it.",
        ),
    ),
    "tickets.create": (
        3,
        _ticket,
        (
            "Open a {priority} priority ticket: {problem}.",
            "File a ticket, {problem}, priority {priority}.",
            "{problem}, please raise a {priority} ticket.",
            "Report this: {problem}. Priority is {priority}.",
            "New {priority} ticket: {problem}.",
            "Create a ticket saying {problem} with {priority} priority.",
        ),
    ),
    "tickets.close": (
        2,
        _close,
        (
            "Close ticket {number}.",
            "Ticket {number} is done, close it.",
            "Please mark ticket {number} as closed.",
            "We solved {number}, so close that ticket.",
            "You can close number {number} now.",
            "Finish off ticket {number}.",
        ),
    ),
    "files.share": (
        3,
        _share,
        (
            "Share {file} with {person}.",
            "Give {person} access to {file}.",
            "{person} needs {file}, share it.",
            "Let {person} see {file}.",
            "Please share the file {file} with {person}.",
            "Can {person} get {file}?",
        ),
    ),
    "reminders.set": (
        3,
        _remind,
        (
            "Remind me to {chore} at {time}.",
            "Set a reminder for {time}: {chore}.",
            "At {time} I must {chore}, remind me.",
            "Don't let me forget to {chore} at {time}.",
            "Ping me at {time} to {chore}.",
            "I have to {chore} at {time}. Reminder please.",
        ),
    ),
}


def make_request(rng: random.Random) -> dict:
    """{request, expected, group, template}: one random request."""
    tools = list(KINDS)
    tool = rng.choices(tools, weights=[KINDS[name][0] for name in tools])[0]
    _, draw, phrasings = KINDS[tool]
    index = rng.randrange(len(phrasings))
    slots, args = draw(rng)
    instance = json.dumps([tool, index, slots], sort_keys=True)
    return {
        "request": phrasings[index].format(**slots),
        "expected": {"tool": tool, "args": args},
        "group": hashlib.sha256(instance.encode()).hexdigest()[:16],
        "template": f"{tool}/{index}",
    }


def make_requests(seed: int, n: int) -> list[dict]:
    """`n` different requests; the same seed gives the same ones. Raises ValueError if fewer than
    `n` exist.
    """
    rng, seen, made, repeats = random.Random(seed), set(), [], 0
    while len(made) < n:
        request = make_request(rng)
        if request["request"] in seen:
            repeats += 1
            if repeats > REPEATS:
                raise ValueError(f"The templates do not give {n} different requests.")
            continue
        repeats = 0
        seen.add(request["request"])
        made.append(request)
    return made
