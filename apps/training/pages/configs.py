"""A run's settings as YAML: exporting those of a run, and importing a file into the form of a new
run.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.training.comparison import runs_of
from apps.training.config_yaml import ConfigError, config_of, read, write
from apps.training.picks import PickForm
from apps.training.starts import fields_from
from apps.training.views import new_page


@project_view()
def as_yaml(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    run = get_object_or_404(runs_of(project), pk=pk)
    try:
        text = write(config_of(run))
    except ConfigError as error:
        return HttpResponse(f"# {error}\n", status=409, content_type="text/plain; charset=utf-8")
    name = f"{run.method}-{str(run.pk)[:8]}.yaml"
    return HttpResponse(
        text,
        content_type="application/yaml; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@project_view(Role.ENGINEER)
def from_yaml(request: HttpRequest, project: Project) -> HttpResponse:
    """Upload a file, then show the form filled in with its settings. Nothing starts before the form
    is submitted.
    """
    text, error = request.POST.get("yaml", "").replace("\r\n", "\n"), ""
    if request.method == "POST":
        try:
            fields = fields_from(read(text), project)
        except ConfigError as problem:
            error = str(problem)
        else:
            return new_page(request, project, PickForm(project, None, None, fields), None)
    context = {"text": text, "error": error}
    return render(request, "training/new_from_yaml.html", context, status=422 if error else 200)
