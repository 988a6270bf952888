"""Bounds of numbers and lengths of texts in page forms, read from the Structs that check the same
values in the API and in jobs: declared once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from django import forms
from django.core.validators import (
    BaseValidator,
    MaxLengthValidator,
    MaxValueValidator,
    MinValueValidator,
)
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
    """Class decorator: a number field takes the bounds of the Structs' field of the same name, a
    text field its length (SlugFields have patterns instead). `renamed` says where the field has
    another name, or which Struct it belongs to: `usd="most_usd"` or `beta=(DpoConfig, "beta")`.

    Where several Structs have the field, the widest bounds count: the form cannot know yet which of
    them will check the value. Raises TypeError for a field that writes its own, other than the
    length of a model's column where that is the same.
    """

    def sources(name: str) -> list[tuple[type[Struct], str]]:
        source = renamed.get(name, name)
        return [source] if isinstance(source, tuple) else [(struct, source) for struct in structs]

    def decorate(form: F) -> F:
        for name, field in form.base_fields.items():
            where = f"{form.__name__}.{name}"
            if isinstance(field, NUMBERS):
                named = [bounds_of(struct).get(source) for struct, source in sources(name)]
                if bounds := [bound for bound in named if bound]:
                    _apply(field, _widest(bounds), where)
            elif is_text(field):
                found = [(lengths_of(struct), source) for struct, source in sources(name)]
                lengths = [known[source] for known, source in found if source in known]
                if lengths:
                    longest = None if None in lengths else max(lengths)
                    _limit(field, longest, where, written=name in form.declared_fields)
        return form

    return decorate


def bounds_of(struct: type[Struct]) -> dict[str, Bounds]:
    """The bounds of each number field of a Struct, also of fields that may be null or left out."""
    numbers = {field.name: _number(field.type) for field in _fields(struct)}
    return {name: _bounds(number) for name, number in numbers.items() if number}


def lengths_of(struct: type[Struct]) -> dict[str, int | None]:
    """The most characters of each text field of a Struct; None: unlimited."""
    texts = {field.name: _option(field.type, inspect.StrType) for field in _fields(struct)}
    return {name: text.max_length for name, text in texts.items() if text}


@cache
def _fields(struct: type[Struct]) -> tuple[inspect.Field, ...]:
    """To inspect a Struct anew for each field of each form took a quarter of a start."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def is_text(field: forms.Field) -> bool:
    return isinstance(field, forms.CharField) and not isinstance(field, forms.SlugField)


def _option(kind: inspect.Type, *wanted: type[inspect.Type]) -> Any:
    """The type itself, or the one of a union; also below a description."""
    if isinstance(kind, inspect.Metadata):
        return _option(kind.type, *wanted)
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    bare = [option.type if isinstance(option, inspect.Metadata) else option for option in options]
    return next((option for option in bare if isinstance(option, wanted)), None)


def _number(kind: inspect.Type) -> inspect.IntType | inspect.FloatType | None:
    return _option(kind, inspect.IntType, inspect.FloatType)


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


def _limit(field: forms.CharField, longest: int | None, name: str, *, written: bool) -> None:
    if getattr(field, "from_struct", False):
        return
    if field.max_length is not None and (written or field.max_length != longest):
        raise TypeError(f"{name} has a length of its own besides that of its Struct, {longest}.")
    field.from_struct = True
    if field.max_length is None and longest is not None:
        field.max_length = longest
        field.validators.append(MaxLengthValidator(longest))
        field.widget.attrs.update(field.widget_attrs(field.widget))
