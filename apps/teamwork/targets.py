"""What people can comment on and be assigned. Apps register their objects in a module `targets`,
loaded when Django is ready.

So this layer does not know what the objects are, only who may open them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Model

from apps.core.models import ApiKey, Project, Role


class Unknown(Exception):
    """There is no such object in this project, or none that this person or key may open."""


def _of_nobody(target: Any) -> Iterable[Any]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`noun` ("a trajectory") and `title` quote no held-out content. `role`: who may open it at
    all; `is_open`: whether this person (or key) may see its comments now; a hold-out has to be
    opened first."""

    name: str  # in addresses
    noun: str  # in the audit log, which outlives a later hold-out
    model: type[Model]
    title: Callable[[Any], str]
    project: str = "project"  # the way to it
    related: tuple[str, ...] = ()
    role: Callable[[Any], Role] = lambda target: Role.VIEWER
    is_open: Callable[[Any, Any], bool] = lambda target, by: True
    may_be_quoted: Callable[[Any], bool] = lambda target: (
        True
    )  # in notifications: False if comments may quote a hold-out
    owners: Callable[[Any], Iterable[Any]] = _of_nobody  # who is notified of the first comment
    record_view: Callable[[Any, Any], None] = lambda target, by: (
        None
    )  # where comments are shown without its own page
    takes_comments: bool = True
    worker: Role | None = None  # the least role that it may be assigned to
    # Where the API knows it by another id than the primary key: the primary key of that id, None
    # without one, and that id.
    key_of: Callable[[Project, str], Any] | None = None
    api_id: Callable[[Any], str] = lambda target: str(target.pk)

    def find_by_api_id(self, project: Project, name: str) -> Any:
        """By the id of the API, else by the primary key, which addresses of pages have. Raises
        Unknown.
        """
        key = self.key_of(project, name) if self.key_of else None
        return self.find(project, name if key is None else key)

    def find(self, project: Project, pk: Any) -> Any:
        """Raises Unknown."""
        try:
            key = self.model._meta.pk.to_python(pk)  # type: ignore[union-attr]
            rows = self.model._default_manager.select_related(*self.related).filter(
                **{self.project: project}
            )
            found = rows.filter(pk=key).first()
        except (ValidationError, ValueError, OverflowError):
            found = None
        if found is None:
            raise Unknown
        return found

    def may_see(self, target: Any, by: Any, role: Role | str | None) -> bool:
        """Whether a person with this role, or a key, may see its comments now."""
        least = self.role(target)
        if role is None or least not in list(Role)[: Role(role).rank + 1]:
            return False
        return self.is_open(target, by)


_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    assert kind.name not in _kinds, f"{kind.name} is registered already"
    _kinds[kind.name] = kind


def kind_named(name: str) -> Kind:
    """Raises Unknown."""
    if name not in _kinds:
        raise Unknown
    return _kinds[name]


def kind_of(label: str) -> Kind:
    """By a model's label, as rows keep it. Raises Unknown."""
    for kind in _kinds.values():
        if kind.model._meta.label_lower == label:
            return kind
    raise Unknown


def kinds() -> list[Kind]:
    return list(_kinds.values())


def role_of_key(key: ApiKey) -> Role | None:
    """Hold-outs open to a key that may see them, everything else to any that reads."""
    if key.maker_role is None:
        return None
    return (
        Role(key.maker_role)
        if key.sees_holdout
        else min(Role(key.maker_role), Role.REVIEWER, key=lambda role: role.rank)
    )
