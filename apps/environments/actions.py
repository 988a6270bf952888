"""Actions on verifiers and environments. Both are immutable: a change is a new version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import httpx2
from django.conf import settings
from django.db import models, transaction

from apps.core import outgoing_keys
from apps.core.actions import audit
from apps.core.models import Project
from apps.environments import reward_models
from apps.environments.models import Environment, EnvironmentKind, Package, Verifier
from workers.lib.environments import BUILTIN, load
from workers.lib.environments.packages import OWN
from workers.lib.errors import SpecError
from workers.lib.outgoing import check_base_url, check_url
from workers.lib.prompts import AGENT_PART
from workers.lib.verifiers import build

Versioned = TypeVar("Versioned", Verifier, Environment)
REMOTE_VERIFIER = {"kind": "remote"}
OWN_OF_PACKAGE = {"kind", "package", "digest"}
FACTS = {"name": str, "digest": str, "tasks": int}


def content_hash(value: object) -> str:
    """SHA-256 hex of the canonical JSON of a value."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def own_kinds() -> dict[str, str]:
    """{built-in environment: the kind of the verifier that is part of it}."""
    modules = {name: import_module(where.partition(":")[0]) for name, where in BUILTIN.items()}
    return {name: getattr(module, "OWN", "tool_call") for name, module in modules.items()}


def check_verifier(spec: dict) -> None:
    """Raises SpecError naming the path of the error. Verifiers that are part of an environment have
    no options; that of a package names its code."""
    if spec.get("kind") == OWN and spec.keys() == OWN_OF_PACKAGE:
        return
    if spec.get("kind") not in own_kinds().values() or spec.keys() != {"kind"}:
        build(spec)


@transaction.atomic
def save_verifier(*, project: Project, name: str, spec: dict, by: Any, note: str = "") -> Verifier:
    """The version with this spec: the existing one, or a new one; the version of a reward model is
    filled in. Raises SpecError naming the path of the error."""
    spec = reward_models.resolved(project, spec)
    check_verifier(spec)
    return _save(
        Verifier, project, {"name": name}, content_hash(spec), by, spec=spec, note=note[:300]
    )


@transaction.atomic
def save_environment(
    *,
    project: Project,
    slug: str,
    harness: dict,
    verifier: Verifier,
    by: Any,
    builtin: str = "",
    kind: str = EnvironmentKind.BUILTIN,
    config: dict | None = None,
    dataset: dict | None = None,
    package: Package | None = None,
) -> Environment:
    """The version with this content: the existing one, or a new one. The verifier's hash is part of
    the content.

    `dataset` is {name, digest, tasks} of a frozen eval set. `package`: for the kind “package”,
    whose digest is in the config. Raises SpecError if the environment cannot be loaded.
    """
    config = config or {}
    _check_dataset(dataset)
    _check_package(config, package, verifier)
    files = {"files": package.files} if package else {}
    load(
        {
            "kind": kind,
            "name": builtin,
            "config": config | files,
            "harness": harness,
            "verifier": verifier.spec,
        }
    )
    content = {
        "kind": kind,
        "builtin": builtin,
        "config": config,
        "dataset": dataset,
        "harness": harness,
    }
    whole = content | {"verifier": verifier.hash}
    agent = {name: value for name, value in harness.items() if name in AGENT_PART}
    task = whole | {
        "harness": {name: value for name, value in harness.items() if name not in AGENT_PART}
    }
    return _save(
        Environment,
        project,
        {"slug": slug},
        content_hash(whole),
        by,
        verifier=verifier,
        task_hash=content_hash(task),
        agent_hash=content_hash(agent),
        package=package,
        **content,
    )


def own_verifier(name: str, digest: str) -> dict:
    """The spec of a package's own verifier: other code is another verifier."""
    return {"kind": OWN, "package": name, "digest": digest}


def replay_config(nearest: bool, user: str) -> dict[str, Any]:
    """Of a replay environment; the user's default is left out, so that hashes stay as they are."""
    return {"nearest": nearest} | ({"user": user} if user != "script" else {})


def _check_package(config: dict, package: Package | None, verifier: Verifier) -> None:
    """Its own verifier is that of the same code. Raises SpecError."""
    if package is None or verifier.spec.get("kind") != OWN:
        return
    if (
        verifier.spec != own_verifier(package.name, package.digest)
        or config.get("digest") != package.digest
    ):
        raise SpecError(
            f"“verifier” is {verifier}, which is of another version of the package {package.name}."
        )


def _check_dataset(dataset: dict | None) -> None:
    for name, kind in FACTS.items() if dataset is not None else ():
        if not isinstance(dataset, dict) or not isinstance(dataset.get(name), kind):
            raise SpecError(f"“environment.dataset.{name}” is missing or of the wrong type.")


