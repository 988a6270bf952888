"""Specs of jobs by the program's name, and as the program reads them."""

from __future__ import annotations

import json
from importlib import import_module

from workers.lib.specs.job import J, Job, checked
from workers.lib.typed import plain


def form_of(program: str) -> type[Job]:
    module = import_module(f"workers.lib.specs.{program}")
    return next(
        form
        for form in vars(module).values()
        if isinstance(form, type) and issubclass(form, Job) and form.program() == program
    )


def as_read(spec: J) -> J:
    """A spec as its program reads it."""
    return checked(json.loads(json.dumps(plain(spec))), type(spec))
