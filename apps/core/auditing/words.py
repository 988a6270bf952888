"""The audit log in sentences. Operations declare those of their actions (`says`), and an app's
`audit_words` the others. An action without a sentence fails the tests.

A sentence goes on after who did it. `{name}` is a value of the event's detail; `{name@}` links it
to the target, `{=words@}` links these words; `{n|task|tasks}` counts ("1 task", "2 tasks"),
`{n||task|tasks}` only says the noun; `{name@registry.modelversion:id}` links to the object whose id
is the value `id`. A part in [brackets] is left out where one of its values is missing or false;
`{?name}` and `{!name}` only ask for that, and show nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from django.urls import NoReverseMatch, reverse

from apps.core.bidi import isolated
from apps.core.models import AuditEvent
from apps.core.nouns import pages


@dataclass(frozen=True)
class Section:
    """The sentences of one kind of action, by which the log is filtered. All actions of a prefix
    (`comment.…`) are in one section.
    """

    label: str
    sentences: dict[str, str] = dataclasses.field(default_factory=dict)


SECTIONS = {
    "people": Section("People and keys"),
    "project": Section("Project"),
    "trajectories": Section("Trajectories"),
    "failures": Section("Failures"),
    "teamwork": Section("Comments and assignments"),
    "evals": Section("Eval sets and evaluations"),
    "holdout": Section("Hold-out views"),
    "rewards": Section("Environments and rewards"),
    "training": Section("Training"),
    "models": Section("Models"),
    "automation": Section("Flows and webhooks"),
}
OF_JOBS = {
    "submitted": "started",
    "cancel_requested": "cancelled",
    "resumed": "resumed",
    "resubmitted": "started again",
    "applied": "applied",
}
WORDS: dict[str, str] = {}


def declare(
    section: str,
    sentences: Mapping[str, str] = MappingProxyType({}),
    *,
    jobs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Adds an app's sentences. `jobs`: what a job is called in those of its actions, before its
    name; empty where its name says it: “Merge of support-v3”. Raises ValueError for an action that
    has a sentence already, and for an unknown section.
    """
    if section not in SECTIONS:
        raise ValueError(
            f"The audit log has no section “{section}” for {', '.join(sentences)}: the"
            f" `audit_section` of the AppConfig is one of {', '.join(SECTIONS)}."
        )
    new = {
        f"{job}.{what}": f"{verb} {noun} {{name@}}" if noun else f"{verb} “{{name@}}”"
        for job, noun in jobs.items()
        for what, verb in OF_JOBS.items()
    } | dict(sentences)
    if taken := WORDS.keys() & new.keys():
        raise ValueError(f"{', '.join(sorted(taken))} has a sentence already.")
    SECTIONS[section].sentences.update(new)
    WORDS.update(new)


FIELD = re.compile(r"\{([?!=]?)([^{}@]+)(@?)([^{}]*)\}")
PART = re.compile(r"\[([^\[\]]*)\]")


class Piece(NamedTuple):
    """Of a sentence: a text, and where it leads ("": nowhere)."""

    text: str
    url: str = ""


def pieces(event: AuditEvent, slug: str = "", gone: Collection[str] = ()) -> list[Piece]:
    """What the actor did. `gone`: objects that are not there any more (`object_name`), to which
    nothing links.
    """
    found: list[Piece] = []
    template, at = WORDS.get(event.action) or _fallback(event), 0
    for part in PART.finditer(template):
        found += _filled(template[at : part.start()], event, slug, gone)
        if all(_given(event.detail, *field.groups()[:2]) for field in FIELD.finditer(part[1])):
            found += _filled(part[1], event, slug, gone)
        at = part.end()
    return [piece for piece in found + _filled(template[at:], event, slug, gone) if piece.text]


def sentence(event: AuditEvent) -> str:
    """Who did what, as plain text."""
    return f"{isolated(event.actor_label)} {''.join(piece.text for piece in pieces(event))}"


def page_of(kind: str, pk: str, slug: str) -> str:
    """The address of an object's page; "" if it has none."""
    name = pages().get(kind, "")
    for args in ([slug, pk], [slug]):
        try:
            return reverse(name, args=args) if name and slug else ""
        except NoReverseMatch:
            continue
    return ""


def page_of_row(row: Any, slug: str) -> str:
    """The address of a row's own page; "" if it has none."""
    own = getattr(row, "get_absolute_url", None)
    return own() if own else page_of(row._meta.label_lower, str(row.pk), slug)


def _fallback(event: AuditEvent) -> str:
    return f"did {event.action.replace('.', ': ').replace('_', ' ')}"


def _value(detail: dict[str, Any], name: str) -> Any:
    found: Any = detail
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _given(detail: dict[str, Any], sign: str, name: str) -> bool:
    """Whether a part with this field is shown; 0 is a value."""
    value = _value(detail, name.partition("|")[0])
    empty = value is None or value is False or value in ("", [])
    return sign == "=" or empty == (sign == "!")


def _filled(text: str, event: AuditEvent, slug: str, gone: Collection[str]) -> list[Piece]:
    found, at = [], 0
    for field in FIELD.finditer(text):
        sign, asked, linked, where = field.groups()
        name, *forms = asked.split("|")
        found.append(Piece(text[at : field.start()]))
        if sign not in ("?", "!"):
            value = _value(event.detail, name)
            shown = name if sign == "=" else _counted(value, *forms) if forms else _shown(value)
            found.append(Piece(isolated(shown), _url(event, where, slug, gone) if linked else ""))
        at = field.end()
    return [*found, Piece(text[at:])]


def _url(event: AuditEvent, where: str, slug: str, gone: Collection[str]) -> str:
    kind, _, name = where.partition(":")
    pk = str(_value(event.detail, name) or "") if where else event.target_id
    kind = kind or event.target_type
    return page_of(kind, pk, slug) if pk and f"{kind}:{pk}" not in gone else ""


def _counted(value: Any, *forms: str) -> str:
    """The number (or how many are in a list) with its noun; the noun alone after an empty form."""
    noun = forms[-2] if (len(value) if isinstance(value, list) else value) == 1 else forms[-1]
    return f"{_shown(value)} {noun}" if forms[0] else noun


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "–" if value is None else str(value)[:500]
