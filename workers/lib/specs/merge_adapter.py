"""The spec of `workers.merge_adapter`."""

from __future__ import annotations

from workers.lib.specs.engines import Model
from workers.lib.specs.job import Job
from workers.lib.typed import Text


class MergeAdapter(Job, kw_only=True, tag="merge_adapter"):
    """The model has an adapter; `text` is used to check the merged model."""

    model: Model
    text: Text
