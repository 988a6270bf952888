"""Changes of how somebody signs in, into the audit log of their projects."""

from __future__ import annotations

from typing import Any

from allauth.account import signals as account
from allauth.mfa import signals as mfa
from allauth.socialaccount import signals as social
from django.dispatch import Signal

from apps.core.attempts import note

ACTIONS: tuple[tuple[Signal, str], ...] = (
    (account.password_changed, "account.password_changed"),
    (account.password_set, "account.password_set"),
    (account.password_reset, "account.password_reset"),
    (mfa.authenticator_added, "account.second_factor_added"),
    (mfa.authenticator_removed, "account.second_factor_removed"),
    (mfa.authenticator_reset, "account.recovery_codes_made"),
    (social.social_account_added, "account.sign_in_connected"),
    (social.social_account_removed, "account.sign_in_removed"),
)


def _receiver(action: str) -> Any:
    def receive(request: Any, user: Any = None, authenticator: Any = None, **_: Any) -> None:
        kind = {"kind": authenticator.type} if authenticator else {}
        note(action, user or request.user, request, **kind)

    return receive


for signal, action in ACTIONS:
    signal.connect(_receiver(action), weak=False, dispatch_uid=action)
