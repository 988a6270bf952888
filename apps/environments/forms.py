from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any

from django import forms
from django.db import transaction
from django.db.models import QuerySet

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm, json_of
from apps.core.models import Project
from apps.core.outgoing_keys import key_hosts
from apps.environments.actions import (
    connect_mcp,
    connect_openenv,
    connect_remote,
    own_kinds,
    replay_config,
    save_environment,
    save_verifier,
)
from apps.environments.models import Environment, EnvironmentKind, Verifier
from apps.environments.remote import Found
from apps.environments.schema import NewEnvironment, NewHarness
from workers.lib.environments import BUILTIN
from workers.lib.specs.environment import REMOTE

MADE_HERE = [choice for choice in EnvironmentKind.choices if choice[0] not in (*REMOTE, "package")]
CODE = {"rows": 5, "class": "mono", "spellcheck": "false"}


def builtins() -> dict[str, str]:
    """{name: description}, from the first sentence of each module."""
    docs = {
        name: import_module(where.partition(":")[0]).__doc__ or ""
        for name, where in BUILTIN.items()
    }
    return {
        name: " ".join(re.split(r"(?<=\.)\s", doc.strip())[0].split()) for name, doc in docs.items()
    }


class ListOfObjects(forms.CharField):
    """JSON text → list of objects; nothing is an empty list."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            required=False, max_length=500_000, widget=forms.Textarea(attrs=CODE), **options
        )

    def clean(self, value: Any) -> list[dict]:
        text = super().clean(value)
        found = json_of(text) if text.strip() else []
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise forms.ValidationError("Enter a list of objects: […].")
        return found


def unnamed_tool(tools: list[dict]) -> str:
    """What is wrong with the first tool that has no name; empty if all have one."""
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return f'Tool {index + 1} needs {{"function": {{"name": …}}}}.'
    return ""


class HarnessForm(PlainForm):
    """Shown with its numbers side by side, below the rest."""

    def numbers(self) -> list[forms.BoundField]:
        return [
            field
            for field in self
            if isinstance(field.field, forms.FloatField | forms.IntegerField)
        ]

    def others(self) -> list[forms.BoundField]:
        return [
            field
            for field in self
            if not isinstance(field.field, forms.FloatField | forms.IntegerField)
        ]


AS_THE_TASK_SAYS = (  # kind and name of the verifier that compares with what each task expects
    "expected"
)


@bounds_from(NewHarness)
class EnvironmentForm(HarnessForm):
    """A new environment, or a new version of one. Everything offered is the project's own."""

    slug = forms.SlugField(
        max_length=80, label="Name", help_text="Reusing a name creates the next version"
    )
    kind = forms.ChoiceField(choices=MADE_HERE, initial=EnvironmentKind.SINGLE_TURN)
    builtin = forms.ChoiceField(
        required=False, label="Built-in environment", help_text="Only for the kind “Built in”"
    )
    verifier = forms.ModelChoiceField(
        None,
        required=False,
        empty_label="Default: as each task says",
        help_text=(
            "The default compares with what each task expects; a built-in environment brings"
            " its own"
        ),
    )
    system_prompt = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 5}))
    examples = ListOfObjects(
        label="Few-shot messages", help_text='[{"role": "user", "content": "…"}, …]'
    )
    tools = ListOfObjects(
        help_text=(
            '[{"type": "function", "function": {"name", "description", "parameters"}}]. A task\'s'
            " own tools take precedence"
        )
    )
    max_turns = forms.IntegerField(initial=1, label="Max turns")
    max_new_tokens = forms.IntegerField(initial=512, label="Max new tokens")
    temperature = forms.FloatField(initial=0.8)
    top_p = forms.FloatField(initial=1.0, label="Top p")
    nearest = forms.BooleanField(
        required=False,
        label="Replay: answer unknown arguments with the nearest recorded call.",
        help_text="Otherwise such calls get “nothing recorded”.",
    )
    user_by_judge = forms.BooleanField(
        required=False,
        label="Replay: the judge plays the user.",
        help_text="Otherwise the user says what the task has stored, whatever the agent answers.",
    )
    HARNESS = (
        "system_prompt",
        "examples",
        "tools",
        "max_turns",
        "max_new_tokens",
        "temperature",
        "top_p",
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project = project
        self.fields["verifier"].queryset = scorers(project)
        self.fields["builtin"].choices = [(name, name) for name in BUILTIN]

    def clean_tools(self) -> list[dict]:
        if problem := unnamed_tool(self.cleaned_data["tools"]):
            raise forms.ValidationError(problem)
        return self.cleaned_data["tools"]

    def _verifier(self, by: Any) -> Verifier:
        if chosen := self.cleaned_data["verifier"]:
            return chosen
        is_builtin = self.cleaned_data["kind"] == EnvironmentKind.BUILTIN
        name = self.cleaned_data["builtin"] if is_builtin else AS_THE_TASK_SAYS
        spec = {"kind": own_kinds()[name] if is_builtin else AS_THE_TASK_SAYS}
        return save_verifier(
            project=self.project, name=name, spec=spec, note="From the environment", by=by
        )

    @transaction.atomic
    def save(self, *, by: Any, dataset: dict | None = None) -> Environment:
        """Raises SpecError."""
        data = self.cleaned_data
        kind = EnvironmentKind(data["kind"])
        user = "llm" if data["user_by_judge"] else "script"
        return save_environment(
            project=self.project,
            slug=data["slug"],
            kind=kind,
            builtin=data["builtin"] if kind == EnvironmentKind.BUILTIN else "",
            harness={name: data[name] for name in self.HARNESS},
            config=replay_config(data["nearest"], user) if kind == EnvironmentKind.REPLAY else {},
            verifier=self._verifier(by),
            dataset=dataset,
            by=by,
        )


def initial_of(environment: Environment) -> dict[str, Any]:
    """The form's values for the next version of an environment."""
    harness = dict(environment.harness)
    texts = {
        name: json.dumps(harness[name], ensure_ascii=False, indent=1)
        for name in ("examples", "tools")
        if harness.get(name)
    }
    named = {"slug": environment.slug, "kind": environment.kind, "builtin": environment.builtin}
    return (
        harness
        | texts
        | named
        | {
            "verifier": environment.verifier_id,
            "nearest": bool(environment.config.get("nearest")),
            "user_by_judge": environment.config.get("user") == "llm",
        }
    )


def scorers(project: Project) -> QuerySet[Verifier]:
    """Those that score here, not on another server."""
    return project.verifiers.exclude(spec__kind="remote")


def key_choices(operator: bool) -> list[tuple[str, str]]:
    """(variable, with where its key may be sent); only an operator may choose those that may be
    sent anywhere.
    """
    return [
        (name, f"{name} · {host or 'any host'}")
        for name, host in key_hosts().items()
        if host or operator
    ]


@bounds_from(NewHarness, NewEnvironment)
class ConnectionForm(HarnessForm):
    """An environment whose tools another server runs."""

    slug = forms.SlugField(
        max_length=80, label="Name", help_text="Reusing a name creates the next version"
    )
    url = forms.CharField(label="Address")
    api_key_env = forms.ChoiceField(
        required=False,
        label="Key variable",
        help_text="Environment variable of this installation; only its name is stored",
    )
    timeout_s = forms.FloatField(initial=60, label="Timeout per call (s)")
    system_prompt = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 4}))
    max_turns = forms.IntegerField(initial=10, label="Max turns")
    max_new_tokens = forms.IntegerField(initial=512, label="Max new tokens")
    temperature = forms.FloatField(initial=0.8)
    HARNESS = ("system_prompt", "max_turns", "max_new_tokens", "temperature")
    ADDRESS = ""

    def save(self, *, found: Found, by: Any) -> Environment:
        """Raises RefusedAddress, SpecError."""
        raise NotImplementedError

    def __init__(self, project: Project, *args: Any, operator: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project = project
        self.fields["url"].help_text = self.ADDRESS
        self.fields["api_key_env"].choices = [("", "None"), *key_choices(operator)]

    def common(self) -> dict[str, Any]:
        """What the actions of all remote kinds take."""
        data = self.cleaned_data
        harness = {name: data[name] for name in self.HARNESS} | {"top_p": 1.0}
        kept = {name: data[name] for name in ("slug", "url", "api_key_env", "timeout_s")}
        return kept | {"project": self.project, "harness": harness}


@bounds_from(NewEnvironment)
class RemoteForm(ConnectionForm):
    success_at = forms.FloatField(initial=1.0, label="Min reward for success")
    turn_rewards = forms.BooleanField(
        required=False,
        label="Rewards per turn",
        help_text=(
            "Its answer to /verify has step_rewards, one for each turn, which add up to the reward"
        ),
    )
    ADDRESS = "Of a NeMo Gym resources server: https://host/path"

    def save(self, *, found: Found, by: Any) -> Environment:
        """Raises RefusedAddress, SpecError."""
        data = self.cleaned_data
        return connect_remote(
            **self.common(),
            success_at=data["success_at"],
            turn_rewards=data["turn_rewards"],
            tools=list(found.tools),
            by=by,
        )


class McpForm(ConnectionForm):
    verifier = forms.ModelChoiceField(
        None,
        empty_label="Choose one",
        help_text="Scores the whole run: “calls”, a judge, or any other verifier",
    )
    ADDRESS = "Of an MCP server's streamable HTTP: https://host/mcp"
    field_order = ("slug", "url", "api_key_env", "verifier")

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(project, *args, **kwargs)
        self.fields["verifier"].queryset = scorers(project)

    def save(self, *, found: Found, by: Any) -> Environment:
        """With the tools that were found. Raises RefusedAddress, SpecError."""
        return connect_mcp(
            **self.common(), tools=list(found.tools), verifier=self.cleaned_data["verifier"], by=by
        )


@bounds_from(NewEnvironment)
class OpenEnvForm(ConnectionForm):
    verifier = forms.ModelChoiceField(
        None,
        required=False,
        empty_label="The sum of its rewards",
        help_text="Replaces the server's rewards",
    )
    success_at = forms.FloatField(initial=1.0, label="Min reward for success")
    ADDRESS = "Of an OpenEnv server: https://host"
    field_order = ("slug", "url", "api_key_env", "verifier")

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(project, *args, **kwargs)
        self.fields["verifier"].queryset = scorers(project)

    def save(self, *, found: Found, by: Any) -> Environment:
        """With the tools that were found. Raises RefusedAddress, SpecError."""
        data = self.cleaned_data
        return connect_openenv(
            **self.common(),
            tools=list(found.tools),
            by_mcp=found.by_mcp,
            verifier=data["verifier"],
            success_at=data["success_at"],
            by=by,
        )


CONNECTIONS: dict[str, type[RemoteForm] | type[McpForm] | type[OpenEnvForm]] = {
    EnvironmentKind.REMOTE.value: RemoteForm,
    EnvironmentKind.MCP.value: McpForm,
    EnvironmentKind.OPENENV.value: OpenEnvForm,
}


def connection_of(environment: Environment) -> dict[str, Any]:
    """The connect form's values for the next version of an environment."""
    return (
        environment.config
        | environment.harness
        | {
            "slug": environment.slug,
            "verifier": environment.verifier_id,
        }
    )


class GraderForm(PlainForm):
    """An OpenAI grader's JSON, as it was exported or written for the hosted service."""

    name = forms.SlugField(max_length=80)
    grader = forms.CharField(
        max_length=500_000,
        widget=forms.Textarea(attrs=CODE | {"rows": 14}),
        label="Grader's JSON",
        help_text="string_check, text_similarity, score_model, label_model, python or multi",
    )

    def clean_grader(self) -> dict:
        found = json_of(self.cleaned_data["grader"])
        if not isinstance(found, dict):
            raise forms.ValidationError("Enter a JSON object: {…}.")
        inner = found.get("grader")
        return inner if isinstance(inner, dict) and "type" not in found else found
