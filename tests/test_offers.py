"""What is found to be offered; test_access.py asks every page of every role for it."""

from __future__ import annotations

from apps.core.models import Role
from tests.offers import offers, refused
from tests.test_access import ROLES


def test_an_offer_that_is_refused_is_found() -> None:
    form = '<form method="post"><fieldset{}><button>Save</button></fieldset></form>'
    page = (
        form.format("")
        + '<button formaction="/p/a/settings/members/1/remove/">x</button><a href="?b">y</a>'
    )
    assert not offers("/p/a/settings/keys/", form.format(" disabled"))
    assert list(refused(ROLES, Role.VIEWER, "/p/a/settings/keys/", page)) == [
        "form[action] core:keys needs operator",
        "button[formaction] core:remove_member needs owner",
        "a[href] core:keys needs operator",
    ]
    assert not list(refused(ROLES, Role.OWNER, "/p/a/settings/keys/", page))
