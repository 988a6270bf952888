"""The Parquet files of a project: what is there, what is in it, how to read it."""

from __future__ import annotations

from django.conf import settings
from django.db.models import Count, Max, Min, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.stores import store
from apps.trajectories.parquet_files import shown_schema


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
    files = project.parquet_files.written()
    found = {
        row["table"]: row
        for row in files.values("table").annotate(
            days=Count("pk"),
            first=Min("day"),
            last=Max("day"),
            count=Sum("rows"),
            bytes=Sum("size"),
            written=Max("written_at"),
        )
    }
    return render(
        request,
        "trajectories/parquet.html",
        {
            "tables": [table | {"files": found.get(table["name"])} for table in shown_schema()],
            "has_files": bool(found),
            "export": project.parquetexports.first(),
            "place": place_of(project),
            "is_bucket": not store().is_here,
            "may_write": request.membership.may(Role.ENGINEER),
        },
    )


def place_of(project: Project) -> str:
    """Where the files are, for DuckDB or Athena."""
    name = f"parquet/{project.pk}"
    far = store()
    if far.is_here:
        return f"{settings.FLYWHEEL_DATA_DIR}/artifacts/{name}"
    prefix = str(far.location).strip("/")
    return f"s3://{far.bucket_name}/{f'{prefix}/' if prefix else ''}{name}"
