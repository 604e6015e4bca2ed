"""What is installed, and what the workflow runs, is pinned by checksum."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from manyseeds.digest import ROOT

HASHED = re.compile(r"([\w.-]+)==\S+(?: ; .*?)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+")


def locked(file: str) -> set[str]:
    """The packages in a lock that have checksums; every line but those of torch and comments."""
    text = (ROOT / file).read_text()
    lines = re.sub(r"^#.*\n|^torch==\S+\n", "", text, flags=re.MULTILINE).strip()
    assert HASHED.sub("", lines).strip() == ""
    return {canonicalize_name(name) for name in HASHED.findall(lines)}


def named(*extras: str) -> set[str]:
    """The packages that extras of the project ask for; '' are its dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {canonicalize_name(Requirement(x).name) for extra in extras for x in lists[extra]}


def test_locks_have_checksums_of_what_the_project_asks_for() -> None:
    main, trackers = locked("requirements.lock"), locked("requirements-trackers.lock")
    asked = named("", "dev", "llm", "math", "notebook", "search", "trl", "watch") - {"torch"}
    assert asked <= main
    assert named("tensorboard", "wandb") <= trackers
    assert not main & trackers
    assert named("rltools") | {"pybind11", "mkl", "mkl-include"} <= locked(
        "requirements-rltools.lock"
    )


def test_actions_are_pinned_by_commit() -> None:
    for file in (ROOT / ".github" / "workflows").iterdir():
        text = file.read_text()
        actions = re.findall(r"uses: (\S+)", text)
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in actions), file
        assert text.count("actions/checkout@") == text.count("persist-credentials: false")
        assert "EXTRA_INDEX" not in text  # would hold for every package
