"""Writes of redaction rules, and the redactor that receivers ask for."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils.crypto import salted_hmac

from apps.core.actions import ProjectCreated, audit
from apps.core.bus import on
from apps.core.models import Project
from apps.trajectories import held
from apps.trajectories.models import RedactionRule
from apps.trajectories.redaction import BUILTINS, ID, Redactor, Rule, RuleError, presidio

FRESH_FOR = 4.0  # seconds; the page promises 5
PRESIDIO = "presidio"
SWITCHES = (*BUILTINS, PRESIDIO)
ON_FROM_THE_START = (
    "api_key",
    "password",
    "card",
)  # what nobody needs in a trajectory, and nobody means to send

presidio.FOLDER = settings.FLYWHEEL_PRESIDIO_MODELS
_kept: dict[int, tuple[float, tuple[Rule, ...]]] = {}


def redactor_of(project: Project) -> Redactor:
    """The project's enabled rules, compiled; at most `FRESH_FOR` seconds old in every process. With
    Presidio it is slow.

    Raises RuleError if a stored rule cannot be used here (Presidio is gone): then nothing may be
    stored unread.
    """
    return _compiled(_fresh_rules(project), secret_of(project))


def quick_redactor_of(project: Project) -> Redactor:
    """As `redactor_of`, without Presidio: for requests, whose rows wait for it elsewhere
    (`names`).
    """
    rules = tuple(rule for rule in _fresh_rules(project) if rule.kind != PRESIDIO)
    return _compiled(rules, secret_of(project))


def redacted_name(project: Project, name: str) -> str:
    """The name of a file; what says its type stays, unless it is part of what is taken out.

    Raises RuleError.
    """
    redactor = redactor_of(project)

    def redacted(text: str) -> str:
        return redactor.redact({"name": text})[0]["name"]

    whole, (stem, dot, suffix) = redacted(name), name.rpartition(".")
    if whole == name or not dot or (short := redacted(stem)) == stem:
        return whole
    return f"{short}{dot}{suffix}"


def looks_for_names(project: Project) -> bool:
    return any(rule.kind == PRESIDIO for rule in _fresh_rules(project))


def version_of(project: Project) -> str:
    """Identifies the enabled rules with all their settings: the same for the same rules."""
    return hashlib.blake2b(msgspec.json.encode(rules_of(project)), digest_size=6).hexdigest()


def _fresh_rules(project: Project) -> tuple[Rule, ...]:
    until, rules = _kept.get(project.pk, (0.0, None))
    if rules is None or until < time.monotonic():
        rules = tuple(rules_of(project))
        _kept[project.pk] = time.monotonic() + FRESH_FOR, rules
    return rules


@lru_cache(maxsize=256)
def _compiled(rules: tuple[Rule, ...], key: bytes) -> Redactor:
    return Redactor(rules, key=key)


def rules_of(project: Project) -> list[Rule]:
    """The enabled rules in the order of precedence: the project's own in theirs, then the built-in
    kinds.
    """
    rows = list(project.redaction_rules.filter(enabled=True))
    own = [row for row in rows if row.kind not in SWITCHES]
    built_in = sorted(
        (row for row in rows if row.kind in SWITCHES), key=lambda row: SWITCHES.index(row.kind)
    )
    return [Rule(row.name, row.kind, row.pattern, row.replacement) for row in own + built_in]


def secret_of(project: Project) -> bytes:
    """The key of the project's tokens. It follows from SECRET_KEY: another one gives other tokens
    from then on.
    """
    return salted_hmac("flywheel.redaction", str(project.pk), algorithm="sha256").digest()


@transaction.atomic
def save_builtins(*, project: Project, chosen: Mapping[str, bool], by: Any) -> None:
    """Switches the built-in kinds: those in `chosen` on, True if a token shall tell equal values,
    the others off.

    Raises RuleError for an unknown kind.
    """
    if unknown := [kind for kind in chosen if kind not in BUILTINS]:
        raise RuleError(f"Unknown rule kind “{unknown[0]}”.")
    rules = [_builtin_rule(kind, token) for kind, token in chosen.items()]
    Redactor(rules, key=secret_of(project))
    _lock(project)
    before = set(
        project.redaction_rules.filter(kind__in=BUILTINS, enabled=True).values_list(
            "kind", "replacement"
        )
    )
    project.redaction_rules.filter(kind__in=BUILTINS).exclude(kind__in=chosen).update(enabled=False)
    for rule in rules:
        project.redaction_rules.update_or_create(
            kind=rule.kind,
            defaults={
                "name": rule.name,
                "pattern": rule.pattern,
                "replacement": rule.replacement,
                "enabled": True,
                "by": by,
            },
        )
    if before != {(rule.kind, rule.replacement) for rule in rules}:
        audit("redaction.switched", project=project, by=by, on=", ".join(sorted(chosen)) or "none")
    _forget(project)


@transaction.atomic
def save_presidio(
    *, project: Project, on: bool, settings: presidio.Settings, token: bool, by: Any
) -> None:
    """Switches Presidio on with these settings, or off. What waits for it then follows the new
    rules. Raises RuleError.
    """
    _lock(project)
    rows = project.redaction_rules.filter(kind=PRESIDIO)
    if not on:
        if rows.filter(enabled=True).update(enabled=False):
            audit(
                "redaction.presidio_off",
                project=project,
                by=by,
                waiting=held.waiting_of(project).waiting,
                version=version_of(project),
            )
            _forget(project)
        return
    presidio.check(settings)
    rule = _builtin_rule(PRESIDIO, token)
    changes = {
        "pattern": presidio.pattern_of(settings),
        "replacement": rule.replacement,
        "enabled": True,
    }
    if not rows.filter(**changes).exists():
        rows.update_or_create(
            project=project, kind=PRESIDIO, defaults={"name": PRESIDIO, "by": by, **changes}
        )
        audit(
            "redaction.presidio_on",
            project=project,
            by=by,
            entities=", ".join(settings.entities),
            language=settings.language,
            score=settings.score,
            model=settings.model or "largest installed",
            version=version_of(project),
        )
        _forget(project)


@on(ProjectCreated)
def switch_on(event: ProjectCreated) -> None:
    """What a new project begins with."""
    rules = [_builtin_rule(kind, token=False) for kind in ON_FROM_THE_START]
    RedactionRule.objects.bulk_create(
        RedactionRule(
            project=event.project,
            name=rule.name,
            kind=rule.kind,
            replacement=rule.replacement,
            by=event.by,
        )
        for rule in rules
    )


def _builtin_rule(kind: str, token: bool) -> Rule:
    replacement = f"[{kind.upper()}_{ID}]" if token else f"[{kind.upper()}]"
    return Rule(kind, kind, "", replacement)


@transaction.atomic
def add(
    *, project: Project, name: str, pattern: str, replacement: str = "", by: Any
) -> RedactionRule:
    """A rule of the project's own, after those it has. Raises RuleError."""
    _lock(project)
    _check(project, name, pattern, replacement)
    last = project.redaction_rules.aggregate(last=Max("position"))["last"] or 0
    row = project.redaction_rules.create(
        name=name, kind="regex", pattern=pattern, replacement=replacement, position=last + 1, by=by
    )
    audit("redaction.added", project=project, by=by, target=row, name=name, pattern=pattern)
    _forget(project)
    return row


