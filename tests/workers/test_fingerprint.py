"""What a version's weights give a fixed text is a reference only where it is made of numbers."""

from __future__ import annotations

import math

import pytest

from workers.fingerprint import require_numbers
from workers.lib.errors import JobError


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_weights_that_hold_nan_have_no_fingerprint(value: float) -> None:
    require_numbers([-1.0, 0.0], "the adapter")
    with pytest.raises(JobError, match="hold NaN"):
        require_numbers([-1.0, value], "the adapter")
