"""Actions on model versions. A version is created once and never changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from msgspec import to_builtins

from apps.core.actions import audit
from apps.core.bus import on
from apps.core.managed.objects import WhyNotRename
from apps.core.models import Project
from apps.registry.bases import ModelError, base_digest, remember_folder
from apps.registry.models import (
    Artifact,
    Dialect,
    Engine,
    ModelKind,
    ModelVersion,
    Protocol,
    Reach,
    Server,
)
from apps.registry.servers import ServerError, check_address
from workers.lib.prompts import checked_prompt
from workers.lib.template_check import checked_apart

SERVED_NAME = 200  # characters


def register_base(*, project: Project, name: str, folder: Path, by: Any) -> ModelVersion:
    """Register a base model in a local folder. The same weights again return the same version,
    which is found in that folder from then on (`moved_from`). Raises ModelError.
    """
    digest, folder = base_digest(folder), folder.resolve()
    version = _register(
        project=project,
        name=name,
        kind=ModelKind.BASE,
        digest=digest,
        by=by,
        base=str(folder),
        template=to_builtins(checked_apart(folder)) or {},
    )
    remember_folder(folder, digest)
    if version.base != str(folder):
        _move(version, folder, by)
    return version


@transaction.atomic
def _move(version: ModelVersion, folder: Path, by: Any) -> None:
    """In all projects: they share the folder."""
    version.moved_from = version.base
    for base in ModelVersion.objects.filter(
        kind=ModelKind.BASE, digest=version.digest, base=version.base
    ).select_related("project"):
        on_it = [base]
        for row in on_it:
            on_it += row.children.filter(base=version.base).exclude(kind=ModelKind.ENDPOINT)
        ModelVersion.objects.filter(pk__in=[row.pk for row in on_it]).update(base=str(folder))
        audit(
            "model_version.moved",
            project=base.project,
            by=by,
            target=base,
            name=str(base),
            before=version.base,
            after=str(folder),
        )
    version.base = str(folder)


def register_adapter(
    *, project: Project, name: str, parent: ModelVersion, artifact: Artifact, lineage: dict, by: Any
) -> ModelVersion:
    """Register an adapter on its parent's base. The same content again returns the same version."""
    return _register_on(
        parent, artifact, ModelKind.ADAPTER, project=project, name=name, lineage=lineage, by=by
    )


def register_reward_model(
    *, project: Project, name: str, parent: ModelVersion, artifact: Artifact, lineage: dict, by: Any
) -> ModelVersion:
    """Register an adapter with a scalar head, on the base of the policy that it was trained from.
    `lineage` contains what was `measured`.
    """
    return _register_on(
        parent, artifact, ModelKind.REWARD, project=project, name=name, lineage=lineage, by=by
    )


def _register_on(
    parent: ModelVersion, artifact: Artifact, kind: ModelKind, **fields: Any
) -> ModelVersion:
    return _register(
        kind=kind,
        digest=digest_on(parent, artifact.digest),
        base=parent.base,
        parent=parent,
        artifact=artifact,
        **fields,
    )


def digest_on(parent: ModelVersion, artifact: str) -> str:
    """The digest of a version that consists of an artifact on the base of `parent`."""
    return hashlib.sha256(f"{parent.base_version().digest}:{artifact}".encode()).hexdigest()


def register_endpoint(
    *,
    project: Project,
    name: str,
    server: Server,
    served_as: str,
    by: Any,
    dialect: str = "",
    parent: ModelVersion | None = None,
) -> ModelVersion:
    """Register a model that a server of the project serves. The same address, name and dialect
    again return the same version.

    `parent`: the base model that it is known to share weights with, so that adapters on that base
    can be loaded there. Raises ModelError.
    """
    served_as, dialect = served_as.strip(), dialect or server.dialect
    if not 0 < len(served_as) <= SERVED_NAME or not served_as.isprintable():
        raise ModelError(
            f"The name of a served model is text in one line, of at most {SERVED_NAME} characters."
        )
    if parent is not None and parent.kind != ModelKind.BASE:
        raise ModelError(
            f"{parent} is not a base model; a served model can only have the weights of a base"
            " model."
        )
    content = [server.base_url, served_as]
    content += [dialect] if dialect != Dialect.NATIVE else []
    content += [f"weights:{parent.digest}"] if parent else []
    return _register(
        project=project,
        name=name,
        kind=ModelKind.ENDPOINT,
        digest=hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        by=by,
        base=served_as,
        parent=parent,
        engine=Engine.OPENAI,
        server=server,
        served_as=served_as,
        dialect=dialect,
    )


