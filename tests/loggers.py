"""pytest listens to the root logger and to those that do not propagate, with two handlers in each
phase of a test, and looks for them among all loggers that there are, six times a test.
"""

from __future__ import annotations

import logging
from typing import Any

from _pytest.logging import catching_logs


class Propagate:
    """The attribute `propagate` of all loggers; remembers those that do not."""

    def __init__(self) -> None:
        known = logging.Logger.manager.loggerDict.values()
        loggers = (logger for logger in known if isinstance(logger, logging.Logger))
        self.silent = {logger for logger in loggers if not logger.propagate}

    def __get__(self, logger: logging.Logger | None, owner: type | None = None) -> Any:
        return self if logger is None else vars(logger)["propagate"]

    def __set__(self, logger: logging.Logger, value: bool) -> None:
        vars(logger)["propagate"] = value
        (self.silent.discard if value else self.silent.add)(logger)


def listen_without_search() -> None:
    logging.Logger.propagate = propagate = Propagate()  # type: ignore[assignment]

    def __enter__(self: catching_logs) -> logging.Handler:
        root = logging.getLogger()
        if self.level is not None:
            self.handler.setLevel(self.level)
            self.orig_level = root.level
            root.setLevel(min(self.orig_level, self.level))
        known = root.manager.loggerDict
        silent = [logger for logger in propagate.silent if known.get(logger.name) is logger]
        for logger in (root, *silent):
            logger.addHandler(self.handler)
            self.attached_loggers.append(logger)
        return self.handler

    catching_logs.__enter__ = __enter__
