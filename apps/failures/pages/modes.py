"""The failure modes of a project: its own and the built-in ones."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.text import slugify
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import PlainLabels
from apps.core.models import Project, Role
from apps.failures.actions.decisions import Refused
from apps.failures.actions.modes import BUILT_IN, delete_mode, ensure_modes, save_mode
from apps.failures.models import FailureMode, FailureState


class ModeForm(PlainLabels, forms.ModelForm):
    """The slug cannot be changed later: rules, judges and decisions refer to a mode by it."""

    slug = forms.SlugField(
        max_length=60,
        required=False,
        help_text="Letters, digits, - and _. Generated from the name if empty.",
    )

    class Meta:
        model = FailureMode
        fields = (
            "name",
            "slug",
            "severity",
            "safety_relevant",
            "position",
            "definition",
            "examples",
        )
        widgets = {
            "definition": forms.Textarea(attrs={"rows": 2}),
            "examples": forms.Textarea(attrs={"rows": 3}),
        }
        help_texts = {
            "position": "1 comes first. The first ten have the keys 1 to 9 and 0 in triage."
        }
        labels = {"safety_relevant": "Safety-relevant: triaged first", "position": "Position"}

    def __init__(self, *args: object, project: Project, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.instance.project = project
        if self.instance.pk:
            del self.fields["slug"]

    def clean(self) -> dict:
        cleaned = super().clean()
        if self.instance.pk is None and cleaned.get("name") and "slug" not in self.errors:
            cleaned["slug"] = cleaned.get("slug") or slugify(cleaned["name"]).replace("-", "_")[:60]
            self._check_slug(cleaned["slug"])
        return cleaned

    def _check_slug(self, slug: str) -> None:
        if not slug:
            raise ValidationError({"slug": "Enter a slug: none can be generated from this name."})
        if self.instance.project.failure_modes.filter(slug=slug).exists():
            raise ValidationError({"slug": f"A mode with the slug “{slug}” already exists."})


@project_view()
def modes(request: HttpRequest, project: Project) -> HttpResponse:
    ensure_modes(project)
    may = request.membership.may(Role.ENGINEER)
    return page(
        request,
        project,
        ModeForm(project=project, initial={"position": project.failure_modes.count() + 1}),
        may,
    )


def page(
    request: HttpRequest, project: Project, form: ModeForm, may: bool, status: int = 200
) -> HttpResponse:
    standing = ~Q(failures__state=FailureState.DISMISSED)
    rows = project.failure_modes.annotate(
        n=Count("failures", filter=standing), used=Count("failures")
    )
    edited = form.instance.pk
    forms_of = [
        (
            mode,
            form
            if mode.pk == edited
            else ModeForm(instance=mode, project=project, prefix=f"m{mode.pk}"),
        )
        for mode in rows
    ]
    new = ModeForm(project=project) if edited else form
    context = {
        "forms": forms_of,
        "new": new,
        "built_in": BUILT_IN,
        "may_write": may,
        "edited": edited,
    }
    return render(request, "failures/modes.html", context, status=status)


@require_POST
@project_view(Role.ENGINEER)
def save(request: HttpRequest, project: Project, pk: int | None = None) -> HttpResponse:
    mode = get_object_or_404(project.failure_modes, pk=pk) if pk else None
    form = ModeForm(request.POST, instance=mode, project=project, prefix=f"m{pk}" if pk else None)
    if not form.is_valid():
        return page(request, project, form, may=True)
    mode = save_mode(mode=form.save(commit=False), by=request.user)
    messages.success(request, f"“{mode}” saved.")
    return redirect("failures:modes", project.slug)


@require_POST
@project_view(Role.ENGINEER)
def delete(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    mode = get_object_or_404(project.failure_modes, pk=pk)
    try:
        delete_mode(mode=mode, by=request.user)
        messages.success(request, f"“{mode}” deleted.")
    except Refused as refused:
        messages.error(request, str(refused))
    return redirect("failures:modes", project.slug)
