from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.core.conftest import stand_in, submit
from workers.lib.chat_tokens import ChatTokens, Conversation, Tokenized

__all__ = ["stand_in", "submit"]


@pytest.fixture(autouse=True)
def counts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are counted in this process; test_budget.py has that done apart, as it is."""

    def counted(folder: str, asked: Sequence[Conversation]) -> list[Tokenized]:
        tokens = ChatTokens(Path(folder))
        return [tokens.of(one) for one in asked]

    monkeypatch.setattr("apps.training.budget.estimate.counted_apart", counted)
