from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.reviews.made import Made
from tests.shared import copied, once


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, Made)


@pytest.fixture
def made(kept: Any, db: None, settings: Any) -> Made:
    return copied(kept, settings)
