"""A message as Slack's incoming webhooks take it: {text, blocks}
(https://api.slack.com/messaging/webhooks).

What people and models are called is untrusted. Slack reads & < > as its own marks, by which
`<!channel>` would ping everybody and `<https://a|b>` would be a link that says something else: they
are escaped. In `plain_text` nothing else has a meaning.
"""

from __future__ import annotations

import json

from django.conf import settings

ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
QUIET = "\u200b"  # after an @: a client that links names finds none


def escaped(text: str) -> str:
    """One line in which nothing has a meaning for Slack."""
    line = " ".join(text.split()).replace("@", f"@{QUIET}")
    return "".join(ESCAPES.get(character, character) for character in line)


def body(event: str, subject: str, project: str, page: str) -> str:
    """`page`: a path of ours. `text` is what notifications and screen readers show."""
    what, about = (
        escaped(event[:100]),
        escaped(subject[:300]),
    )  # a section has at most 3,000 characters, an escape five
    link = escaped(settings.FLYWHEEL_URL + page)
    message = {
        "text": f"{escaped(project[:120])}: {what}. {about}",
        "blocks": [
            {
                "type": "section",
                "text": {"type": "plain_text", "text": f"{what}\n{about}", "emoji": False},
            },
            {
                "type": "context",
                "elements": [
                    {"type": "plain_text", "text": escaped(project[:120]), "emoji": False},
                    {"type": "mrkdwn", "text": f"<{link}|Open in Flywheel>"},
                ],
            },
        ],
        "link_names": False,
        "unfurl_links": False,
    }
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))
