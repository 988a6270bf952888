"""The spec of `workers.fingerprint`."""

from __future__ import annotations

from workers.lib.specs.engines import Model
from workers.lib.specs.job import Job
from workers.lib.typed import Text


class Fingerprint(Job, kw_only=True, tag="fingerprint"):
    """The log-probabilities that a model gives `text` and, if it is an adapter, those of its
    base.
    """

    model: Model
    text: Text
    dtype: str = "float32"
