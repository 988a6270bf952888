"""Ray clusters over REST."""

from __future__ import annotations

from typing import Annotated, Any

from drf_spectacular.utils import extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, LINE, described, results, sent
from apps.registry import ray_clusters
from apps.registry.models import Health, RayCluster
from workers.lib.typed import convert, json_schema, plain

Name = Annotated[str, Meta(pattern=r"\A[-a-zA-Z0-9_]{1,80}\Z")]
Url = Annotated[str, Meta(max_length=500, pattern=LINE)]
Variable = Annotated[str, Meta(max_length=80, pattern=LINE)]
Gpus = Annotated[float, Meta(ge=0, le=1024)]


class NewCluster(Struct, forbid_unknown_fields=True, kw_only=True):
    """`base_url`: of the dashboard. `gpus` of a job whose engine does not ask Ray for them.
    `bases_at`: a folder on the nodes.
    """

    name: Name
    base_url: Url
    key_variable: Variable = ""
    gpus: Gpus = 1.0
    bases_at: Url = ""
    flywheel_url: Url = ""


class ClusterChanges(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    name: Name | UnsetType = UNSET
    base_url: Url | UnsetType = UNSET
    key_variable: Variable | UnsetType = UNSET
    gpus: Gpus | UnsetType = UNSET
    bases_at: Url | UnsetType = UNSET
    flywheel_url: Url | UnsetType = UNSET


FIELDS = (
    "name",
    "base_url",
    "key_variable",
    "gpus",
    "bases_at",
    "flywheel_url",
    "health",
    "health_detail",
    "ray_version",
)
STRING = {"type": "string"}
CLUSTER = {
    "type": "object",
    "required": [*FIELDS, "checked_at"],
    "properties": (
        dict.fromkeys(FIELDS, STRING)
        | {
            "gpus": {"type": "number"},
            "health": {"enum": list(Health.values)},
            "checked_at": {"type": ["string", "null"], "format": "date-time"},
        }
    ),
}


def cluster_json(cluster: RayCluster) -> dict[str, Any]:
    return {name: getattr(cluster, name) for name in (*FIELDS, "checked_at")}


@extend_schema(
    methods=["GET"],
    operation_id="v1_ray_clusters_list",
    responses=described({200: results(CLUSTER)}),
    description="The Ray clusters to which training runs can be submitted.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_ray_clusters_add",
    request={JSON: json_schema(NewCluster)},
    responses=described({201: CLUSTER}, 400, 403, 409),
    examples=[sent("Add", {"name": "gpus", "base_url": "http://ray-head:8265"})],
    description=(
        "Adds a cluster by the address of its dashboard, and checks in the background whether it"
        " answers."
    ),
)
@api_view(["GET", "POST"])
def collection(request: Request) -> Response:
    project = request.auth.project
    if request.method == "GET":
        return Response(
            {"results": [cluster_json(row) for row in RayCluster.objects.filter(project=project)]}
        )
    member_of(request)
    given = plain(convert(request.data, NewCluster))
    made = ray_clusters.add_cluster(project=project, fields=given, by=request.auth.created_by)
    return Response(cluster_json(made), status=201)


@extend_schema(
    methods=["GET"], operation_id="v1_ray_clusters_read", responses=described({200: CLUSTER}, 404)
)
@extend_schema(
    methods=["PATCH"],
    operation_id="v1_ray_clusters_edit",
    request={JSON: json_schema(ClusterChanges)},
    responses=described({200: CLUSTER}, 400, 403, 404),
    description="Changes the fields that are sent.",
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_ray_clusters_remove",
    responses=described({}, 403, 404) | {204: None},
    description=(
        "Removes it from this project. Jobs running there continue and are followed until they"
        " finish."
    ),
)
@api_view(["GET", "PATCH", "DELETE"])
def item(request: Request, name: str) -> Response:
    cluster = RayCluster.objects.filter(project=request.auth.project, name=name).first()
    if cluster is None:
        raise NotFound(f"This project has no Ray cluster “{name}”.")
    if request.method == "GET":
        return Response(cluster_json(cluster))
    member_of(request)
    if request.method == "DELETE":
        ray_clusters.remove_cluster(cluster=cluster, by=request.auth.created_by)
        return Response(status=204)
    given = plain(convert(request.data, ClusterChanges))
    before = {
        name: getattr(cluster, name)
        for name in ("name", "base_url", "key_variable", "gpus", "bases_at", "flywheel_url")
    }
    changed = ray_clusters.edit_cluster(
        cluster=cluster, fields=before | given, by=request.auth.created_by
    )
    return Response(cluster_json(changed))
