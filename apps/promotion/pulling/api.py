"""What a user's own agent or server pulls: the live version of a channel, its files, its model
card.
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_GET
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.attempts import Locked, address_of, refuse_key
from apps.core.models import key_digest
from apps.core.openapi import described
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import MANAGED, READABLE, RESULT, Scope
from apps.promotion.announcing import move_json
from apps.promotion.api import MOVE, MOVE_EXAMPLE, find_channel
from apps.promotion.deployment.models import Fingerprint
from apps.promotion.deployment.placements import placements_of
from apps.promotion.models import Channel
from apps.promotion.pulling.archive import answer_with
from apps.promotion.pulling.card import card_of
from apps.promotion.pulling.links import LinkRefused, download_url, named_by, use
from apps.registry import merging
from apps.registry.artifacts import ArtifactError
from apps.registry.merging import merged_of
from apps.registry.models import MergedModel, ModelVersion

TEXT, TIME = {"type": "string"}, {"type": "string", "format": "date-time"}
FILES = {
    "type": "array",
    "description": "Files of the download in addition to README.md, the model card",
    "items": {
        "type": "object",
        "properties": {"path": TEXT, "size": {"type": "integer"}, "sha256": TEXT},
    },
}
DOWNLOAD = {
    "type": ["object", "null"],
    "description": (
        "A tar archive of `files` and README.md. Anybody who has the address can use it, once,"
        " until it expires: 403 if it was changed, 410 if it was used or has expired. Null if there"
        " are no files, and for keys without the scope read"
    ),
    "properties": {"url": TEXT | {"format": "uri"}, "expires_at": TIME},
}
PROOF = {
    "type": "object",
    "description": "Why this version is live, and how to tell that a server has its weights",
    "properties": {
        "promotion": MOVE | {"type": ["object", "null"]},
        "fingerprint": {
            "type": ["object", "null"],
            "description": (
                "The log-probabilities of these token ids but the first, with the version's weights"
            ),
            "properties": {
                "ids": {"type": "array", "items": {"type": "integer"}},
                "logprobs": {"type": "array", "items": {"type": "number"}},
                "source": {"enum": Fingerprint.Source.values},
            },
        },
        "served": {
            "type": "array",
            "description": "The channel's targets that hold it, with what was proved on each",
            "items": {
                "type": "object",
                "properties": {
                    "target": TEXT,
                    "served_as": TEXT,
                    "proof": {"type": "object"},
                    "at": TIME,
                },
            },
        },
    },
}
MERGED = {
    "type": ["object", "null"],
    "description": (
        "The adapter merged into its base, for servers without LoRA; null if nobody requested it"
    ),
    "properties": {
        "artifact": TEXT | {"description": "The digest of `files`"},
        "dtype": {"enum": ["float32", "bfloat16", "float16"]},
        "gap": {
            "type": "number",
            "description": (
                "Mean difference of a fixed text's log-probabilities from base and adapter, in nats"
            ),
        },
        "size": {"type": "integer", "description": "Bytes"},
        "files": FILES,
        "download": DOWNLOAD,
    },
}
MERGE = {
    "type": "object",
    "required": ["model", "state", "label", "error", "merged"],
    "properties": {
        "model": TEXT,
        "state": {
            "enum": ["queued", "running", "succeeded", "failed", "cancelled", None],
            "description": "Of the last merge; null: nobody requested one",
        },
        "label": TEXT | {"description": "Current activity"},
        "error": TEXT,
        "merged": MERGED,
    },
}
LIVE = {
    "type": "object",
    "required": [
        "channel",
        "model",
        "version",
        "kind",
        "digest",
        "prompt",
        "files",
        "download",
        "merged",
        "proof",
        "updated_at",
    ],
    "properties": {
        "channel": TEXT,
        "model": TEXT,
        "version": {"type": "integer"},
        "kind": TEXT,
        "digest": TEXT,
        "base": TEXT,
        "base_digest": TEXT,
        "adapter": {"type": ["string", "null"], "description": "The digest of `files`"},
        "prompt": {
            "type": "object",
            "description": (
                "The whole prompt of a prompt version, its tools among it; {} of all others"
            ),
        },
        "files": FILES,
        "download": DOWNLOAD,
        "merged": MERGED,
        "proof": PROOF,
        "updated_at": TIME,
    },
}
CARD = {
    "type": "object",
    "required": ["model", "markdown"],
    "properties": {"model": TEXT, "markdown": TEXT},
}
LINK = {
    "type": "object",
    "required": ["url", "expires_at", "files", "adapter"],
    "properties": DOWNLOAD["properties"] | {"files": FILES, "adapter": TEXT},  # type: ignore[operator]
}
FILE = {"path": "adapter_model.safetensors", "size": 1_849_344, "sha256": "a4c1…"}
LINK_EXAMPLE = {
    "url": "https://flywheel.example.com/api/v1/downloads/eyJ…/",
    "expires_at": "2026-11-22T08:10:00Z",
}
MERGE_EXAMPLE = {
    "model": "support-v4",
    "state": "succeeded",
    "label": "done",
    "error": "",
    "merged": {
        "artifact": "c07b…",
        "dtype": "bfloat16",
        "gap": 0.003,
        "size": 269_060_552,
        "files": [FILE | {"path": "model.safetensors"}],
        "download": LINK_EXAMPLE,
    },
}
LIVE_EXAMPLE = OpenApiExample(
    "An adapter",
    response_only=True,
    status_codes=["200"],
    value={
        "channel": "production",
        "model": "support-v4",
        "version": 4,
        "kind": "adapter",
        "digest": "9b1c…",
        "base": "/models/smollm2",
        "base_digest": "77e0…",
        "adapter": "6d1f…",
        "prompt": {},
        "files": [FILE],
        "download": LINK_EXAMPLE,
        "merged": None,
        "proof": {
            "promotion": MOVE_EXAMPLE.value,
            "fingerprint": {"ids": [1, 2, 3], "logprobs": [-3.1, -0.2], "source": "computed"},
            "served": [],
        },
        "updated_at": "2026-11-22T08:00:00Z",
    },
)


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_channels_retrieve",
    responses=described({200: LIVE}, 404) | {304: None},
    examples=[LIVE_EXAMPLE],
    parameters=[
        OpenApiParameter("If-None-Match", str, "header", description="The ETag of the last answer")
    ],
    description=(
        "What a channel currently runs: the prompt itself, or an adapter's files with a download"
        " URL. The ETag changes whenever anything in the response except that URL changes; 304 if"
        " it matches the one sent. 404 for an archived channel, and for one that was unarchived"
        " until its version is restored."
    ),
)
@api(GET=RESULT)
def channel(request: Request, name: str) -> Response:
    row = find_channel(request, name)
    if row.not_served:
        raise NotFound(row.not_served)
    if row.current is None:
        raise NotFound("This channel has no model yet.")
    live = live_json(row)
    etag = f'"{hashlib.sha256(JSONRenderer().render(live)).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache, private"}
    if (
        answer := get_conditional_response(request, etag=etag, response=Response(headers=headers))
    ).status_code == 304:
        return answer
    may = row.current.model.artifact is not None and Scope.READ in request.auth.scopes
    origin, model = request.build_absolute_uri("/"), row.current.model
    link = download_url(model, origin) if may else None
    if merged := live["merged"]:
        live["merged"] = merged | {
            "download": download_url(model, origin, merged=True) if may else None
        }
    return Response(live | {"download": link}, headers=headers)


def live_json(row: Channel) -> dict[str, Any]:
    version = row.current
    model = version.model
    move = row.promotions.select_related("channel", "from_version", "to_version", "by").first()
    fingerprint = (
        Fingerprint.objects.filter(version=version).values("ids", "logprobs", "source").first()
    )
    return {
        "channel": row.name,
        "model": str(version),
        "version": version.version,
        "kind": version.kind,
        "digest": version.digest,
        "base": version.base,
        "base_digest": model.base_version().digest,
        "adapter": model.artifact_id,
        "prompt": version.prompt,
        "files": model.artifact.files if model.artifact else [],
        "merged": merged_json(merged) if (merged := merged_of(model)) else None,
        "proof": {
            "promotion": move_json(move) if move else None,
            "fingerprint": fingerprint,
            "served": [
                {
                    "target": str(one.target),
                    "served_as": one.served_as,
                    "proof": one.proof,
                    "at": one.at,
                }
                for one in placements_of(row)
            ],
        },
        "updated_at": row.updated_at,
    }


def merged_json(merged: MergedModel) -> dict[str, Any]:
    return {
        "artifact": merged.artifact_id,
        "dtype": merged.dtype,
        "gap": merged.gap,
        "size": merged.artifact.size,
        "files": merged.artifact.files,
    }


def find(request: Request, pk: int) -> ModelVersion:
    """Raises NotFound."""
    rows = ModelVersion.objects.filter(project=request.auth.project).select_related(
        "artifact", "parent", "project"
    )
    found = rows.filter(pk=min(pk, 2**63 - 1)).first()
    if found is None:
        raise NotFound("No model version of this project has this id.")
    return found


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_model_versions_card",
    responses=described({200: CARD}, 404),
    description=(
        "The model card of a version, generated from Flywheel's records: intended use, training"
        " data and method, lineage, evaluations with intervals, hashes. For hold-outs it contains"
        " names and numbers, never tasks."
    ),
)
@api(GET=READABLE)
def card(request: Request, pk: int) -> Response:
    version = find(request, pk)
    return Response({"model": str(version), "markdown": card_of(version).markdown()})


@extend_schema(
    operation_id="v1_model_versions_download",
    request=None,
    responses=described({201: LINK}, 404),
    examples=[
        OpenApiExample(
            "An adapter",
            LINK_EXAMPLE | {"files": [FILE], "adapter": "6d1f…"},
            response_only=True,
            status_codes=["201"],
        )
    ],
    description=(
        "A URL to download the files of a version as a tar archive, once, within ten minutes."
    ),
)
@api(POST=READABLE)
def download_link(request: Request, pk: int) -> Response:
    version = find(request, pk).model
    if version.artifact is None:
        raise NotFound(
            f"{version} has no downloadable files: it is neither an adapter nor a reward model."
        )
    link = download_url(version, request.build_absolute_uri("/"))
    return Response(
        link | {"files": version.artifact.files, "adapter": version.artifact_id}, status=201
    )


@extend_schema(
    methods=["GET"],
    operation_id="v1_model_versions_merge_retrieve",
    responses=described({200: MERGE}, 404),
    examples=[OpenApiExample("Merged", MERGE_EXAMPLE, response_only=True, status_codes=["200"])],
    description=(
        "Progress of merging an adapter into its base and, once finished, the merged model with a"
        " download URL."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_model_versions_merge_create",
    request=None,
    responses=described({200: MERGE, 202: MERGE}, 403, 404, 409),
    examples=[
        OpenApiExample(
            "Begun",
            MERGE_EXAMPLE | {"state": "queued", "merged": None},
            response_only=True,
            status_codes=["202"],
        )
    ],
    description=(
        "Merges an adapter into its base, for servers that cannot serve LoRA: a job that stores the"
        " whole model as an artifact. 200 if the merged model already exists, 202 if the job was"
        " started or is running."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def merge(request: Request, pk: int) -> Response:
    version, begun = find(request, pk).model, None
    if request.method == "POST":
        begun = merging.merge(version=version, by=member_of(request).user)
    job, merged = begun or merging.latest_job(version), merged_of(version)
    offered = (
        merged_json(merged)
        | {
            "download": (
                download_url(version, request.build_absolute_uri("/"), merged=True)
                if Scope.READ in request.auth.scopes
                else None
            )
        }
        if merged
        else None
    )
    said = (
        {"state": job.state, "label": job.label, "error": job.error}
        if job
        else {"state": None, "label": "", "error": ""}
    )
    return Response(
        {"model": str(version)} | said | {"merged": offered}, status=202 if begun else 200
    )


@shows(TOTALS, WHEN_EVALUATED)
@require_GET
def download(request: HttpRequest, token: str) -> HttpResponseBase:
    """Authorised by the address alone. Wrong addresses are counted like wrong API keys."""
    try:
        version, artifact, nonce = named_by(token)
        answer = answer_with(version, artifact)
        use(version, artifact, nonce)
    except LinkRefused as error:
        if error.status == 403 and (locked := counted(request, token)):
            return locked
        return JsonResponse({"detail": str(error)}, status=error.status)
    except ArtifactError as error:
        return JsonResponse({"detail": f"{error} The URL can be used again."}, status=503)
    answer["Cache-Control"] = "no-store, private"
    return answer


def counted(request: HttpRequest, token: str) -> HttpResponse | None:
    try:
        refuse_key(key_digest(token), address_of(request))
    except Locked as locked:
        return JsonResponse(
            {"detail": str(locked)}, status=429, headers={"Retry-After": str(locked.seconds)}
        )
    return None
