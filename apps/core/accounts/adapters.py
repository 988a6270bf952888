"""How allauth behaves here: nobody signs up without an invitation, every way in is counted and
audited (`attempts`), and secrets of second factors are encrypted in the database."""

from __future__ import annotations

import logging
import threading
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.userkit import filter_users_by_email, get_user_by_username
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from apps.core.accounts.forms import begun
from apps.core.accounts.known import remember
from apps.core.actions import InvitationError, accept_invitation
from apps.core.attempts import LogIn, address_of, remember_network
from apps.core.encryption import each_row, fernet, reencrypts
from apps.core.forms import no_address
from apps.core.models import Invitation

log = logging.getLogger(__name__)
SECOND_FACTORS = "second factors"
INVITATION = "invitation"  # in a session: the digest of the token of the link that was followed


WRONG_LOGIN = "Wrong username, email or password."
WRONG_CODE = "Wrong code. Enter the newest one that your app shows, or an unused recovery code."


class AccountAdapter(DefaultAccountAdapter):
    error_messages = DefaultAccountAdapter.error_messages | {
        "account_inactive": "This account is disabled. Ask an owner of your project.",
        "email_password_mismatch": WRONG_LOGIN,
        "username_password_mismatch": WRONG_LOGIN,
        "invalid_login": WRONG_LOGIN,
        "enter_current_password": "Enter your current password.",
        "incorrect_password": "Wrong password.",
        "incorrect_code": WRONG_CODE,
        "invalid_password_reset": "This link is invalid or has been used. Request a new one.",
        "invalid_or_expired_key": "This link is invalid or has expired. Request a new one.",
        "too_many_login_attempts": "Too many failed attempts. Try again later.",
        "unknown_email": "No account uses this address.",
        "same_as_current": "Choose a value that differs from the current one.",
        "rate_limited": "Too many requests. Wait a minute and try again.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        return address_of(request)

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Any:
        """The user, if the password is right and the account active. Raises ValidationError if
        attempts are locked.
        """
        attempt = begun(request, name_of(credentials))
        user = super().authenticate(request, **credentials)
        if user is None or not user.is_active:
            attempt.failed()
            return None
        attempt.succeeded(
            whole=user.get_username() == attempt.username and not is_mfa_enabled(user)
        )
        return user

    def post_login(self, request: HttpRequest, user: Any, **options: Any) -> HttpResponse:
        response = super().post_login(request, user, **options)
        remember(request, response, user.get_username())
        remember_network(user.get_username(), address_of(request))
        return response

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Nobody waits for the mail server: by how long it takes, or that it refuses, a stranger
        would know which addresses have an account.
        """
        about = {"request": self.request, "email": email, "address": settings.FLYWHEEL_URL}
        message = self.render_mail(template_prefix, email, about | context)
        threading.Thread(target=_send, args=[message], name="mail", daemon=True).start()

    def get_reset_password_from_key_url(self, key: str) -> str:
        """Under FLYWHEEL_URL: the host of the request is what a stranger called it."""
        uid, _, secret = key.partition("-")
        return settings.FLYWHEEL_URL + reverse(
            "account_reset_password_from_key", args=[uid, secret]
        )

    def clean_username(self, username: str, shallow: bool = False) -> str:
        no_address(username)
        return super().clean_username(username, shallow)


def _send(message: EmailMessage) -> None:
    try:
        message.send()
    except (OSError, ValueError) as error:
        log.warning("A mail about an account could not be sent: %s", error)


def name_of(credentials: dict[str, Any]) -> str:
    """The username of the account that a name or email means: failures count for the account,
    however it was named.
    """
    typed = credentials.get("username") or credentials.get("email") or ""
    by_email = filter_users_by_email(typed)
    found = get_user_by_username(typed) or (by_email[0] if len(by_email) == 1 else None)
    return found.get_username() if found else typed


def invitation_of(request: HttpRequest) -> Invitation | None:
    """The open invitation whose link this browser followed."""
    digest = request.session.get(INVITATION, "")
    return (
        Invitation.objects.open()
        .filter(digest=digest)
        .select_related("project", "created_by")
        .first()
    )


class SocialAccountAdapter(DefaultSocialAccountAdapter):
    error_messages = DefaultSocialAccountAdapter.error_messages | {
        "email_taken": (
            "An account with this address exists. Log in to it first, then connect %s under"
            " Account."
        ),
        "no_password": "Set a password first: without one you could no longer log in.",
        "disconnect_last": "This is your only way to log in. Set a password first.",
        "connected_other": "This sign-in is connected to another account.",
        "invalid_token": "The sign-in provider sent an invalid answer. Try again.",
    }

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        if invitation_of(request) is not None:
            return True
        LogIn("", address_of(request)).refused()
        return False

    @transaction.atomic
    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> Any:
        """The account and the membership that it was made for are one."""
        user = super().save_user(request, sociallogin, form)
        invitation = invitation_of(request)
        try:
            if invitation is None:
                raise InvitationError
            accept_invitation(invitation=invitation, by=user)
        except InvitationError as error:
            raise ImmediateHttpResponse(redirect("join")) from error
        return user

    def on_authentication_error(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        LogIn("", address_of(request)).refused()


class MFAAdapter(DefaultMFAAdapter):
    error_messages = DefaultMFAAdapter.error_messages | {
        "incorrect_code": WRONG_CODE,
        "cannot_delete_authenticator": "You cannot remove this second factor.",
        "cannot_generate_recovery_codes": (
            "Add an authenticator app or a security key before you create recovery codes."
        ),
    }

    def encrypt(self, text: str) -> str:
        return fernet(SECOND_FACTORS).encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return fernet(SECOND_FACTORS).decrypt(encrypted_text.encode()).decode()


@reencrypts("second factors")
def _reencrypt() -> tuple[int, int]:
    """Authenticator apps' secrets and recovery codes' seeds; keys of passkeys are public."""
    adapter = MFAAdapter()

    def renewed(row: Authenticator) -> dict[str, Any]:
        secrets = {
            name: adapter.encrypt(adapter.decrypt(row.data[name]))
            for name in ("secret", "seed")
            if name in row.data
        }
        return {"data": row.data | secrets}

    kinds = (Authenticator.Type.TOTP, Authenticator.Type.RECOVERY_CODES)
    return each_row(Authenticator.objects.filter(type__in=kinds), renewed)
