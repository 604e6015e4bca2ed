"""A kernel is used only where the functions that it stands for say what it computes."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import linecache
import os
import py_compile
import re
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from manyseeds import distributions, envs, kernels, layers, optim, samples
from manyseeds.algos import a2c, dqn, ppo, reinforce, trpo
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.measurements.known_kernels import outcome
from manyseeds.digest import ROOT
from manyseeds.envs.kernels import GUARDS
from manyseeds.envs.rollout import PLAYING
from manyseeds.kernels import guard
from manyseeds.kernels.guard import Guard, looking_by_iteration, watch
from manyseeds.layers import RunningStats, SeedMLP
from manyseeds.runs.configurations import RowRun
from manyseeds.seeds import SeedStreams

LOSS: Guard = ppo.backpropagate.guard  # type: ignore[attr-defined]
GAE: Guard = ppo.gae.guard  # type: ignore[attr-defined]
STEP: Guard = optim.SeedAdam.step.guard  # type: ignore[attr-defined]
CARTPOLE = GUARDS[envs.CartPole]


@pytest.fixture(autouse=True)
def _says_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_said", set())


@pytest.fixture
def agent() -> ppo.ActorCritic:
    return make()


def make(cls: type[ppo.ActorCritic] = ppo.ActorCritic, **settings: Any) -> ppo.ActorCritic:
    config = ppo.Config(**settings)
    return cls(config.make_env().spec, config, SeedStreams([0], "init"))


def test_unedited_functions_are_computed_in_c(agent: ppo.ActorCritic) -> None:
    for way in ({}, {"env": "Pendulum-v1"}, {"normalize_obs": True}, {"hidden": (8,)}):
        of_kind = make(**way)  # type: ignore[arg-type]
        assert LOSS.allows(of_kind)
        assert PLAYING.allows(of_kind)
    for module in (ppo, a2c, trpo):
        assert module.gae.guard.allows()
    assert STEP.allows(optim.SeedAdam(agent))
    assert all(of_env.allows(env()) for env, of_env in GUARDS.items())
    assert samples.take.guard.allows()  # type: ignore[attr-defined]
    assert not Guard("scan.unknown", ppo.gae).allows()  # no list knows it


def presets() -> list[tuple[str, str]]:
    """Every algorithm that learns with networks or in tables from an environment's steps."""
    names = (x for x in catalog.names("algos") if hasattr(catalog.module("algos", x), "load"))
    return [(x, env) for x in names for env in catalog.module("algos", x).PRESETS]


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize(("algo", "env"), presets())
def test_presets_are_computed_in_c(algo: str, env: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With all that they switch on: nothing is taken for an edit."""
    chosen = catalog.module("algos", algo).PRESETS[env].settings
    switches = {k: x for k, x in chosen.items() if isinstance(x, bool | str) or k == "noise_std"}
    outcome(algo, catalog.facts(algo).small | switches | {"env": env})
    assert "changed" not in capsys.readouterr().err


def mine(*args: Any) -> Tensor:
    return torch.zeros(1)


def larger(code: types.CodeType) -> types.CodeType:
    """The same with 1.0 for 1e-8."""
    return code.replace(co_consts=tuple(1.0 if x == 1e-8 else x for x in code.co_consts))


def executed() -> Any:
    """The same function, of a text that is in no file."""
    text = inspect.getsource(ppo.policy_loss)
    found: dict[str, Any] = {}
    exec(text, vars(ppo), found)
    return found["policy_loss"]


def answering(thing: Any, name: str) -> Any:
    return object.__getattribute__(thing, name)


class Answer:
    def __call__(self, *args: Any) -> Any:
        return mine()


class Descriptor:
    def __get__(self, thing: Any, cls: type) -> Any:
        return mine


class Loud(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x, x]


Change = Callable[[pytest.MonkeyPatch, ppo.ActorCritic], Any]
AGENT, GAUSSIAN = ppo.ActorCritic, distributions.Gaussian


def bound(owner: Any, name: str, value: Any) -> Change:
    """Gives an object, or the agent itself (None), another attribute."""
    return lambda patch, agent: patch.setattr(
        agent if owner is None else owner, name, value, raising=False
    )


# What is changed: what is said about it, and how.
CHANGES: dict[str, tuple[str, Change]] = {
    "a function": ("mine", bound(ppo, "policy_loss", mine)),
    "a partial function": ("loss", bound(ppo, "normalize", functools.partial(ppo.normalize))),
    "another of ours": ("explained_variance", bound(ppo, "normalize", ppo.explained_variance)),
    "a library's": ("loss", bound(ppo, "normalize", torch.relu)),
    "its code": (
        "normalize",
        bound(ppo.normalize, "__code__", larger(ppo.normalize.__code__)),
    ),
    "its defaults": ("normalize", bound(ppo.normalize, "__defaults__", (1,))),
    "a keyword's default": ("normalize", bound(ppo.normalize, "__kwdefaults__", {"x": 1})),
    "what a module has": ("policy_loss", bound(torch, "minimum", torch.maximum)),
    "a built-in name": ("", bound(layers, "zip", mine)),
    "a method": ("mine", bound(AGENT, "evaluate", mine)),
    "an object's method": ("lambda", bound(None, "distribution", lambda x: None)),
    "an object's method by a library's": ("features", bound(None, "features", torch.relu)),
    "a network": ("Loud.forward", bound(None, "networks", Loud())),
    "an object that can be called": ("mine", bound(None, "distribution", Answer())),
    "a function by an object": ("mine", bound(ppo, "policy_loss", Answer())),
    "a method by a descriptor": ("ActorCritic.evaluate", bound(AGENT, "evaluate", Descriptor())),
    "an answer to any name": (
        "ActorCritic.__getattribute__",
        bound(AGENT, "__getattribute__", answering),
    ),
    "a library's decorator": (
        "policy_loss",
        bound(ppo, "policy_loss", torch.no_grad()(ppo.policy_loss)),
    ),
    "text that nobody can read": ("policy_loss", bound(ppo, "policy_loss", executed())),
    "a distribution's method by a library's": (
        "Gaussian.mode",
        bound(GAUSSIAN, "mode", torch.relu),
    ),
    "far below": ("mine", bound(ppo, "broadcast", mine)),
    "a table's entry": ("mine", lambda m, a: m.setitem(layers.ACTIVATIONS, "tanh", mine)),
    "a hook of all modules": ("hook", lambda m, a: m.setitem(guard.HOOKS[0], 1, mine)),
    "a hook": ("hook", lambda m, a: a.networks.register_forward_hook(mine)),
    "a frozen parameter": (
        "networks.weights.0",
        lambda m, a: a.networks.weights[0].requires_grad_(False),
    ),
    "a hook of a gradient": (
        "networks.weights.0",
        lambda m, a: a.networks.weights[0].register_hook(mine),
    ),
}


@pytest.mark.parametrize(("said", "change"), CHANGES.values(), ids=CHANGES)
def test_what_is_bound_anew_counts(
    said: str,
    change: Change,
    agent: ppo.ActorCritic,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Asked as kernels do: a verdict from before must not stand."""
    assert LOSS.allows(agent)
    change(monkeypatch, agent)
    assert not LOSS.allows(agent)
    message = capsys.readouterr().err
    assert re.fullmatch(f"note: .*{said}.*PyTorch computes.*\n", message)
    assert not LOSS.allows(agent)
    assert not capsys.readouterr().err  # said once
    monkeypatch.undo()
    assert LOSS.allows(make())


def test_it_degrades_by_level(agent: ppo.ActorCritic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "policy_loss", mine)
    assert not LOSS.allows(agent)
    assert PLAYING.allows(agent)
    assert GAE.allows()
    assert SeedMLP.forward.guard.allows(agent.networks)  # type: ignore[attr-defined]
    monkeypatch.undo()
    monkeypatch.setattr(ppo.ActorCritic, "act", mine)
    assert LOSS.allows(agent)
    assert not PLAYING.allows(agent)


UPDATE: Guard = ppo.update.guard  # type: ignore[attr-defined]


class OtherConfig(ppo.Config):
    @property
    def minibatch(self) -> int:
        return 1


class OtherBatch(ppo.Batch):
    @property
    def returns(self) -> Tensor:  # type: ignore[override]
        return self.values


def given_to_update(agent: ppo.ActorCritic, **others: Any) -> list[Any]:
    own = {"optimizer": optim.SeedAdam(agent), "batch": sample(), "shuffle": torch.zeros(1, 1, 8)}
    own |= {"config": ppo.Config(), "lr": torch.ones(()), "clip_range": torch.ones(())}
    return [agent, *(own | others).values()]


def with_another_part(agent: Any, optimizer: Any) -> None:
    part = RunningStats(1, 4)
    part.normalize = mine  # type: ignore[method-assign, assignment]
    agent.obs_stats = part


def frozen(agent: Any, optimizer: Any) -> None:
    agent.log_std.requires_grad_(False)


# What is changed of the objects that an update works on, and what is said.
OBJECTS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "a method of the optimizer": ("mine", lambda a, o: setattr(o, "step", mine)),
    "what its methods call": ("mine", lambda a, o: setattr(o, "gather", mine)),
    "its class": ("mine", lambda a, o: setattr(o, "__class__", OtherAdam)),
    "a part of the agent": ("mine", lambda a, o: setattr(a.obs_stats, "normalize", mine)),
    "another part": ("mine", with_another_part),
    "a hook": ("hook", lambda a, o: a.networks.register_forward_hook(mine)),
    "a frozen parameter": ("log_std", frozen),
}


