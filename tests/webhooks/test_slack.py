"""Slack's format: what Slack takes, and nothing that a hostile name could make of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.models import Project
from apps.webhooks import slack
from apps.webhooks.actions import announce, create_webhook, edit_webhook, send_test
from apps.webhooks.models import Delivery, Event
from tests.factories import admin_of

HOSTILE = [
    "<!channel>",
    "<!here|here>",
    "<@U123>",
    "<https://evil.example|Open in Flywheel>",
    "&lt;!channel&gt;",
    "a\n\n> b",
    "@channel @here",
    "*x* _y_ `z`",
    "\u202e\x00",
    "x" * 5000,
    '"}],"text":"',
]


def texts(message: dict[str, Any]) -> list[str]:
    blocks = message["blocks"]
    return [message["text"], blocks[0]["text"]["text"], blocks[1]["elements"][0]["text"]]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_pings_nobody_and_forges_no_link(text: str) -> None:
    message = json.loads(slack.body("Something happened", text, text, "/p/x/"))
    for said in texts(message):
        assert (
            "<" not in said and ">" not in said and "@channel" not in said and "@here" not in said
        )
        assert len(said) <= 3000
    assert re.fullmatch(
        r"<https?://[^|<>]+/p/x/\|Open in Flywheel>", message["blocks"][1]["elements"][1]["text"]
    )
    assert [block["type"] for block in message["blocks"]] == ["section", "context"]
    assert (
        message["blocks"][0]["text"]["type"]
        == message["blocks"][1]["elements"][0]["type"]
        == "plain_text"
    )


@given(st.text())
def test_an_escaped_text_has_no_marks_and_reads_as_before(text: str) -> None:
    said = slack.escaped(text)
    assert not set(said) & set("<>\n") and not re.search(r"&(?!amp;|lt;|gt;)", said)
    back = (
        said.replace(slack.QUIET, "")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
    )
    assert back == " ".join(text.split()).replace(slack.QUIET, "")


@pytest.mark.django_db
def test_a_webhook_of_that_format_is_sent_it(project: Project) -> None:
    by = admin_of(project)
    plain = create_webhook(
        project=project, url="https://ci.example.com/", events=Event.values, by=by
    )
    chat = create_webhook(
        project=project,
        url="https://hooks.slack.example/x",
        events=Event.values,
        by=by,
        format="slack",
    )
    announce(
        project=project, event=Event.PROMOTION_MADE, subject="a → b", data={"page": "/p/x/models/"}
    )
    bodies = {row.webhook_id: json.loads(row.body) for row in Delivery.objects.all()}
    assert bodies[plain.pk]["type"] == "promotion.made" and set(bodies[chat.pk]) == {
        "text",
        "blocks",
        "link_names",
        "unfurl_links",
    }
    assert "a → b" in bodies[chat.pk]["text"] and project.name in bodies[chat.pk]["text"]
    assert "blocks" in json.loads(send_test(hook=chat, by=by).body)
    edit_webhook(
        hook=chat,
        url=chat.url,
        format=chat.format,
        events=["flow.ended"],
        description="",
        enabled=True,
        by=by,
    )
    assert chat.format == "slack"
