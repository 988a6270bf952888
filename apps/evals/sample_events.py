"""What a program says of an output, as the columns of a row."""

from __future__ import annotations

from typing import Any

from apps.evals.models import SampleFields

COLUMNS = tuple(
    field.name for field in SampleFields._meta.get_fields() if field.name != "created_at"
)


def sample_fields(event: dict) -> dict[str, Any]:
    """The fields of a sample event that are columns of a sample. A reward that is not finite masks
    the sample.
    """
    found = {
        name: event[name] for name in COLUMNS if event.get(name) is not None or name == "reward"
    }
    if found["reward"] is None and not found.get("masked"):
        found |= {
            "masked": True,
            "success": False,
            "mask_reason": "The verifier's reward is not a finite number.",
        }
    return found
