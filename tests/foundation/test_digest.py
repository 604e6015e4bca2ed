"""A run is stale when, and only when, a definition that decides its curves has changed."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from manyseeds import digest, envs
from manyseeds.algos import dqn, policy_iteration, ppo, q_learning, td_prediction, value_iteration
from manyseeds.benchmarks import sb3_baseline, trl_baseline
from manyseeds.cli import from_preset
from manyseeds.digest import ROOT, Place, boundary, code_digest, forget, origin_of
from manyseeds.llm_track import grpo
from manyseeds.runs.stale import KINDS

# ---- What a definition's digest depends on ----------------------------------------------

CODE = '''"""What it is."""
import math
from shapes import area as size
import shapes

LIMIT = 3
UNUSED = 1
PRESETS = {}

def helper(x):
    return x + LIMIT


def f(x: int) -> int:
    """Doc."""
    PRESETS
    y: int = size(x) + shapes.inner.volume(x)
    return helper(x)  # why


class Base:
    rate = 2

    def inherited(self):
        return 4

    def third(self):
        return 5


class C(Base):
    """Doc."""

    field: int = 1
    """Documented."""

    def first(self):
        return self.second() + self.inherited() + self.rate + self.field + super().third()

    def second(self):
        return 2

    def third(self):
        return 3


class RunConfig:
    rate: float = 0.1
    quiet: Annotated[bool, Execution()] = False
    LIMIT: ClassVar[int] = 7

    @property
    def half(self):
        return self.rate / 2

    def check(self):
        raise ValueError
'''
SHAPES = "from shapes import inner\ndef area(x):\n    return x * x\ndef unused(x):\n    return 0\n"
INNER = "def volume(x):\n    return x * x * x\n"


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., str]:
    """Writes the files of a small project; returns the digest of some origins in it."""

    def written(origins: list[str], code: str = CODE, area: str = SHAPES) -> str:
        forget()
        (tmp_path / "shapes").mkdir(exist_ok=True)
        (tmp_path / "algorithm.py").write_text(code)
        (tmp_path / "shapes/__init__.py").write_text(area)
        (tmp_path / "shapes/inner.py").write_text(INNER)
        return code_digest(origins, tmp_path)

    return written


FUNCTION = ["algorithm:f", "algorithm:C", "algorithm:RunConfig"]


IMPORTS = """from library import A as X, B as Y
from shapes import one as a, other as b
import shapes.inner
import library.nets as nets

def f():
    import shapes
    X(a) + shapes.unused(0) + nets.L + b


def g():
    shapes.inner.volume(1)
"""
TWO = SHAPES + "def one():\n    return 1\ndef other():\n    return 2\n"
TABLES = """from marks import boundary
from dataclasses import dataclass

def small():
    return 1


def large():
    return 2


BUILD = boundary({"small": lambda: small(), "large": lambda: large()})
SIZES = {"small": 1, "large": 2}


def make(name):
    return BUILD[name]()


class Config(BaseConfig):
    rate: float = 0.5
    quiet: Annotated[bool, Execution()] = False


class BaseConfig:
    steps: int = 3
    plain: int
