"""Two people turn to one sample at the same moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import transaction

from apps.reviews import actions
from apps.reviews.reservations import reserve
from tests.concurrent import Other
from tests.factories import make_member
from tests.reviews.made import Made

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_verdict_that_waits_for_somebody_who_opens_the_sample_is_refused(
    data_dir: Path, db: None
) -> None:
    made = Made(data_dir)
    item, one, two = (
        made.review(reviewers_per_sample=1).items.first(),
        made.admin,
        make_member(made.project),
    )
    with transaction.atomic():
        assert reserve(item=item, by=one)
        other = Other(lambda: actions.judge(item=item, success=True, by=two))
        other.wait_until_it_waits()
    with pytest.raises(actions.ReviewError, match=f"{one} is judging this sample"):
        other.wait()