@transaction.atomic
def connect_remote(
    *,
    project: Project,
    slug: str,
    url: str,
    by: Any,
    api_key_env: str = "",
    harness: dict | None = None,
    timeout_s: float = 60.0,
    success_at: float = 1.0,
    turn_rewards: bool = False,
    dataset: dict | None = None,
    tools: list[dict] | None = None,
) -> Environment:
    """An environment that another server runs and scores. `api_key_env` names the variable with
    that server's key. `turn_rewards`: it also reports the reward of each turn. `tools`: for tasks
    that name none.

    Raises RefusedAddress, RefusedKey, SpecError.
    """
    config = _connection(check_base_url, url, api_key_env, timeout_s) | {"success_at": success_at}
    config |= {"turn_rewards": True} if turn_rewards else {}
    config |= {"tools": tools} if tools else {}
    return save_environment(
        project=project,
        slug=slug,
        kind=EnvironmentKind.REMOTE,
        harness=harness or {},
        by=by,
        config=config,
        dataset=dataset,
        verifier=_of_server(project, slug, config["url"], by),
    )


def _of_server(project: Project, slug: str, url: str, by: Any) -> Verifier:
    """The server's own description."""
    spec = REMOTE_VERIFIER | {"url": url}
    name = {"name": f"{slug}-remote"}
    return _save(
        Verifier,
        project,
        name,
        content_hash(spec),
        by,
        spec=spec,
        note="Scored by the remote server",
    )


@transaction.atomic
def connect_openenv(
    *,
    project: Project,
    slug: str,
    url: str,
    tools: list[dict],
    by_mcp: bool,
    by: Any,
    verifier: Verifier | None = None,
    api_key_env: str = "",
    harness: dict | None = None,
    timeout_s: float = 60.0,
    success_at: float = 1.0,
    dataset: dict | None = None,
) -> Environment:
    """An environment that an OpenEnv server runs. `tools` are as it lists them now; `by_mcp`:
    whether they are its own, else “step”. Without a verifier the sum of its steps' rewards counts.

    Raises RefusedAddress, RefusedKey, SpecError.
    """
    config = _connection(check_base_url, url, api_key_env, timeout_s) | {
        "success_at": success_at,
        "tools": tools,
        "mcp": by_mcp,
    }
    return save_environment(
        project=project,
        slug=slug,
        kind=EnvironmentKind.OPENENV,
        harness=harness or {},
        by=by,
        config=config,
        dataset=dataset,
        verifier=verifier or _of_server(project, slug, config["url"], by),
    )


@transaction.atomic
def connect_mcp(
    *,
    project: Project,
    slug: str,
    url: str,
    tools: list[dict],
    verifier: Verifier,
    by: Any,
    api_key_env: str = "",
    harness: dict | None = None,
    timeout_s: float = 60.0,
    dataset: dict | None = None,
) -> Environment:
    """An environment whose tools an MCP server runs; the verifier is ours. `tools` are as the
    server lists them now.

    Raises RefusedAddress, RefusedKey, SpecError.
    """
    config = _connection(check_url, url, api_key_env, timeout_s) | {"tools": tools}
    return save_environment(
        project=project,
        slug=slug,
        kind=EnvironmentKind.MCP,
        harness=harness or {},
        verifier=verifier,
        by=by,
        config=config,
        dataset=dataset,
    )


def _connection(
    check: Callable[..., httpx2.URL], url: str, api_key_env: str, timeout_s: float
) -> dict:
    """What the configs of all remote kinds have. Raises RefusedAddress, RefusedKey."""
    address = check(url, allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS)
    outgoing_keys.key_of(api_key_env, address.host)
    key = {"api_key_env": api_key_env} if api_key_env else {}
    return {"url": str(address), "timeout_s": timeout_s} | key


def _save(
    model: type[Versioned],
    project: Project,
    name: dict[str, str],
    digest: str,
    by: Any,
    **content: Any,
) -> Versioned:
    # The project's row is the lock under which version numbers are given out.
    Project.objects.select_for_update().get(pk=project.pk)
    rows = model.objects.filter(project=project, **name)
    existing = rows.filter(hash=digest).first()
    if existing:
        return existing
    last = rows.aggregate(last=models.Max("version"))["last"] or 0
    row = model.objects.create(
        project=project, version=last + 1, hash=digest, created_by=by, **name, **content
    )
    row.is_new = True
    audit(
        f"{model._meta.model_name}.created",
        project=project,
        by=by,
        target=row,
        name=str(row),
        hash=digest,
    )
    return row
