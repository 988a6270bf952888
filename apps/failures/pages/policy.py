"""The rules that system prompts state, by prompt, with runs that break them: people confirm or dismiss each."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.failures.actions import policy
from apps.failures.actions.decisions import Refused
from apps.failures.models import PolicyRule
from apps.failures.prompts import MOST_COUNTED, MOST_EXAMPLES, rules_of, undecided
from apps.trajectories.shown import runs_shown

SHOWN = 5  # prompts


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
    """All rules, or `?state=` those in one state."""
    rules, state = rules_of(project), request.GET.get("state", "")
    prompts = project.system_prompts.all()
    if state in PolicyRule.State.values:
        rules = rules.filter(state=state)
        prompts = prompts.filter(pk__in=rules.order_by().values("prompt"))
    prompts = page_of(request, prompts.prefetch_related(Prefetch("rules", rules)), SHOWN)
    runs = {one.trajectory_id for prompt in prompts for rule in prompt.rules.all() for one in rule.newest}
    runs_shown(project, runs, to=request.user, where="policy rules")
    context = {
        "page": prompts,
        "state": state,
        "states": PolicyRule.State.choices,
        "waiting": undecided(project),
        "most": MOST_COUNTED,
        "shown": MOST_EXAMPLES,
        "there": project.system_prompts.exists(),
        "may_write": request.membership.may(Role.REVIEWER),
    }
    return render(request, "failures/policy.html", context)


@require_POST
@project_view(Role.REVIEWER)
def decide(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Answers htmx with the rule's new state and the number left to review alone, so that the row stays selected."""
    rule, error = get_object_or_404(PolicyRule, prompt__project=project, pk=pk), ""
    try:
        policy.decide(project=project, rule=rule, state=request.POST.get("state", ""), by=request.user)
    except Refused as refused:
        error = str(refused)
    if request.htmx:
        rule = get_object_or_404(rules_of(project), pk=pk)
        context = {"rule": rule, "error": error, "may_write": True, "waiting": undecided(project), "swap": True}
        return render(request, "failures/_policy_decided.html", context)
    if error:
        messages.error(request, error)
    return redirect(f"{reverse('failures:policy', args=[project.slug])}#rule-{pk}")


@require_POST
@project_view(Role.REVIEWER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    rule = policy.undo(project=project, by=request.user)
    messages.info(request, "Your last decision was undone." if rule else "Nothing to undo.")
    anchor = f"#rule-{rule.pk}" if rule else ""
    return redirect(f"{reverse('failures:policy', args=[project.slug])}{anchor}")
