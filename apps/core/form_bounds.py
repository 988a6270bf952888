"""Bounds of page forms, read from the Structs that check the same values in the API and in jobs:
declared once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from django import forms
from django.core.validators import BaseValidator, MaxValueValidator, MinValueValidator
from msgspec import Struct, inspect

F = TypeVar("F", bound=type[forms.BaseForm])
NUMBERS = (forms.IntegerField, forms.FloatField)


class Bounds(NamedTuple):
    """The numbers that a field accepts; None: unbounded. `above` and `below` exclude the bound
    itself.
    """

    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False


class MoreThan(BaseValidator):
    message = "Must be more than %(limit_value)s."
    code = "min_value"

    def compare(self, a: float, b: float) -> bool:
        return a <= b


class LessThan(BaseValidator):
    message = "Must be less than %(limit_value)s."
    code = "max_value"

    def compare(self, a: float, b: float) -> bool:
        return a >= b


def bounds_from(
    *structs: type[Struct], **renamed: str | tuple[type[Struct], str]
) -> Callable[[F], F]:
    """Class decorator: a number field takes the bounds of the Structs' field of the same name;
    `renamed` says where the field has another name, or which Struct it belongs to: `usd="most_usd"`
    or `beta=(DpoConfig, "beta")`.

    Where several Structs have the field, the widest bounds count: the form cannot know yet which of
    them will check the value. Raises TypeError for a field that repeats bounds of its own.
    """

    def sources(name: str) -> list[tuple[type[Struct], str]]:
        source = renamed.get(name, name)
        return [source] if isinstance(source, tuple) else [(struct, source) for struct in structs]

    def decorate(form: F) -> F:
        for name, field in form.base_fields.items():
            if not isinstance(field, NUMBERS):
                continue
            named = [bounds_of(struct).get(source) for struct, source in sources(name)]
            if bounds := [bound for bound in named if bound]:
                _apply(field, _widest(bounds), f"{form.__name__}.{name}")
        return form

    return decorate


def bounds_of(struct: type[Struct]) -> dict[str, Bounds]:
    """The bounds of each number field of a Struct, also of fields that may be null or left out."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    numbers = {field.name: _number(field.type) for field in info.fields}
    return {name: _bounds(number) for name, number in numbers.items() if number}


def _number(kind: inspect.Type) -> inspect.IntType | inspect.FloatType | None:
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((o for o in options if isinstance(o, inspect.IntType | inspect.FloatType)), None)


def _bounds(number: inspect.IntType | inspect.FloatType) -> Bounds:
    above, below = number.gt is not None, number.lt is not None
    if isinstance(number, inspect.IntType):  # more than 0 is at least 1
        low = number.gt + 1 if number.gt is not None else number.ge
        return Bounds(low, number.lt - 1 if number.lt is not None else number.le)
    return Bounds(
        number.gt if above else number.ge, number.lt if below else number.le, above, below
    )


def _widest(bounds: list[Bounds]) -> Bounds:
    infinity = float("inf")
    low = min(bounds, key=lambda b: (-infinity if b.low is None else b.low, b.above))
    high = max(bounds, key=lambda b: (infinity if b.high is None else b.high, not b.below))
    return Bounds(low.low, high.high, low.above, high.below)


def _apply(field: forms.IntegerField | forms.FloatField, bounds: Bounds, name: str) -> None:
    if getattr(field, "from_struct", False):
        return  # inherited from a form that has them
    if (field.min_value, field.max_value) != (None, None):
        raise TypeError(f"{name} repeats bounds that its Struct declares.")
    field.from_struct = True
    field.min_value, field.max_value = bounds.low, bounds.high
    if bounds.low is not None:
        field.validators.append((MoreThan if bounds.above else MinValueValidator)(bounds.low))
    if bounds.high is not None:
        field.validators.append((LessThan if bounds.below else MaxValueValidator)(bounds.high))
    field.widget.attrs.update(field.widget_attrs(field.widget))
