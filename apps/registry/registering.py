"""Registering model versions: turns a page's form or the API's body into a version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from apps.core.models import Project
from apps.registry.actions import register_agent, register_endpoint, register_prompt
from apps.registry.forms import AdapterForm, AgentForm, BaseForm, EndpointForm
from apps.registry.models import ModelKind, ModelVersion
from apps.registry.trained_elsewhere import register_base_folder, register_trained_adapter

TITLES = {
    ModelKind.ENDPOINT: "Served model",
    ModelKind.AGENT: "Agent",
    ModelKind.BASE: "Base model",
    ModelKind.ADAPTER: "LoRA adapter",
}
FORMS = {
    ModelKind.ENDPOINT: EndpointForm,
    ModelKind.AGENT: AgentForm,
    ModelKind.BASE: BaseForm,
    ModelKind.ADAPTER: AdapterForm,
}
ACTIONS: dict[str, Callable[..., ModelVersion]] = {
    ModelKind.ENDPOINT: register_endpoint,
    ModelKind.AGENT: register_agent,
    ModelKind.BASE: register_base_folder,
    ModelKind.ADAPTER: register_trained_adapter,
    ModelKind.PROMPT: register_prompt,
}


def register(*, project: Project, kind: str, fields: Mapping[str, Any], by: Any) -> ModelVersion:
    """Register a version from a form's cleaned fields. Raises ModelError."""
    return ACTIONS[kind](project=project, by=by, **fields)
