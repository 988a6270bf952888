"""The form of an operation, made from what it takes: a field has the bounds, the choices, the title
(`label`) and the description (`help_text`) of the Struct's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import msgspec
from django import forms
from msgspec import UNSET, inspect

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.operations.declared import Operation
from workers.lib.typed import FormError, convert


class OperationForm(PlainForm):
    """Valid if the operation takes its values; `given` is then the Struct."""

    operation: Operation
    empty: Mapping[str, Any]  # what an empty field means, where that is not the default
    given: Any = None

    def clean(self) -> dict[str, Any]:
        empty = self.empty
        values = {
            name: empty.get(name) if value in (None, "") else value
            for name, value in self.cleaned_data.items()
            if value not in (None, "") or name in empty
        }
        if not self.errors and self.operation.takes:
            try:
                self.given = convert(values, self.operation.takes)
            except FormError as error:
                name = error.path.partition("[")[0]
                problem = f"{error.problem[:1].upper()}{error.problem[1:]}."
                self.add_error(name if name in self.fields else None, problem)
        return values

    def add_refusal(self, error: Any) -> None:
        """What the operation has raised, beside the field that it names."""
        self.add_error(error.field if error.field in self.fields else None, str(error))


@cache
def form_of(one: Operation, only: Collection[str] | None = None) -> type[OperationForm]:
    """The form of an operation; `only` some of its fields."""
    assert one.takes is not None
    info = inspect.type_info(one.takes)
    assert isinstance(info, inspect.StructType)
    shown = [field for field in info.fields if only is None or field.name in only]
    empty = {field.name: _empty(field.type) for field in shown if _may_be_empty(field.type)}
    form = type(
        f"{one.takes.__name__}Form",
        (OperationForm,),
        {field.name: _field(field) for field in shown} | {"operation": one, "empty": empty},
    )
    return bounds_from(one.takes)(form)


def _may_be_empty(kind: inspect.Type) -> bool:
    inner = _unwrapped(kind)[0]
    return _is_nullable(kind) or (isinstance(inner, inspect.StrType) and not inner.min_length)


def _empty(kind: inspect.Type) -> str | None:
    return None if _is_nullable(kind) else ""


def _is_nullable(kind: inspect.Type) -> bool:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return isinstance(kind, inspect.UnionType) and any(
        isinstance(one, inspect.NoneType) for one in kind.types
    )


def _field(field: inspect.Field) -> forms.Field:
    kind, said, extra = _unwrapped(field.type)
    default = None if field.default in (msgspec.NODEFAULT, UNSET) else field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, float) and default.is_integer():
        default = int(default)  # 1, not 1.0
    description = said.get("description", "")
    if _may_be_empty(field.type) and not default:
        description = f"Optional. {description}".strip()
    common: dict[str, Any] = {
        "label": said.get("title"),
        "help_text": description,
        "initial": default,
        # What a change leaves out keeps its value in the API; its form shows the value.
        "required": default is None and not _may_be_empty(field.type),
    }
    example = next(iter(said.get("examples", ())), "")
    attrs = {"placeholder": str(example)} if example else {}
    if "suggest" in extra:
        attrs["list"] = f"{field.name}-suggestions"
    if isinstance(kind, inspect.ListType):
        item, _, of_item = _unwrapped(kind.item_type)
        return forms.MultipleChoiceField(
            choices=_choices(item, of_item),
            widget=forms.CheckboxSelectMultiple,
            error_messages={"required": "Choose at least one."},
            **common | {"required": bool(kind.min_length)},
        )
    if isinstance(kind, inspect.LiteralType):
        return forms.ChoiceField(choices=_choices(kind, extra), **common)
    if isinstance(kind, inspect.BoolType):
        return forms.BooleanField(**common | {"required": False})
    if isinstance(kind, inspect.IntType):
        return forms.IntegerField(widget=forms.NumberInput(attrs), **common)
    if isinstance(kind, inspect.FloatType):
        return forms.FloatField(widget=forms.NumberInput(attrs), **common)
    if isinstance(kind, inspect.StrType):
        text = forms.CharField(widget=forms.TextInput(attrs), **common)
        text.suggestions = extra.get("suggest")  # type: ignore[attr-defined]
        return text
    raise TypeError(f"{field.name}: no form field for {type(kind).__name__}.")


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, Mapping[str, Any], Mapping[str, Any]]:
    """The type without null and what is said of it; its title, description and examples."""
    said: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            said |= kind.extra_json_schema or {}
            extra |= kind.extra or {}
            kind = kind.type
        else:
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind, said, extra


def _choices(kind: inspect.Type, extra: Mapping[str, Any]) -> list[tuple[Any, str]]:
    assert isinstance(kind, inspect.LiteralType)
    return list(extra.get("choices") or [(value, str(value)) for value in kind.values])
