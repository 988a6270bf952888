"""Signing in and the account page. The flows are allauth's; too many failures are answered with
429.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account import views as account_views
from allauth.account.decorators import reauthentication_required
from allauth.account.utils import perform_login
from allauth.mfa.base import views as mfa_views
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.openid_connect import views as oidc_views
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from requests import RequestException

from apps.core import actions
from apps.core.access import refuse_unstorable_text, takes
from apps.core.accounts.adapters import INVITATION, invitation_of
from apps.core.accounts.forms import LOCKED, AccountForm
from apps.core.attempts import note
from apps.core.auditing.words import sentence
from apps.core.forms import NAME_TAKEN, JoinForm
from apps.core.models import AuditEvent, Invitation, key_digest
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER

log = logging.getLogger(__name__)
EVENTS = 50
PROVIDER_FAILS = (
    "The sign-in provider cannot be reached, or does not answer as it should. Try again, or log in"
    " with your password."
)


class SlowedDown:
    """A form refused without being read (`attempts`) also gives the wait in the header."""

    def form_invalid(self, form: Any) -> HttpResponse:
        response = super().form_invalid(form)
        for error in (error for errors in form.errors.as_data().values() for error in errors):
            if error.code == LOCKED:
                response.status_code, response["Retry-After"] = 429, str(error.params["seconds"])
        return response


class LogIn(SlowedDown, account_views.LoginView):
    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs) | {"mail": settings.FLYWHEEL_MAIL}


class SecondFactor(SlowedDown, mfa_views.AuthenticateView):
    pass


class ConfirmByPassword(SlowedDown, account_views.ReauthenticateView):
    pass


class ConfirmByCode(SlowedDown, mfa_views.ReauthenticateView):
    pass


class ChangePassword(SlowedDown, account_views.PasswordChangeView):
    pass


def password_reset(request: HttpRequest) -> HttpResponse:
    """By email; without a mail server, what to do instead."""
    if not settings.FLYWHEEL_MAIL:
        return render(request, "account/no_mail.html")
    return account_views.password_reset(request)


def provider_may_fail(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def wrapper(request: HttpRequest, provider_id: str) -> HttpResponse:
        try:
            return view(request, provider_id)
        except (
            RequestException,
            OAuth2Error,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            log.warning("The OpenID Connect provider cannot be used: %r", error)
            messages.error(request, PROVIDER_FAILS)
            return redirect("account_login")

    return wrapper


oidc_callback = provider_may_fail(oidc_views.callback)


@provider_may_fail
def oidc_login(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Forwards to the provider from a separate page: our content security policy lets no form lead
    to another site.
    """
    response = oidc_views.login(request, provider_id)
    if response.status_code == 302 and "://" in response["Location"]:
        return render(request, "account/leaving.html", {"url": response["Location"]})
    return response


@takes({"token": None})
def join(request: HttpRequest) -> HttpResponse:
    """An invitation's page, for somebody with an account or without. Its token leaves the address
    at once, for the session.
    """
    if token := request.GET.get("token"):
        request.session[INVITATION] = key_digest(token)
        return redirect("join")
    invitation, user = invitation_of(request), request.user
    if invitation is None:
        mine = Invitation.objects.filter(
            digest=request.session.pop(INVITATION, ""), accepted_by=user.pk or 0
        ).first()
        return (
            redirect(mine.project)
            if mine
            else render(request, "account/join_closed.html", status=410)
        )
    form = JoinForm(request.POST or None) if not user.is_authenticated else None
    if request.method == "POST" and (form is None or form.is_valid()):
        try:
            if form is None:
                actions.accept_invitation(invitation=invitation, by=user)
                return redirect(invitation.project)
            joined = actions.join(invitation=invitation, **form.cleaned_data)
        except actions.InvitationError:
            return redirect("join")
        except actions.NameTaken:
            form.add_error("username", NAME_TAKEN)
            return render(request, "account/join.html", {"invitation": invitation, "form": form})
        return perform_login(request, joined, redirect_url=invitation.project.get_absolute_url())
    return render(request, "account/join.html", {"invitation": invitation, "form": form})


@login_required
@takes({"all": FLAG, "page": PAGE_NUMBER})
def activity(request: HttpRequest) -> HttpResponse:
    """What happened to one's own account. Whoever administers the installation sees also (`all`)
    what belongs to no project: names and keys that nobody has, accounts without a project."""
    refuse_unstorable_text(request)
    all_of_it = request.user.is_superuser and "all" in request.GET
    rows = (
        AuditEvent.objects.filter(project=None)
        if all_of_it
        else AuditEvent.objects.of_account(request.user)
    )
    page = page_of(request, rows, EVENTS)
    context = {
        "page": page,
        "lines": [(event, sentence(event)) for event in page],
        "all": all_of_it,
    }
    return render(request, "account/activity.html", context)


def changes_email(request: HttpRequest) -> bool:
    return request.POST.get("email", "").lower() != request.user.email.lower()


@login_required
@takes({})
@reauthentication_required(allow_get=True, enabled=changes_email)
def account(request: HttpRequest) -> HttpResponse:
    """Name and email. Whoever changes the address, which can reset the password, has just proved
    who they are.
    """
    before = request.user.email
    form = AccountForm(request.POST or None, instance=request.user)
    if request.method == "POST" and form.is_valid():
        user = form.save()
        if user.email != before:
            note("account.email_changed", user, request)
        messages.success(request, "Saved.")
        return redirect("account")
    return render(request, "account/profile.html", {"form": form})
