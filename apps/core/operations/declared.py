"""The declaration of an operation, read from the signature of the function that it decorates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import msgspec
from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from msgspec import UNSET, Struct, UnsetType

from apps.core.auditing import words
from apps.core.models import ApiKey, Project
from apps.core.query import Query
from apps.core.routes import SHOWS_NOTHING, Disclosure
from apps.core.scopes import ROLE_FOR, Needs, Role, Scope

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
READING = "GET"


class Paged(Generic[T]):
    """`gives=Paged[Out]`: the function returns a queryset, which is read a page at a time, newest
    first."""


class Written(NamedTuple):
    """An answer that is written by a function of its own: its JSON Schema, and the function."""

    schema: dict[str, Any]
    content: Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Rest:
    """Where an operation stands in the API: `Rest("PATCH", "webhooks/<uuid:pk>/", "webhook")`."""

    method: str
    path: str
    route: str  # its name within the app's namespace
    status: int = 200


@dataclass(frozen=True)
class Page:
    """Where the operation's form is posted to.

    With a `template` it is a page of its own that shows the form (`form`, of the fields `only`, if
    given) and the object under the name of its parameter; without, a button of another page.
    `then` is the route that follows, if it is not the page of the object; `done` the sentence that
    is shown there, in which `{target}` is the object and `{returned}` what the function has
    returned, or a function of both. `after` is called with the request and `returned`; `refused`
    with the request, the object and the error: it answers, or leaves it to the sentence (None).
    """

    path: str
    route: str
    template: str = ""
    only: tuple[str, ...] = ()
    then: str = ""
    done: str | Callable[[Any, Any], str] = ""
    after: Callable[[HttpRequest, Any], None] | None = None
    refused: Callable[[HttpRequest, Any, Exception], HttpResponse | None] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """`name` is unique; in the OpenAPI file it is `v1_{name}`.

    Of the function's parameters, `project`, `by` and `key` (None on a page) are who asks, the one
    whose type is a model is the object (`target`), `query` is the checked query of a read, and the
    others are what the operation takes; if their only one is a Struct (`whole` is its name), then
    that. `within` is the lookup from the object to its project. `partial`: what is left out keeps
    the object's value. `gives` is a Struct, `Written`, a list of a Struct, or `Paged`, filled from
    what the function returns, or from the object if that is no row; None: no content.
    """

    name: str
    app: str
    body: Callable[..., Any]
    rest: Rest | None
    page: Page | None
    needs: Needs
    role: Role
    takes: type[Struct] | None
    whole: str
    gives: Any
    target: type[Model] | None
    target_name: str
    within: str
    query: Query
    about: str
    examples: tuple[Any, ...]
    says: Mapping[str, str] = field(default_factory=dict)
    shows: Disclosure = SHOWS_NOTHING

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.body, include_extras=True)

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.body).parameters

    @property
    def route(self) -> str:
        return f"{self.app}_api:{self.rest.route}" if self.rest else ""

    @property
    def page_route(self) -> str:
        return f"{self.app}:{self.page.route}" if self.page else ""

    def object_of(self, project: Project, **address: Any) -> Any:
        """Raises ObjectDoesNotExist, for what is another project's, too."""
        assert self.target is not None
        rows = self.target._default_manager.select_related(self.within)
        row = rows.filter(**{self.within: project}, **address).first()
        if row is None:
            noun, (field,) = self.target._meta.verbose_name, address
            named = "id" if field == "pk" else field
            raise ObjectDoesNotExist(f"This project has no {noun} with this {named}.")
        return row

    def run(
        self,
        *,
        project: Project,
        by: Any,
        target: Any = None,
        given: Struct | None = None,
        key: ApiKey | None = None,
        query: Any = None,
    ) -> Any:
        """Calls the function. Raises what it raises."""
        values = {"project": project, "by": by, "key": key, "query": query} | (
            {self.target_name: target} if target is not None else {}
        )
        who = {name: value for name, value in values.items() if name in self.parameters}
        return self.body(**who, **self._fields(given, target))

    def _fields(self, given: Struct | None, target: Any) -> dict[str, Any]:
        if given is None:
            return {}
        fields = {name: getattr(given, name) for name in given.__struct_fields__}
        values = {
            name: getattr(target, name) if value is UNSET else value
            for name, value in fields.items()
        }
        return {self.whole: self.hints[self.whole](**values)} if self.whole else values

    @property
    def routes(self) -> list[str]:
        return [name for name in (self.route, self.page_route) if name]


