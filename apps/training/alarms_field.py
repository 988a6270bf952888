"""The alarms of a new run as a table of inputs. Only values that differ from the defaults are
stored, as in a training config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from workers.lib.alarms import ACTIONS, LEVELS, TABLE, AlarmSettings, Rule
from workers.lib.typed import FormError, convert, plain

NUMBERS = ("warn", "act", "over")
NAME = "alarms"


def as_inputs(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """{input name: value} for the values that differ from the defaults."""
    return {
        f"{NAME}-{rule}-{what}": value
        for rule, given in settings.items()
        for what, value in given.items()
    }


def choices_of(rule: Rule) -> list[tuple[str, str]]:
    """An alarm without a threshold for acting can only warn."""
    return [("", f"{rule.action} (default)")] + [
        (name, name) for name in ACTIONS if LEVELS[name] < LEVELS["pause"] or rule.act is not None
    ]


class AlarmsTable(forms.Widget):
    template_name = "training/_alarm_options.html"

    def use_required_attribute(self, initial: Any) -> bool:
        return False

    def id_for_label(self, id_: str) -> str:
        return ""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for rule in TABLE:
            given = {
                what: str(data.get(f"{name}-{rule.name}-{what}") or "").strip()
                for what in ("action", *NUMBERS)
            }
            if filled := {what: value for what, value in given.items() if value}:
                found[rule.name] = filled
        return found

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        given = value if isinstance(value, Mapping) else {}
        rows = [
            {
                "rule": rule,
                "choices": choices_of(rule),
                "given": given.get(rule.name) or {},
                "name": f"{name}-{rule.name}",
            }
            for rule in TABLE
        ]
        return super().get_context(name, value, attrs) | {"rows": rows}

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        return render_to_string(self.template_name, self.get_context(name, value, attrs))


class AlarmsField(forms.Field):
    """Its value is the `alarms` of a config."""

    widget = AlarmsTable

    def __init__(self) -> None:
        super().__init__(required=False, label="", initial={})

    def clean(self, value: dict[str, dict[str, str]]) -> dict[str, Any]:
        found = {
            rule: {what: self.read(rule, what, text) for what, text in given.items()}
            for rule, given in value.items()
        }
        try:
            return plain(convert(found, AlarmSettings))
        except FormError as error:
            raise forms.ValidationError(str(error)) from error

    def read(self, rule: str, what: str, text: str) -> Any:
        if what == "action":
            return text
        try:
            return int(text) if what == "over" else float(text)
        except ValueError:
            kind = "a whole number" if what == "over" else "a number"
            raise forms.ValidationError(f"“{text[:40]}” at “{rule}” is not {kind}.") from None