"""
TEXTS = {"code": CODE, "imports": IMPORTS, "tables": TABLES}


@pytest.mark.parametrize(
    ("text", "origin", "old", "new", "same"),
    [
        *(
            ("code", "", *edit)
            for edit in (
                ("# why", "# another reason", True),
                ("What it is.", "What else it is.", True),
                ('    """Doc."""\n    PRESETS', "    PRESETS", True),
                ("Documented.", "Said otherwise.", True),
                ("return helper(x)  # why", "return (\n        helper(x)\n    )", True),
                ("def f(x: int) -> int:", "def f(x: float) -> float:", True),  # annotations
                ("y: int = size", "y: float = size", True),
                ("UNUSED = 1", "UNUSED = 2", True),  # nothing reaches it
                ("PRESETS = {}", "PRESETS = {1: 2}", True),  # its values stand in a record
                ("import math\n", "", True),
                ("rate: float = 0.1", "rate: float = 0.1\n    more: int = 1", True),  # likewise
                ("raise ValueError", "raise TypeError", True),  # a condition
                ("LIMIT: ClassVar[int] = 7", "LIMIT: ClassVar[int] = 8", False),
                ("self.rate / 2", "self.rate / 3", False),
                ("return helper(x)", "return helper(-x)", False),
                ("x + LIMIT", "x - LIMIT", False),  # what a name leads to counts as well
                ("LIMIT = 3", "LIMIT = 4", False),
                ("field: int = 1", "field: int = 2", False),
                ("def f(", "def g(", False),
                ("y: int = size", "z: int = size", False),  # a local name, too: text is text
            )
        ),
        *(
            ("code", "C.first", *edit)  # of its class what the method uses
            for edit in (
                ("return 2", "return 3", False),
                ("return 3", "return 4", True),
                ("return 4", "return 5", False),  # inherited
                ("rate = 2", "rate = 3", False),
                ("field: int = 1", "field: int = 2", False),
                ("return 5", "return 6", False),  # of the class above
            )
        ),
        *(
            ("imports", "f", *edit)  # its text is the same; what its names mean is not
            for edit in (
                ("library import A as X", "library import C as X", False),
                ("from library import", "from another import", False),
                ("import one as a, other as b", "import other as a, one as b", False),
                ("import library.nets as nets", "import library.layers as nets", False),
                ("B as Y", "C as Y", True),
            )
        ),
        *(
            ("tables", *edit)  # an entry of a table, the defaults of a Config
            for edit in (
                ("make", "return 1", "return 3", True),  # settings choose from the table
                ("BUILD[small]", "return 1", "return 3", False),
                ("BUILD[small]", "return 2", "return 3", True),
                ("BUILD[small]", "lambda: small()", "lambda: large()", False),
                ("SIZES[small]", '"small": 1', '"small": 3', False),
                ("SIZES[small]", '"large": 2', '"large": 3', True),
                ("Config()", "rate: float = 0.5", "rate: float = 0.6", False),
                ("Config()", "steps: int = 3", "steps: int = 4", False),  # extended
                ("Config()", "quiet: Annotated[bool, Execution()] = False", "", True),
                ("Config()", "plain: int", "", True),
                ("Config", "rate: float = 0.5", "rate: float = 0.6", True),
            )
        ),
    ],
)
def test_the_digest_follows_the_code_that_is_reached(
    text: str, origin: str, old: str, new: str, same: bool, project: Callable[..., str]
) -> None:
    code = TEXTS[text]
    origins = [f"algorithm:{origin}"] if origin else FUNCTION
    assert old in code
    before = project(origins, code, TWO)
    assert (project(origins, code.replace(old, new), TWO) == before) == same


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [("x * x\n", "x + x\n", False), ("return 0", "return 1", True), ("area", "surface", False)],
)
def test_it_goes_through_imports(
    old: str, new: str, same: bool, project: Callable[..., str]
) -> None:
    before = project(["algorithm:f"])
    assert (project(["algorithm:f"], area=SHAPES.replace(old, new)) == before) == same


def test_c_code_beside_a_module_belongs_to_its_definitions(
    project: Callable[..., str], tmp_path: Path
) -> None:
    def digest_with(code: str, header: str) -> str:
        (tmp_path / "shapes/inner.c").write_text(code)
        (tmp_path / "manyseeds/kernels").mkdir(parents=True, exist_ok=True)
        (tmp_path / "manyseeds/kernels/small.h").write_text(header)
        return project(["algorithm:f"])

    without = project(["algorithm:f"])
    code, header = '#include "small.h"\nfloat f(void) { return 1; }  // why\n', "int n; /* it */\n"
    before = digest_with(code, header)
    assert before != without
    assert digest_with(code.replace("why", "because"), header.replace("it", "that")) == before
    assert digest_with(code.replace("return", "\n  return"), header) == before
    assert digest_with(code.replace("return 1", "return 2"), header) != before
    assert digest_with(code, "int m;\n") != before


def test_it_has_no_paths(project: Callable[..., str], tmp_path: Path) -> None:
    """A definition may move to another file, and be imported from there."""
    before = project(["algorithm:f"])
    moved = SHAPES.replace("def area(x):\n    return x * x\n", "")
    (tmp_path / "elsewhere.py").write_text("def area(x):\n    return x * x\n")
    code = CODE.replace("from shapes import area as size", "from elsewhere import area as size")
    assert project(["algorithm:f"], code, moved) == before
    again = SHAPES.replace("def area(x):\n    return x * x\n", "from elsewhere import area\n")
    assert project(["algorithm:f"], CODE, again) == before


def test_it_follows_whole_modules_and_imports_within(
    project: Callable[..., str], tmp_path: Path
) -> None:
    before = project(["algorithm:f"], IMPORTS, TWO)
    assert project(["algorithm:f"], IMPORTS, TWO.replace("return 0", "return 3")) != before
    for origin, code in (("f", CODE), ("g", IMPORTS)):
        before = project([f"algorithm:{origin}"], code, TWO)
        (tmp_path / "shapes/inner.py").write_text(INNER.replace("* x * x", "* x"))
        forget()
        assert code_digest([f"algorithm:{origin}"], tmp_path) != before


def test_it_is_the_same_in_every_version_of_python(project: Callable[..., str]) -> None:
    """What is published was stamped by one; another one must not call it stale."""
    assert project(FUNCTION) == "b801beb1efe2"


@pytest.mark.parametrize("room", ["manyseeds", "algos", "envs", "llm_track", "benchmarks"])
def test_the_code_has_only_forms_that_it_can_read(room: str) -> None:
    """A name that is bound twice, or within an `if`, would be read as what it is not."""
    for file in sorted((ROOT / room).rglob("*.py")):
        names: list[str] = []
        for node in ast.parse(file.read_text()).body:
            place = f"{file}, line {node.lineno}"
            for inner in ast.walk(node):
                assert getattr(inner, "level", 0) == 0, f"{place}: a relative import"
            if isinstance(node, ast.ClassDef):
                members = [name for x in node.body for name in digest.bound(x)]
                assert len(set(members)) == len(members), place
            if isinstance(node, ast.If):
                condition = ast.unparse(node.test)
                assert condition in ("TYPE_CHECKING", "__name__ == '__main__'"), place
                continue
            assert digest.bound(node) or digest.is_text(node), place
            if isinstance(node, ast.Import):
                names += [alias.asname or alias.name for alias in node.names]
            else:
                names += digest.bound(node)
            targets = getattr(node, "targets", [getattr(node, "target", ast.Name())])
            assert all(isinstance(target, ast.Name | ast.Tuple) for target in targets), place
        assert len(set(names)) == len(names), file
        assert "*" not in names, file


def test_it_stops_at_a_boundary(project: Callable[..., str]) -> None:
    """The choice is not followed; that something else is called is seen all the same."""
    marked = SHAPES.replace("def area", "@boundary\ndef area")
    before = project(["algorithm:f"], area=marked)
    assert project(["algorithm:f"], area=marked.replace("x * x\n", "x + x\n")) == before
    assert project(["algorithm:f"], CODE.replace("size(x)", "abs(x)"), marked) != before
    assert project(["algorithm:f"]) != before
    assert boundary(len) is len


@pytest.mark.parametrize(
    "origin", ["nowhere:f", "algorithm:gone", "..x:f", "/etc/passwd:f", ":", ""]
)
def test_what_is_gone_counts_as_empty(origin: str, project: Callable[..., str]) -> None:
    """Also what a hostile record names: nothing outside of the project is read."""
    assert project([origin]) == project([origin], CODE + "\n\nx = 1\n")


def test_an_origin_is_written_by_module_and_name() -> None:
    assert origin_of(ppo.train) == "manyseeds.algos.ppo:train"
    assert origin_of(ppo.prepare) == "manyseeds.algos.ppo:prepare"  # behind a decorator
    assert origin_of(ppo.ActorCritic.value) == "manyseeds.algos.ppo:ActorCritic.value"
    assert origin_of(ppo.ActorCritic.act) == "manyseeds.layers:SeedPolicy.act"
    assert origin_of("a.b:c") == "a.b:c"


# ---- Files outside the checkout ---------------------------------------------------------

OUTSIDE = {
    "mine.py": """import settings
