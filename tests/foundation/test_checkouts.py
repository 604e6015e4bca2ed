"""Two checkouts on one machine: a script runs with the code of its own, or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manyseeds.digest import ROOT

SAY = "import manyseeds; print('from', manyseeds.__path__[0])\n"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, under a name that a shell would split, with two scripts more."""
    root = tmp_path_factory.mktemp("two") / "my checkout"
    for name in ("manyseeds", "envs", "algos", "benchmarks"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "my/deep").mkdir(parents=True)
    for folder in ("algos", ".", "my/deep"):
        (root / folder / "say.py").write_text(SAY)
    return root


def run(*words: str | Path, path: Path | str = ROOT, cwd: Path | None = None) -> tuple[int, str]:
    """Exit status and output of Python, which finds the checkout `path` as if installed."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    assert not (done.stdout and done.stderr)
    return done.returncode, done.stdout + done.stderr


def says(root: Path) -> tuple[int, str]:
    return 0, f"from {root / 'manyseeds'}\n"


@pytest.mark.parametrize("script", ["benchmarks/sweep.py", "algos/say.py", "my/deep/say.py"])
def test_a_script_that_imports_another_checkout_is_refused(script: str, other: Path) -> None:
    assert run(other / script, "--dry-run") == (
        2,
        f"error: {other / script}: is of the checkout {other}, but imports the manyseeds of "
        f"{ROOT}; set PYTHONPATH='{other}', or install that checkout: pip install -e '{other}'\n",
    )


def test_a_script_that_imports_its_own_checkout_runs(other: Path, tmp_path: Path) -> None:
    assert run(other / "algos/say.py", path=other) == says(other)
    link = tmp_path / "link"
    link.symlink_to(other)
    assert run(link / "algos/say.py", path=other) == says(other)
    assert run(other / "algos/say.py", path=link) == says(link)
    (tmp_path / "alias.py").symlink_to(other / "algos/say.py")  # Python itself follows the link
    assert run(tmp_path / "alias.py", path=other) == says(other)
    assert run(tmp_path / "alias.py")[0] == 2


def test_what_is_no_script_of_another_checkout_runs(other: Path, tmp_path: Path) -> None:
    """A user's own script, -c, -m, and tests; what is at the root of a checkout finds its own."""
    own = tmp_path / "own" / "say.py"
    own.parent.mkdir()
    own.write_text(SAY)
    assert run(own) == says(ROOT)
    assert run("-c", SAY, cwd=tmp_path) == says(ROOT)
    assert run("-m", "say", cwd=own.parent) == says(ROOT)
    assert run("-m", "manyseeds.algos.say", cwd=other) == says(other)
    assert run(other / "say.py") == says(other)
    # Installed into the folder of a module that is run: as pytest, with a checkout on the path.
    installed = tmp_path / "site-packages"
    (installed / "tool").mkdir(parents=True)
    (installed / "tool/__main__.py").write_text(SAY)
    (installed / "manyseeds").mkdir()
    (installed / "manyseeds/digest.py").touch()
    assert run("-m", "tool", path=f"{other}{os.pathsep}{installed}", cwd=own.parent) == says(other)
