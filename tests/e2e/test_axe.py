"""axe-core where test_pages does not look: before one is logged in, in dialogs, in the API's
reference.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from tests.e2e.checks import faults, wrong_with
from tests.e2e.seed import World


@pytest.mark.more
def test_nothing_serious_before_one_is_logged_in(page: Any) -> None:
    wrong = [
        one
        for name in ("account_login", "account_reset_password")
        for one in wrong_with(page, reverse(name))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.proof
def test_nothing_serious_in_dialogs_and_the_api_reference(world: World, logged_in: Any) -> None:
    logged_in.goto(reverse("training:list", args=[world.project.slug]))
    logged_in.keyboard.press("Control+k")
    expect(logged_in.get_by_role("option").first).to_be_visible()
    wrong = faults(logged_in)
    logged_in.keyboard.press("Escape")
    expect(logged_in.get_by_role("dialog")).to_be_hidden()
    logged_in.keyboard.press("?")
    expect(logged_in.get_by_role("dialog", name="Keyboard")).to_be_visible()
    wrong += faults(logged_in)
    logged_in.goto(reverse("api:docs"))
    expect(logged_in.locator(".opblock").first).to_be_visible()
    logged_in.wait_for_load_state("networkidle")
    wrong += faults(logged_in)
    assert not wrong, "\n".join(wrong)