from algorithm import helper
from helpers import area, scale as size
from manyseeds.cli import ControlConfig
import package.inner as inner
import package
import dotted.part
import manyseeds.cli

class Config(ControlConfig):
    beta: float = 0.1


class PlainConfig(manyseeds.cli.ControlConfig):
    delta: float = 1.0


class TaskConfig:
    gravity: float = 9.8


def train(config, run):
    import lazy
    chosen = getattr(package, "chosen")(PlainConfig)
    return helper(size(1)) + inner.volume(2) + TaskConfig.gravity + chosen


def other():
    return settings.UNUSED + area(1) + lazy.late()


if __name__ == "__main__":
    main(parse(Config), train)
""",
    "helpers.py": """def scale(x):
    return tables()[x] * 2


def area(x):
    return x


def tables():
    from lists import TABLE
    return TABLE
""",
    "lists.py": "TABLE = {}\nTABLE[1] = 3\n",
    "settings.py": "import register\nUNUSED = 1\n",
    "register.py": "import os\nos.environ['x'] = '1'\n",
    "package/__init__.py": "from .core import *\n",
    "package/core.py": "def chosen():\n    return 4\n",
    "package/inner.py": "from . import deep\nfrom helpers import tables\n"
    "def volume(x):\n    return deep.cube(x)\n",
    "package/deep.py": "if 1:\n    def cube(x):\n        return x ** 3\n",
    "dotted/__init__.py": "import os\nos.environ['y'] = '1'\n",
    "dotted/part.py": "UNUSED = 1\n",
    "lazy.py": "def late():\n    return 6\n",
}


@pytest.fixture
def outside(tmp_path: Path, project: Callable[..., str]) -> Callable[..., str]:
    """Writes files of a user beside a small project; returns the digest of one's `train`."""
    (tmp_path / "checkout").mkdir()

    def written(file: str = "", old: str = "", new: str = "", folder: str = "mine") -> str:
        project([])
        for name, text in OUTSIDE.items():
            assert name != file or text.count(old) == 1
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new) if name == file else text)
        for name in ("algorithm.py", "shapes", "manyseeds"):
            if (tmp_path / name).exists():
                shutil.rmtree(tmp_path / "checkout" / name, ignore_errors=True)
                os.replace(tmp_path / name, tmp_path / "checkout" / name)
        (tmp_path / "checkout/manyseeds").mkdir(exist_ok=True)
        (tmp_path / "checkout/manyseeds/cli.py").write_text("")
        forget()
        path = tmp_path / folder / "mine.py"
        return code_digest([f"{path}:train", f"{path}:Config"], tmp_path / "checkout")

    return written


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("mine.py", "inner.volume(2)", "inner.volume(3)", False),
        ("mine.py", "beta: float = 0.1", "beta: float = 0.2", True),  # it stands in the record
        ("mine.py", "gravity: float = 9.8", "gravity: float = 9.9", False),  # this does not
        ("mine.py", "area(1)", "area(2)", True),  # nothing reaches it
        ("mine.py", "def other():", "# why\ndef other():", True),
        ("mine.py", "    main(parse(Config), train)", "    main(parse(), train)", True),
        ("mine.py", "    main(", "    settings.LIMIT = 2\n    main(", False),
        ("helpers.py", "* 2", "* 3", False),
        ("helpers.py", "return x\n", "return -x\n", True),
        ("lists.py", "TABLE[1] = 3", "TABLE[1] = 4", False),
        ("settings.py", "UNUSED = 1", "UNUSED = 2", True),
        ("register.py", "'1'", "'2'", False),  # what its import does
        ("package/core.py", "return 4", "return 5", False),  # chosen by its name
        ("package/deep.py", "x ** 3", "x ** 2", False),
        ("lazy.py", "return 6", "return 7", True),
        ("dotted/__init__.py", "'1'", "'2'", False),  # what is imported with a part of it
        ("mine.py", "delta: float = 1.0", "delta: float = 2.0", True),
    ],
)
def test_a_file_outside_the_checkout_counts_with_what_it_imports_of_its_own_folder(
    file: str, old: str, new: str, same: bool, outside: Callable[..., str]
) -> None:
    before = outside()
    assert (outside(file, old, new) == before) == same
    assert outside() == before
    assert outside(folder="another/place") == before


