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
from manyseeds.benchmarks.baselines import sb3_baseline, trl_baseline
from manyseeds.cli import from_preset
from manyseeds.digest import ROOT, Place, code_digest, forget, origin_of
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

    def to_gymnasium(self):
        return 11


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
CHOOSING = """from marks import boundary

@boundary
def choice(x):
    return 10 * x


def chosen(x):
    return choice(x)
"""
AREA = "def area(x):\n    return x * x\n"
SOURCES = {
    "algorithm.py": CODE,
    "imports.py": IMPORTS,
    "tables.py": TABLES,
    "choosing.py": CHOOSING,
    "shapes/__init__.py": f"from shapes import inner\n{AREA}def unused(x):\n    return 0\n"
    "def one():\n    return 1\ndef other():\n    return 2\n",
    "shapes/inner.py": "def volume(x):\n    return x * x * x\n",
    "shapes/box.py": "def sides():\n    return 4\n",
    "shapes/box.c": '#include "small.h"\nfloat f(void) { return 1.5; }  // why\n',
    "shapes/ball.c": "int ball;\n",
    "shapes/ball.py": "def ball():\n    return 5\n",
    "shapes/kernels.py": 'def calls():\n    return "ball.c"\ndef idle():\n    return 6\n',
    "manyseeds/kernels/small.h": "int n; /* it */\n",
    "manyseeds/kernels/small.c": "int twice;\n",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    forget()


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., str]:
    """The digest of some origins in a small project after an edit."""

    def written(origins: list[str], old: str = CODE, new: str = CODE) -> str:
        assert any(old in text for text in SOURCES.values())
        write(tmp_path, {name: text.replace(old, new) for name, text in SOURCES.items()})
        return code_digest(origins, tmp_path)

    return written


ALGORITHM = "algorithm:f algorithm:C algorithm:RunConfig"
EDITS: dict[str, list[tuple[str, str, bool]]] = {  # by origins; whether the digest stays the same
    ALGORITHM: [
        ("# why", "# another reason", True),
        ("What it is.", "What else it is.", True),
        ('    """Doc."""\n    PRESETS', "    PRESETS", True),
        ("Documented.", "Said otherwise.", True),
        ("return helper(x)  # why", "return (\n        helper(x)\n    )", True),
        ("def f(x: int) -> int:", "def f(x: float) -> float:", True),  # annotations
        ("y: int = size", "y: float = size", True),
        ("UNUSED = 1", "UNUSED = 2", True),  # nothing reaches it
        ("PRESETS = {}", "PRESETS = {1: 2}", True),  # its values stand in a record
        ("rate: float = 0.1", "rate: float = 0.1\n    more: int = 1", True),  # likewise
        ("raise ValueError", "raise TypeError", True),  # a condition
        ("return 11", "return 12", True),  # for `predict`, which no training calls
        ("LIMIT: ClassVar[int] = 7", "LIMIT: ClassVar[int] = 8", False),
        ("self.rate / 2", "self.rate / 3", False),
        ("x + LIMIT", "x - LIMIT", False),  # what a name leads to counts as well
        ("LIMIT = 3", "LIMIT = 4", False),
        ("field: int = 1", "field: int = 2", False),
        ("def f(", "def g(", False),
        ("y: int = size", "z: int = size", False),  # a local name, too: text is text
        ("return x * x\n", "return x + x\n", False),  # in another file
        ("* x * x", "* x", False),  # in one that a package has
    ],
    "algorithm:C.first": [  # of its class what the method uses
        ("return 2", "return 3", False),
        ("return 3", "return 4", True),
        ("rate = 2", "rate = 3", False),
        ("return 5", "return 6", False),  # of the class above
    ],
    "imports:f": [  # its text is the same; what its names mean is not
        ("library import A as X", "library import C as X", False),
        ("from library import", "from another import", False),
        ("import one as a, other as b", "import other as a, one as b", False),
        ("import library.nets as nets", "import library.layers as nets", False),
        ("B as Y", "C as Y", True),
        ("return 0", "return 3", False),  # of a module that it imports itself
    ],
    "imports:g": [("* x * x", "* x", False)],
    "tables:make": [("return 1", "return 3", True)],  # settings choose from the table
    "tables:BUILD[small]": [
        ("return 1", "return 3", False),
        ("return 2", "return 3", True),
        ("lambda: small()", "lambda: large()", False),
    ],
    "tables:SIZES[small]": [
        ('"small": 1', '"small": 3', False),
        ('"large": 2', '"large": 3', True),
    ],
    "tables:Config()": [  # its defaults
        ("rate: float = 0.5", "rate: float = 0.6", False),
        ("steps: int = 3", "steps: int = 4", False),  # extended
        ("quiet: Annotated[bool, Execution()] = False", "", True),
        ("plain: int", "", True),
    ],
    "tables:Config": [("rate: float = 0.5", "rate: float = 0.6", True)],
    "choosing:chosen": [
        ("10 * x", "20 * x", True),  # the choice is not followed
        ("return choice(x)", "return abs(x)", False),
        ("@boundary\n", "", False),
    ],
    "shapes.box:sides": [  # C code beside a module, and what it includes
        ("// why", "// because", True),
        ("/* it */", "", True),
        ("{ return", "{\n  return", True),
        ("return 1.5", "return 2.5", False),
        ("int n", "int m", False),
        ("int twice", "int once", False),  # of what the header declares
    ],
    "shapes.kernels:calls": [("int ball", "int cube", False)],  # which it names
    "shapes.kernels:idle": [("int ball", "int cube", True)],
    "shapes.ball:ball": [("int ball", "int cube", True)],  # named by those that call it
}


