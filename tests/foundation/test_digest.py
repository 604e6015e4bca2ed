"""A run is stale when, and only when, a definition that decides its curves has changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import envs
from algos import dqn, ppo, q_learning, td_prediction
from benchmarks import sb3_baseline, trl_baseline
from llm_track import grpo
from manyseeds import digest
from manyseeds.cli import from_preset
from manyseeds.digest import ROOT, Place, boundary, code_digest, forget, origin_of
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


class C:
    """Doc."""

    field: int = 1
    """Documented."""

    def first(self):
        return self.second()

    def second(self):
        return 2

    def third(self):
        return 3


class RunConfig:
    rate: float = 0.1

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


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# why", "# another reason", True),
        ("What it is.", "What else it is.", True),
        ('    """Doc."""\n    PRESETS', "    PRESETS", True),
        ("Documented.", "Said otherwise.", True),
        ("    return helper(x)  # why", "    return (\n        helper(x)\n    )", True),
        ("def f(x: int) -> int:", "def f(x: float) -> float:", True),  # annotations
        ("y: int = size", "y: float = size", True),
        ("UNUSED = 1", "UNUSED = 2", True),  # nothing reaches it
        ("PRESETS = {}", "PRESETS = {1: 2}", True),  # its values stand in a run's record
        ("import math\n", "", True),
        ("rate: float = 0.1", "rate: float = 0.1\n    more: int = 1", True),  # likewise
        ("raise ValueError", "raise TypeError", True),  # a condition
        ("self.rate / 2", "self.rate / 3", False),
        ("return helper(x)", "return helper(-x)", False),
        ("x + LIMIT", "x - LIMIT", False),  # what a name leads to counts as well
        ("LIMIT = 3", "LIMIT = 4", False),
        ("field: int = 1", "field: int = 2", False),
        ("def f(", "def g(", False),
        ("y: int = size", "z: int = size", False),  # a local name, too: text is text
    ],
)
def test_the_digest_follows_the_code_that_is_reached(
    old: str, new: str, same: bool, project: Callable[..., str]
) -> None:
    assert old in CODE
    before = project(FUNCTION)
    assert (project(FUNCTION, CODE.replace(old, new)) == before) == same


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [("x * x\n", "x + x\n", False), ("return 0", "return 1", True), ("area", "surface", False)],
)
def test_it_goes_through_imports_and_modules(
    old: str, new: str, same: bool, project: Callable[..., str], tmp_path: Path
) -> None:
    before = project(["algorithm:f"])
    assert (project(["algorithm:f"], area=SHAPES.replace(old, new)) == before) == same
    project(["algorithm:f"])
    (tmp_path / "shapes/inner.py").write_text(INNER.replace("* x * x", "* x"))
    forget()
    assert code_digest(["algorithm:f"], tmp_path) != before


def test_it_has_no_paths(project: Callable[..., str], tmp_path: Path) -> None:
    """A definition may move to another file, and be imported from there."""
    before = project(["algorithm:f"])
    moved = SHAPES.replace("def area(x):\n    return x * x\n", "")
    (tmp_path / "elsewhere.py").write_text("def area(x):\n    return x * x\n")
    code = CODE.replace("from shapes import area as size", "from elsewhere import area as size")
    assert project(["algorithm:f"], code, moved) == before
    again = SHAPES.replace("def area(x):\n    return x * x\n", "from elsewhere import area\n")
    assert project(["algorithm:f"], CODE, again) == before


@pytest.mark.parametrize(("name", "same"), [("second", False), ("third", True)])
def test_of_a_method_it_follows_what_it_calls_of_its_class(
    name: str, same: bool, project: Callable[..., str]
) -> None:
    before = project(["algorithm:C.first"])
    changed = CODE.replace(
        f"def {name}(self):\n        return", f"def {name}(self):\n        yield"
    )
    assert (project(["algorithm:C.first"], changed) == before) == same


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
    assert origin_of(ppo.train) == "algos.ppo:train"
    assert origin_of(ppo.collect) == "algos.ppo:collect"  # behind a decorator
    assert origin_of(ppo.ActorCritic.act) == "algos.ppo:ActorCritic.act"
    assert origin_of("a.b:c") == "a.b:c"


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


def origins(module: Any, subject: str, *definitions: Any) -> list[str]:
    config = from_preset(module.Config, module.PRESETS, subject)
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
    "td": ("prediction", origins(td_prediction, "RandomWalk-v0")),
    "grpo": ("language", origins(grpo, "addition")),
    "trl-grpo": (
        "language",
        origins(grpo, "addition", trl_baseline.train, trl_baseline.GRPOBaseline),
    ),
}
OURS, SB3, LANGUAGE = {"ppo", "dqn"}, {"sb3-ppo", "sb3-dqn"}, {"grpo", "trl-grpo"}
CONTROL = OURS | SB3
UNUSED = "class Unused:\n    update = RunningStats.update\n\n\nclass RewardScale("
CHANGES: dict[str, tuple[str, str, str, set[str]]] = {
    "unused": ("manyseeds/layers.py", "class RewardScale(", UNUSED, set()),
    "statistics": ("manyseeds/layers.py", "total = self.count + n", "total = n", {"ppo"}),
    "SeedMLP": ("manyseeds/layers.py", "S, B, n_in = x.shape", "S, B, n_in = 1, 2, 3", OURS),
    "SeedAdam": (
        "manyseeds/optim.py",
        "self.beta_powers = [ones, ones.clone()]",
        "self.beta_powers = []",
        OURS,
    ),
    "views of parameters": (
        "manyseeds/optim.py",
        "def views_like(flat: Tensor, parameters: Sequence[Tensor])",
        "def views_like(flat: Tensor, params: Sequence[Tensor])",
        OURS,
    ),
    "streams": (
        "manyseeds/seeds.py",
        "generator.standard_normal(out=row",
        "generator.random(out=row",
        CONTROL | {"td"},
    ),
    "a local of the evaluation": (
        "manyseeds/evaluate.py",
        "per_episode = returns.cpu().numpy()",
        "each = returns.cpu().numpy()",
        CONTROL,
    ),
    "when it is evaluated": (
        "manyseeds/runs/control.py",
        "passed = np.minimum(timesteps * POINTS",
        "passed = np.minimum(2 * timesteps * POINTS",
        CONTROL,
    ),
    "the last evaluation": (
        "manyseeds/runs/control.py",
        'for mode in ("greedy", "sampled"):',
        'for mode in ("greedy",):',
        CONTROL,
    ),
    "the table at the end": (
        "manyseeds/runs/control.py",
        'table.add_row("failures", failures)',
        'table.add_row("failed", failures)',
        set(),
    ),
    "the environment": ("envs/cartpole.py", "GRAVITY = 9.8", "GRAVITY = 9.81", CONTROL),
    "another environment": ("envs/acrobot.py", "GRAVITY = 9.8", "GRAVITY = 9.81", set()),
    "episodes": ("envs/core.py", "class EpisodeTracker:", "class EpisodeTracker(object):", OURS),
    "SB3's DQN": (
        "benchmarks/sb3_baseline.py",
        '"max_grad_norm": config.max_grad_norm or math.inf,\n            "policy',
        '"policy',
        {"sb3-dqn"},
    ),
    "SB3's PPO": (
        "benchmarks/sb3_baseline.py",
        "norm_reward=config.normalize_reward",
        "norm_reward=False",
        {"sb3-ppo"},
    ),
    "SB3's episodes": ("benchmarks/sb3_baseline.py", "self.episodes.clear()", "pass", SB3),
    "a property of the Config": (
        "algos/ppo.py",
        "min(self.minibatch_size, self.batch_size)",
        "self.batch_size",
        {"ppo", "sb3-ppo"},
    ),
    "a preset": (
        "algos/ppo.py",
        '"num_steps": 32, "minibatch_size": 256',
        '"num_steps": 64',
        set(),
    ),
    "the key of a language run": (
        "manyseeds/runs/language.py",
        "key = (PURPOSES[purpose], *index)",
        "key = (PURPOSES[purpose],)",
        LANGUAGE,
    ),
    "the purposes of a language run": (
        "manyseeds/runs/language.py",
        '"demonstrations", "samples"',
        '"samples", "demonstrations"',
        LANGUAGE,
    ),
    "a language run's uniforms": (
        "manyseeds/runs/language.py",
        "self.rng(purpose, step, part).random(",
        "self.rng(purpose, part, step).random(",
        LANGUAGE,
    ),
    "the sum of gradients": (
        "manyseeds/runs/parallel.py",
        "dist.all_reduce(p.grad)",
        "pass",
        LANGUAGE,
    ),
    "the policy that is predicted": (
        "manyseeds/runs/prediction.py",
        "torch.full((X, A), 1 / A,",
        "torch.full((X, A), 2 / A,",
        {"td"},
    ),
    "the states that count": (
        "manyseeds/runs/prediction.py",
        "found = env.start > 0",
        "found = env.start >= 0",
        {"td"},
    ),
    "when values are compared": (
        "manyseeds/runs/prediction.py",
        "even = [-(-k * episodes",
        "even = [-(k * episodes",
        {"td"},
    ),
    "their error": (
        "manyseeds/runs/prediction.py",
        "np.square(values - exact)",
        "np.abs(values - exact)",
        {"td"},
    ),
    "sampling": ("llm_track/sampling.py", "COMPACT = 0.75", "COMPACT = 0.5", LANGUAGE),
    "GRPO's advantages": ("llm_track/grpo.py", "EPS = 1e-4", "EPS = 1e-5", {"grpo"}),
    "the demonstrations of tiny": (
        "llm_track/sft.py",
        '(("addition", 3_200)',
        '(("addition", 3_000)',
        LANGUAGE,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_stale_what_it_reaches(
    change: str, project_copy: Path, before: dict[str, str]
) -> None:
    """A layer that one algorithm uses does not make the runs of another one stale."""
    file, old, new, stale = CHANGES[change]
    path = project_copy / file
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))
    after = digests(project_copy)
    path.write_text(text)
    assert {name for name in RUNS if before[name] != after[name]} == stale


def test_moving_the_foundation_makes_nothing_stale(
    project_copy: Path, before: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(project_copy, tmp_path, dirs_exist_ok=True)
    shutil.move(tmp_path / "manyseeds/layers.py", tmp_path / "envs/nets.py")
    shutil.move(tmp_path / "manyseeds/evaluate.py", tmp_path / "manyseeds/measure.py")
    for file in tmp_path.rglob("*.py"):
        text = file.read_text().replace("manyseeds.layers", "envs.nets")
        file.write_text(text.replace("manyseeds.evaluate", "manyseeds.measure"))
    assert digests(tmp_path) == before


def test_a_binned_environment_brings_its_bins() -> None:
    env = envs.make("CartPole-v1", observations="index")
    assert list(map(origin_of, env.origins())) == [
        "envs.discretize:Discretize",
        "envs.discretize:BINS",
        "envs.cartpole:CartPole",
    ]
    assert "envs.discretize:BINS" in origins(q_learning, "CartPole-v1")
    assert digest.find(Place("envs.discretize", "BINS"), ROOT) is not None


def test_every_origin_is_there() -> None:
    """An origin that leads nowhere would never make anything stale."""
    for kind, run_class in KINDS.items():
        for origin in run_class.kind_origins():
            assert digest.find(Place(*origin.split(":")), ROOT) is not None, (kind, origin)
    for _, starts in RUNS.values():
        for origin in starts:
            assert digest.find(Place(*origin.split(":")), ROOT) is not None, origin
