"""A gate report as a document that can be verified elsewhere: its inputs by hash, and a signature
over everything.

HMAC-SHA256 (`django.core.signing`) with FLYWHEEL_SIGNING_KEY, or else SECRET_KEY: whoever has the
key can check it. docs/gate.md.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.signing import Signer
from django.utils.crypto import constant_time_compare

from apps.evals import bounds, stats
from apps.promotion import gate
from apps.promotion.models import GateReport

FORMAT = "flywheel gate report 1"
SIDES = ("baseline", "candidate")


def document_of(row: GateReport) -> dict[str, Any]:
    """Everything that the report says and is based on. `inputs`: see `actions.facts_of`."""
    return {
        "format": FORMAT,
        "id": str(row.pk),
        "policy": {"version": row.policy_version, "values": row.policy},
        "comparison": row.comparison,
        "inputs": row.inputs,
        "report": row.report,
    }


def signed_document(row: GateReport) -> dict[str, Any]:
    return {"document": document_of(row), "signature": row.signature}


def sign(document: dict[str, Any]) -> str:
    return _signer().signature(canonical(document))


def is_signed(document: dict[str, Any], signature: str) -> bool:
    """Whether this installation signed it, with its current key or one of SECRET_KEY_FALLBACKS."""
    signer = _signer()
    keys = [signer.key, *signer.fallback_keys]
    return any(
        constant_time_compare(signer.signature(canonical(document), key), signature) for key in keys
    )


def is_genuine(row: GateReport) -> bool:
    """Whether a stored report is what was signed, and its columns match its content."""
    facts = row.inputs
    said = [
        facts.get("channel"),
        *(facts.get(side, {}).get("evaluation") for side in SIDES),
        row.report.get("verdict"),
    ]
    stored = [row.channel.name, str(row.baseline_id), str(row.candidate_id), row.verdict]
    models = [getattr(row, side).model_version.digest for side in SIDES]
    same = said == stored and models == [facts[side].get("model_digest") for side in SIDES]
    return same and is_signed(document_of(row), row.signature)


def canonical(value: Any) -> str:
    """JSON with sorted keys; whole numbers without a fraction, as PostgreSQL returns them. Raises
    ValueError for NaN.
    """
    return json.dumps(
        _whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def code_hash() -> str:
    """SHA-256 of the code that decides: the gate, its bounds and its means."""
    files = [*Path(gate.__file__).parent.glob("*.py"), Path(bounds.__file__), Path(stats.__file__)]
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _signer() -> Signer:
    return Signer(key=settings.FLYWHEEL_SIGNING_KEY or None, salt="flywheel.gate_report")
