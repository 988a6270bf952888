"""Exports of helpdesks: Intercom's conversations and Zendesk's tickets with their comments.

Only what the customer could read is the conversation: internal notes and what the helpdesk did
(assigned, closed) are no messages.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    digest,
    each,
    first,
    identity,
    items,
    moment,
    number,
    obj,
    text,
    without_empty,
)
from apps.trajectories.importers.turns import role_text, roles_of_people

CUSTOMERS = ("user", "lead", "contact", "end-user", "end_user")
RESOLVED = {
    "confirmed_resolution": "success",
    "assumed_resolution": "success",
    "routed_to_team": "failure",
    "escalated": "failure",
    "negative_feedback": "failure",
}
MAX_RATING = 5
TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)[^<>]{0,4000}>|<!()[^<>]{0,4000}>")
SHOWN = re.compile(r"\b(alt|src)=[\"']([^\"']+)", re.IGNORECASE)
LINE_ENDS = ("br", "p", "div", "li", "tr", "h1", "h2", "h3", "h4", "blockquote", "pre")


def intercom_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return each(records, _intercom)


def _intercom(record: dict) -> dict:
    source = obj(record.get("source"))
    parts = obj(record.get("conversation_parts"))
    spoken = [source, *items(parts.get("conversation_parts"))]
    messages = [
        {"role": _intercom_role(part), "content": said}
        for part in map(obj, spoken)
        if (said := plain_text(text(part.get("body")))) and "note" not in _kind(part)
    ]
    if subject := plain_text(text(source.get("subject"))):
        messages[:1] = [
            message | {"content": f"{subject}\n\n{message['content']}"} for message in messages[:1]
        ]
    _require_words(messages, "conversation_parts")
    contact = next((obj(one) for one in items(obj(record.get("contacts")).get("contacts"))), {})
    author = obj(source.get("author"))
    customer = author if _intercom_role(source) == "user" else contact
    tags = [text(obj(tag).get("name"), 80) for tag in items(obj(record.get("tags")).get("tags"))]
    missing = _missing(parts)
    is_partial = bool(missing) or "conversation_parts" not in record  # lists come without parts
    kept = ("state", "priority", "ai_agent", "ai_agent_participated", "custom_attributes")
    return without_empty(
        {
            "id": identity("intercom", text(record.get("id")) or digest(record)),
            "messages": messages,
            "user_id": text(customer.get("id"), 200),
            "started_at": moment(record.get("created_at")),
            "ended_at": moment(record.get("updated_at")),
            "outcome": _intercom_outcome(record),
            "tags": [tag for tag in tags if tag] + ["missing-history"] * is_partial,
            "metadata": without_empty(
                {"source": "intercom", "title": text(record.get("title"))}
                | {key: record.get(key) for key in kept}
                | {"rating": record.get("conversation_rating")}
                | {"missing_parts": missing or None}
            ),
        }
    )


def _kind(part: dict) -> str:
    return text(first(part, "part_type", "type"))


def _intercom_role(part: dict) -> str:
    """The first part of a conversation has no author in old exports: it is the customer's."""
    kind = text(obj(part.get("author")).get("type"))
    return "user" if kind in CUSTOMERS or not kind else "assistant"


def _missing(parts: dict) -> int:
    """How many parts Intercom did not send: it returns at most 500."""
    return max(
        0, int(number(parts.get("total_count")) or 0) - len(items(parts.get("conversation_parts")))
    )


def _intercom_outcome(record: dict) -> dict:
    """The customer's rating from 1 to 5 decides, else the one of the AI agent, else what became of
    the AI agent's answer.
    """
    given, agent = record.get("conversation_rating"), obj(record.get("ai_agent"))
    given = given if isinstance(given, dict) else {"rating": given}
    for rating, remark in (
        (number(given.get("rating")), given.get("remark")),
        (number(agent.get("rating")), agent.get("rating_remark")),
    ):
        if rating is not None and 1 <= rating <= MAX_RATING:
            status = "success" if rating >= 4 else "failure" if rating <= 2 else "unknown"
            label = f"rated {rating:g} of {MAX_RATING}"
            return {"status": status, "label": label, "reason": text(remark)}
    state = text(agent.get("resolution_state"), 120)
    return {"status": RESOLVED.get(state, "unknown"), "label": state} if state else {}


def zendesk_rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return each(records, _zendesk)


def _is_public(comment: dict) -> bool:
    """Exports by way of a table write false as 0 or as text."""
    return str(comment.get("public", True)).strip().lower() not in ("false", "0", "0.0", "no")


def _zendesk(record: dict) -> dict:
    asks = text(first(record, "requester_id", "submitter_id"))
    asks = asks or text(obj(record.get("requester")).get("id"))
    comments = [obj(one) for one in items(record.get("comments"))]
    people = roles_of_people(record.get("users")) | {role_text(asks): "user"}
    messages = [
        {"role": _zendesk_role(comment, people), "content": said}
        for comment in comments
        if _is_public(comment) and (said := _zendesk_words(comment))
    ]
    if not comments and (said := text(record.get("description"))):
        messages = [{"role": "user", "content": said}]
    _require_words(messages, "comments")
    score = text(obj(record.get("satisfaction_rating")).get("score"), 120)
    status = "success" if score.startswith("good") else "failure" if score.startswith("bad") else ""
    tags = [tag[:80] for tag in items(record.get("tags")) if isinstance(tag, str) and tag]
    return without_empty(
        {
            "id": identity("zendesk", text(record.get("id")) or digest(record)),
            "messages": messages,
            "user_id": identity(asks),
            "started_at": moment(record.get("created_at")),
            "ended_at": moment(record.get("updated_at")),
            "outcome": {
                "status": status,
                "label": score,
                "reason": text(obj(record.get("satisfaction_rating")).get("comment")),
            }
            if status
            else {},
            "tags": tags + ["missing-history"] * (not comments),
            "metadata": without_empty(
                {"source": "zendesk", "channel": text(obj(record.get("via")).get("channel"))}
                | {key: record.get(key) for key in ("subject", "status", "priority", "type")}
            ),
        }
    )


def _zendesk_role(comment: dict, people: dict[str, str]) -> str:
    """By the author's role, or the list of users of the export; others than the requester are
    agents.
    """
    role = text(obj(comment.get("author")).get("role"))
    if role:
        return "user" if role in CUSTOMERS else "assistant"
    author = role_text(first(comment, "author_id") or obj(comment.get("author")).get("id"))
    return people.get(author, "assistant") if author else "user"


def _zendesk_words(comment: dict) -> str:
    plain = text(first(comment, "plain_body", "body"))
    return plain_text(plain or text(comment.get("html_body")))


def _require_words(messages: list[dict], path: str) -> None:
    if not messages:
        raise RowError(path, "nothing that the customer or an agent said to the other")


def plain_text(said: str) -> str:
    """The words of HTML, one paragraph a line; other text as it is. In linear time: Python's own
    parser takes minutes for a hostile text.
    """
    if "<" not in said and "&" not in said:
        return said.strip()
    words = TAG.sub(_written, said)
    with suppress(ValueError):  # a number of thousands of digits
        words = html.unescape(words)
    lines = (line.strip() for line in words.replace("\xa0", " ").splitlines())
    return "\n".join(line for line in lines if line)


def _written(tag: re.Match) -> str:
    name = (tag[1] or "").lower()
    if name == "img":
        shown = SHOWN.search(tag[0])
        return f"[image: {shown[2] if shown else ''}]"
    return "\n" if name in LINE_ENDS else ""
