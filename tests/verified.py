"""Slow tests that need not run again: what they depend on is what they passed with.

    @pytest.mark.verified("envs/core.py", "tests/envs/test_envs.py")

names files. The digest of their texts, and of the test's parameters, stands in verified.txt once
the test has passed under `--verify`. A session leaves a test out whose digest stands there, but for
a tenth that the commit chooses: a test may depend on more than it names. `--verify` runs them all
and writes the file anew.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERIFIED = ROOT / "tests" / "verified.txt"
DIGEST = pytest.StashKey[str]()
COLLECTED = pytest.StashKey[set[str]]()
SHARE = 10  # one of so many runs although its digest is known


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verify", action="store_true", help="run and note all verified tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "verified(*files): runs if one of them has changed")


@cache
def text_digest(file: str) -> str:
    """'' for a file that is not there: its test says so."""
    path = ROOT / file
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def digest_of(item: pytest.Item, marker: pytest.Mark) -> str:
    """12 digits of the files that a test names, and of the parameters that it runs with."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    parts = [repr(sorted(parameters.items())), *map(text_digest, sorted(set(marker.args)))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def known(file: Path = VERIFIED) -> dict[str, str]:
    """The digests that tests have passed with, by their ids."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError):  # none, or no text
        return {}
    return {test: digest for digest, _, test in (line.partition(" ") for line in lines)}


@cache
def commit() -> str:
    """What chooses the tenth: without git always the same one."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def is_chosen(test: str, commit: str) -> bool:
    """Whether a commit has a verified test run nevertheless."""
    return int(hashlib.sha256(f"{commit} {test}".encode()).hexdigest(), 16) % SHARE == 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = {item.nodeid for item in items}  # also what -k and -m leave out
    passed_with = {} if config.getoption("verify") else known()
    left_out = []
    for item in items:
        marker = item.get_closest_marker("verified")
        if marker is None:
            continue
        item.stash[DIGEST] = digest_of(item, marker)
        is_known = passed_with.get(item.nodeid) == item.stash[DIGEST]
        if is_known and not is_chosen(item.nodeid, commit()):
            left_out.append(item)
    # A test that somebody names runs.
    if left_out and not any("::" in word for word in config.args):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note what passed under `--verify`; tests that are no more are forgotten."""
    config = session.config
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if not config.getoption("verify") or config.option.collectonly or reporter is None:
        return
    outcomes = {
        kind: {report.nodeid for report in reporter.stats.get(kind, [])}
        for kind in ("passed", "failed", "error")
    }
    failed = outcomes["failed"] | outcomes["error"]  # an error of a teardown comes after a pass
    there, noted = config.stash[COLLECTED], known()
    if not any("::" in word for word in config.args):  # files were collected as wholes
        files = {test.partition("::")[0] for test in there}
        gone = {x for x in noted if x.partition("::")[0] in files} - there
        noted = {test: digest for test, digest in noted.items() if test not in gone}
    for item in session.items:
        if DIGEST in item.stash and item.nodeid in outcomes["passed"] | failed:
            noted[item.nodeid] = item.stash[DIGEST]
    lines = [f"{digest} {test}\n" for test, digest in sorted(noted.items()) if test not in failed]
    VERIFIED.write_text("".join(lines))
