"""PPO and DQN of the JAX libraries: translated settings, loaded weights, the chapter."""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyseeds import envs
from manyseeds.algos import dqn, ppo, pqn
from manyseeds.benchmarks import sweep
from manyseeds.benchmarks.baselines import rejax_baseline, sbx_baseline
from manyseeds.benchmarks.baselines.rejax_baseline import (
    dqn_arguments,
    layers_of,
    ours_with,
    ppo_arguments,
    pqn_arguments,
)
from manyseeds.benchmarks.chapters import interchange
from manyseeds.benchmarks.chapters.blocks import Claim, Fold, Table, cells_of, text_of, walk
from manyseeds.benchmarks.experiments import jax_peer, suite
from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.benchmarks.experiments.verdicts import Verdict
from manyseeds.benchmarks.measurements import library_details
from manyseeds.benchmarks.store import comparison
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import from_preset
from manyseeds.digest import ROOT
from manyseeds.record import read_json
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from manyseeds.stats import Estimate, Parity
from tests.benchmarks.conftest import Output, Patch, Refusal, tables_of
from tests.benchmarks.test_report import plant


def random_layers(sizes: tuple[int, ...], rng: np.random.Generator) -> dict[str, dict]:
    """Parameters of 3 seeds as rejax names them: hidden layers numbered, the last one alone."""
    made = [
        {"kernel": rng.normal(size=(3, a, b)), "bias": rng.normal(size=(3, b))}
        for a, b in itertools.pairwise(sizes)
    ]
    made = [{name: x.astype(np.float32) for name, x in layer.items()} for layer in made]
    # The last one first: their order in the file says nothing.
    hidden = {f"Dense_{i}": layer for i, layer in reversed(list(enumerate(made[:-1])))}
    return {"action_logits": made[-1], "features": hidden}


def forward(params: dict, x: np.ndarray, activation) -> np.ndarray:
    for i in range(len(params["features"])):
        layer = params["features"][f"Dense_{i}"]
        x = activation(x @ layer["kernel"] + layer["bias"][:, None])
    return x @ params["action_logits"]["kernel"] + params["action_logits"]["bias"][:, None]


def test_networks_of_rejax_are_loaded() -> None:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(3, 5, 4)).astype(np.float32)
    seen = torch.from_numpy(obs)
    mean, var = rng.normal(size=(3, 4)), rng.uniform(0.5, 2, size=(3, 4))
    scaled = (obs - mean[:, None]) / np.sqrt(var[:, None] + 1e-8)
    params = random_layers((4, 8, 6, 2), rng)
    config = ppo.Config(hidden=(8, 6), normalize_obs=True)
    agent = ppo.ActorCritic(config.make_env().spec, config, SeedStreams(range(3), "init"))
    ours_with(agent, {"layers": params, "mean": mean, "var": var})
    logits = forward(params, scaled, np.tanh)
    found = agent.networks.only(0, agent.features(seen)).detach().numpy()
    np.testing.assert_allclose(found, logits, atol=1e-4)
    np.testing.assert_array_equal(agent.act(seen).numpy(), logits.argmax(-1))

    small = dqn.Config(hidden=(8, 6))
    values = dqn.QNetwork(small.make_env().spec, small, SeedStreams(range(3), "init"))
    ours_with(values, {"layers": params})
    expected = forward(params, obs, lambda x: np.maximum(x, 0))
    np.testing.assert_allclose(values(seen).detach().numpy(), expected, atol=1e-4)


