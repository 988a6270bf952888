"""Characters that change the direction of writing end with the text that they came in."""

from __future__ import annotations

import pytest

from apps.core.auditing.words import sentence
from apps.core.bidi import FSI, PDF, PDI, isolated
from apps.core.models import AuditEvent

RLO, RLI = "\u202e", "\u2067"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("set v3", "set v3"),
        (f"a{RLO}b", f"{FSI}a{RLO}b{PDF}{PDI}"),
        (f"a{RLO}b{PDF}", f"{FSI}a{RLO}b{PDF}{PDI}"),
        (f"{RLI}{RLO}b", f"{FSI}{RLI}{RLO}b{PDF}{PDI}{PDI}"),
        (f"{RLI}{RLO}b{PDI}", f"{FSI}{RLI}{RLO}b{PDI}{PDI}"),
        (f"a{PDI}{RLO}b", f"{FSI}a{RLO}b{PDF}{PDI}"),
        ("\u05d0\u05d1", f"{FSI}\u05d0\u05d1{PDI}"),
    ],
)
def test_what_a_text_opens_it_closes(text: str, kept: str) -> None:
    assert isolated(text) == kept


def test_a_name_cannot_reverse_a_sentence_of_the_audit_log() -> None:
    event = AuditEvent(
        action="api_key.created",
        actor_label=f"eve{RLO}",
        detail={"name": f"ci{RLO}", "prefix": "fw"},
    )
    for one in (sentence(event).split(" created", 1)[0], sentence(event)):
        assert one.count(FSI) == one.count(PDI) and one.count(RLO) == one.count(PDF)