# What is gone counts as empty, also what a hostile record names outside of the project.
for gone in ("nowhere:f", "algorithm:gone", "..x:f", "/etc/passwd:f", ":", ""):
    EDITS[gone] = [("return", "yield", True)]


@pytest.mark.parametrize(
    ("origins", "old", "new", "same"),
    [(origins, *edit) for origins, edits in EDITS.items() for edit in edits],
)
def test_the_digest_follows_the_code_that_is_reached(
    origins: str, old: str, new: str, same: bool, project: Callable[..., str]
) -> None:
    places = origins.split(" ")
    assert (project(places, old, new) == project(places)) == same


def test_it_has_no_paths(project: Callable[..., str], tmp_path: Path) -> None:
    """A definition may move to another file, and be imported from there."""
    before = project(["algorithm:f"])
    write(tmp_path, {"elsewhere.py": AREA})
    moved = "from elsewhere import area"
    assert project(["algorithm:f"], "from shapes import area", moved) == before
    assert project(["algorithm:f"], AREA, f"{moved}\n") == before


def test_it_is_the_same_in_every_version_of_python(project: Callable[..., str]) -> None:
    """What is published was stamped by one; another one must not call it stale."""
    assert project(ALGORITHM.split()) == "b801beb1efe2"


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


@pytest.mark.parametrize(
    ("definition", "origin"),
    [
        (ppo.train, "manyseeds.algos.ppo:train"),
        (ppo.prepare, "manyseeds.algos.ppo:prepare"),  # behind a decorator
        (ppo.ActorCritic.value, "manyseeds.algos.ppo:ActorCritic.value"),
        (ppo.ActorCritic.act, "manyseeds.layers:SeedPolicy.act"),
        (partial(ppo.train, None), "manyseeds.algos.ppo:train"),
        (gymnasium.Env, "gymnasium.core:Env"),  # a library
        ("a.b:c", "a.b:c"),
    ],
)
def test_an_origin_is_written_by_module_and_name(definition: Any, origin: str) -> None:
    assert origin_of(definition) == origin


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
def outside(tmp_path: Path) -> Callable[..., str]:
    """The digest of a user's `train`, whose files lie beside a small project, after an edit."""

    def written(file: str = "", old: str = "", new: str = "", folder: str = "mine") -> str:
        checkout = tmp_path / "checkout"
        write(checkout, {**SOURCES, "manyseeds/cli.py": ""})
        edited = {file: OUTSIDE[file].replace(old, new)} if file else {}
        assert not file or OUTSIDE[file].count(old) == 1
        write(tmp_path / folder, {**OUTSIDE, **edited})
        path = tmp_path / folder / "mine.py"
        return code_digest([f"{path}:train", f"{path}:Config"], checkout)

    return written


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("mine.py", "inner.volume(2)", "inner.volume(3)", False),
        ("mine.py", "beta: float = 0.1", "beta: float = 0.2", True),  # it stands in the record
        ("mine.py", "gravity: float = 9.8", "gravity: float = 9.9", False),  # this does not
        ("mine.py", "area(1)", "area(2)", True),  # nothing reaches it
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
        train = "def train():\n    return limit\n"
        write(tmp_path, {"a.py": f"{text}\n\n{train}", "b.py": f"{imported}\n"})
        return code_digest([f"{tmp_path}/a.py:train"])

    changed = digest_of(after) if after else digest_of(before, "limit = 2")
    assert digest_of(before) != changed


