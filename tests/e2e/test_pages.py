"""Every page, full and empty, in both themes, on a phone and on a screen: no error, and it stands
every check.
"""

from __future__ import annotations

from html import unescape
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.urls import reverse
from playwright.sync_api import expect

from apps.core.actions import create_project
from tests.amounts import amount
from tests.e2e.addresses import FORMS, NO_PAGES, STATIONS, pages_of
from tests.e2e.checks import LOOKED_AT, is_stuck, links, unreadable, wrong_with
from tests.e2e.conftest import PASSWORD, log_in, log_in_by_form
from tests.e2e.seed import World
from tests.test_access import OWN, PAGES, WRITES

BY_MAIL_OR_JOB = {  # reached from a button, a mail or the address of a job that has ended
    "core:remove_member",
    "evals:task_from_failure",
    "evals:import_status",
    "trajectories:first",
    "trajectories:compare",
    # from a run that learned from examples; the world's learned from tasks
    "training:run_examples",
}


TO_A_MAIN_ACTION = {  # a page, and whether Tab does not come to it
    '<button class="primary" tabindex="-1">Go</button>': True,
    '<a href="/x">One</a><button class="primary">Go</button>': False,
    '<div onkeydown="return false"><input></div><button class="primary">Go</button>': True,
    '<button class="primary" disabled>Go</button>': False,
    '<a href="/x">One</a>': False,
}


def test_a_main_action_that_tab_does_not_come_to_is_found(browser: Any) -> None:
    page = browser.new_page()
    for body, stuck in TO_A_MAIN_ACTION.items():
        page.set_content(f"<main>{body}</main>")
        assert is_stuck(page) == stuck, body
    page.close()


PALE = "<style>body { background: #fff; color: #333 } .pale { color: #bbb }</style><table>"
NEARLY_ALIKE = {  # rows, and the word in them that is too pale
    "<tr><td>one</td></tr><tr><td>two</td></tr>": "",
    "<tr><td class='pale'>one</td></tr><tr><td class='pale'>two</td></tr>": "one",
    "<tr><td>one</td></tr><tr><td style='color: #bbb'>two</td></tr>": "two",
    "<tr><td>one</td></tr><tr style='background: #444'><td>two</td></tr>": "two",
    "<tr><td class='pale'></td></tr><tr><td class='pale'>two</td></tr>": "two",
    "<tr class='pale'><td>–</td></tr><tr class='pale'><td>two</td></tr>": "two",
    "<tr hidden class='pale'><td>one</td></tr><tr class='pale'><td>two</td></tr>": "two",
    "<tr><td><button class='pale' disabled>one</button><button class='pale'>two</button></td></tr>": (  # noqa: E501
        "two"
    ),
    "<tr><td><details><summary>more</summary><p class='pale'>one</p></details><details open><summary>more</summary><p class='pale'>two</p></details></td></tr>": (  # noqa: E501
        "two"
    ),
}


def test_a_pale_text_is_found_among_others_that_look_nearly_alike(browser: Any) -> None:
    page = browser.new_page()
    for rows, pale in NEARLY_ALIKE.items():
        page.set_content(PALE + rows)
        found = unreadable(page)
        assert len(found) == bool(pale) and pale in "".join(found), (rows, found)
    page.close()


@pytest.mark.more
def test_full_pages_stand_every_check_and_are_reached_by_links(
    world: World, user: Any, logged_in: Any
) -> None:
    """All pages that there are: a new route is visited here, or is named as none. In the suite
    axe-core looks at a sixteenth of them, and Tab goes through another; in proof all are opened,
    looked at and gone through, and each is linked to by another.
    """
    visited, none = pages_of(world, user), {name for names in NO_PAGES.values() for name in names}
    known = {name for name in PAGES if name not in WRITES} | {"core:projects"}
    assert "core:projects" in OWN and visited.keys() | none == known and not visited.keys() & none
    wrong, linked = [], set()
    for number, (name, address) in enumerate(visited.items()):
        if number % LOOKED_AT > 1 and amount(True, False):
            continue
        wrong += wrong_with(logged_in, address, number)
        linked |= links(logged_in)
        if number % LOOKED_AT == 1 or amount(False, True):
            wrong += [f"{name}: Tab does not come to its main action"] * is_stuck(logged_in)
    unreached = {name for name, address in visited.items() if urlsplit(address).path not in linked}
    if amount(False, True):
        wrong += [f"{name}: no page links to it" for name in unreached - BY_MAIL_OR_JOB]
    assert not wrong, "\n".join(wrong)


@pytest.mark.more
def test_empty_pages_say_what_to_do(user: Any, page: Any) -> None:
    """In the suite every fourth page is looked at where the server says it all, and none of the
    forms, which look the same in a full project.
    """
    project = create_project(slug="empty", name="Empty", by=user)
    log_in(page)
    client = Client()
    client.force_login(user)
    wrong, forms = [], dict.fromkeys(amount((), FORMS), "")
    for number, (name, words) in enumerate((STATIONS | forms).items()):
        address = reverse(name, args=[project.slug])
        text = " ".join(unescape(client.get(address).content.decode()).split())
        if number % 4 and words in text and amount(True, False):
            continue
        wrong += wrong_with(page, address, number // 2)
        expect(page.locator("main")).to_contain_text(words)
    assert not wrong, "\n".join(wrong)


OWN_PAGES = (
    "account",
    "account_change_password",
    "account_reauthenticate",
    "mfa_index",
    "mfa_activate_totp",
    "mfa_list_webauthn",
    "mfa_add_webauthn",
    "usersessions_list",
    "socialaccount_connections",
    "notifications:list",
    "notifications:preferences",
)


@pytest.mark.more
def test_ones_own_pages_stand_every_check(user: Any, page: Any) -> None:
    create_project(slug="empty", name="Empty", by=user)
    log_in_by_form(page)
    page.goto(reverse("mfa_add_webauthn"))
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    for number, name in enumerate(amount(OWN_PAGES[::3], OWN_PAGES)):
        wrong = wrong_with(page, reverse(name), number)
        expect(page.locator("h1")).to_be_visible()
        assert not wrong, wrong