def test_normalised_networks_of_rejax_are_loaded() -> None:
    """The layers beside their normalisations, as rejax's PQN has them."""
    rng = np.random.default_rng(0)
    named = random_layers((4, 8, 6, 2), rng)
    params = named["features"] | {"Dense_2": named["action_logits"]}
    for i, width in enumerate((8, 6)):
        scale, bias = rng.normal(size=(2, 3, width)).astype(np.float32)
        params[f"LayerNorm_{i}"] = {"scale": scale, "bias": bias}
    config = pqn.Config(hidden=(8, 6))
    agent = pqn.QNetwork(config.make_env().spec, config, SeedStreams(range(3), "init"))
    ours_with(agent, {"layers": params})
    obs = rng.normal(size=(3, 5, 4)).astype(np.float32)
    x = obs
    for i in range(3):
        x = x @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"][:, None]
        if i < 2:
            norm = params[f"LayerNorm_{i}"]
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = np.maximum(norm["scale"][:, None] * x + norm["bias"][:, None], 0)
    np.testing.assert_allclose(agent(torch.from_numpy(obs)).detach().numpy(), x, atol=1e-4)


def test_layers_are_in_order_from_ten_on() -> None:
    rng = np.random.default_rng(0)
    params = random_layers((4, *range(5, 17), 2), rng)
    # PPO's hidden layers are those of a network within; DQN's stand beside the last one.
    own = params["features"] | {"Dense_12": params["action_logits"]}
    for named in (params, own):
        widths = [kernel.shape[-1] for kernel, _ in layers_of(named)]
        assert widths == [*range(5, 17), 2]


@pytest.mark.parametrize(
    ("env", "expected"),
    [("CartPole-v1", (2, 1)), ("Acrobot-v1", (1, 1)), ("MountainCar-v0", (2, 1))],
)
def test_updates_per_step_of_dqn_are_kept(env: str, expected: tuple[int, int]) -> None:
    config = from_preset(dqn.Config, dqn.PRESETS, env)
    arguments = dqn_arguments(config)
    assert (arguments["num_envs"], arguments["num_epochs"]) == expected
    assert arguments["num_epochs"] / arguments["num_envs"] == config.updates / config.block
    assert arguments["polyak"] == 0.0  # tau 1: the target becomes the network


def test_minibatches_of_ppo_are_kept() -> None:
    config = from_preset(ppo.Config, ppo.PRESETS, "MountainCar-v0")
    arguments = ppo_arguments(config)
    assert arguments["num_minibatches"] * config.minibatch == config.num_envs * config.num_steps


def test_minibatches_of_pqn_are_kept() -> None:
    settings = {"anneal_lr": False, "reward_scale": 1.0}
    config = from_preset(pqn.Config, pqn.PRESETS, "CartPole-v1", **settings)
    arguments = pqn_arguments(config)
    assert arguments["num_minibatches"] == 16
    assert arguments["td_lambda"] == 0.95


@pytest.mark.parametrize(
    ("baseline", "flags", "named"),
    [
        # CartPole's preset has a schedule.
        (rejax_baseline, "--algo ppo --env CartPole-v1", "--anneal-lr"),
        (rejax_baseline, "--algo ppo --env Pendulum-v1 --clip-range 0", "--clip-range"),
        (rejax_baseline, "--algo ppo --env Pendulum-v1 --target-kl 0.1", "--target-kl"),
        (rejax_baseline, "--algo ppo --env Taxi-v4", "--env"),
        (rejax_baseline, "--algo a2c", "--algo"),
        (rejax_baseline, "--algo pqn --env CartPole-v1", "--anneal-lr"),
        (rejax_baseline, "--algo pqn --env CartPole-v1 --no-anneal-lr", "--reward-scale 0.1"),
        (sbx_baseline, "--algo ppo --clip-value-range 0.2", "--clip-value-range"),
        (sbx_baseline, "--algo ppo --target-kl 0.1", "--target-kl"),
        (sbx_baseline, "--algo dqn --hidden 64 32", "--hidden"),
        (sbx_baseline, "--algo a2c", "--algo"),
    ],
)
def test_what_the_libraries_do_not_have(
    baseline: Any, flags: str, named: str, refusal: Refusal
) -> None:
    assert named in refusal(baseline.main, *flags.split())


