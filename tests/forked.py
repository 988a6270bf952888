"""`--processes 8`: the files of the suite in so many processes at a time, forked when all is
collected. What pytest-xdist does, except that its processes each import and collect everything:
14 s and 1 GB each, so that there can be few of them, and more than half of the time each waits for
processes that a test starts.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
import warnings
from collections import deque
from contextlib import suppress
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run the files in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if not option.processes or option.collectonly or session.testsfailed:
        return None
    Processes(session).run(option.processes)
    return True


LONGEST = (  # of a run of the whole suite; what begins last would be waited for
    "test_access.py",
    "e2e/test_pages.py",
    "flywheel/test_up.py",
    "evals/test_holdout_routes.py",
    "workers/test_processes.py",
    "e2e/test_triage.py",
    "test_queries.py",
    "trajectories/test_openapi.py",
    "trajectories/test_steps.py",
    "trajectories/test_step_totals.py",
    "registry/test_managed.py",
    "promotion/test_deployment.py",
    "flywheel/test_embedded.py",
    "workers/test_grpo.py",
    "workers/test_model_server.py",
    "training/test_out_of_memory.py",
    "workers/test_sandbox_escapes.py",
)


class Processes:
    """Each takes a file when it has ended its last one: the longest first; then of the same folder
    while there is one, since what it has started for that folder (Chromium, a world to look at) is
    there; then of one where nobody is.
    """

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        by_file = groupby(range(len(session.items)), lambda at: session.items[at].path)
        files = [(path, list(numbers)) for path, numbers in by_file]
        here, places = Path(__file__).parent, {name: at for at, name in enumerate(LONGEST)}
        order = [places.get(os.path.relpath(path, here), len(places)) for path, _ in files]
        self.files = [
            (path.parent, numbers, at < len(places))
            for at, (path, numbers) in sorted(zip(order, files, strict=True), key=itemgetter(0))
        ]
        self.folders: dict[Connection, Path] = {}  # where each is
        self.left: dict[Connection, deque[int]] = {}  # the items of the file that each is at
        self.names: dict[Connection, tuple[int, int]] = {}  # number, process
        session.config._tmp_path_factory.getbasetemp()

    def run(self, count: int) -> None:
        for number in range(min(count, len(self.files))):
            self.start(number)
        try:
            while self.left:
                for connection in wait(list(self.left)):
                    assert isinstance(connection, Connection)
                    try:
                        self.hear(connection, *pickle.loads(connection.recv_bytes()))
                    except EOFError:
                        self.end(connection)
                if self.session.shouldfail:
                    raise self.session.Failed(self.session.shouldfail)
        finally:
            for _, process in self.names.values():
                os.kill(process, signal.SIGTERM)

    def start(self, number: int) -> None:
        ours, theirs = Pipe()
        process = os.fork()
        if process == 0:
            for other in (ours, *self.left):
                other.close()
            Child(self.session, number, theirs).run()
        theirs.close()
        self.left[ours], self.names[ours] = deque(), (number, process)

    def hear(self, connection: Connection, kind: str, *values: Any) -> None:
        hook = self.session.config.hook
        if kind == "next":
            numbers, is_long = self.take(connection)
            self.left[connection] += numbers
            connection.send((numbers, is_long))
        elif kind == "ended":
            for data in values[0]:
                report = hook.pytest_report_from_serializable(config=self.session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            self.left[connection].popleft()
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=values[0])

    def take(self, connection: Connection) -> tuple[list[int], bool]:
        """The items of a file, and whether it is one of the longest."""
        if not self.files:
            return [], False
        own, others = self.folders.pop(connection, None), {*self.folders.values()}
        file = min(self.files, key=lambda file: (not file[2], file[0] != own, file[0] in others))
        self.files.remove(file)
        self.folders[connection] = file[0]
        return file[1], file[2]

    def end(self, connection: Connection) -> None:
        """Of a process that ended: where it did so in a test, another one takes the rest of the
        file.
        """
        left, (number, process) = self.left.pop(connection), self.names.pop(connection)
        folder = self.folders.pop(connection, None)
        _, status = os.waitpid(process, 0)
        if not left:
            return
        item = self.session.items[left.popleft()]
        how = f"The process ended here ({os.waitstatus_to_exitcode(status)})."
        self.session.config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(item.nodeid, item.location, {}, "failed", how, "call")
        )
        if left and folder:
            self.files.insert(0, (folder, list(left), False))
        if self.files:
            self.start(number)


class Child:
    """Runs items, and says to its parent what pytest would say on the terminal."""

    def __init__(self, session: pytest.Session, number: int, parent: Connection) -> None:
        self.session, self.config, self.parent = session, session.config, parent
        self.config.workerinput = {"workerid": f"gw{number}"}  # pytest-django: its database's name
        factory = self.config._tmp_path_factory
        factory._basetemp = factory.getbasetemp() / f"gw{number}"
        factory._basetemp.mkdir(mode=0o700, exist_ok=True)
        self.capture_apart()
        self.config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115, PTH123
        self.reports: list[Any] = []  # of the item that is run
        self.wants_all = bool(self.config.option.durations or self.config.option.xmlpath)
        self.gives_way = False
        self.items: deque[pytest.Item] = deque()  # of this file, those to come
        self.begun = False  # what was warned of until here is known
        self.config.pluginmanager.register(self)
        self.begun = True

    def capture_apart(self) -> None:
        """What is printed goes to a file of this process alone. Log handlers keep their streams."""
        captured = self.config.pluginmanager.get_plugin("capturemanager")._global_capturing
        for stream in (captured.out, captured.err) if captured else ():
            if (file := getattr(stream, "tmpfile", None)) and hasattr(stream, "targetfd"):
                with TemporaryFile(buffering=0) as own:
                    os.dup2(own.fileno(), file.fileno())

    def run(self) -> None:
        status = 1
        try:
            self.run_items()
            status = 0
        except KeyboardInterrupt:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def run_items(self) -> None:
        while item := self.next_item():
            self.items.popleft()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=NextItem(self))
            self.say("ended", self.reports)
            self.reports.clear()

    def next_item(self) -> pytest.Item | None:
        """Of the next file, where this one has ended."""
        if not self.items:
            self.say("next")
            numbers, is_long = self.parent.recv()
            if numbers and not is_long and not self.gives_way:
                os.nice(5)  # those that have the longest files shall not end last
                self.gives_way = True
            self.items += [self.session.items[number] for number in numbers]
        return self.items[0] if self.items else None

    def say(self, *message: Any) -> None:
        self.parent.send_bytes(pickle.dumps(message))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed or report.sections or self.wants_all:
            data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
            self.reports.append(data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if self.begun:
            with suppress(Exception):  # what cannot be sent
                self.say(
                    "warning",
                    {
                        "warning_message": warning_message,
                        "when": when,
                        "nodeid": nodeid,
                        "location": location,
                    },
                )


class NextItem:
    """What pytest asks what to keep when it tears an item down. A file is taken then, not when the
    last item of the file before begins: another process may be free to run it until then.
    """

    def __init__(self, child: Child) -> None:
        self.child = child

    def listchain(self) -> list[Any]:
        item = self.child.next_item()
        return item.listchain() if item else []
