"""`pytest --workers N`: one process imports and collects, N forks of it run the tests.

A fork has all that was imported and compiled, in a millisecond. Tests of one file stay together, so
that what they share is set up once, until a worker has nothing left to do and takes the rest of
another's file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections import defaultdict
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="processes that run the tests")


class Queue:
    """The tests that no worker has begun, as numbers, by file."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self.waiting: dict[str, list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            self.waiting[item.nodeid.partition("::")[0]].append(number)
        self.begun: dict[int, str] = {}  # the file of each worker

    def next(self, worker: int) -> int | None:
        """Of the worker's own file, else of one that nobody has begun, else of the longest."""
        file = self.begun.get(worker, "")
        if not self.waiting.get(file):
            left = {file: numbers for file, numbers in self.waiting.items() if numbers}
            if not left:
                return None
            own = {file: x for file, x in left.items() if file not in self.begun.values()}
            file = max(own or left, key=lambda file: len(left[file]))
            if not own:  # the second half of what another worker is at
                half = len(left[file]) // 2
                self.waiting[file], stolen = left[file][:half], left[file][half:]
                file = f"{file} of {worker}"
                self.waiting[file] = stolen
            self.begun[worker] = file
        return self.waiting[file].pop(0)

    def put_back(self, worker: int, test: int) -> None:
        """A test that a worker was sent, but has not begun."""
        self.waiting[self.begun[worker]].insert(0, test)


class Worker:
    """A fork of this process that runs the tests whose numbers it is sent."""

    def __init__(self, number: int, session: pytest.Session, queue: Queue) -> None:
        self.number = number
        self.connection, theirs = Pipe()
        self.at: int | None = None  # the test that it is at
        self.following = queue.next(number)
        self.process = os.fork()
        if self.process == 0:
            status = 1
            try:
                work(session, theirs, f"worker-{os.getpid()}")
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        self.send(self.following)

    def send(self, test: int | None) -> None:
        self.following = test
        with contextlib.suppress(OSError):  # it has died, and its next message says so
            self.connection.send(test)

    def receive(self) -> tuple[str, Any]:
        """What it says; "lost" if it has died."""
        try:
            kind, data = self.connection.recv()
        except (EOFError, OSError):
            return "lost", None
        return kind, data


def work(session: pytest.Session, connection: Connection, name: str) -> None:
    """Run tests until None comes. The next one is known before one ends: what they share stays."""
    plugins = session.config.pluginmanager
    capture: Any = plugins.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()  # its files are those of all workers
        capture.start_global_capturing()
    factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir()
    plugins.unregister(plugins.getplugin("terminalreporter"))
    plugins.register(Reports(session.config, connection))
    test = connection.recv()
    while test is not None:
        connection.send(("begins", test))
        following = connection.recv()
        after = None if following is None else session.items[following]
        item = session.items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        test = following
    connection.send(("ends", None))


class Reports:
    """Sends what a worker reports to the process that prints it."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self.config, self.connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        text, category = str(warning_message.message), warning_message.category.__name__
        place = warning_message.filename, warning_message.lineno
        self.connection.send(("warning", (text, category, place, when, nodeid, location)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("workers")
    if count < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    queue = Queue(session.items)
    workers = [Worker(number, session, queue) for number in range(count)]
    try:
        while workers:
            ready = wait([worker.connection for worker in workers])
            for worker in [worker for worker in workers if worker.connection in ready]:
                kind, data = worker.receive()
                heed(session, worker, queue, kind, data)
                if kind in ("ends", "lost"):
                    workers.remove(worker)
                    os.waitpid(worker.process, 0)
                if kind == "lost" and worker.following is not None:
                    queue.put_back(worker.number, worker.following)
                    workers.append(Worker(worker.number, session, queue))
    finally:
        for worker in workers:
            os.kill(worker.process, signal.SIGINT)
            os.waitpid(worker.process, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def heed(session: pytest.Session, worker: Worker, queue: Queue, kind: str, data: Any) -> None:
    """Do what a worker's message asks for."""
    hook, config = session.config.hook, session.config
    if kind == "begins":
        worker.at = data
        item = session.items[data]
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        stop = session.shouldfail or session.shouldstop
        worker.send(None if stop else queue.next(worker.number))
    elif kind == "report":
        report = hook.pytest_report_from_serializable(config=config, data=data)
        hook.pytest_runtest_logreport(report=report)
    elif kind == "warning":
        text, name, place, when, nodeid, location = data
        message = warnings.WarningMessage(text, type(name, (Warning,), {}), *place)
        recorded = {"warning_message": message, "when": when, "nodeid": nodeid}
        hook.pytest_warning_recorded.call_historic(kwargs={**recorded, "location": location})
    elif kind == "lost" and worker.at is not None:
        item = session.items[worker.at]
        said = "the worker died in this test"
        place = item.nodeid, item.location
        lost = pytest.TestReport(*place, {}, outcome="failed", longrepr=said, when="call")
        hook.pytest_runtest_logreport(report=lost)