@pytest.mark.parametrize("library", ["sbx", "rejax"])
def test_without_the_jax_environment(
    library: str, monkeypatch: Patch, tmp_path: Path, refusal: Refusal
) -> None:
    monkeypatch.setattr(jax_peer, "PYTHON", tmp_path / "none")
    words = "--suite", "interchange", "--only", f"{library}-ppo/CartPole-v1", "--results", tmp_path
    assert "make jax-env" in refusal(sweep.main, *words)


@pytest.mark.slow
def test_the_chapter_judges_every_pair(tmp_path: Path, monkeypatch: Patch) -> None:
    settings = {"num_envs": 2, "num_steps": 32, "minibatch_size": 32, "epochs": 1}
    settings |= {"total_timesteps": 128}
    monkeypatch.setattr(interchange, "COMMON", {("ppo", "CartPole-v1"): settings})
    for library, seeds in (("manyseeds", 10), ("sb3", 3), ("rejax", 10)):
        cell = Cell("ppo", "CartPole-v1", seeds, library, settings)
        config = cell.config(str(tmp_path))
        part = cell.folder(str(tmp_path)).path / "seeds-000-009"
        run = Run(config, range(seeds), part, cell.label, library)
        run.open([ppo.train])
        run.finish(ppo.train(config, run))
    loaded = [load_result(run) for run in open_runs(tmp_path)]
    blocks = list(interchange.page(loaded, tmp_path))
    (claim,) = (block for block in blocks if isinstance(block, Claim))
    assert "0 of 2 verdicts" in text_of(claim.number)  # the same scores of the one judged pair
    assert claim.verdict == "not shown"
    tables = tables_of(blocks)
    assert len(tables["interchange-scores"]) == 3
    pairs = {(row[2], row[3]): row[4:] for row in tables["interchange-verdicts"]}
    assert all("+0.000" in text for text in pairs["manyseeds", "rejax"])
    assert all("needs 10 seeds per side" in text for text in pairs["SB3", "rejax"])
    assert all("needs 30 seeds per side" in text for text in pairs["manyseeds", "SB3"])
    assert not list(interchange.page([r for r in loaded if r.algo != "rejax-ppo"], tmp_path))
    (pair,) = comparison.pairs(loaded)
    assert [r.algo for r in (*pair.headline, *pair.others)] == ["ppo", "sb3-ppo"]


@pytest.mark.slow
@pytest.mark.skipif(not jax_peer.found("cpu"), reason="no .venv-jax")
@pytest.mark.parametrize("script", ["sbx", "rejax"])
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_the_libraries_train(script: str, algo: str, tmp_path: Path) -> None:
    cell = Cell(algo, "CartPole-v1", 2, script, suite.COMMON[algo, "CartPole-v1"])
    words = [*cell.command(str(tmp_path)), "--total-timesteps", "2560", "--quiet"]
    subprocess.run([str(jax_peer.PYTHON), *words], cwd=ROOT, check=True, timeout=600)
    (run,) = open_runs(tmp_path)
    result = load_result(run)
    assert result.seeds == [0, 1]
    assert result.algo == f"{script}-{algo}"
    assert result.timesteps >= 2560
    (versions,) = {str(read_json(part / "config.json")["versions"]) for part in run.parts}
    assert ("rejax" if script == "rejax" else "sbx-rl") in versions


# ---- Why other libraries learn at another speed


