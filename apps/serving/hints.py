"""What to do about what a run lacks that was answered by the endpoint."""

from __future__ import annotations

from apps.core.bus import on
from apps.serving.recording import SCOPE
from apps.trajectories.hints import CHECKED, OUTCOME, PRICED, SESSION, HintsOf

HINTS = {
    "Text": "The request and the answer have no text.",
    "Messages": "The request has no messages.",
    "Outcome": "Report it as feedback, by the id in the answer's header x-flywheel-trace-id."
    f"{OUTCOME}",
    "Tools": f"Send “tools” with the request{CHECKED}",
    "Tool calls": "None in this run.",
    "Tokens": "The server that answered does not count them.",
    "Cost": f"{PRICED}the price of the server that answered wins.",
    "Session": f"Send the header X-Session-Id{SESSION}",
}


@on(HintsOf)
def endpoint_hints(question: HintsOf) -> dict[str, str] | None:
    return HINTS if question.scope == f"{SCOPE.name} {SCOPE.version}" else None