MAIN = "if __name__ == '__main__':\n    main()\nelse:\n    "


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("limit = 1\nlimit = f(limit)", "limit = 2\nlimit = f(limit)"),
        ("limit = 1\nlimit += 1", "limit = 1\nlimit += 2"),
        ("PRESETS = 1\nlimit = PRESETS", "PRESETS = 2\nlimit = PRESETS"),  # no record has them
        ("if X:\n    limit = 1", "if X:\n    limit = 2"),
        ("try:\n    from b import limit\nexcept E:\n    limit = 1", None),
        ("try:\n    import b\nexcept E:\n    b = limit = None", None),
        ("from b import *", None),
        ("from b import limit", None),
        ("import b\nlimit = b", None),
        ("import b\nx.limit = 1", "import b\nx.limit = 2"),
        ("x.y = limit = 1", "x.y = limit = 2"),
        (f"{MAIN}limit = 1", f"{MAIN}limit = 2"),
        ("for limit in 1, 2:\n    pass", "for limit in 1, 3:\n    pass"),
    ],
)
def test_a_file_of_any_form_is_read(before: str, after: str | None, tmp_path: Path) -> None:
    """None: not the file itself changes, but the one that it imports."""

    def digest_of(text: str, imported: str = "limit = 1") -> str:
        (tmp_path / "a.py").write_text(f"{text}\n\ndef train():\n    return limit\n")
        (tmp_path / "b.py").write_text(f"{imported}\n")
        forget()
        return code_digest([f"{tmp_path}/a.py:train"])

    changed = digest_of(after) if after else digest_of(before, "limit = 2")
    assert digest_of(before) != changed