def test_gradients_are_clipped_per_element() -> None:
    """As PyTorch's Adam does with gradients that are clamped before."""
    start = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.2, -1.0]])
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(start.clone())
    optimizer = library_details.ElementwiseAdam(module, eps=1e-5)
    expected = torch.nn.Parameter(start.clone())
    peer = torch.optim.Adam([expected], lr=0.1, eps=1e-5)
    for gradient in (torch.tensor([9.0, -0.1, 0.3]), torch.tensor([-0.2, -7.0, 0.4])):
        module.p.grad = gradient.expand(2, 3).clone()
        expected.grad = gradient.expand(2, 3).clamp(-0.5, 0.5)
        optimizer.step(0.1, 0.5)
        peer.step()
    torch.testing.assert_close(module.p, expected)
    names = library_details.EPSILON, library_details.ELEMENTS
    with library_details.details(ppo, names):  # Adam's own epsilon
        optimizer = ppo.SeedAdam(module, eps=1e-5)
    assert isinstance(optimizer, library_details.ElementwiseAdam)
    assert optimizer.eps == 1e-8


def test_gradients_of_networks_are_clipped_apart() -> None:
    """As PyTorch clips and Adam steps each: the layers, and the log std of the policy."""
    config = ppo.Config(env="Pendulum-v1", hidden=(4, 3), normalize_obs=False)
    agent = ppo.ActorCritic(config.make_env().spec, config, SeedStreams(range(2), "init"))
    optimizer = library_details.ClippedApartAdam(agent, eps=1e-5)
    names = dict(agent.named_parameters())

    def alone(s: int, k: int) -> dict[str, torch.Tensor]:
        """Of one network of one seed."""
        return {name: p[s, k] for name, p in names.items()}

    assert "log_std" in names
    peers = {}
    for s, k in itertools.product(range(2), repeat=2):
        own = {name: torch.nn.Parameter(p.detach().clone()) for name, p in alone(s, k).items()}
        peers[s, k] = own, torch.optim.Adam(own.values(), lr=0.1, eps=1e-5)
    for _ in range(2):
        for p in names.values():
            p.grad = torch.randn_like(p)
            p.grad[:, 1:] *= 0.01  # of the value functions, which nothing clips
        for (s, k), (own, adam) in peers.items():
            for name, p in own.items():
                p.grad = names[name].grad[s, k].clone()
            torch.nn.utils.clip_grad_norm_(own.values(), 0.5)
            adam.step()
        optimizer.step(0.1, 0.5)
    for (s, k), (own, _) in peers.items():
        for name, p in alone(s, k).items():
            torch.testing.assert_close(p, own[name])


def test_the_larger_error_of_a_value_counts() -> None:
    values = torch.tensor([[0.0, 2.0, 2.0, 0.5]])
    before = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    returns = torch.tensor([[1.0, 3.0, -1.0, 0.0]])
    clip_range = 1.0  # the second and third value become 1
    errors = library_details.larger_value_loss(values, before, returns, clip_range)
    assert errors.item() == pytest.approx((1 + 4 + 9 + 0.25) / 4)
    clipped = ppo.value_loss(values, before, returns, clip_range)
    assert clipped.item() == pytest.approx((1 + 4 + 4 + 0.25) / 4)


def test_a_time_limit_is_a_termination() -> None:
    config = ppo.Config(env="Pendulum-v1", num_envs=2)
    env = config.make_env()
    agent = ppo.ActorCritic(env.spec, config, SeedStreams(range(2), "init"))
    streams = SeedStreams(range(2), "train")
    state, obs = env.reset(streams.uniform(2, env.initial_noise))
    noise = agent.draw(streams, 256, 2), streams.uniform(256, 2, env.noise_size)
    _, _, ours = envs.rollout(env, agent, state, obs, *noise)
    _, _, theirs = library_details.EnvsWithoutLimits().rollout(env, agent, state, obs, *noise)
    assert ours.truncated.any()
    assert not ours.terminated.any()
    assert torch.equal(theirs.terminated, ours.truncated)
    assert not theirs.truncated.any()
    assert torch.equal(theirs.done, ours.done)
    assert library_details.EnvsWithoutLimits().make is envs.make


def test_half_the_squared_error() -> None:
    values, targets = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 2.0]])
    error = library_details.half_squared_error(values, targets, "huber")
    assert error.tolist() == [pytest.approx(0.5 * 9 / 2)]