REGISTRY: dict[str, Operation] = {}
WHO = ("project", "by", "key", "query")


def operation(
    name: str,
    *,
    rest: Rest | None = None,
    page: Page | None = None,
    gives: Any = None,
    role: Role | None = None,
    scope: Scope | None = None,
    within: str = "project",
    partial: bool = False,
    query: Query | None = None,
    examples: tuple[Any, ...] = (),
    says: Mapping[str, str] | None = None,
    shows: Disclosure = SHOWS_NOTHING,
) -> Callable[[F], F]:
    """Declares the function as an operation and leaves it as it is.

    The first paragraph of its docstring is the description in OpenAPI. `scope` is `read` for a GET
    and else `manage`; `role` the one that the scope needs, unless it is higher. `says` gives the
    actions that it audits their sentences (`auditing.words`); `shows` is what it can show of a
    hold-out. Raises ValueError for a name, or a route and method, that is declared already.
    """

    def decorate(body: F) -> F:
        reads = rest is not None and rest.method == READING
        wanted = scope or (Scope.READ if reads else Scope.MANAGE)
        hints = get_type_hints(body, include_extras=True)
        target_name = next(
            (one for one, hint in hints.items() if one not in (*WHO, "return") and _is_model(hint)),
            "",
        )
        takes, whole = _taken(body, hints, {*WHO, target_name}, partial)
        one = Operation(
            name=name,
            app=body.__module__.split(".")[1],
            body=body,
            rest=rest,
            page=page,
            needs=Needs((wanted,), role if role not in (None, ROLE_FOR.get(wanted)) else None),
            role=role or ROLE_FOR[wanted],
            takes=takes,
            whole=whole,
            gives=gives,
            target=hints.get(target_name),
            target_name=target_name,
            within=within,
            query=query or {},
            about=_first_paragraph(body),
            examples=examples,
            says=says or {},
            shows=shows,
        )
        if name in REGISTRY:
            raise ValueError(f"There is an operation {name} already.")
        REGISTRY[name] = one
        body.operation = one  # type: ignore[attr-defined]
        if one.says:
            words.declare(apps.get_app_config(one.app).audit_section, one.says)
        return body

    return decorate


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Model)


def _taken(
    body: Callable[..., Any], hints: Mapping[str, Any], apart: set[str], partial: bool
) -> tuple[type[Struct] | None, str]:
    """What the function takes, as a Struct, and the name of the parameter that is one, if any."""
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(body).parameters.items()
        if name not in apart
    }
    kinds, title, whole = hints, "".join(map(str.capitalize, body.__name__.split("_"))), ""
    if len(own) == 1 and _is_struct(struct := hints[next(iter(own))]):
        whole, kinds = next(iter(own)), get_type_hints(struct, include_extras=True)
        if not partial:
            return struct, whole
        own = dict.fromkeys(struct.__struct_fields__)
    if not own:
        return None, ""
    fields: list[tuple[str, Any, Any]] = []
    for name, default in own.items():
        if partial:
            fields.append((name, kinds[name] | UnsetType, UNSET))
        else:
            required = default is inspect.Parameter.empty
            fields.append((name, kinds[name], msgspec.NODEFAULT if required else default))
    return msgspec.defstruct(title, fields, kw_only=True, forbid_unknown_fields=True), whole


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def _first_paragraph(body: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(body) or "").split("\n\n")[0].split())
