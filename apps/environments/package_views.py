"""Pages of packages: those of this installation, one with its check results, a new one as a
download, and an upload.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from apps.core.access import project_view
from apps.core.form_bounds import bounds_from
from apps.core.forms import PlainForm
from apps.core.models import Project, Role
from apps.core.query import FLAG
from apps.environments import packages
from apps.environments.forms import scorers
from apps.environments.schema import NewEnvironment, NewHarness
from workers.lib.environments.packages.discovery import Found
from workers.lib.environments.packages.files import PackageProblem
from workers.lib.errors import SpecError
from workers.lib.sandbox import Busy, visiting

MAX_ZIP = 4 * 2**20


@bounds_from(name=(NewEnvironment, "package"))
class NewPackageForm(PlainForm):
    name = forms.CharField(
        label="Name",
        help_text="Lowercase letters, digits and _, for example bug_tracker",
        widget=forms.TextInput(attrs={"class": "mono"}),
    )


class UploadForm(PlainForm):
    file = forms.FileField(
        label="Zip file", help_text="Zip of the package folder or its project; at most 4 MB"
    )

    def clean_file(self) -> Any:
        if self.cleaned_data["file"].size > MAX_ZIP:
            raise forms.ValidationError("The file is larger than 4 MB.")
        return self.cleaned_data["file"]


@bounds_from(NewHarness)
class UseForm(PlainForm):
    """The fields of a version of an environment besides the package."""

    slug = forms.SlugField(
        max_length=80, label="Environment", help_text="Reusing a name creates the next version"
    )
    verifier = forms.ModelChoiceField(None, required=False, empty_label="The package's own")
    max_new_tokens = forms.IntegerField(initial=256, label="Max new tokens")
    temperature = forms.FloatField(initial=0.8)

    anyway = forms.BooleanField(required=False, label="Save it although its check found errors")

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["verifier"].queryset = scorers(project).exclude(spec__kind="package")
        self.asks = False  # whether to save it anyway

    @property
    def shown(self) -> list[forms.BoundField]:
        return [field for field in self if field.name != "anyway" or self.asks]

    @property
    def harness(self) -> dict[str, Any]:
        return {
            "max_new_tokens": self.cleaned_data["max_new_tokens"],
            "temperature": self.cleaned_data["temperature"],
            "top_p": 1.0,
        }


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    return _listing(request, project)


def _listing(
    request: HttpRequest,
    project: Project,
    new: NewPackageForm | None = None,
    upload: UploadForm | None = None,
) -> HttpResponse:
    context = {
        "packages": packages.listed(project),
        "folder": packages.folder(),
        "new": new or NewPackageForm(),
        "upload": upload or UploadForm(),
    }
    return render(request, "environments/packages.html", context)


@require_POST
@project_view(Role.ENGINEER)
def download(request: HttpRequest, project: Project) -> HttpResponse:
    """A new package as a zip."""
    form = NewPackageForm(request.POST)
    if form.is_valid():
        name = form.cleaned_data["name"]
        try:
            response = HttpResponse(packages.zipped(name), content_type="application/zip")
            response["Content-Disposition"] = f'attachment; filename="{name}.zip"'
            return response
        except PackageProblem as problem:
            form.add_error("name", f"{problem.text} {problem.do}")
    return _listing(request, project, new=form)


@require_POST
@project_view(Role.ENGINEER)
def upload(request: HttpRequest, project: Project) -> HttpResponse:
    """A package that a member sends runs in the sandbox, in this project alone."""
    form = UploadForm(request.POST, request.FILES)
    if not form.is_valid():
        return _listing(request, project, upload=form)
    try:
        found = packages.from_zip(form.cleaned_data["file"])
        with visiting(f"project:{project.pk}"):
            checked = packages.checked(found)
            if not checked.is_usable:
                return render(
                    request,
                    "environments/package.html",
                    {"found": found, "checked": checked, "uploaded": True},
                )
            made = packages.save_package(
                project=project,
                slug=found.name,
                found=found,
                by=request.user,
                harness={"max_new_tokens": 256, "temperature": 0.8, "top_p": 1.0},
            )
    except PackageProblem as problem:
        form.add_error("file", f"{problem.text} {problem.do}")
        return _listing(request, project, upload=form)
    except (SpecError, Busy) as error:
        form.add_error("file", str(error))
        return _listing(request, project, upload=form)
    messages.success(request, f"{made} is saved. It runs in the sandbox.")
    return redirect("environments:detail", project.slug, made.pk)


def _found(project: Project, name: str) -> packages.Listed:
    """Raises Http404."""
    one = next((one for one in packages.listed(project) if one.found.name == name), None)
    if one is None:
        raise Http404
    return one


@project_view()
def detail(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """The page runs no package code: check results are loaded as a separate fragment (`check`)."""
    return _detail(request, project, _found(project, name))


def _detail(
    request: HttpRequest, project: Project, one: packages.Listed, form: UseForm | None = None
) -> HttpResponse:
    form = form or UseForm(
        project, initial={"slug": one.newest.slug if one.newest else one.found.name}
    )
    return render(
        request, "environments/package.html", {"one": one, "found": one.found, "form": form}
    )


@require_POST
@project_view(Role.ENGINEER)
def use(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """A version of an environment, from the package's current code."""
    one, form = _found(project, name), UseForm(project, request.POST)
    made = _used(one.found, form, project, by=request.user) if form.is_valid() else None
    if made is None:
        return _detail(request, project, one, form)
    messages.success(request, f"{made} is saved.")
    return redirect("environments:detail", project.slug, made.pk)


def _used(found: Found, form: UseForm, project: Project, *, by: Any) -> Any:
    """None if it cannot be used; the form says why then."""
    data = form.cleaned_data
    try:
        with visiting(f"project:{project.pk}"):
            checked = packages.checked(found)
        # One that cannot be imported is refused below, whatever is confirmed.
        if checked.described and not checked.is_usable and not data["anyway"]:
            form.asks = True
            first = next(one for one in checked.findings if one.level == "error")
            form.add_error(None, f"The check of the package found errors: {first.text} {first.do}")
            return None
        return packages.save_package(
            project=project,
            slug=data["slug"],
            found=found,
            by=by,
            verifier=data["verifier"],
            harness=form.harness,
        )
    except PackageProblem as problem:
        form.add_error(None, f"{problem.text} {problem.do}")
    except (SpecError, Busy) as error:
        form.add_error(None, str(error))
    return None


@require_GET
@project_view(Role.ENGINEER, query={"again": FLAG})
def check(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """`?again=1`: checks again even if these files were already checked."""
    one = _found(project, name)
    try:
        with visiting(f"project:{project.pk}"):
            checked = packages.checked(one.found, again="again" in request.GET)
    except Busy as error:
        return render(
            request, "environments/_package_check.html", {"busy": str(error), "found": one.found}
        )
    return render(
        request, "environments/_package_check.html", {"checked": checked, "found": one.found}
    )