@pytest.mark.parametrize(("algo", "agent"), [("ppo", "ActorCritic"), ("dqn", "QNetwork")])
def test_layers_start_as_flax_s(algo: str, agent: str) -> None:
    """With its `lecun_normal`; what pads a head stays 0."""
    module = {"ppo": ppo, "dqn": dqn}[algo]
    config = module.Config(hidden=(400, 300))
    with library_details.details(module, (library_details.LAYERS,)):
        made = getattr(module, agent)(config.make_env().spec, config, SeedStreams([3, 4], "init"))
    net = made.networks if algo == "ppo" else made.q
    for weight, bias, columns in zip(net.weights, net.biases, (400, 300, 2), strict=True):
        assert (bias == 0).all()
        assert not torch.equal(weight[0], weight[1])  # of two seeds
        for k in range(weight.shape[1]):
            count = 1 if algo == "ppo" and k == 1 and columns == 2 else columns
            used, inputs = weight[0, k][:, :count], weight.shape[2]
            assert used.std().item() == pytest.approx(inputs**-0.5, rel=0.05 if count > 2 else 0.2)
            assert used.abs().max() <= 2 / 0.8796 / inputs**0.5
            assert (weight[0, k][:, count:] == 0).all()
    assert weight.shape[1] == (2 if algo == "ppo" else 1)


# Episodes of MountainCar end by the limit alone.
SMALL = {
    "ppo": {"num_envs": 2, "num_steps": 256, "epochs": 2, "total_timesteps": 1024},
    "dqn": {"learning_starts": 64, "max_grad_norm": 0.01, "total_timesteps": 512},
}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_every_detail_acts_and_is_the_same_in_any_batch(algo: str) -> None:
    found = {}
    for name, names in library_details.variants(algo).items():
        trained = []
        for seeds in (range(7), [2, 5]):
            _, agent = library_details.train(algo, "MountainCar-v0", names, seeds, SMALL[algo])
            trained.append([p.detach() for p in agent.parameters()])
        for together, apart in zip(*trained, strict=True):
            assert torch.equal(together[[2, 5]], apart), name
        found[name] = torch.cat([p.flatten() for p in trained[1]])
    for (a, x), (b, y) in itertools.combinations(found.items(), 2):
        assert not torch.equal(x, y), (a, b)


def test_details_are_gone_afterwards() -> None:
    names = "SeedAdam", "ActorCritic", "envs", "value_loss", "backpropagate"
    every = library_details.OF["ppo"]["rejax"]
    before = [getattr(ppo, name) for name in names]

    def fail() -> None:
        with library_details.details(ppo, every):
            assert all(getattr(ppo, n) is not x for n, x in zip(names, before, strict=True))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [getattr(ppo, name) for name in names] == before


def measured(
    algo: str, settings: dict[str, Any], seeds: int, results: Path, patch: Patch
) -> dict[str, Any]:
    """What the command stores of all details; each changes the training but for the time limit,
    which no episode reaches."""
    patch.setattr(library_details, "COMMON", {(algo, "CartPole-v1"): settings})
    patch.setattr(library_details, "ENVS", {algo: ("CartPole-v1",)})
    library_details.main(["--algo", algo, "--seeds", str(seeds), "--results", str(results)])
    stored: dict[str, Any] = read_json(results / f"library_details_{algo}.json")
    by_detail = {m["detail"]: m for m in stored["measurements"]}
    assert list(by_detail) == list(library_details.variants(algo))
    limits = library_details.LIMITS
    different = {tuple(m["auc"]) for name, m in by_detail.items() if name != limits}
    assert len(different) == len(by_detail) - (limits in by_detail)
    return stored


