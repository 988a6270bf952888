"""The form of an operation, made from what it takes: a field has the bounds, the choices, the title
(`label`) and the description (`help_text`) of the Struct's. Where that tells how to write the value
in the API, the form shows the `hint` of Meta's `extra`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec
from django import forms
from django.http import Http404
from msgspec import UNSET, Struct, inspect

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import Project
from apps.core.operations.declared import Operation
from apps.core.operations.inputs import Reference, call
from workers.lib.typed import FormError, convert

EMPTY = (None, "")
SIMPLE: Mapping[type, tuple[Any, Any, dict[str, str]]] = {
    inspect.IntType: (forms.IntegerField, forms.NumberInput, {}),
    inspect.FloatType: (forms.FloatField, forms.NumberInput, {}),
    inspect.StrType: (forms.CharField, forms.TextInput, {}),
    inspect.DateTimeType: (forms.DateTimeField, forms.DateTimeInput, {"type": "datetime-local"}),
}


class OperationForm(PlainForm):
    """Valid if the operation takes what it holds: `values` of its inputs. `rows` are the references
    that the address of the page names. What is offered may depend on them, on the object and on the
    project: `rows` of a reference, `choices` and `only_if` of Meta's `extra` are functions of them.
    """

    operation: Operation
    inputs: Mapping[str, _Input]

    def __init__(
        self,
        *args: Any,
        project: Project | None = None,
        rows: Mapping[str, Any] | None = None,
        target: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.project, self.rows, self.values = project, dict(rows or {}), dict[str, Any]()
        self.references = self.operation.inputs.references
        known = {"project": project, self.operation.target_name: target, **self.rows}
        ask = cache(lambda function: call(function, known))
        for name, field in list(self.fields.items()):
            extra = self.inputs[name].extra
            if "only_if" in extra and not ask(extra["only_if"]):
                del self.fields[name]
            elif isinstance(field, forms.ModelChoiceField):
                field.queryset = ask(self.references[name].rows)
            elif callable(extra.get("choices")):
                field.choices = partial(ask, extra["choices"])  # read only where they are shown

    @property
    def more(self) -> list[forms.BoundField]:
        """What only some projects are asked for; a page may fold it away."""
        return [field for field in self if "only_if" in self.inputs[field.name].extra]

    @property
    def more_open(self) -> bool:
        return bool(self.non_field_errors()) or any(field.errors for field in self.more)

    def clean(self) -> dict[str, Any]:
        values = {
            name: value if value not in EMPTY else None if self.inputs[name].nullable else ""
            for name, value in self.cleaned_data.items()
            if value not in EMPTY or self.inputs[name].may_be_empty
        }
        rows = {
            name: self._row(name, values.pop(name))
            for name in self.references.keys() & values.keys()
        }
        if not self.errors:
            try:
                sent = convert(values, self.operation.inputs.typed or Struct)
                own = {name: getattr(sent, name) for name in sent.__struct_fields__}
                self.values = own | rows | self.rows
            except FormError as error:
                self.add_refusal(error)
        return self.cleaned_data

    def _row(self, name: str, value: Any) -> Any:
        """Of a reference, which is a text where the form offers no rows."""
        text = isinstance(value, str)
        try:
            return self.references[name].find(self.project, value) if text else value
        except Http404 as error:
            self.add_error(name, str(error))

    def add_refusal(self, error: Exception) -> None:
        """What the operation has raised, beside the field that it names."""
        name, text = getattr(error, "field", None), str(error)
        if isinstance(error, FormError):
            name = error.path.partition("[")[0]
            text = f"{error.problem[:1].upper()}{error.problem[1:]}."
        self.add_error(name if name in self.fields else None, text)


@cache
def form_of(operation: Operation) -> type[OperationForm]:
    """The form of an operation, with the fields that its page does not leave out or name in its
    path."""
    page, inputs = operation.page, operation.inputs
    info = inspect.type_info(inputs.takes or Struct)
    assert isinstance(info, inspect.StructType)
    without = {*page.without, *inputs.in_path(page.path)} if page else set()
    shown = {field.name: _Input.of(field) for field in info.fields if field.name not in without}
    fields = {name: each.on_form(inputs.references.get(name)) for name, each in shown.items()}
    attributes = fields | {"operation": operation, "inputs": shown}
    return bounds_from(info.cls)(type(f"{info.cls.__name__}Form", (OperationForm,), attributes))


class _Input(NamedTuple):
    """A field of a Struct: its type without null, and what Meta says of it."""

    name: str
    default: Any
    kind: inspect.Type
    nullable: bool
    about: Mapping[str, Any]  # title, description, examples
    extra: Mapping[str, Any]

    @classmethod
    def of(cls, field: inspect.Field) -> _Input:
        default = None if field.default in (msgspec.NODEFAULT, UNSET) else field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if isinstance(default, float) and default.is_integer():
            default = int(default)  # 1, not 1.0
        kind, nullable, about, extra = _unwrapped(field.type)
        if isinstance(kind, inspect.ListType):  # what its items may be is offered for the list
            extra = _unwrapped(kind.item_type)[-1] | extra
        return cls(field.name, default, kind, nullable, about, extra)

    @property
    def may_be_empty(self) -> bool:
        if self.nullable or not isinstance(self.kind, inspect.StrType):
            return self.nullable and "missing" not in self.extra
        return not self.kind.min_length and bool(re.search(self.kind.pattern or "", ""))

    def on_form(self, reference: Reference | None) -> forms.Field:
        kind, description = self.kind, self.about.get("description", "")
        if self.may_be_empty and not self.default:
            description = f"Optional. {description}".strip()
        common: dict[str, Any] = {
            "label": self.about.get("title"),
            "help_text": self.extra.get("hint", description),
            "initial": self.default,
            # What a change leaves out keeps its value in the API; its form shows the value.
            "required": self.default is None and not self.may_be_empty,
        }
        if "missing" in self.extra:
            common["error_messages"] = {"required": self.extra["missing"]}
        if reference and reference.rows:
            empty = self.extra.get("empty", "–") if self.may_be_empty else None
            return forms.ModelChoiceField(None, empty_label=empty, **common)
        if isinstance(kind, inspect.ListType):
            item = _unwrapped(kind.item_type)[0]
            return forms.TypedMultipleChoiceField(
                choices=_choices(item, self.extra),
                coerce=int if isinstance(item, inspect.IntType) else str,
                widget=forms.CheckboxSelectMultiple,
                error_messages={"required": "Choose at least one."},
                **common | {"required": bool(kind.min_length)},
            )
        if isinstance(kind, inspect.LiteralType) or "choices" in self.extra:
            return forms.ChoiceField(choices=_choices(kind, self.extra), **common)
        if isinstance(kind, inspect.BoolType):
            return forms.BooleanField(**common | {"required": False})
        if type(kind) not in SIMPLE:
            raise TypeError(f"{self.name}: no form field for {type(kind).__name__}.")
        field_class, widget, attrs = SIMPLE[type(kind)]
        if isinstance(kind, inspect.StrType) and kind.pattern and re.search(kind.pattern, "a\nb"):
            widget, attrs = forms.Textarea, attrs | {"rows": 3}
        if example := next(iter(self.about.get("examples", ())), ""):
            attrs = attrs | {"placeholder": str(example)}
        if "suggest" in self.extra:
            attrs = attrs | {"list": f"{self.name}-suggestions"}
        field = field_class(widget=widget(attrs), **common)
        field.suggestions = self.extra.get("suggest")  # type: ignore[attr-defined]
        return field


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, bool, dict[str, Any], dict[str, Any]]:
    """The type without null, whether it may be null, and what Meta says of it."""
    nullable, about, extra = False, dict[str, Any](), dict[str, Any]()
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            about |= kind.extra_json_schema or {}
            extra |= kind.extra or {}
            kind = kind.type
        else:
            options = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            nullable, kind = len(options) < len(kind.types) or nullable, options[0]
    return kind, nullable, about, extra


def _choices(kind: inspect.Type, extra: Mapping[str, Any]) -> list[tuple[Any, str]]:
    choices = extra.get("choices", [])
    values = [(value, str(value)) for value in getattr(kind, "values", ())]
    return values if callable(choices) or not choices else list(choices)
