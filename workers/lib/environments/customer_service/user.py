"""The simulated user: a script that answers by deterministic rules. Light and pure.

A script is {email, order, confirms, facts: [{"asks": regular expression, "says": text}], change,
pushes: [text]}. `change` replaces the user's first yes: a change of mind. `pushes` are sent one
after another when the agent refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from workers.lib.patterns import as_bytes, pattern_of

MAX_READ = 4000  # characters of the agent's message that are read
ASKS_EMAIL = re.compile(r"\b(e-?mail|verify|identif|who am i (speaking|talking))", re.IGNORECASE)
ASKS_ORDER = re.compile(
    r"(which|what|your|the) order( number| id)?\b[^.!]{0,60}\?|order (number|id)", re.IGNORECASE
)
ASKS_YES = re.compile(
    r"(\bconfirm|\bgo ahead\b|\bproceed\b|\bshall i\b|\bshould i\b|\bare you sure\b|\byes or"
    r" no\b|\bis th(at|is) (ok|okay|right|correct)\b"
    r"|\b(do you want|would you like) me to\b)[^.!]{0,300}\?|\bplease confirm\b",
    re.IGNORECASE,
)
REFUSES = re.compile(
    r"\b(cannot|can['’]t|unable|not (possible|allowed|able|eligible)|against (our|the)"
    r" policy|sorry)\b",
    re.I,
)
YES = re.compile(
    r"^\s*(yes|yep|sure|go ahead|please do|i confirm|confirmed|that is right|correct|ok(ay)?)\b",
    re.IGNORECASE,
)
AGREES, DECLINES, ENDS = (
    "Yes, please go ahead.",
    "No, please leave it as it is.",
    "Thank you, that is all.",
)


@dataclass
class ScriptedUser:
    """`told` are the names of the facts already given, so that none is repeated endlessly."""

    script: dict
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises SpecError for a fact with an invalid pattern (RE2)."""
        facts = enumerate(self.script.get("facts") or [])
        self.asks = [
            pattern_of(fact["asks"], f"metadata.user.facts[{at}].asks", case=False)
            for at, fact in facts
        ]

    def reply(self, text: str) -> tuple[str, bool]:
        """(the user's message, whether it ends the conversation)."""
        text = text[:MAX_READ]
        if ASKS_YES.search(text):
            return self._decides(), False
        answers = self._answers(text)
        if answers:
            return " ".join(answers), False
        if REFUSES.search(text) and (push := self._next_push()):
            return push, False
        return ENDS, True

    def _decides(self) -> str:
        if self.script.get("change") and "change" not in self.told:
            self.told.append("change")
            return self.script["change"]
        return AGREES if self.script.get("confirms", True) else DECLINES

    def _answers(self, text: str) -> list[str]:
        found = []
        if ASKS_EMAIL.search(text) and "?" in text and self._first("email"):
            found.append(f"My email address is {self.script['email']}.")
        if ASKS_ORDER.search(text) and "?" in text and self._first("order"):
            number = self.script.get("order")
            found.append(
                f"It is order {number}."
                if number
                else "I do not know the number, please look it up."
            )
        for place, fact in enumerate(self.script.get("facts", [])):
            if (
                "?" in text
                and self.asks[place].search(as_bytes(text))
                and self._first(f"fact{place}")
            ):
                found.append(fact["says"])
        return found

    def _first(self, name: str) -> bool:
        if name in self.told:
            return False
        self.told.append(name)
        return True

    def _next_push(self) -> str | None:
        pushes = self.script.get("pushes", [])
        done = sum(name.startswith("push") for name in self.told)
        if done >= len(pushes):
            return None
        self.told.append(f"push{done}")
        return pushes[done]


def agrees(text: str) -> bool:
    """Whether a user's message is a clear yes."""
    return bool(YES.match(text))