def test_details_are_measured_and_judged(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    settings = {"num_envs": 2, "num_steps": 32, "minibatch_size": 32, "epochs": 2}
    settings |= {"total_timesteps": 256, "learning_rate": 0.01}
    stored = measured("ppo", settings, 10, tmp_path, monkeypatch)
    by_detail = {m["detail"]: m for m in stored["measurements"]}
    assert by_detail["none"]["of"] == by_detail[library_details.LAYERS]["of"] == ["rejax", "sbx"]
    assert by_detail["all of sbx"]["of"] == by_detail[library_details.NETWORKS]["of"] == ["sbx"]
    assert by_detail[library_details.LIMITS]["auc"] == by_detail["none"]["auc"]

    config = Cell("ppo", "CartPole-v1", 10, "rejax", settings).config(str(tmp_path))
    part = tmp_path / "runs" / "CartPole-v1" / "rejax-ppo" / "x" / "seeds-000-009"
    run = Run(config, range(10), part, "rejax-ppo", "rejax")
    run.open([ppo.train])
    run.finish(ppo.train(config, run))
    (trained,) = open_runs(tmp_path)
    result = load_result(trained)
    np.testing.assert_allclose(by_detail["none"]["auc"], result.auc)
    runs = {"CartPole-v1": {"rejax": result}}
    blocks = interchange.details_section("ppo", runs, tmp_path)
    (table,) = (x for x in walk(blocks) if isinstance(x, Table) and x.name.endswith("-ppo"))
    assert table.columns[-1] == "against rejax"
    assert "against SBX" not in table.columns
    rows = cells_of(table)
    assert rows[0][:2] == ["CartPole-v1", "none"]
    assert "+0.000" in rows[0][-1]
    assert len(rows) == len(by_detail) - 2  # those of SBX alone
    assert not interchange.details_section("ppo", {}, tmp_path)

    # Ours of the suite should be the training without details; else the section says so.
    runs["CartPole-v1"]["manyseeds"] = result
    assert interchange.details_section("ppo", runs, tmp_path) == blocks
    path = tmp_path / "library_details_ppo.json"
    lacking = [m for m in stored["measurements"] if m["detail"] != "none"]
    assert "of other code" not in str(blocks)
    path.write_text(json.dumps({**stored, "measurements": swapped(stored)}))
    found = str(interchange.details_section("ppo", runs, tmp_path))
    assert "those of the runs above on CartPole-v1: they are of other code" in found
    path.write_text(json.dumps({**stored, "measurements": lacking}))
    assert not interchange.details_section("ppo", runs, tmp_path)
    assert "without details" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        ([["better", "equivalent"], ["worse"]], "holds"),
        ([["better"], ["undecided"]], "in part"),
        ([["undecided"], ["equivalent"]], "not shown"),
        ([["saturated"], ["equivalent"]], "does not hold"),
    ],
)
def test_the_claim_is_judged_by_environment(verdicts: list[list[Any]], word: str) -> None:
    judged = {
        ("ppo", str(i)): [Parity(x, Estimate(0.0, 0.0, 0.0, 30), 0.001) for x in words]
        for i, words in enumerate(verdicts)
    }
    assert interchange.claim_of(judged, None, ()).verdict == word