@pytest.mark.parametrize(("said", "change"), OBJECTS.values(), ids=OBJECTS)
def test_all_objects_that_an_update_works_on_count(
    said: str, change: Callable[[Any, Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = make(normalize_obs=True, env="Pendulum-v1")
    given = given_to_update(agent)
    assert UPDATE.allows(*given)
    change(agent, given[1])
    assert not UPDATE.allows(*given)
    assert re.fullmatch(f"note: .*{said}.* changed: PyTorch.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "other", [{"config": OtherConfig()}, {"batch": OtherBatch(*6 * [torch.ones(1, 8)])}]
)
def test_data_of_other_classes_counts(agent: ppo.ActorCritic, other: dict[str, Any]) -> None:
    assert UPDATE.allows(*given_to_update(agent))
    assert not UPDATE.allows(*given_to_update(agent, **other))


def test_losing_the_whole_leaves_its_parts(
    agent: ppo.ActorCritic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was changed is said once, with what it costs all kernels that stood for it."""
    given = given_to_update(agent)
    monkeypatch.setattr(optim.SeedOptimizer, "gather", mine)
    slower = {"kernels.ppo_update": 1.5, "optim.step": 1.8}
    known = {name: x._replace(slower=slower.get(name, 0)) for name, x in guard.known().items()}
    monkeypatch.setattr(guard, "known", lambda: known)
    assert not UPDATE.allows(*given)
    assert LOSS.allows(agent, *given[2:])
    assert not STEP.allows(given[1])
    message = capsys.readouterr().err
    assert message.count("note") == 1
    assert "training takes about 1.8 times as long" in message


def test_what_is_handed_on_is_followed() -> None:
    """To functions and objects, through parts of objects, and to a library."""
    spec, init = envs.CartPole().spec, SeedStreams([0], "init")
    net = dqn.QNetwork(spec, dqn.Config(), init)
    actor = reinforce.Actor(spec, reinforce.Config(), init)
    critic = reinforce.Critic(spec, reinforce.Config(weight="q"), init)
    scaled = make(normalize_reward=True, normalize_obs=True)
    replay = dqn.Replay(1, 10, 4, torch.device("cpu"))
    other = optim.SeedRMSprop(a2c.ActorCritic(spec, a2c.Config(), init))
    found: list[tuple[Any, list[Any], set[str]]] = [
        (ppo.prepare, [scaled], {"RewardScale.forward", "RunningStats.normalize"}),
        (
            dqn.update,
            [net, net, optim.SeedAdam(net), replay],
            {"Replay.sample", "Replay.size", "QNetwork.forward", "SeedOptimizer.gather"},
        ),
        (a2c.update, [None, other], {"SeedRMSprop.step"}),
        (reinforce.phi, [critic], {"Critic.forward"}),
        (reinforce.policy_gradient, [actor], {"Actor.forward"}),
    ]
    for function, given, names in found:
        function = inspect.unwrap(function)
        walk = Guard("scan.unknown", function).walk(*given)
        assert names <= {definition.name for definition in walk.found.values()}, function


class Renamed(ppo.ActorCritic):
    """Overrides nothing."""


class Doubled(ppo.ActorCritic):
    def features(self, obs: Tensor) -> Tensor:
        return 2 * super().features(obs)


class OtherAdam(optim.SeedAdam):
    def gather(self, *args: Any) -> Tensor:
        return mine()


class OtherNet(ppo.ActorCritic):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.networks.__class__ = type("Mine", (SeedMLP,), {"_layers": mine})


def test_objects_in_a_tuple_are_not_trusted(
    agent: ppo.ActorCritic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose methods a function calls that unpacks them, nobody sees in its names."""

    class Pair(NamedTuple):
        actor: ppo.ActorCritic
        obs: Tensor

    assert not Guard("ppo.estimate", ppo.estimate).allows(Pair(agent, torch.zeros(1)))
    assert "Pair holds objects" in capsys.readouterr().err


def test_subclasses_are_asked_for_what_they_override(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = make(Renamed)
    plain.networks.__class__ = type("Net", (SeedMLP,), {})
    assert LOSS.allows(plain)
    assert PLAYING.allows(plain)
    for cls in (Doubled, OtherNet):
        assert not LOSS.allows(make(cls))
        assert not PLAYING.allows(make(cls))
    assert "Doubled.features of tests/foundation/test_guard.py" in capsys.readouterr().err
    assert not STEP.allows(OtherAdam(plain))
    later = make(Renamed)
    assert LOSS.allows(later)
    monkeypatch.setattr(Renamed, "features", Doubled.features, raising=False)
    assert not LOSS.allows(later)  # where there was none before


class Wrapper:
    """Answers what it has not itself."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_policy_that_answers_for_another_plays_itself(
    agent: ppo.ActorCritic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not PLAYING.allows(Wrapper(agent))
    assert not PLAYING.allows(object())
    assert PLAYING.allows(agent)
    monkeypatch.setattr(sys.modules["manyseeds.envs.rollout"], "step_by_step", mine)
    assert not PLAYING.allows(agent)  # the loop that a rollout stands for may be another


def sample() -> ppo.Batch:
    obs = torch.linspace(-1, 1, 32).view(1, 8, 4)
    numbers = torch.linspace(-1, 1, 8).view(1, 8)
    return ppo.Batch(obs, torch.ones(1, 8).long(), numbers, numbers, numbers, numbers)


@pytest.mark.usefixtures("computed")
def test_gradients_are_added_to_those_that_are_there(
    agent: ppo.ActorCritic, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `backward` does; arguments may be given by their names; without gradients it refuses."""
    parameters = list(agent.parameters())
    ppo.backpropagate(agent, sample(), ppo.Config(), None)
    once = [p.grad.clone() for p in parameters if p.grad is not None]
    assert len(once) == len(parameters)
    ppo.backpropagate(clip_range=None, config=ppo.Config(), batch=sample(), agent=agent)
    torch.testing.assert_close([2 * x for x in once], [p.grad for p in parameters])
    with torch.no_grad(), pytest.raises(RuntimeError):
        ppo.backpropagate(agent, sample(), ppo.Config(), None)
    assert not capsys.readouterr().err


def run_cell(text: str, scope: dict[str, Any], found: dict[str, Any]) -> None:
    """Runs text as a notebook does: its source is nowhere but in linecache."""
    name = "<ipython-input-1>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec", dont_inherit=True), scope, found)


def test_what_changes_all_the_time_is_not_followed_all_the_time(
    agent: ppo.ActorCritic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that a function appends to at each call."""
    history: list[Tensor] = []
    monkeypatch.setattr(ppo, "history", history, raising=False)
    text = inspect.getsource(ppo.policy_loss).replace(
        "    if clip_range is None:", "    history.append(ratio)\n    if clip_range is None:"
    )
    found: dict[str, Any] = {}
    run_cell(text, vars(ppo), found)
    monkeypatch.setattr(ppo, "policy_loss", found["policy_loss"])
    walks: list[int] = []
    walk = Guard.walk
    monkeypatch.setattr(Guard, "walk", lambda self, *x: (walks.append(1), walk(self, *x))[1])
    monkeypatch.setattr(watch, "_next", 0.0)
    with looking_by_iteration():
        for _ in range(200):
            ppo.backpropagate(agent, sample(), ppo.Config(), None)
            watch.look_by_iteration()
    assert len(history) == 200
    assert 0 < len(walks) < 60


def test_a_module_that_is_loaded_again_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a comment above, and then with another equation."""
    file = tmp_path / "loaded_again.py"
    text = (ROOT / "algos" / "ppo.py").read_text()
    file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("loaded_again")
    monkeypatch.setitem(sys.modules, "loaded_again", module)
    assert module.gae.guard.allows()
    for k, (new, allowed) in enumerate(
        (("# mine\n" + text, True), (text.replace("- values\n", "\n"), False))
    ):
        file.write_text(new)
        os.utime(file, (k, k))
        importlib.reload(module)
        assert module.gae.guard.allows() is allowed


class Under(ppo.ActorCritic):
    def features(self, obs: Tensor) -> Tensor:
        return obs


class Over(Under):
    def features(self, obs: Tensor) -> Tensor:
        return super().features(obs)


def test_what_super_leads_to_counts() -> None:
    reached = {definition.name for definition in LOSS.walk(make(Over)).found.values()}
    assert {"Over.features", "Under.features"} <= reached
    assert "ActorCritic.features" not in reached


@pytest.mark.parametrize(
    ("target", "name", "value"),
    [
        (envs.cartpole, "FORCE", 0.5),
        (envs.CartPole, "transition", mine),
        (envs.NativeEnv, "step", mine),
        (envs.CartPole, "transition_noise", 1),
        (None, "reward", lambda *args: mine()),  # of the object itself
    ],
)
def test_an_environment_is_asked(
    target: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = envs.CartPole()
    assert envs.kernels.address(env)
    monkeypatch.setattr(target or env, name, value)
    assert envs.kernels.address(env) is None
    monkeypatch.undo()
    assert envs.kernels.address(env)


def test_an_edit_of_the_c_code_of_a_kernel_counts(
    agent: ppo.ActorCritic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of what it shares, until it has been compared with the Python."""
    file = ROOT / "manyseeds" / "kernels" / "policy.c"
    code = guard.c_reached
    monkeypatch.setattr(guard, "c_reached", lambda origin: code(origin) | {file: "edited"})
    assert not UPDATE.allows(*given_to_update(agent))
    message = capsys.readouterr().err
    assert "code of manyseeds/kernels/policy.c was changed and not compared with the" in message


def test_an_edit_of_the_c_code_of_an_environment_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluations play the Python: training must not play something else."""
    edited = Guard("cartpole", *envs.kernels.DYNAMICS, c_of=envs.Acrobot)
    assert not edited.allows(envs.CartPole())
    assert "the C code of envs/acrobot.c was changed" in capsys.readouterr().err


def test_within_a_training_it_looks_once_an_iteration(
    agent: ppo.ActorCritic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in each of several short ones."""
    monkeypatch.setattr(watch, "_next", 0.0)
    with looking_by_iteration():
        assert LOSS.allows(agent)
        watch.look_by_iteration()
        monkeypatch.setattr(ppo, "policy_loss", mine)
        watch.look_by_iteration()
        assert LOSS.allows(agent)
        monkeypatch.setattr(watch, "_next", time.perf_counter())
        watch.look_by_iteration()
        assert not LOSS.allows(agent)


def test_a_training_looks_in_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(watch, "look_by_iteration", lambda: looks.append(1))
    config = ppo.Config(total_timesteps=192, num_envs=2, num_steps=32, quiet=True)
    run = RowRun([config], [0], curves=False)
    ppo.train(run.config, run)
    assert len(looks) == 3


def test_a_cell_of_a_notebook_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """But nothing without a text: of `exec`, or of a file edited after it was imported."""
    text = (ROOT / "algos" / "ppo.py").read_text()

    def gae_of(text: str) -> Guard:
        module: Any = types.ModuleType("a_notebook")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        run_cell(text, vars(module), vars(module))
        return module.gae.guard

    assert not gae_of(text.replace("~terminated - values", "~terminated ")).allows()
    assert gae_of(text).allows()
    known = gae_of(text)
    linecache.cache.clear()
    assert not known.allows()


def test_no_name_that_a_known_function_loads_is_taken_for_its_own() -> None:
    """Names are looked up by the text; the bytecode says which are global."""
    import dis

    for thing, of_kernel in ((make(normalize_obs=True), LOSS), (envs.CartPole(), CARTPOLE)):
        for function in of_kernel.walk(thing).functions:
            loaded = {x.argval for x in dis.get_instructions(function) if x.opname == "LOAD_GLOBAL"}
            assert not loaded & guard.locals_of(guard.definition_of(function))


def test_bytecode_of_another_text_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    for text, k, same in (("x = 1", 1, True), ("x = 10", 1, False), ("y = 1", 2, False)):
        file.write_text(text)
        os.utime(file, (k, k))
        if same:
            py_compile.compile(str(file))
        assert (guard.bytecode_of(str(file)) is not None) == same


def test_data_is_written_in_one_order_unless_it_is_large() -> None:
    text = guard.Walk()._text
    assert text(set("hgfedcba")) == f"set({', '.join(map(repr, 'abcdefgh'))})"
    assert text([0] * (guard.MANY + 1)) == "list of many"
    assert text(torch.zeros(guard.MANY + 1)).endswith(" many")


def test_a_verdict_goes_with_its_object(agent: ppo.ActorCritic) -> None:
    """Another object may get its place in memory."""
    other = make()
    assert LOSS.allows(other)
    key = (id(other),)
    assert key in LOSS._verdicts
    del other
    gc.collect()
    assert key not in LOSS._verdicts


def test_other_files_are_found_by_what_they_are(tmp_path: Path) -> None:
    assert guard.is_ours(str(tmp_path / "x.py"))
    assert guard.is_ours("<ipython-input-1>")
    overlay = "/home/somebody/.local/lib/python3.11/site-packages/somewhat/x.py"
    for library in (torch.__file__, functools.__file__, overlay, "<frozen os>", None):
        assert not guard.is_ours(library)