def test_names_of_files_do_not_count(tmp_path: Path) -> None:
    digests = set()
    for texts in ("12", "21"):
        pairs = zip("ab", texts, strict=True)
        write(tmp_path, {f"{name}.py": f"def f():\n    return {text}\n" for name, text in pairs})
        digests.add(code_digest([f"{tmp_path}/{name}.py:f" for name in "ab"]))
    assert len(digests) == 1


def test_what_cannot_be_parsed_counts_as_a_whole(tmp_path: Path) -> None:
    file, seen = tmp_path / "a.py", []
    for text in ("def f(:", "def f((:", "(" * 9000, "x = '" + "a" * 2**20 + "'\n"):
        write(tmp_path, {"a.py": text})
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
    file = {"plain/a.py": "import random, torch\ndef f():\n    return torch.nn, random.random\n"}
    write(tmp_path, file)
    before = code_digest([f"{tmp_path}/plain/a.py:f"])
    write(tmp_path, {"plain/torch/setup.py": "", "random.py": ""})
    assert code_digest([f"{tmp_path}/plain/a.py:f"]) == before


def test_a_copy_of_an_algorithm_has_its_digest_wherever_it_lies(
    project_copy: Path, tmp_path: Path
) -> None:
    text = (ROOT / "algos/ppo.py").read_text()
    write(project_copy, {"algos/my_ppo.py": text, "algos/my-ppo.py": text})
    write(tmp_path, {"ppo.py": text})
    rest = [x for x in origins(ppo, "CartPole-v1") if "ppo" not in x]
    rest += KINDS["control"].kind_origins()

    def digest_in(module: str) -> str:
        return code_digest([f"{module}:train", f"{module}:Config", *rest], project_copy)

    modules = ("manyseeds.algos.ppo", "manyseeds.algos.my_ppo", f"{project_copy}/algos/my-ppo.py")
    last = f"{tmp_path}/ppo.py"
    (found,) = {digest_in(module) for module in (*modules, last)}
    assert "-torch.minimum(" in text
    write(tmp_path, {"ppo.py": text.replace("-torch.minimum(", "torch.minimum(")})
    assert digest_in(last) != found


def test_where_a_definition_outside_the_checkout_is(tmp_path: Path) -> None:
    """In a file, by its path; in none, it is unknown and never the same."""
    code = "def train(): return lambda: 1\nclass C:\n    def f(self): pass\n"
    code += "\nfrom manyseeds.digest import origin_of as show, code_digest\n"
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
    names = ("train", "C", "C", "train", "*")
    assert found == [*(f"{script.resolve()}:{name}" for name in names), "<unknown>:print"]
    assert one == two
    *found, one, two = output("-c", code)
    assert found[:2] == ["<unknown>:train", "<unknown>:C"]
    assert one.startswith("unknown-")
    assert one != two


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


