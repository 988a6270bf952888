"""The declaration of an operation, at the function that does it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, TypeVar, get_type_hints

from django.apps import apps
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse

from apps.core.auditing import words
from apps.core.models import Project
from apps.core.operations.inputs import Inputs, call, is_a
from apps.core.routes import SHOWS_NOTHING, Disclosure
from apps.core.scopes import ROLE_FOR, Needs, Role, Scope

F = TypeVar("F", bound=Callable[..., Any])
CALLER = ("project", "by", "key")  # parameters that say who calls


class Paged(NamedTuple):
    """An answer that is read from a queryset, a page of at most `most` rows at a time, newest
    first by the field `by`."""

    item: Any
    most: int = 200
    by: str = "created_at"


def _nothing(request: Any, rows: Sequence[Any]) -> None:
    return None


@dataclass(frozen=True)
class Written:
    """An answer that is written by a function of the request and what was returned; with its JSON
    Schema. `load` is called before, once for all rows of an answer: it sets on them what `content`
    needs to know of each and their queryset does not have.
    """

    schema: dict[str, Any]
    content: Callable[[Any, Any], Any]
    load: Callable[[Any, Sequence[Any]], None] = _nothing


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

    A name in the path that is a reference of the operation fills that; the others find the object,
    which without any is the one of the reference (the channel of a report).
    With a `template` it is a page of its own that shows the form, the object under the name of its
    parameter, and the `context`; without, a button of another page. The form has no fields
    `without`. `then` is the route that follows, or a function that gives its address; by default
    the page of the object, or of what was made. `done` is the sentence that is shown there, in
    which `{target}` is the object and `{returned}` what the function has returned, or a function.
    These functions have any of the parameters `request`, `project`, `form`, `target`, `returned`
    and the references of the path. `follows`: a worker does it, and the page that follows waits for
    what comes of it (`core.following`). `refused` is called with the request, the object and the
    error: it answers, or leaves it to the sentence (None).
    """

    path: str
    route: str
    template: str = ""
    context: Callable[..., Mapping[str, Any]] = lambda: {}
    without: Collection[str] = ()
    then: str | Callable[..., str] = ""
    done: str | Callable[..., str] = ""
    follows: bool = False
    refused: Callable[[HttpRequest, Any, Exception], HttpResponse | None] | None = None


REGISTRY: dict[str, Operation] = {}


@dataclass(eq=False)
class Operation:
    """Declares the function that it decorates as an operation, and leaves it as it is.

    `name` is unique; in the OpenAPI file it is `v1_{name}`, described by the first paragraph of the
    function's docstring. Of the parameters, `project`, `by` and `key` (None on a page) are who
    calls, the one whose type is a model is the object (`target`), and the others are what the
    operation takes (`inputs`): in the body, or for a GET in the query. `within` is the lookup from
    the object to its project. `partial`: what is left out keeps the object's value.

    `gives` is a Struct, `Written`, a list of one, or `Paged`, filled from what the function
    returns, or from the object if that is no row; None: no content. With several outcomes it is
    `{status: …}`, and `outcome` makes the status, and the row that is answered, of what the
    function returns. `scope` (any of several) is `read` for a GET and else `manage`; `role`
    the one that the scope needs, unless it is higher. `says` gives the actions that it audits
    their sentences (`auditing.words`); `shows` is what it can show of a hold-out.
    """

    name: str
    _: KW_ONLY
    rest: Rest | None = None
    page: Page | None = None
    gives: Any = None
    outcome: Callable[[Any], tuple[int, Any]] | None = None
    role: Role | None = None
    scope: Scope | Sequence[Scope] = ()
    within: str = "project"
    partial: bool = False
    examples: tuple[Any, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)
    shows: Disclosure = SHOWS_NOTHING
    app: str = field(init=False)
    body: Callable[..., Any] = field(init=False)
    needs: Needs = field(init=False)
    inputs: Inputs = field(init=False)
    target: type[Model] | None = None
    target_name: str = ""

    def __call__(self, body: F) -> F:
        """Raises ValueError for a name that is declared already."""
        if self.name in REGISTRY:
            raise ValueError(f"There is an operation {self.name} already.")
        self.app, self.body = body.__module__.split(".")[1], body
        own = (self.scope,) if isinstance(self.scope, str) else tuple(self.scope)
        accepted = own or (Scope.READ if self.reads else Scope.MANAGE,)
        enough = ROLE_FOR.get(accepted[0])
        self.needs = Needs(accepted, self.role if self.role != enough else None)
        self.role = self.role or enough
        hints = get_type_hints(body, include_extras=True)
        for parameter in inspect.signature(body).parameters:
            if parameter not in CALLER and is_a(Model, hints[parameter]):
                self.target, self.target_name = hints[parameter], parameter
        self.inputs = Inputs.of(body, (*CALLER, self.target_name), partial=self.partial)
        if self.says:
            words.declare(getattr(apps.get_app_config(self.app), "audit_section", ""), self.says)
        REGISTRY[self.name] = body.operation = self  # type: ignore[attr-defined]
        return body

    @property
    def about(self) -> str:
        return " ".join((inspect.getdoc(self.body) or "").split("\n\n")[0].split())

    @property
    def reads(self) -> bool:
        return self.rest is not None and self.rest.method == "GET"

    @property
    def route(self) -> str:
        return f"{self.app}_api:{self.rest.route}" if self.rest else ""

    @property
    def page_route(self) -> str:
        return f"{self.app}:{self.page.route}" if self.page else ""

    def object_of(self, project: Project, address: Mapping[str, Any]) -> Any:
        """What the address names; None if the operation has no object. Raises Http404, for what
        is another project's, too."""
        if self.target is None:
            return None
        rows = self.target._default_manager.select_related(self.within)
        row = rows.filter(**{self.within: project}, **address).first()
        if row is None:
            named = " and ".join("id" if name == "pk" else name for name in address)
            noun = self.target._meta.verbose_name
            raise Http404(f"This project has no {noun} with this {named}.")
        return row

    def run(self, values: Mapping[str, Any], target: Any = None, **caller: Any) -> Any:
        """Calls the function for `project`, `by` and `key` with the `values` of its inputs. Raises
        what it raises.
        """
        known = {"key": None, self.target_name: target} | caller
        return call(self.body, known, **self.inputs.arguments(values, target))


operation = Operation
