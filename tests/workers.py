"""`pytest --workers N`: one process imports and collects, N forks of it run the tests.

A fork has all that was imported and compiled, in a millisecond. Tests of one file stay together, so
that what they share is set up once, until a worker has nothing left to do and takes the rest of
another's file.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest
from _pytest.runner import runtestprotocol


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


class Worker:
    """A fork of this process that runs the tests whose numbers it is sent."""

    def __init__(self, number: int, session: pytest.Session) -> None:
        self.number = number
        self.connection, theirs = Pipe()
        self.at: int | None = None  # the test that it is at
        self.process = os.fork()
        if self.process == 0:
            status = 1
            try:
                work(number, session, theirs)
                status = 0
            finally:
                os._exit(status)
        theirs.close()


def work(number: int, session: pytest.Session, connection: Connection) -> None:
    """Run tests until None comes. The next one is known before one ends: what they share stays."""
    config = session.config
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of all workers
    capture.start_global_capturing()
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"worker-{number}"
    factory._basetemp.mkdir()
    reporter = config.pluginmanager.getplugin("terminalreporter")
    config.pluginmanager.unregister(reporter)
    config.pluginmanager.register(Reports(config, connection))
    test = connection.recv()
    while test is not None:
        connection.send(("begins", test))
        following = connection.recv()
        after = None if following is None else session.items[following]
        runtestprotocol(session.items[test], nextitem=after)
        test = following
    connection.send(("ends", None))


class Reports:
    """Sends what a worker reports to the process that prints it."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self.config, self.connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(("report", data))


def messages(workers: dict[Connection, Worker]) -> Iterator[tuple[Worker, str, Any]]:
    """What workers say, until all of them have ended; "lost" if one ended before its tests."""
    while workers:
        for connection in wait(list(workers)):
            assert isinstance(connection, Connection)
            worker = workers[connection]
            try:
                kind, data = connection.recv()
            except EOFError:
                kind, data = "lost", None
            if kind in ("ends", "lost"):
                del workers[connection]
                os.waitpid(worker.process, 0)
            yield worker, kind, data


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("workers")
    if count < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    hook, config = session.config.hook, session.config
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    queue = Queue(session.items)
    forked = [Worker(number, session) for number in range(count)]
    for worker in forked:
        worker.connection.send(queue.next(worker.number))
    for worker, kind, data in messages({worker.connection: worker for worker in forked}):
        if kind == "begins":
            worker.at = data
            item = session.items[data]
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            stop = session.shouldfail or session.shouldstop
            worker.connection.send(None if stop else queue.next(worker.number))
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=config, data=data)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "lost" and worker.at is not None:
            item = session.items[worker.at]
            lost = pytest.TestReport(
                *(item.nodeid, item.location, {}, "failed", "the worker died in this test", "call")
            )
            hook.pytest_runtest_logreport(report=lost)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True