SB3_PPO = (sb3_baseline.train, sb3_baseline.PPOBaseline)
SB3_DQN = (sb3_baseline.train, sb3_baseline.DQNBaseline)
TRL_GRPO = (trl_baseline.train, trl_baseline.GRPOBaseline)
RUNS = {  # kind and origins
    "ppo": ("control", origins(ppo, "CartPole-v1")),
    "dqn": ("control", origins(dqn, "CartPole-v1")),
    "sb3-ppo": ("control", origins(ppo, "CartPole-v1", *SB3_PPO)),
    "sb3-dqn": ("control", origins(dqn, "CartPole-v1", *SB3_DQN)),
    "bridged": ("control", origins(dqn, "CartPole-v1", backend="gymnasium")),
    "td": ("prediction", origins(td_prediction, "RandomWalk-v0")),
    "vi": ("planning", origins(value_iteration, "FrozenLake-v1", value_iteration.solve)),
    "pi": ("planning", origins(policy_iteration, "Gridworld-v0", policy_iteration.solve)),
    "grpo": ("language", origins(grpo, "addition")),
    "trl-grpo": ("language", origins(grpo, "addition", *TRL_GRPO)),
}
OURS, SB3, LANGUAGE = {"ppo", "dqn", "bridged"}, {"sb3-ppo", "sb3-dqn"}, {"grpo", "trl-grpo"}
CONTROL = OURS | SB3
CHANGES: dict[str, list[tuple[str, str, set[str]]]] = {  # by file
    "manyseeds/layers.py": [("total = self.count + n", "total = n", {"ppo"})],
    "manyseeds/kernels/mlp.c": [
        ("plus_product(all(1), -y, y)", "all(1)", CONTROL | LANGUAGE | {"td", "vi", "pi"})
    ],  # evaluations and optimizers, too
    "manyseeds/kernels/statistics.c": [("(double)(n - 1);", "(double)n;", {"ppo"})],
    "algos/kernels/ppo.c": [("w->policy.logprobs[i] - b->logprobs[i]", "0", {"ppo"})],
    "manyseeds/seeds.py": [("both[:, :count]", "-both[:, :count]", CONTROL | LANGUAGE | {"td"})],
    "manyseeds/evaluate.py": [
        ("torch.where(progress.returns.isfinite(),", "torch.where(progress.returns > 0,", CONTROL)
    ],
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
        ("self.rng(purpose, step, part).random(", "self.rng(purpose, part).random(", LANGUAGE),
        ("pd.DataFrame(self._rows)", "pd.DataFrame(self._rows[1:])", LANGUAGE),
    ],
    "manyseeds/runs/language_seeds.py": [
        ("self.runs[0].evaluator(True, seeds)", "self.runs[0].evaluator(False, seeds)", LANGUAGE),
        ("one.load(own)", "pass", LANGUAGE),
    ],
    "manyseeds/runs/parallel.py": [("dist.all_reduce(flat)", "pass", LANGUAGE)],
    "manyseeds/portable.py": [("initial=1.0", "initial=base", {"td"})],
    "manyseeds/runs/planning.py": [
        ("math.fsum(result * env.start)", "result.max().item()", {"vi", "pi"})
    ],
    "manyseeds/runs/prediction.py": [
        ("torch.full((X, A), 1 / A,", "torch.full((X, A), 2 / A,", {"td"}),
        ("env.start > 0", "env.start >= 0", {"td"}),
        ("even = [-(-k * episodes", "even = [-(k * episodes", {"td"}),
        ("np.square(values - exact)", "np.abs(values - exact)", {"td"}),
    ],
    "envs/core.py": [("return [type(self), f", "return [f", set())],
    "envs/cartpole.py": [("GRAVITY = 9.8", "GRAVITY = 9.81", CONTROL)],
    "envs/acrobot.py": [("GRAVITY = 9.8", "GRAVITY = 9.81", set())],
    "envs/__init__.py": [
        ("env = NATIVE[env_id]()", "env = NATIVE[str(env_id)]()", CONTROL | {"td", "vi", "pi"}),
        ("(env_id, spec.time_limit, env_kwargs)", "(env_id)", {"bridged"}),
        ("return Gridworld(goal, trap,", "return Gridworld(trap, goal,", {"pi"}),
    ],
    "algos/ppo.py": [("presets/ppo.toml", "presets/a2c.toml", set())],
    "benchmarks/baselines/sb3_baseline.py": [
        ('math.inf,\n            "policy', '2,\n            "policy', {"sb3-dqn"}),
        ("norm_reward=config.normalize_reward", "norm_reward=False", {"sb3-ppo"}),
    ],
    "llm_track/sft.py": [  # the demonstrations of tiny, those of another task, a default
        ('{"total_samples": 3_200', '{"total_samples": 3', LANGUAGE),
        ('"mixed": Preset({', '"mixed": Preset({"x": 1, ', set()),
        ("PerRow[Positive] = 3e-3", "PerRow[Positive] = 2e-3", LANGUAGE),
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


def test_a_binned_environment_brings_its_bins() -> None:
    entry = "manyseeds.envs.cartpole:ENVS[CartPole-v1]"
    brought = {"manyseeds.envs.discretize:Discretize", "manyseeds.envs.cartpole:CartPole", entry}
    assert brought <= set(origins(q_learning, "CartPole-v1"))


def test_every_origin_is_there() -> None:
    """An origin that leads nowhere would never make anything stale."""
    starts = [origin for kind in KINDS.values() for origin in kind.kind_origins()]
    starts += [origin for _, begun in RUNS.values() for origin in begun]
    for env_id in envs.NATIVE:
        for backend in ("auto", "gymnasium")[: 1 + (env_id in gymnasium.registry)]:
            starts += map(origin_of, envs.make(env_id, backend=backend).origins())
    for origin in starts:
        assert digest.find(digest.resolve(Place.of(origin), ROOT), ROOT) is not None, origin
