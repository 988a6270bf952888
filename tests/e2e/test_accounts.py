"""Signing in by a passkey, with Chromium's virtual authenticator: what a test without a browser
cannot sign.
"""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from playwright.sync_api import expect

from apps.core.actions import create_project
from tests.e2e.conftest import PASSWORD, log_in_by_form

AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def test_a_passkey_is_added_and_logs_in(user: Any, page: Any) -> None:
    create_project(slug="mine", name="Mine", by=user)
    devices = page.context.new_cdp_session(page)
    devices.send("WebAuthn.enable")
    devices.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})
    log_in_by_form(page)
    page.goto(reverse("mfa_add_webauthn"))
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_label("Passwordless").check()
    page.get_by_role("main").get_by_role("button", name="Add").click()
    expect(page.get_by_role("heading", name="Recovery Codes")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url("**/p/mine/**")
