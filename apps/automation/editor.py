"""Edits a flow as a form: its fields as inputs, and a submitted form as the value that `specs.read`
parses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import yaml
from msgspec import Struct

from apps.automation import specs
from apps.automation.specs import FlowError, FlowSpec
from apps.core.http import row_number
from apps.core.models import Project
from apps.evals.models import EvalSetState
from apps.failures.models import FailureMode
from apps.registry.harness import playable
from workers.lib.typed import json_schema, plain

FORM, YAML = "form", "yaml"
MOST_PARTS = 100  # a form may be submitted with more parts than a flow may have
TAGS = {"starts": "by", "steps": "do", "quiet": ""}
PARTS: dict[str, dict[str, type[Struct]]] = {
    "starts": specs.TRIGGERS,
    "steps": dict(specs.STEPS),
    "quiet": {"": specs.Quiet},
}
TITLES = {
    "cron": "Schedule",
    "new_failures": "New failures",
    "failure_rate": "Failure rate rises",
    "new_version": "New version in production",
    "webhook": "Webhook call",
    "": "Quiet hours",
}
LABELS = {
    "if": "Only if",
    "name": "Name for later steps",
    "most_usd": "Max cost (USD)",
    "when": "When",
    "of": "New",
    "mode": "Failure mode",
    "hours_a_run": "Max hours per run",
    "hours_a_day": "Max hours per day",
    "usd_a_run": "Max USD per run",
    "usd_a_day": "Max USD per day",
}
HELP = {
    "when": "0 2 * * * is every night at 2:00",
    "rise": "0.05: only a rise of significantly more than five points counts",
    "config": "Settings of the training run, as YAML",
    "if": "A condition on an earlier step's output: gate.verdict == promote",
    "seed": "The same seed gives the same split or samples",
    "learnable": "Trains only on tasks that this step found informative",
    "samples_of": "An evaluation of the training tasks whose samples are trained on",
    "teacher": (
        "For on-policy distillation (a model with the same tokenizer) and rejection sampling in the"
        " run (any)"
    ),
    "played_by": "An agent that is called over HTTP: its newest version plays, in its own harness",
    "timezone": "Applies to all times in this flow, for example Europe/Berlin",
    "retries": "For failed steps",
}
RARE = {
    "name",
    "if",
    "seed",
    "most_usd",
    "learnable",
    "samples_of",
    "teacher",
    "played_by",
    "at_most",
    "validation",
}
BLANKS: dict[str, dict[str, Any]] = {
    "cron": {"when": "0 2 * * *"},
    "new_failures": {"at_least": 100},
    "": {"from": "08:00", "until": "18:00"},
    "train": {"method": "sft", "config": {"steps": 60, "learning_rate": 0.0003, "batch_size": 8}},
    "ask": {"question": "Have you reviewed and promoted it?"},
}


@dataclass(frozen=True)
class Input:
    name: str
    label: str
    kind: str  # text, number, flag, choice, yaml
    value: str
    options: tuple[str, ...] = ()
    placeholder: str = ""
    required: bool = False
    error: str = ""
    help: str = ""
    rare: bool = False  # collapsed while empty
    names: dict[str, str] = field(default_factory=dict)  # labels of options whose values are ids

    @property
    def choices(self) -> list[tuple[str, str]]:
        return [(option, self.names.get(option, option)) for option in self.options]


@dataclass(frozen=True)
class Part:
    """One trigger, step, or span of quiet hours. `at` is its path for buttons, such as
    “steps:2”.
    """

    at: str
    kind: str
    tag: str
    title: str
    about: str
    inputs: list[Input]
    error: str = ""
    is_first: bool = False
    is_last: bool = False

    @property
    def usual(self) -> list[Input]:
        return [one for one in self.inputs if not one.rare]

    @property
    def rare(self) -> list[Input]:
        return [one for one in self.inputs if one.rare]


@cache
def _fields(form: type[Struct]) -> tuple[dict[str, Any], frozenset[str]]:
    """(JSON schemas of the fields, without the tag; names of the required fields)"""
    schema = json_schema(form)
    found = {name: one for name, one in schema["properties"].items() if name not in ("by", "do")}
    own = [name for name in found if name not in ("name", "if")]
    return {
        name: found[name] for name in [*own, *(name for name in ("name", "if") if name in found)]
    }, frozenset(schema.get("required", ()))


def _type(schema: dict[str, Any]) -> str:
    kinds = [one.get("type") for one in schema.get("anyOf", [schema])]
    return next((str(kind) for kind in kinds if kind and kind != "null"), "string")


@dataclass(frozen=True)
class Editor:
    """The state of the editor: a form, whose `value` may be invalid, or YAML, whose `text` may
    be.
    """

    WAYS: ClassVar[tuple[tuple[str, str], ...]] = ((FORM, "Form"), (YAML, "YAML"))

    project: Project
    shown: str
    value: dict[str, Any]
    text: str = ""
    error: FlowError | None = None

    @classmethod
    def of_text(cls, project: Project, text: str) -> Editor:
        """As a form if the text can be parsed, otherwise as YAML."""
        return cls(project, YAML, {}, text)._as_form(keep_error=False)

    @classmethod
    def of_value(cls, project: Project, value: dict[str, Any]) -> Editor:
        """As a form; as YAML with an error if an older version of Flywheel saved a flow that can no
        longer be read.
        """
        try:
            return cls(project, FORM, plain(specs.read(value)))
        except FlowError as error:
            return cls(project, YAML, {}, specs.write_yaml(value), error)

    @classmethod
    def sent(cls, project: Project, data: Mapping[str, Any]) -> Editor:
        if data.get("as") == FORM:
            return cls(project, FORM, _value_of(data))
        return cls(project, YAML, {}, data.get("text", ""))

    def spec(self) -> FlowSpec:
        """Raises FlowError."""
        return specs.read(self.value) if self.shown == FORM else specs.read_yaml(self.text)

    def with_error(self, error: FlowError) -> Editor:
        return replace(self, error=error)

    def after(self, act: str, data: Mapping[str, Any]) -> Editor:
        """The state after a button: to:yaml, to:form, add:steps, remove:steps:2, up:steps:2,
        down:steps:2. Anything else changes nothing.
        """
        verb, _, rest = act.partition(":")
        if verb == "to":
            return self._as_yaml() if rest == YAML else self._as_form()
        group, _, number = rest.partition(":")
        if self.shown != FORM or group not in PARTS:
            return self
        parts = list(self.value.get(group, []))
        if (
            verb == "add"
            and len(parts) < MOST_PARTS
            and (kind := data.get(f"new-{group}", "")) in PARTS[group]
        ):
            parts.append(self._blank(group, kind))
        elif (at := row_number(number)) is not None and at < len(parts):
            if verb == "remove":
                del parts[at]
            elif verb in ("up", "down") and 0 <= (
                other := at - 1 if verb == "up" else at + 1
            ) < len(parts):
                parts[at], parts[other] = parts[other], parts[at]
        return replace(self, value=self.value | {group: parts})

    def _as_yaml(self) -> Editor:
        if self.shown == YAML:
            return self
        try:
            value = plain(specs.read(self.value))
        except FlowError:  # stay in the current view, where the error can be fixed
            value = self.value
        return replace(self, shown=YAML, text=specs.write_yaml(value))

    def _as_form(self, keep_error: bool = True) -> Editor:
        if self.shown == FORM:
            return self
        try:
            return Editor.of_value(self.project, plain(specs.read_yaml(self.text)))
        except FlowError as error:
            return self.with_error(error) if keep_error else self

    def _blank(self, group: str, kind: str) -> dict[str, Any]:
        tag = TAGS[group]
        made = ({tag: kind} if tag else {}) | BLANKS.get(kind, {})
        if group == "steps" and any(_key(one) == kind for one in self.value.get("steps", [])):
            taken = {_key(one) for one in self.value["steps"]}
            made["name"] = next(
                f"{kind}_{n}" for n in range(2, MOST_PARTS + 3) if f"{kind}_{n}" not in taken
            )
        return made

    # Rendering

    @property
    def starts(self) -> list[Part]:
        return list(self._parts("starts"))

    @property
    def steps(self) -> list[Part]:
        return list(self._parts("steps"))

    @property
    def quiet(self) -> list[Part]:
        return list(self._parts("quiet"))

    @property
    def new_starts(self) -> list[tuple[str, str]]:
        return [(kind, TITLES[kind]) for kind in specs.TRIGGERS]

    @property
    def new_steps(self) -> list[tuple[str, str]]:
        return [(kind, one.label) for kind, one in specs.STEPS.items()]

    @property
    def limits(self) -> list[Input]:
        properties = json_schema(FlowSpec)["properties"]
        budget = _fields(specs.Budget)[0]
        given = self.value.get("budget", {})
        return [
            self._input(
                "timezone",
                "timezone",
                "timezone",
                properties["timezone"],
                self.value.get("timezone"),
                -1,
            ),
            self._input(
                "retries",
                "retries",
                "retries",
                properties["retries"],
                self.value.get("retries"),
                -1,
            ),
            *(
                self._input(f"budget-{name}", f"budget.{name}", name, schema, given.get(name), -1)
                for name, schema in budget.items()
            ),
        ]

    @property
    def top_error(self) -> str:
        """The error, unless an input or part that is shown already displays it."""
        if self.error is None:
            return ""
        shown = (
            [*self.limits, *(one for part in self._all() for one in part.inputs)]
            if self.shown == FORM
            else []
        )
        said = any(one.error for one in shown) or (
            self.shown == FORM and any(part.error for part in self._all())
        )
        return "" if said else str(self.error)

    def _all(self) -> list[Part]:
        return [*self.starts, *self.steps, *self.quiet]

    def _parts(self, group: str) -> Iterator[Part]:
        parts = self.value.get(group, [])
        for at, given in enumerate(parts):
            kind = given.get(TAGS[group], "")
            form = PARTS[group].get(kind)
            if form is None:
                continue
            schemas, required = _fields(form)
            inputs = [
                self._input(
                    f"{group}-{at}-{name}",
                    f"{group}[{at}].{name}",
                    name,
                    schema,
                    given.get(name),
                    at if group == "steps" else -1,
                    name in required,
                )
                for name, schema in schemas.items()
            ]
            here = self.error is not None and self.error.field in (
                f"{group}[{at}]",
                f"{group}[{at}].{TAGS[group]}",
            )
            about = " ".join((form.__doc__ or "").replace("`", "").split())
            title = form.label if issubclass(form, specs.Step) else TITLES[kind]
            yield Part(
                f"{group}:{at}",
                kind,
                f"{group}-{at}-{TAGS[group]}" if TAGS[group] else "",
                title,
                about,
                inputs,
                str(self.error) if here else "",
                at == 0,
                at == len(parts) - 1,
            )

    def _input(
        self,
        name: str,
        path: str,
        field: str,
        schema: dict[str, Any],
        value: Any,
        step: int,
        required: bool = False,
    ) -> Input:
        typed = _type(schema)
        options = tuple(schema["enum"]) if "enum" in schema else self._options(field, step)
        closed = "enum" in schema or field in CLOSED
        kind = {"integer": "number", "number": "number", "boolean": "flag", "object": "yaml"}.get(
            typed, "choice" if closed else "text"
        )
        default = schema.get("default")
        if kind == "choice":
            value = value if value is not None else default
            chosen = [str(value)] if value and str(value) not in options else []
            options = (
                (*chosen, *options)
                if required or default not in ("", None)
                else ("", *chosen, *options)
            )
        shown = (
            yaml.safe_dump(value, sort_keys=False)
            if kind == "yaml" and isinstance(value, dict)
            else value
        )
        wrong = self.error is not None and self.error.field == path
        return Input(
            name,
            LABELS.get(field, field.replace("_", " ").capitalize()),
            kind,
            "" if shown is None or shown is False else str(shown),
            options,
            "" if default is None or default is False else str(default),
            required,
            str(self.error) if wrong else "",
            HELP.get(field, ""),
            step >= 0 and field in RARE and not value and not wrong,
            self._clusters if field == "cluster" else {},
        )

    def _options(self, field: str, step: int) -> tuple[str, ...]:
        """The values that a field can refer to: outputs of earlier steps, and objects of the
        project.
        """
        earlier = (
            [one for one in self.value.get("steps", [])[:step] if one.get("do") in specs.STEPS]
            if step > 0
            else []
        )

        def making(output: str) -> list[str]:
            return [_key(one) for one in earlier if output in specs.STEPS[one["do"]].outputs]

        known = self._known
        if field == "set" and step >= 0:
            freezes = self.value["steps"][step].get("do") == "freeze_set"
            made_here = [one["into"] for one in earlier if one.get("into")]
            if freezes:
                return tuple(dict.fromkeys([*made_here, *known["sets"]]))
            return (
                *(f"step:{key}" for key in making("eval_set")),
                *(f"set:{slug}" for slug in known["frozen"]),
            )
        if field in ("model", "teacher"):
            channels = dict.fromkeys(["production", "staging", *known["channels"]])
            return (
                *(f"step:{key}" for key in making("model")),
                *(f"channel:{name}" for name in channels),
                *(f"version:{name}" for name in known["versions"]),
            )
        if field in ("baseline", "candidate", "samples_of"):
            return tuple(making("success"))
        if field in ("learnable", "report"):
            return tuple(making(field))
        if field == "if":
            return tuple(
                f"{_key(one)}.{output}"
                for one in earlier
                for output in specs.STEPS[one["do"]].outputs
            )
        if field == "channel":
            return tuple(
                dict.fromkeys(
                    ["staging", *(name for name in known["channels"] if name != specs.PRODUCTION)]
                )
            )
        return tuple(
            known.get(
                {
                    "into": "sets",
                    "mode": "modes",
                    "cluster": "clusters",
                    "environment": "environments",
                    "played_by": "agents",
                }.get(field, ""),
                (),
            )
        )

    @cached_property
    def _clusters(self) -> dict[str, str]:
        """{id: name}, largest first."""
        rows = self.project.failure_clusters.filter(gone=False).values_list("pk", "name", "size")[
            :100
        ]
        return {str(pk): f"{name} ({size:,})" for pk, name, size in rows}

    @cached_property
    def _known(self) -> dict[str, list[str]]:
        project, sets = self.project, self.project.eval_sets.current().order_by("-created_at")
        versions = (
            project.model_versions.current().order_by("-pk").values_list("name", "version")[:50]
        )
        return {
            "sets": list(dict.fromkeys(sets.values_list("slug", flat=True))),
            "frozen": list(
                dict.fromkeys(sets.filter(state=EvalSetState.FROZEN).values_list("slug", flat=True))
            ),
            "environments": list(
                dict.fromkeys(
                    project.environments.current().order_by("-pk").values_list("slug", flat=True)
                )
            ),
            "channels": list(
                project.channels.current().order_by("name").values_list("name", flat=True)
            ),
            "versions": [f"{name}-v{version}" for name, version in versions],
            "agents": list(
                playable(project.model_versions)
                .order_by("name")
                .values_list("name", flat=True)
                .distinct()
            ),
            "clusters": list(self._clusters),
            "modes": list(
                FailureMode.objects.filter(project=project)
                .order_by("slug")
                .values_list("slug", flat=True)
            ),
        }


# Fields that only accept one of the options; all others also accept names that do not exist yet.
CLOSED = {
    "played_by",
    "cluster",
    "set",
    "model",
    "samples_of",
    "teacher",
    "environment",
    "baseline",
    "candidate",
    "learnable",
    "report",
    "mode",
}


def _key(step: dict[str, Any]) -> str:
    return str(step.get("name") or step.get("do", ""))


_NAME = re.compile(r"(starts|steps|quiet)-(\d{1,3})-(\w+)")


def _value_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The submitted value, without empty inputs. A value of the wrong type is kept as it was typed,
    and rejected by validation.
    """
    found: dict[str, dict[int, dict[str, str]]] = {group: {} for group in PARTS}
    for name, text in data.items():
        if match := _NAME.fullmatch(name):
            found[match[1]].setdefault(int(match[2]), {})[match[3]] = text
    value: dict[str, Any] = {}
    for group in ("starts", "steps", "quiet"):
        tag = TAGS[group]
        parts = [part for _, part in sorted(found[group].items())][:MOST_PARTS]
        value[group] = [
            ({tag: part.get(tag, "")} if tag else {})
            | _typed(PARTS[group].get(part.get(tag, "")), part)
            for part in parts
        ]
    budget = {
        name.removeprefix("budget-"): text
        for name, text in data.items()
        if name.startswith("budget-")
    }
    whole = {name: data[name] for name in ("timezone", "retries") if name in data}
    return value | _typed(specs.Budget, budget, "budget") | _typed(FlowSpec, whole)


def _typed(form: type[Struct] | None, given: dict[str, str], inside: str = "") -> dict[str, Any]:
    schemas = _fields(form)[0] if form else {}
    found = {
        name: _read(_type(schemas[name]), text)
        for name, text in given.items()
        if name in schemas and text.strip()
    }
    return ({inside: found} if found else {}) if inside else found


def _read(kind: str, text: str) -> Any:
    text = text.strip()
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            return float(text)
    except ValueError:
        return text
    if kind == "object":
        try:
            return specs.load_yaml(text)
        except FlowError:
            return text
    return True if kind == "boolean" else text