@transaction.atomic
def edit(*, rule: RedactionRule, name: str, pattern: str, replacement: str = "", by: Any) -> None:
    """Raises RuleError."""
    _lock(rule.project)
    _check(rule.project, name, pattern, replacement, but=rule)
    rule.name, rule.pattern, rule.replacement = name, pattern, replacement
    rule.save(update_fields=["name", "pattern", "replacement"])
    audit("redaction.changed", project=rule.project, by=by, target=rule, name=name, pattern=pattern)
    _forget(rule.project)


@transaction.atomic
def set_enabled(*, rule: RedactionRule, enabled: bool, by: Any) -> None:
    if RedactionRule.objects.filter(pk=rule.pk).exclude(enabled=enabled).update(enabled=enabled):
        action = "redaction.enabled" if enabled else "redaction.disabled"
        audit(action, project=rule.project, by=by, target=rule, name=rule.name)
        _forget(rule.project)


@transaction.atomic
def move(*, rule: RedactionRule, up: bool, by: Any) -> None:
    """One place up or down among the project's own rules. The first of two that overlap names what
    is replaced.
    """
    _lock(rule.project)
    rows = list(own_rules(rule.project))
    place = rows.index(rule)
    other = place - 1 if up else place + 1
    if not 0 <= other < len(rows):
        return
    rows[place], rows[other] = rows[other], rows[place]
    for position, row in enumerate(rows, start=1):
        row.position = position
    RedactionRule.objects.bulk_update(rows, ["position"])
    audit(
        "redaction.moved",
        project=rule.project,
        by=by,
        target=rule,
        name=rule.name,
        position=other + 1,
    )
    _forget(rule.project)


@transaction.atomic
def delete(*, rule: RedactionRule, by: Any) -> None:
    audit(
        "redaction.deleted",
        project=rule.project,
        by=by,
        target=rule,
        name=rule.name,
        pattern=rule.pattern,
    )
    rule.delete()
    _forget(rule.project)


def own_rules(project: Project) -> Any:
    return project.redaction_rules.exclude(kind__in=SWITCHES)


def _check(
    project: Project, name: str, pattern: str, replacement: str, but: RedactionRule | None = None
) -> None:
    if name in SWITCHES:
        raise RuleError(f"“{name}” is the name of a built-in rule. Choose another.")
    if project.redaction_rules.filter(name=name).exclude(pk=but and but.pk).exists():
        raise RuleError(f"A rule named “{name}” already exists.")
    rules = [Rule(row.name, "regex", row.pattern) for row in own_rules(project) if row != but]
    Redactor([*rules, Rule(name, "regex", pattern, replacement)], key=secret_of(project))


def _lock(project: Project) -> None:
    """One writer of a project's rules at a time."""
    Project.objects.select_for_update().get(pk=project.pk)


def _forget(project: Project) -> None:
    transaction.on_commit(lambda: _kept.pop(project.pk, None))
