"""What is logged is heard by `caplog`, also of loggers that do not propagate."""

from __future__ import annotations

import logging
from logging.handlers import BufferingHandler

import pytest
from _pytest.logging import catching_logs

QUIET, LOUD = logging.getLogger("tests.quiet"), logging.getLogger("tests.loud")


@pytest.mark.parametrize("again", [False, True])
def test_a_logger_that_does_not_propagate_is_heard(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QUIET, "propagate", again)
    QUIET.propagate = False
    for logger in (QUIET, LOUD):
        with catching_logs(handler := BufferingHandler(9)) as heard:
            logger.error("broken")
        logger.error("after it")
        assert heard is handler
        assert [record.getMessage() for record in handler.buffer] == ["broken"]


def test_one_that_propagates_again_is_heard_once() -> None:
    QUIET.propagate = False
    QUIET.propagate = True
    with catching_logs(BufferingHandler(9)) as handler:
        QUIET.error("broken")
    assert len(handler.buffer) == 1


def test_all_that_do_not_propagate_are_known() -> None:
    known = logging.Logger.manager.loggerDict
    loggers = [logger for logger in known.values() if isinstance(logger, logging.Logger)]
    remembered = logging.Logger.propagate.silent  # type: ignore[attr-defined]
    assert {logger for logger in remembered if known.get(logger.name) is logger} == {
        logger for logger in loggers if not logger.propagate
    }