def test_names_of_files_do_not_count(tmp_path: Path) -> None:
    digests = set()
    for texts in ("12", "21"):
        for name, text in zip("ab", texts, strict=True):
            (tmp_path / f"{name}.py").write_text(f"def f():\n    return {text}\n")
        forget()
        digests.add(code_digest([f"{tmp_path}/{name}.py:f" for name in "ab"]))
    assert len(digests) == 1


def test_what_cannot_be_parsed_counts_as_a_whole(tmp_path: Path) -> None:
    file, seen = tmp_path / "a.py", []
    for text in ("def f(:", "def f((:", "(" * 9000, "x = '" + "a" * 2**20 + "'\n"):
        file.write_text(text)
        forget()
        seen.append(code_digest([f"{file}:f"]))
    os.utime(file, (1, 1))  # of a large one its size and time
    forget()
    seen.append(code_digest([f"{file}:f"]))
    assert len({*seen}) == 5
    file.unlink()
    os.mkfifo(file)  # nobody writes to it
    forget()
    assert code_digest([f"{file}:f"]) == code_digest(["nowhere:f"])


def test_a_name_of_a_library_stays_a_name(tmp_path: Path) -> None:
    """Even where a folder above happens to be called so."""
    digests = set()
    for folder in ("plain", "with"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "a.py"
        path.write_text("import random, torch\ndef f():\n    return torch.nn, random.random\n")
        if folder == "with":
            (tmp_path / folder / "torch").mkdir()
            (tmp_path / folder / "torch/setup.py").write_text("")
            (tmp_path / "random.py").write_text("")
        digests.add(code_digest([f"{path}:f"]))
    assert len(digests) == 1


def test_a_copy_of_an_algorithm_has_its_digest_wherever_it_lies(
    project_copy: Path, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "algos/ppo.py", project_copy / "algos/my_ppo.py")
    shutil.copy(ROOT / "algos/ppo.py", project_copy / "algos/my-ppo.py")
    shutil.copy(ROOT / "algos/ppo.py", tmp_path / "ppo.py")
    forget()
    modules = (
        "manyseeds.algos.ppo",
        "manyseeds.algos.my_ppo",
        f"{project_copy}/algos/my-ppo.py",
        f"{tmp_path}/ppo.py",
    )
    rest = [x for x in origins(ppo, "CartPole-v1") if "ppo" not in x] + KINDS[
        "control"
    ].kind_origins()
    found = [code_digest([f"{m}:train", f"{m}:Config", *rest], project_copy) for m in modules]
    assert len({*found}) == 1
    text = (tmp_path / "ppo.py").read_text()
    (tmp_path / "ppo.py").write_text(text.replace("-torch.minimum(", "torch.minimum("))
    forget()
    assert "-torch.minimum(" in text
    last = modules[-1]
    assert code_digest([f"{last}:train", f"{last}:Config", *rest], project_copy) != found[-1]


SHOW = "\nfrom manyseeds.digest import origin_of as show, code_digest\n"


def test_where_a_definition_outside_the_checkout_is(tmp_path: Path) -> None:
    """In a file, by its path; in none, it is unknown and never the same."""
    code = "def train(): return lambda: 1\nclass C:\n    def f(self): pass\n" + SHOW
    code += "print(*map(show, (train, C, C.f, train(), lambda: 1, print)))\n"
    code += "print(code_digest([show(train)]))\nprint(code_digest([show(train)]))\n"
    script = tmp_path / "my-script.py"
    script.write_text(code)

    def output(*words: str) -> list[str]:
        command = [sys.executable, *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    *found, one, two = output(str(script))
    path = script.resolve()
    names = ("train", "C", "C", "train", "*")
    assert found == [*(f"{path}:{name}" for name in names), "<unknown>:print"]
    assert one == two
    *found, one, two = output("-c", code)
    assert found[:2] == ["<unknown>:train", "<unknown>:C"]
    assert one.startswith("unknown-")
    assert one != two
    assert origin_of(gymnasium.Env) == "gymnasium.core:Env"  # a library
    assert origin_of(partial(ppo.train, None)) == "manyseeds.algos.ppo:train"


# ---- What makes the runs of this project stale ------------------------------------------


@pytest.fixture(scope="module")
def project_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, in which the digest reads."""
    copy = tmp_path_factory.mktemp("project")
    for folder in ("manyseeds", "algos", "envs", "llm_track", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    return copy


@pytest.fixture(scope="module")
def before(project_copy: Path) -> dict[str, str]:
    return digests(project_copy)


def digests(copy: Path) -> dict[str, str]:
    """The digest of each of RUNS, of the code in a copy."""
    forget()
    return {
        name: code_digest([*starts, *KINDS[kind].kind_origins()], copy)
        for name, (kind, starts) in RUNS.items()
    }


def origins(module: Any, subject: str, *definitions: Any, **settings: Any) -> list[str]:
    config = from_preset(module.Config, module.PRESETS, subject, **settings)
    return [*map(origin_of, definitions or [module.train]), *config.origins()]


RUNS = {  # kind and origins
    "ppo": ("control", origins(ppo, "CartPole-v1")),
    "dqn": ("control", origins(dqn, "CartPole-v1")),
    "sb3-ppo": (
        "control",
        origins(ppo, "CartPole-v1", sb3_baseline.train, sb3_baseline.PPOBaseline),
    ),
    "sb3-dqn": (
        "control",
        origins(dqn, "CartPole-v1", sb3_baseline.train, sb3_baseline.DQNBaseline),
    ),
    "bridged": ("control", origins(dqn, "CartPole-v1", backend="gymnasium")),
    "td": ("prediction", origins(td_prediction, "RandomWalk-v0")),
    "vi": ("planning", origins(value_iteration, "FrozenLake-v1", value_iteration.solve)),
    "pi": ("planning", origins(policy_iteration, "Gridworld-v0", policy_iteration.solve)),
    "grpo": ("language", origins(grpo, "addition")),
    "trl-grpo": (
        "language",
        origins(grpo, "addition", trl_baseline.train, trl_baseline.GRPOBaseline),
    ),
}
OURS, SB3, LANGUAGE = {"ppo", "dqn", "bridged"}, {"sb3-ppo", "sb3-dqn"}, {"grpo", "trl-grpo"}
CONTROL = OURS | SB3
CHANGES: dict[str, list[tuple[str, str, set[str]]]] = {  # by file
    "manyseeds/layers.py": [
        ("class RewardScale(", "class Unused:\n    x = 1\n\n\nclass RewardScale(", set()),
        ("total = self.count + n", "total = n", {"ppo"}),
    ],
    "manyseeds/optim.py": [
        ("(0.9, 0.999)", "(0.9, 0.99)", OURS),
        ("def views_like(flat: Tensor, parameters:", "def views_like(flat: Tensor, params:", OURS),
    ],
    "manyseeds/kernels/mlp.c": [("1 - y * y", "1 + y * y", OURS)],
    "manyseeds/seeds.py": [("generator.standard_normal(", "generator.random(", CONTROL | {"td"})],
    "manyseeds/evaluate.py": [("per_episode = returns.", "each = returns.", CONTROL)],
    "manyseeds/runs/base.py": [
        ("self.seeds = list(seeds)", "self.seeds = [x + 1 for x in seeds]", set(RUNS)),
        ("self._learned = self.learn_s\n", "self._learned += self.learn_s\n", set()),
    ],
    "manyseeds/runs/control.py": [
        ("minimum(timesteps * POINTS", "minimum(2 * timesteps * POINTS", CONTROL),
        ('mode in ("greedy", "sampled")', 'mode in ("greedy",)', CONTROL),
        ("np.full(len(self.seeds), -1)", "np.full(len(self.seeds), 0)", CONTROL),
        ("rows = list(self._rows)", "rows = list(self._rows[1:])", CONTROL),
        ('add_row("failures", ', 'add_row("failed", ', set()),
        ("self.batch_size), self.batch_size)", "self.batch_size), 7)", {"ppo", "sb3-ppo"}),
    ],
    "manyseeds/runs/language.py": [
        ("(PURPOSES[purpose], *index)", "(PURPOSES[purpose],)", LANGUAGE),
        ('"demonstrations", "samples"', '"samples", "demonstrations"', LANGUAGE),
        ("self.rng(purpose, step, part).random(", "self.rng(purpose, part).random(", LANGUAGE),
        ("self._evaluator(final=True)[0]", "self._evaluator(final=False)[0]", LANGUAGE),
        ('p.copy_(tensors[f"parameter.{i}"])', "pass", LANGUAGE),
        ("pd.DataFrame(self._rows)", "pd.DataFrame(self._rows[1:])", LANGUAGE),
    ],
    "manyseeds/runs/parallel.py": [("dist.all_reduce(flat)", "pass", LANGUAGE)],
    "manyseeds/runs/planning.py": [
        ("(result @ env.start).item()", "result.max().item()", {"vi", "pi"})
    ],
    "manyseeds/runs/prediction.py": [
        ("torch.full((X, A), 1 / A,", "torch.full((X, A), 2 / A,", {"td"}),
        ("env.start > 0", "env.start >= 0", {"td"}),
        ("even = [-(-k * episodes", "even = [-(k * episodes", {"td"}),
        ("np.square(values - exact)", "np.abs(values - exact)", {"td"}),
    ],
    "envs/core.py": [
        ("class EpisodeTracker:", "class EpisodeTracker(object):", OURS),
        (
            'return [type(self), f"{module}:ENVS',
            'return [f"{module}:ENVS',
            set(),
        ),  # where the digest begins
    ],
    "envs/cartpole.py": [
        ("GRAVITY = 9.8", "GRAVITY = 9.81", CONTROL),
        ('"CartPole-v1": CartPole', '"CartPole-v1": lambda: CartPole()', CONTROL),
    ],
    "envs/frozen_lake.py": [
        ("lambda: FrozenLake(4)", "lambda: FrozenLake(4, slippery=False)", {"vi"}),
    ],
    "envs/cartpole.c": [("#define GRAVITY 9.8", "#define GRAVITY 9", CONTROL)],
    "envs/acrobot.py": [("GRAVITY = 9.8", "GRAVITY = 9.81", set())],
    "envs/__init__.py": [
        ("env = NATIVE[env_id]()", "env = NATIVE[str(env_id)]()", CONTROL | {"td", "vi", "pi"}),
        ("GymnasiumBridge(env_id, spec.time_limit)", "GymnasiumBridge(env_id)", {"bridged"}),
        ("return Gridworld(goal, trap,", "return Gridworld(trap, goal,", {"pi"}),
    ],
    "algos/ppo.py": [
        ("exp() - 1 - log_ratio", "exp() - log_ratio", {"ppo"}),
        ("presets/ppo.toml", "presets/a2c.toml", set()),
    ],
    "benchmarks/sb3_baseline.py": [
        (
            '"max_grad_norm": config.max_grad_norm or math.inf,\n            "policy',
            '"policy',
            {"sb3-dqn"},
        ),
        ("norm_reward=config.normalize_reward", "norm_reward=False", {"sb3-ppo"}),
        ("self.episodes.clear()", "pass", SB3),
    ],
    "llm_track/sampling.py": [("COMPACT = 0.75", "COMPACT = 0.5", LANGUAGE)],
    "llm_track/grpo.py": [("EPS = 1e-4", "EPS = 1e-5", {"grpo"})],
    "llm_track/sft.py": [  # the demonstrations of tiny, those of another task, a default
        (
            '"addition": Preset({"total_samples": 3_200',
            '"addition": Preset({"total_samples": 3',
            LANGUAGE,
        ),
        ('"mixed": Preset({"total_samples": 9_600', '"mixed": Preset({"total_samples": 9', set()),
        ("learning_rate: Positive = 3e-3", "learning_rate: Positive = 2e-3", LANGUAGE),
    ],
    "llm_track/tasks.py": [
        ("class Countdown(", "class Counting(", set()),
        ('Addition("addition", digits=2', 'Addition("addition", digits=3', LANGUAGE),
    ],
}


@pytest.mark.parametrize("file", CHANGES)
def test_a_change_makes_stale_what_it_reaches(
    file: str, project_copy: Path, before: dict[str, str]
) -> None:
    """A layer that one algorithm uses does not make the runs of another one stale."""
    path = project_copy / file
    text = path.read_text()
    for old, new, stale in CHANGES[file]:
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new))
        after = digests(project_copy)
        path.write_text(text)
        assert {name for name in RUNS if before[name] != after[name]} == stale, old


def test_moving_the_foundation_makes_nothing_stale(
    project_copy: Path, before: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(project_copy, tmp_path, dirs_exist_ok=True)
    shutil.move(tmp_path / "manyseeds/layers.py", tmp_path / "envs/nets.py")
    shutil.move(tmp_path / "manyseeds/evaluate.py", tmp_path / "manyseeds/measure.py")
    for file in tmp_path.rglob("*.py"):
        text = file.read_text().replace("manyseeds.layers", "manyseeds.envs.nets")
        file.write_text(text.replace("manyseeds.evaluate", "manyseeds.measure"))
    assert digests(tmp_path) == before


def test_a_binned_environment_brings_its_bins() -> None:
    env = envs.make("CartPole-v1", observations="index")
    assert list(map(origin_of, env.origins())) == [
        "manyseeds.envs.discretize:Discretize",
        "manyseeds.envs.cartpole:CartPole",
        "manyseeds.envs.cartpole:ENVS[CartPole-v1]",
    ]
    assert set(map(origin_of, env.origins())) <= set(origins(q_learning, "CartPole-v1"))


@pytest.mark.parametrize("env_id", envs.NATIVE)
def test_every_environment_has_an_entry_under_its_id(env_id: str) -> None:
    for backend in ("auto", "gymnasium")[: 1 + (env_id in gymnasium.registry)]:
        for origin in map(origin_of, envs.make(env_id, backend=backend).origins()):
            assert digest.find(Place.of(origin), ROOT) is not None, origin


def test_every_origin_is_there() -> None:
    """An origin that leads nowhere would never make anything stale."""
    for kind, run_class in KINDS.items():
        for origin in run_class.kind_origins():
            found = digest.find(digest.resolve(Place.of(origin), ROOT), ROOT)
            assert found is not None, (kind, origin)
    for _, starts in RUNS.values():
        for origin in starts:
            assert digest.find(Place.of(origin), ROOT) is not None, origin