@pytest.mark.parametrize(
    ("p", "word", "count"), [(0.001, "holds", "1 of 3"), (0.006, "not shown", "0 of 3")]
)
def test_verdicts_are_corrected_together(
    tmp_path: Path, monkeypatch: Patch, p: float, word: str, count: str
) -> None:
    """That of the rule, whose p counts for its three looks, keeps its word in the table."""
    plant(tmp_path, "ppo", dict.fromkeys(range(10), 300.0))
    (run,) = (load_result(run) for run in open_runs(tmp_path))
    runs = dict.fromkeys(("manyseeds", "sb3", "rejax"), run)
    monkeypatch.setattr(interchange, "found_runs", lambda _: {("ppo", "CartPole-v1"): runs})
    monkeypatch.setattr(interchange, "MEASURES", {"auc": "learning speed (AUC)"})
    verdict = Parity("better", Estimate(0.2, 0.1, 0.3, 30), 0.03)
    ruled = Verdict(replace(verdict, p=p), 30, 30, None)
    monkeypatch.setattr(interchange, "parity_of", lambda *_: verdict)
    monkeypatch.setattr(interchange, "decision", lambda *_: ruled)
    monkeypatch.setattr(interchange, "PAIRS", interchange.PAIRS[:5])
    blocks = list(interchange.page([], tmp_path))
    (claim,) = (block for block in blocks if isinstance(block, Claim))
    assert claim.verdict == word
    one = int(word == "holds")
    assert text_of(claim.number).startswith(f"libraries differ in {one} of 1 pair of algorithm")
    assert f"; {count} verdicts find" in text_of(claim.number)
    texts = {(row[2], row[3]): row[4] for row in tables_of(blocks)["interchange-verdicts"]}
    assert texts["manyseeds", "SB3"].startswith("better")
    assert texts["manyseeds", "rejax"].startswith("undecided")
    assert texts["SB3", "rejax"].endswith("p=0.060")


def test_stale_runs_of_a_library_are_marked(tmp_path: Path) -> None:
    """In both tables and the figure, and counted beside their commands."""
    common = suite.COMMON["ppo", "CartPole-v1"]
    for algo, digest in (("ppo", None), ("rejax-ppo", "0123456789ab")):
        scores = {seed: 300.0 + seed for seed in range(10)}
        plant(tmp_path, algo, scores, digest=digest, **common)
    blocks = list(interchange.page([load_result(run) for run in open_runs(tmp_path)], tmp_path))
    tables = tables_of(blocks)
    names = ["manyseeds", "rejax (stale)"]
    assert [row[3] for row in tables["interchange-scores"]] == names
    assert [row[2:4] for row in tables["interchange-verdicts"]] == [names]
    (claim,) = (block for block in blocks if isinstance(block, Claim))
    assert claim.figure
    (rows,) = claim.figure.data["panels"].values()
    assert [row.label for row in rows] == ["CartPole-v1, rejax (stale)"]
    assert "1 command, 1 of them stale" in [x.summary for x in claim.details if isinstance(x, Fold)]


def swapped(stored: dict) -> list[dict]:
    """Measurements where those of the layers and of no detail have changed places."""
    names = {"none": library_details.LAYERS, library_details.LAYERS: "none"}
    return [{**m, "detail": names.get(m["detail"], m["detail"])} for m in stored["measurements"]]


def test_details_of_dqn(tmp_path: Path, monkeypatch: Patch) -> None:
    settings = {"total_timesteps": 512, "learning_starts": 64, "max_grad_norm": 0.01}
    stored = measured("dqn", settings, 2, tmp_path, monkeypatch)
    assert dqn.QNetwork.__module__ == "manyseeds.algos.dqn"

    # What is missing is measured again, after a kill, and nothing else; of other code everything.
    path = tmp_path / "library_details_dqn.json"
    path.write_text(json.dumps({**stored, "measurements": stored["measurements"][:-1]}))
    counted: list[str] = []
    measure = library_details.measure

    def count(*args: Any) -> list[float]:
        counted.append(args[2])
        return measure(*args)

    monkeypatch.setattr(library_details, "measure", count)
    library_details.main(["--algo", "dqn", "--seeds", "2", "--results", str(tmp_path)])
    assert counted == [library_details.OF["dqn"]["sbx"]]
    assert read_json(path)["measurements"] == stored["measurements"]
    monkeypatch.setattr(library_details, "measure", lambda *args: [0.0] * args[3])
    path.write_text(json.dumps({**stored, "code": {**stored["code"], "digest": "0"}}))
    library_details.main(["--algo", "dqn", "--seeds", "2", "--results", str(tmp_path)])
    assert {tuple(m["auc"]) for m in read_json(path)["measurements"]} == {(0.0, 0.0)}
