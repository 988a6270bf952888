from __future__ import annotations

from typing import Any

from allauth.account.forms import ChangePasswordForm
from allauth.account.internal.userkit import filter_users_by_email
from allauth.account.models import EmailAddress
from allauth.core import context
from allauth.core.internal.cryptokit import normalize_user_code
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from allauth.mfa.utils import is_mfa_enabled
from django import forms
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.db import transaction
from django.http import HttpRequest

from apps.core.accounts.known import is_known
from apps.core.attempts import Locked, LogIn, address_of
from apps.core.forms import PlainLabels, mailable

LOCKED = "locked"
CODE_KEPT_S = 120  # longer than a code is valid (allauth remembers it for one period of three)


def begun(request: HttpRequest, username: str) -> LogIn:
    """An attempt that may be made now. Raises ValidationError (code LOCKED) if none may."""
    attempt = LogIn(username, address_of(request), is_known=is_known(request, username))
    try:
        attempt.begin()
    except Locked as locked:
        said = f"{locked} An owner of your project can unlock an account at once."
        raise forms.ValidationError(
            said, code=LOCKED, params={"seconds": locked.seconds}
        ) from locked
    return attempt


class CountedCode:
    """A wrong code of the second factor counts as a wrong password does, and so does one that was
    used before.
    """

    def clean_code(self) -> str:
        attempt = begun(context.request, self.user.get_username())
        try:
            code = super().clean_code()
            used = f"used-code-{self.user.pk}-{normalize_user_code(code)}"  # as it is compared
            if not cache.add(used, True, CODE_KEPT_S):
                raise forms.ValidationError(
                    "This code has already been used. Wait for the next one."
                )
        except forms.ValidationError:
            attempt.failed()
            raise
        attempt.succeeded()
        return code


class SecondFactorForm(CountedCode, AuthenticateForm):
    pass


class ConfirmForm(CountedCode, ReauthenticateForm):
    pass


class NewPasswordForm(ChangePasswordForm):
    """A wrong current password counts as one at the log-in: who sits at another's open session
    guesses no faster here.
    """

    def clean_oldpassword(self) -> str:
        attempt = begun(context.request, self.user.get_username())
        try:
            password = super().clean_oldpassword()
        except forms.ValidationError:
            attempt.failed()
            raise
        attempt.succeeded(whole=not is_mfa_enabled(self.user))
        return password


class AccountForm(PlainLabels, forms.ModelForm):
    class Meta:
        model = get_user_model()
        fields = ("first_name", "email")
        labels = {"first_name": "Name", "email": "Email"}
        help_texts = {
            "email": "You can log in with it; password resets and notifications go there."
        }

    def clean_email(self) -> str:
        email = mailable(self.cleaned_data["email"])
        others = get_user_model().objects.exclude(pk=self.instance.pk)
        if email and (
            others.filter(username__iexact=email).exists()
            or set(filter_users_by_email(email)) - {self.instance}
        ):
            raise forms.ValidationError("Another account uses this address.")
        return email

    @transaction.atomic
    def save(self, commit: bool = True) -> Any:
        user = super().save(commit)
        EmailAddress.objects.filter(user=user).exclude(email=user.email).delete()
        if user.email:
            EmailAddress.objects.get_or_create(
                user=user, email=user.email, defaults={"primary": True}
            )
        return user
