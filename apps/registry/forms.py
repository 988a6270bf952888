from __future__ import annotations

from typing import Any

from django import forms
from django.utils.text import slugify

from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import Project
from apps.core.outgoing_keys import key_variables
from apps.registry.bases import base_folders, folders
from apps.registry.managed import LARGEST_CONTEXT, MOST_SLOTS, OPTIONS_OF, vllm_is_here
from apps.registry.models import (
    Dialect,
    ModelKind,
    ModelVersion,
    Protocol,
    Reach,
    Server,
    ServerKind,
)
from apps.registry.prices import read_prices
from apps.registry.schema import Adapter, Agent, Base, Endpoint, NewServer
from workers.lib.vllm import DTYPES, RANKS, read_options


@bounds_from(NewServer)
class ServerForm(PlainForm):
    name = forms.SlugField(max_length=80, help_text="Letters, digits, - and _")
    kind = forms.ChoiceField(
        choices=[choice for choice in ServerKind.choices if choice[0] != ServerKind.TRANSFORMERS],
        initial=ServerKind.VLLM,
    )
    base_url = forms.CharField(
        label="Address",
        help_text="Base URL of the API, usually ending in /v1",
        widget=forms.URLInput(attrs={"placeholder": "http://gpu-1:8000/v1"}),
    )
    key_variable = forms.CharField(
        required=False,
        label="Key variable",
        widget=forms.TextInput(attrs={"list": "key-variables"}),
        help_text="Optional: the environment variable of this installation that holds the API key",
    )
    dialect = forms.ChoiceField(
        choices=Dialect,
        label="API and tool calls",
        help_text="Default for newly registered models",
    )

    adapters_at = forms.CharField(
        required=False,
        label="Adapter path",
        help_text=(
            "Optional: where the server sees this installation's artifacts, so that LoRA adapters"
            " can be loaded at run time"
        ),
    )

    prices = forms.CharField(
        required=False,
        max_length=20_000,
        widget=forms.Textarea(attrs={"rows": 3, "class": "mono", "spellcheck": "false"}),
        help_text=(
            "Optional, in USD per million tokens, one line each: model, input, output, and cached=…"
            " and write=… for cached tokens with a price of their own. * means all other models"
        ),
    )

    def clean_prices(self) -> dict[str, list[float]]:
        try:
            return read_prices(self.cleaned_data["prices"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error

    def key_variables(self) -> list[str]:
        return key_variables()


class ManagedForm(PlainForm):
    """A server that a worker starts and keeps running."""

    name = forms.SlugField(max_length=80, help_text="Letters, digits, - and _")
    base = forms.ModelChoiceField(
        None,
        empty_label=None,
        label="Base model",
        help_text="Adapters trained on it are loaded on demand",
    )
    kind = forms.ChoiceField(
        choices=[(kind, kind.label) for kind in OPTIONS_OF],
        label="Engine",
        help_text=(
            "vLLM needs a GPU and “make vllm” on its machine; transformers needs nothing else"
        ),
    )
    dialect = forms.ChoiceField(
        choices=Dialect,
        label="API and tool calls",
        initial=Dialect.TEXT,
        help_text=(
            "Native: transformers reads any model's calls; vLLM needs enable-auto-tool-choice and"
            " tool-call-parser below"
        ),
    )
    dtype = forms.ChoiceField(
        choices=[(name, name) for name in DTYPES], initial="auto", label="Precision"
    )
    context = forms.IntegerField(
        min_value=0,
        max_value=LARGEST_CONTEXT,
        required=False,
        label="Context length",
        help_text="In tokens; the model's own if empty. A shorter context needs less memory",
    )
    lora_slots = forms.IntegerField(
        min_value=0,
        max_value=MOST_SLOTS,
        initial=4,
        label="LoRA slots",
        help_text="Adapters loaded at the same time; 0 for none",
    )
    max_lora_rank = forms.TypedChoiceField(
        choices=[(rank, rank) for rank in RANKS], initial=16, coerce=int, label="Largest LoRA rank"
    )
    options = forms.CharField(
        required=False,
        max_length=2000,
        label="More options",
        widget=forms.Textarea(
            attrs={
                "rows": 3,
                "class": "mono",
                "spellcheck": "false",
                "placeholder": "max-num-seqs 64",
            }
        ),
        help_text="Optional, one per line; the page lists those that can be set",
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["base"].queryset = ModelVersion.objects.current().filter(
            project=project, kind=ModelKind.BASE
        )
        self.fields["kind"].initial = ServerKind.VLLM if vllm_is_here() else ServerKind.TRANSFORMERS

    def clean_context(self) -> int:
        return self.cleaned_data["context"] or 0

    def clean_options(self) -> dict[str, Any]:
        try:
            return read_options(self.cleaned_data["options"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


@bounds_from(Endpoint)
class EndpointForm(PlainForm):
    """A model that one of the project's servers serves."""

    server = forms.ModelChoiceField(None, empty_label=None, to_field_name="name")
    served_as = forms.CharField(
        label="Model on that server",
        help_text="The model id as listed by the server",
    )
    name = forms.SlugField(max_length=80, help_text="Name of the version in Flywheel")
    dialect = forms.ChoiceField(
        choices=[("", "Same as the server"), *Dialect.choices],
        required=False,
        label="API and tool calls",
    )
    parent = forms.ModelChoiceField(
        None,
        required=False,
        label="Same weights as",
        empty_label="Not known",
        help_text=(
            "A registered base model, so that adapters trained on it can be loaded on the server"
        ),
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["server"].queryset = Server.objects.filter(project=project)
        self.fields["parent"].queryset = ModelVersion.objects.current().filter(
            project=project, kind=ModelKind.BASE
        )


@bounds_from(Base)
class BaseForm(PlainForm):
    """A transformers folder on the server."""

    name = forms.SlugField(max_length=80)
    folder = forms.CharField(widget=forms.TextInput(attrs={"list": "base-folders"}))

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        where = " or ".join(map(str, folders()))
        self.fields["folder"].help_text = (
            f"config.json, tokenizer and safetensors. On the server under {where}; a name is looked"
            " up there"
        )
        self.base_folders = base_folders()
        if self.base_folders:  # the only or first one is what somebody who comes here wants
            self.initial.setdefault("folder", str(self.base_folders[0]))
            self.initial.setdefault("name", slugify(self.base_folders[0].name)[:80])


@bounds_from(Adapter)
class AdapterForm(PlainForm):
    """A LoRA adapter that was trained elsewhere: its two files, or a folder on the server."""

    name = forms.SlugField(max_length=80)
    parent = forms.ModelChoiceField(
        None, empty_label=None, label="Base", help_text="The base model it was trained on"
    )
    config = forms.FileField(required=False, label="adapter_config.json", max_length=200)
    weights = forms.FileField(required=False, label="adapter_model.safetensors", max_length=200)
    folder = forms.CharField(
        required=False,
        help_text="Instead of the files: a PEFT folder on the server",
    )
    confirm_base = forms.BooleanField(
        required=False,
        label="Trained on this base",
        help_text=(
            "Only needed where adapter_config.json names another base, for instance a copy or the"
            " same model under another name"
        ),
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["parent"].queryset = ModelVersion.objects.current().filter(
            project=project, kind=ModelKind.BASE
        )


@bounds_from(Agent)
class AgentForm(PlainForm):
    """A whole agent that runs outside of Flywheel."""

    name = forms.SlugField(
        max_length=80, help_text="As it appears in the agent's traces and CI runs"
    )
    agent_version = forms.CharField(
        label="Version", help_text="Version of its code, such as a git SHA or a tag"
    )
    reached_by = forms.ChoiceField(choices=Reach, initial=Reach.CI, label="How it is reached")
    base_url = forms.CharField(required=False, label="Address", help_text="The URL to call")
    key_variable = forms.CharField(
        required=False,
        label="Key variable",
        help_text="Optional: the environment variable of this installation that holds its key",
    )
    protocol = forms.ChoiceField(
        choices=[("", "Default: chat completions"), *Protocol.choices],
        required=False,
        label="Request format",
        help_text="How tasks are sent; it may answer in any of these formats",
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