def register_agent(
    *,
    project: Project,
    name: str,
    agent_version: str,
    by: Any,
    reached_by: Reach = Reach.CI,
    base_url: str = "",
    key_variable: str = "",
    protocol: str = "",
) -> ModelVersion:
    """Register an external agent at one of its own versions (a git SHA, a tag). Raises ModelError.

    The same name and version are the same agent version, whether it answers from CI or is known
    from its traces. If it is called over HTTP, the address is part of its identity, and so is the
    format in which it receives tasks (chat completions by default); that it waits for work is, too.
    """
    agent_version = agent_version.strip()
    _check_agent(name, agent_version)
    if reached_by == Reach.HTTP:
        base_url = checked_address(base_url, key_variable)
        protocol = protocol or Protocol.CHAT
    elif base_url or key_variable or protocol:
        raise ModelError(
            "Only an agent that is called over HTTP has an address, a key and a protocol."
        )
    content = ["agent", name, agent_version, base_url]
    content += [protocol] if protocol not in ("", Protocol.CHAT) else []
    content += [reached_by] if reached_by == Reach.PULL else []
    return _register(
        project=project,
        name=name,
        kind=ModelKind.AGENT,
        digest=hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        by=by,
        base=name,
        engine=Engine.AGENT,
        agent_version=agent_version,
        reached_by=reached_by,
        base_url=base_url,
        key_variable=key_variable,
        protocol=protocol,
    )


@on(WhyNotRename[ModelVersion])
def agents_keep_their_names(question: WhyNotRename[ModelVersion]) -> str | None:
    if question.row.kind != ModelKind.AGENT:
        return None
    return "Agents are identified by name in traces and answers, so it cannot be renamed."


def register_prompt(
    *,
    project: Project,
    name: str,
    on: ModelVersion,
    prompt: dict[str, Any],
    by: Any,
    started_from: dict[str, Any] | None = None,
    lineage: dict[str, Any] | None = None,
    notes: str = "",
) -> ModelVersion:
    """Register a prompt (`workers.lib.prompts`) for the model that `on` is, or is based on; if `on`
    is a prompt version, this one is a change of it. The same prompt for the same model again
    returns the same version. Raises ModelError, FormError.

    `started_from`: {name, prompt} of the environment whose prompt it was made from, if it was not
    made from a prompt version.
    """
    model = on.model
    refuse_reward_model(model)
    if model.kind == ModelKind.AGENT:
        raise ModelError(
            f"{model} is an agent whose prompt is part of its own code. Register a new version of"
            " the agent."
        )
    prompt = checked_prompt(prompt)
    content = ["prompt", model.digest, prompt]
    return _register(
        project=project,
        name=name,
        kind=ModelKind.PROMPT,
        digest=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        by=by,
        base=model.base,
        parent=on,
        engine=model.engine,
        prompt=prompt,
        notes=notes,
        lineage={"model": str(model), "model_digest": model.digest}
        | (lineage or {})
        | ({"started_from": started_from} if started_from else {}),
    )


def refuse_reward_model(version: ModelVersion) -> None:
    """Raises ModelError."""
    if version.kind == ModelKind.REWARD:
        raise ModelError(
            f"{version} is a reward model: it scores answers but does not generate any. Use it in a"
            " verifier."
        )


def _check_agent(name: str, agent_version: str) -> None:
    fields = {"name": name, "agent_version": agent_version}
    for field, value in fields.items():
        if not value or not value.isprintable():
            raise ModelError(
                f"An agent's {field} is text in one line, for instance support-agent at 3f2a9c1."
            )
        try:
            ModelVersion._meta.get_field(field).clean(value, None)
        except ValidationError as error:
            raise ModelError(
                f"An agent's {field} “{value[:80]}” does not work: {' '.join(error.messages)}"
            ) from error


def checked_address(base_url: str, key_variable: str) -> str:
    """The address as stored. Raises ModelError if this installation may not call it, or send it the
    key.
    """
    try:
        return check_address(base_url, key_variable)
    except ServerError as error:
        raise ModelError(str(error)) from error


@transaction.atomic
def _register(
    *, project: Project, name: str, kind: ModelKind, digest: str, by: Any, **fields: Any
) -> ModelVersion:
    # Version numbers are assigned under a lock on the project's row.
    Project.objects.select_for_update().get(pk=project.pk)
    existing = ModelVersion.objects.filter(project=project, digest=digest).first()
    if existing:
        return existing
    last = ModelVersion.objects.filter(project=project, name=name).order_by("-version").first()
    version = ModelVersion.objects.create(
        project=project,
        name=name,
        version=last.version + 1 if last else 1,
        kind=kind,
        digest=digest,
        created_by=by,
        **fields,
    )
    version.is_new = True
    audit(
        "model_version.created",
        project=project,
        by=by,
        target=version,
        name=str(version),
        digest=digest,
    )
    return version
