"""What an operation takes, read from the signature of its function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from django.db.models import Model, QuerySet
from django.http import QueryDict
from msgspec import UNSET, Meta, Struct, UnsetType

from apps.core.models import Project
from apps.core.query import TRUTHY, Query
from workers.lib.typed import Text, json_schema, know


@dataclass(frozen=True)
class Reference:
    """Of a field that names a row of the project: `Annotated[EvalSet, Reference(find_set)]`.

    `find(project, name)` gets the row by what is sent to the API, of the type `sent`; it raises
    Http404 with a sentence. A form offers `rows` to choose from, a function of `project` and of
    the references that the page's path names; without it, it takes the name as text.
    """

    find: Callable[[Project, Any], Model]
    rows: Callable[..., QuerySet[Any]] | None = None
    sent: Any = Text


@dataclass(frozen=True)
class Inputs:
    """`takes` is all that is sent, `typed` what is left of it without the `references`. If the
    function has a single parameter, a Struct, then its fields are the inputs, and `whole` is it.
    """

    takes: type[Struct] | None
    typed: type[Struct] | None
    references: Mapping[str, Reference]
    whole: tuple[str, type[Struct]] | None = None
    partial: bool = False

    @classmethod
    def of(cls, body: Callable[..., Any], others: Iterable[str], *, partial: bool) -> Inputs:
        """Of the parameters of a function besides `others`. `partial`: each may be left out."""
        title = "".join(map(str.capitalize, body.__name__.split("_")))
        hints, whole, about = get_type_hints(body, include_extras=True), None, None
        defaults = {
            name: msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
            for name, parameter in inspect.signature(body).parameters.items()
            if name not in others
        }
        if len(defaults) == 1 and is_a(Struct, hints[next(iter(defaults))]):
            ((name, _),) = defaults.items()
            whole = name, (struct := hints[name])
            title, about = struct.__name__, None if partial else struct.__doc__
            hints = get_type_hints(struct, include_extras=True)
            defaults = {
                field.name: msgspec.field(
                    default=field.default, default_factory=field.default_factory
                )
                for field in msgspec.structs.fields(struct)
            }
        fields = {
            name: (hints[name] | UnsetType, UNSET) if partial else (hints[name], default)
            for name, default in defaults.items()
        }
        sent = {name: _sent(kind) for name, (kind, _) in fields.items()}
        references = {name: reference for name, (_, reference) in sent.items() if reference}
        takes = {name: (sent[name][0], default) for name, (_, default) in fields.items()}
        typed = {name: field for name, field in fields.items() if name not in references}
        return cls(_struct(title, takes, about), _struct(title, typed), references, whole, partial)

    def in_path(self, path: str) -> set[str]:
        """The references that a page's path names."""
        return {name for name in re.findall(r"<(?:\w+:)?(\w+)>", path) if name in self.references}

    @cached_property
    def query(self) -> Query:
        """What is sent as parameters of an address."""
        if self.takes is None:
            return {}
        schema = json_schema(self.takes)
        return {
            name: _not_null(field) | ({"required": True} if name in schema["required"] else {})
            for name, field in schema["properties"].items()
        }

    def from_query(self, query: QueryDict, project: Project) -> dict[str, Any]:
        """The values of parameters that were checked against `query`. Raises Http404."""
        texts: dict[str, Any] = {}
        for name, schema in self.query.items():
            if name in query and schema.get("type") == "boolean":
                texts[name] = query[name].lower() in TRUTHY
            elif text := query.get(name):
                texts[name] = text
        sent = msgspec.convert(texts, know(self.takes or Struct), strict=False)
        return self.values_of(sent, project)

    def values_of(self, sent: Struct, project: Project) -> dict[str, Any]:
        """What the function takes, with rows in place of their names. Raises Http404."""
        values = {name: getattr(sent, name) for name in sent.__struct_fields__}
        rows = {
            name: reference.find(project, values[name])
            for name, reference in self.references.items()
            if values.get(name) not in (None, UNSET)
        }
        return values | rows

    def arguments(self, values: Mapping[str, Any], target: Any) -> dict[str, Any]:
        """Of the function: what a partial change leaves out keeps the object's value."""
        known = {
            name: getattr(target, name) if self.partial and value is UNSET else value
            for name, value in values.items()
        }
        return {self.whole[0]: self.whole[1](**known)} if self.whole else known


def call(function: Callable[..., Any], known: Mapping[str, Any], **others: Any) -> Any:
    """Calls it with those of `known` that it has parameters for, and the others."""
    names = known.keys() & inspect.signature(function).parameters.keys()
    return function(**{name: known[name] for name in names}, **others)


def is_a(kind: type, hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _struct(
    title: str, fields: Mapping[str, tuple[Any, Any]], about: str | None = None
) -> type[Struct] | None:
    if not fields:
        return None
    declared = [(name, *field) for name, field in fields.items()]
    rules: dict[str, Any] = {"kw_only": True, "forbid_unknown_fields": True}
    return msgspec.defstruct(title, declared, namespace={"__doc__": about}, **rules)


def _sent(hint: Any) -> tuple[Any, Reference | None]:
    """The type in which a field is sent, and the reference that it is."""
    optional = type(None) in get_args(hint)
    for option in get_args(hint) if optional else (hint,):
        notes = getattr(option, "__metadata__", ())
        for reference in notes:
            if isinstance(reference, Reference):
                kind = reference.sent | None if optional else reference.sent
                metas = [note for note in notes if isinstance(note, Meta)]
                return Annotated[(kind, *metas)] if metas else kind, reference
    return hint, None


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter of an address is left out instead of being null or empty."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    known = schema | options[0] if options else schema
    unused = ("anyOf", "default", "minLength")
    return {name: value for name, value in known.items() if name not in unused}
