"""SB3 under our protocol: the same hyperparameters, the same evaluation, one process per seed."""

from __future__ import annotations

import dataclasses
import math
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from manyseeds.algos import a2c, dqn, ppo, rainbow, trpo
from manyseeds.benchmarks.baselines import sb3_baseline
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import from_preset, identity
from manyseeds.digest import ROOT
from manyseeds.record import RunFolder, read_json
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.benchmarks.test_sweep import children, is_gone, wait_for

SCRIPT = str(ROOT / "benchmarks" / "sb3_baseline.py")

# Nothing is at its default, neither ours nor SB3's.
SHARED: dict[str, Any] = {"num_envs": 2, "gamma": 0.97, "hidden": (24, 12), "total_timesteps": 1000}
ACTOR_CRITIC: dict[str, Any] = SHARED | {"gae_lambda": 0.9, "entropy_coef": 0.02}
ACTOR_CRITIC |= {"value_coef": 0.7, "max_grad_norm": 0.9, "anneal_lr": True}
PPO = ppo.Config(
    **ACTOR_CRITIC,
    num_steps=32,
    minibatch_size=16,
    epochs=3,
    learning_rate=7e-4,
    clip_range=0.3,
    anneal_clip=True,
    clip_value_range=0.4,
    normalize_advantage=False,
    target_kl=0.05,
)
A2C = a2c.Config(
    **ACTOR_CRITIC,
    num_steps=16,
    learning_rate=3e-4,
    optimizer="rmsprop_tf",
    normalize_advantage=True,
)
TRPO = trpo.Config(
    **SHARED,
    num_steps=32,
    minibatch_size=16,
    target_kl=0.02,
    cg_steps=7,
    cg_damping=0.03,
    line_search_steps=6,
    line_search_shrink=0.7,
    critic_epochs=3,
    learning_rate=7e-4,
    gae_lambda=0.9,
    normalize_advantage=False,
)
DQN = dqn.Config(
    **SHARED,
    train_freq=8,
    gradient_steps=3,
    batch_size=16,
    buffer_size=600,
    learning_starts=100,
    learning_rate=7e-4,
    target_update_interval=50,
    tau=0.6,
    exploration_fraction=0.3,
    exploration_initial_eps=0.9,
    exploration_final_eps=0.2,
    loss="huber",
    max_grad_norm=9.0,
)
ALONE: dict[str, Any] = {"double": False, "dueling": False, "n_steps": 1, "prioritized": False}
QRDQN = rainbow.Config(
    **ALONE,
    noisy=False,
    distribution="quantile",
    atoms=5,
    adam_eps=1e-4,
    **{name: x for name, x in vars(DQN).items() if hasattr(rainbow.Config, name)},
)
BOX = dataclasses.replace(
    PPO, env="Pendulum-v1", normalize_obs=True, normalize_reward=True, log_std_init=-0.7
)
CONFIGS = {"a2c": A2C, "trpo": TRPO, "ppo": PPO, "dqn": DQN, "rainbow": QRDQN}
BASELINES = sb3_baseline.BASELINES


def layers(net: nn.Module) -> list[tuple[int, ...] | str]:
    """Shapes and activations of a network in order."""
    modules = [m for m in net.modules() if not list(m.children())]
    return [
        tuple(m.weight.shape) if isinstance(m, nn.Linear) else type(m).__name__ for m in modules
    ]


# What SB3's model has of each config, by the name of its attribute.
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 32, "batch_size": 16, "n_epochs": 3, "target_kl": 0.05}
    | {"ent_coef": 0.02, "vf_coef": 0.7, "max_grad_norm": 0.9},
    "a2c": {"n_steps": 16, "ent_coef": 0.02, "vf_coef": 0.7, "max_grad_norm": 0.9},
    "trpo": {"n_steps": 32, "batch_size": 16, "target_kl": 0.02, "sub_sampling_factor": 1}
    | {"cg_max_steps": 7, "cg_damping": 0.03, "n_critic_updates": 3}
    | {"line_search_max_iter": 6, "line_search_shrinking_factor": 0.7},
}
# Those of the learning rate when all, half and none of the training is left, and beyond it.
RATES = {"ppo": [7e-4, 3.5e-4, 0, 0], "a2c": [3e-4, 1.5e-4, 0, 0], "trpo": [7e-4] * 4}
CLASSES = {"ppo": stable_baselines3.PPO, "a2c": stable_baselines3.A2C, "trpo": sb3_contrib.TRPO}


@pytest.mark.parametrize("algo", ATTRIBUTES)
def test_policy_gradients_get_the_hyperparameters_of_the_config(algo: str) -> None:
    config: Any = CONFIGS[algo]
    model = sb3_baseline.build(BASELINES[algo], config, seed=3)
    assert isinstance(model, CLASSES[algo])
    shared = {"n_envs": 2, "gamma": 0.97, "gae_lambda": 0.9, "seed": 3, "use_sde": False}
    expected = ATTRIBUTES[algo] | shared | {"normalize_advantage": algo == "a2c"}
    assert {name: getattr(model, name) for name in expected} == expected
    assert model.env._seeds == [6, 7]  # which no other seed has
    assert [model.lr_schedule(x) for x in (1, 0.5, 0, -0.1)] == RATES[algo]
    if algo == "ppo":
        assert [model.clip_range(x) for x in (1, 0.5, 0, -0.1)] == [0.3, 0.15, 0, 0]
        assert model.clip_range_vf(0.5) == 0.4
    assert model.policy.optimizer.defaults["eps"] == 1e-5  # as in algos/
    box = dataclasses.replace(config, env="Pendulum-v1", normalize_obs=True, log_std_init=-0.7)
    continuous = sb3_baseline.build(BASELINES[algo], box, seed=3)
    assert continuous.use_sde is False
    assert continuous.policy.log_std.tolist() == pytest.approx([-0.7])
    for built, inputs in ((model, 4), (continuous, 3)):
        extractor = built.policy.mlp_extractor
        for net in (extractor.policy_net, extractor.value_net):
            assert layers(net) == [(24, inputs), "Tanh", (12, 24), "Tanh"]
    assert isinstance(continuous.env, VecNormalize)


OPTIMIZERS = {"rmsprop": torch.optim.RMSprop, "rmsprop_tf": RMSpropTFLike, "adam": torch.optim.Adam}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a2c_gets_the_optimizer_of_the_config(optimizer: Any) -> None:
    """With the settings of algos/a2c.py."""
    config = dataclasses.replace(A2C, optimizer=optimizer)
    model = sb3_baseline.build(sb3_baseline.A2CBaseline, config, seed=3)
    built = model.policy.optimizer
    assert type(built) is OPTIMIZERS[optimizer]
    assert built.defaults["eps"] == 1e-5
    assert built.defaults["weight_decay"] == 0
    if optimizer != "adam":
        assert (built.defaults["alpha"], built.defaults["momentum"]) == (0.99, 0)


ARGUMENTS = ("is_slippery=False", "max_episode_steps=9")


@pytest.mark.parametrize(
    ("env_id", "settings", "limit"),
    [
        ("CliffWalking-v1", {}, 200),  # Gymnasium registers none
        ("FrozenLake-v1", {"env_kwargs": ARGUMENTS}, 9),
        ("Pendulum-v1", {"rescale_actions": True}, 200),
    ],
)
def test_the_environment_is_as_ours(env_id: str, settings: Any, limit: int) -> None:
    """Its time limit, arguments, observations and actions."""
    config = ppo.Config(env=env_id, **settings)
    spec: Any = config.make_env().spec
    theirs: Any = sb3_baseline.build(BASELINES["ppo"], config, 0).get_env()
    assert theirs.observation_space.shape == (spec.obs_size,)
    theirs.reset()
    up = np.full((4, 1), 0.5) if spec.continuous else np.full(4, 3 if limit == 9 else 0)
    ended = [theirs.step(up)[2].tolist() for _ in range(limit)]
    assert ended == [[False] * 4] * (limit - 1) + [[True] * 4]
    assert spec.time_limit == limit
    theirs.step(up)
    if spec.continuous:
        assert [env.last_u for env in theirs.get_attr("unwrapped")] == [1.0] * 4


def test_an_environment_without_render_modes_has_no_warnings(monkeypatch: Patch) -> None:
    class Plain(gym.Env[Any, Any]):
        observation_space = action_space = gym.spaces.Box(-1, 1, (2,), np.float64)

    monkeypatch.setitem(gym.registry, "Plain-v0", EnvSpec("Plain-v0", Plain, max_episode_steps=5))
    config = ppo.Config(env="Plain-v0", rescale_actions=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_baseline.check_env(config)
        sb3_baseline.build(BASELINES["ppo"], config, 0)


def test_zero_means_off() -> None:
    config = from_preset(ppo.Config, ppo.PRESETS, "CartPole-v1", max_grad_norm=0.0)
    model = sb3_baseline.build(sb3_baseline.PPOBaseline, config, seed=0)
    assert (model.max_grad_norm, model.target_kl, model.clip_range_vf) == (math.inf, None, None)
    assert (model.n_envs, model.n_steps, model.batch_size) == (8, 32, 256)
    unclipped = dataclasses.replace(A2C, max_grad_norm=0.0, advantage="monte_carlo")
    model = sb3_baseline.build(sb3_baseline.A2CBaseline, unclipped, seed=3)
    assert (model.max_grad_norm, model.gae_lambda) == (math.inf, 1.0)


def test_ppo_without_clipping() -> None:
    config = dataclasses.replace(PPO, clip_range=0.0, anneal_clip=False)
    model = sb3_baseline.build(sb3_baseline.PPOBaseline, config, seed=0)
    assert model.clip_range(0.5) == float("inf")
    model.learn(64)
    assert model.logger.name_to_value["train/clip_fraction"] == 0
    assert np.isfinite(model.logger.name_to_value["train/loss"])


@pytest.mark.parametrize("obs", [False, True])
@pytest.mark.parametrize("reward", [False, True])
def test_normalises_exactly_what_the_config_says(obs: bool, reward: bool) -> None:
    """With our discount and our clipping; the environments below are those without."""
    config = dataclasses.replace(BOX, normalize_obs=obs, normalize_reward=reward)
    model = sb3_baseline.build(sb3_baseline.PPOBaseline, config, seed=3)
    env = model.env
    assert isinstance(env, VecNormalize) == (obs or reward)
    assert model.get_vec_normalize_env() is (env if obs or reward else None)
    if isinstance(env, VecNormalize):
        assert (env.norm_obs, env.norm_reward, env.gamma) == (obs, reward, 0.97)
        assert (env.clip_obs, env.clip_reward, env.epsilon) == (10, 10, 1e-8)  # as in layers.py
        assert not isinstance(env.venv, VecNormalize)
        env = env.venv
    assert env._seeds == [6, 7]


def test_dqn_gets_the_hyperparameters_of_the_config() -> None:
    model = sb3_baseline.build(sb3_baseline.DQNBaseline, DQN, seed=3)
    assert model.env._seeds == [6, 7]
    assert (model.n_envs, model.train_freq.frequency, model.train_freq.unit.value) == (2, 8, "step")
    assert (model.gradient_steps, model.batch_size, model.learning_starts) == (3, 16, 100)
    assert model.replay_buffer.buffer_size * model.n_envs == 600
    assert (model.gamma, model.tau, model.target_update_interval) == (0.97, 0.6, 50)
    assert model.lr_schedule(0.2) == 7e-4
    assert model.max_grad_norm == 9.0
    epsilons = [model.exploration_schedule(1 - x) for x in (0.0, 0.15, 0.3, 1.0)]
    assert epsilons == pytest.approx([0.9, 0.55, 0.2, 0.2])
    assert layers(model.q_net) == ["Flatten", (24, 4), "ReLU", (12, 24), "ReLU", (2, 12)]
    assert model.policy.optimizer.defaults["eps"] == 1e-8  # as in algos/dqn.py


def test_qrdqn_gets_the_hyperparameters_of_the_config() -> None:
    model = sb3_baseline.build(sb3_baseline.QRDQNBaseline, QRDQN, seed=3)
    assert isinstance(model, sb3_contrib.QRDQN)
    assert model.env._seeds == [6, 7]
    assert (model.gradient_steps, model.batch_size, model.learning_starts) == (3, 16, 100)
    assert (model.gamma, model.tau, model.target_update_interval) == (0.97, 0.6, 50)
    assert (model.n_steps, model.n_quantiles, model.max_grad_norm) == (1, 5, 9.0)
    net = model.policy.quantile_net.quantile_net
    assert layers(net) == [(24, 4), "ReLU", (12, 24), "ReLU", (10, 12)]
    assert model.policy.optimizer.defaults["eps"] == 1e-4
    unclipped = dataclasses.replace(QRDQN, max_grad_norm=0.0)
    assert sb3_baseline.QRDQNBaseline.arguments(unclipped)["max_grad_norm"] is None


def test_qrdqn_policy_explores_as_ours() -> None:
    model = sb3_baseline.build(sb3_baseline.QRDQNBaseline, QRDQN, seed=0)
    policy = sb3_baseline.QRDQNPolicy(model, QRDQN)
    obs = torch.randn(1, 2000, 4, generator=torch.Generator().manual_seed(1))
    greedy, _ = model.predict(obs[0].numpy(), deterministic=True)
    assert policy.act(obs).tolist() == [greedy.tolist()]
    ours = rainbow.QNetwork(QRDQN.make_env().spec, QRDQN, SeedStreams([0], "init"))
    noise = ours.draw(SeedStreams([2], "evaluate"), 2000)[..., 0].long()
    expected = torch.where(noise < 0, policy.act(obs), noise)
    assert torch.equal(policy.act(obs, policy.draw(SeedStreams([2], "evaluate"), 2000)), expected)
    assert not torch.equal(expected, policy.act(obs))


@pytest.mark.slow
@pytest.mark.parametrize("algo", [*CONFIGS, "normalised"])
def test_protocol(algo: str) -> None:
    """Evaluations are at the update boundaries, and training is what SB3 does without us."""
    config, algo = (BOX, "ppo") if algo == "normalised" else (CONFIGS[algo], algo)
    run = Run(config, [3], algo=f"sb3-{algo}", source="sb3")
    policy = sb3_baseline.train(BASELINES[algo], config, run)
    run.finish(policy)
    curve = run.curve()

    block = config.block if isinstance(config, dqn.Config | rainbow.Config) else config.batch_size
    boundaries = [-(-k * 1000 // 20) for k in range(21)]
    expected = sorted({-(-step // block) * block for step in boundaries})
    on_curve = curve[(curve["mode"] == "greedy") & (curve.episodes == 32)]
    assert on_curve.timestep.tolist() == expected
    final = curve[curve.episodes == 100]
    assert final["mode"].tolist() == ["greedy", "sampled"]
    assert set(final.timestep) == {expected[-1]}
    assert set(curve.source) == {"sb3"}
    assert set(curve.algo) == {f"sb3-{algo}"}
    train = curve[curve["mode"] == "train"]
    if config is BOX:
        assert curve.return_mean.max() < -200  # the environment's own returns; nothing is learned
    else:
        assert len(train) > 5
        assert np.allclose(train.return_mean, train.length_mean)  # as CartPole's are

    undisturbed = sb3_baseline.build(BASELINES[algo], config, 3).learn(config.total_timesteps)
    theirs = undisturbed.policy.state_dict()
    for name, tensor in policy.policy.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name
    mine, other = policy.model.get_vec_normalize_env(), undisturbed.get_vec_normalize_env()
    assert (mine is not None) == (other is not None) == (config is BOX)
    if mine:
        assert np.array_equal(mine.obs_rms.mean, other.obs_rms.mean)
        assert mine.ret_rms.count == other.ret_rms.count


def test_ppo_policy_is_sb3s() -> None:
    model = sb3_baseline.build(sb3_baseline.PPOBaseline, PPO, seed=0)
    policy = sb3_baseline.PPOPolicy(model, PPO)
    obs = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(1))
    greedy, _ = model.predict(obs[0].numpy(), deterministic=True)
    assert policy.act(obs).tolist() == [greedy.tolist()]

    model.policy.action_net.bias.data = torch.tensor([0.0, 1.0])  # far from one half
    noise = policy.draw(SeedStreams([0], "evaluate"), 20_000)
    same = obs[:, :1].expand(1, 20_000, 4)
    share = policy.act(same, noise).float().mean().item()
    expected = model.policy.get_distribution(obs[0, :1]).distribution.probs[0, 1].item()
    assert share == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize("normalized", [True, False])
def test_ppo_policy_in_a_box_is_sb3s(normalized: bool) -> None:
    """On observations as the training normalised them; its statistics stand still."""
    config = dataclasses.replace(BOX, normalize_obs=normalized)
    model = sb3_baseline.build(sb3_baseline.PPOBaseline, config, seed=0)
    model.learn(128)
    env = model.env
    assert isinstance(env, VecNormalize)
    statistics = [env.ret_rms, env.obs_rms] if normalized else [env.ret_rms]
    before = [(s.count, s.mean.tolist(), s.var.tolist()) for s in statistics]

    policy = sb3_baseline.PPOPolicy(model, config)
    obs = torch.tensor([1.0, 1.0, 8.0]) * torch.rand(1, 50, 3)
    raw = obs.numpy().copy()
    deterministic, _ = model.predict(env.normalize_obs(raw[0]), deterministic=True)
    greedy = policy.act(obs).detach()
    assert np.allclose(greedy[0], deterministic, rtol=0, atol=1e-6)
    assert np.array_equal(obs.numpy(), raw)
    unnormalized, _ = model.predict(raw[0], deterministic=True)
    assert np.allclose(unnormalized, deterministic, rtol=0, atol=1e-6) != normalized

    noise = policy.draw(SeedStreams([4], "evaluate"), 50)
    assert torch.equal(noise, SeedStreams([4], "evaluate").normal(50, 1))
    std = model.policy.log_std.detach().exp()
    assert std.item() != pytest.approx(np.exp(-0.7), rel=1e-4)  # it has been trained
    torch.testing.assert_close(policy.act(obs, noise).detach(), greedy + std * noise)
    assert before == [(s.count, s.mean.tolist(), s.var.tolist()) for s in statistics]


def test_dqn_policy_explores_as_ours() -> None:
    model = sb3_baseline.build(sb3_baseline.DQNBaseline, DQN, seed=0)
    policy = sb3_baseline.DQNPolicy(model, DQN)
    obs = torch.randn(1, 2000, 4, generator=torch.Generator().manual_seed(1))
    greedy, _ = model.predict(obs[0].numpy(), deterministic=True)
    assert policy.act(obs).tolist() == [greedy.tolist()]

    class Ours:
        """Our act with SB3's action values."""

        num_actions, final_eps = 2, DQN.exploration_final_eps

        def __call__(self, obs: torch.Tensor) -> torch.Tensor:
            return model.q_net(obs[0]).unsqueeze(0)

    noise = dqn.QNetwork.draw(Ours(), SeedStreams([2], "evaluate"), 2000)
    uniforms = policy.draw(SeedStreams([2], "evaluate"), 2000)
    expected = dqn.QNetwork.act(Ours(), obs, noise)
    assert torch.equal(policy.act(obs, uniforms), expected)
    assert not torch.equal(expected, policy.act(obs))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algo", "ppoo"], "--algo ppoo: SB3 does not have it; did you mean ppo?"),
        (["--algo=q_learning"], "--algo q_learning: SB3 does not have it; it has a2c, "),
        (["--algo", "pqn"], "--algo pqn: SB3 does not have it; it has a2c, "),
        (["--algo", "zzz"], "--algo zzz: SB3 does not have it; there are a2c, "),
        (["--algo", "dqn", "--loss", "mse"], "--loss mse: SB3's DQN has the Huber loss only"),
        (["--algo", "dqn", "--num-steps", "8"], "--num-steps: unknown flag"),
        (["--algo", "rainbow"], "--algo rainbow: sb3-contrib has its quantiles only; use --dist"),
        (["--env", "RandomWalk-v0"], "--env RandomWalk-v0: Gymnasium has no such environment"),
        (["--device", "cuda"], "--device cuda: "),
        (["--workers", "0"], "--workers 0: must be"),
        (["--algo", "a2c", "--advantage", "n_step"], "--advantage n_step: SB3's A2C has GAE only"),
        (["--minibatch-size", "1"], "--minibatch-size 1: SB3 needs at least 2"),
        (["--clip-range", "0"], "--clip-range 0: SB3 cannot anneal it; add --no-anneal-clip"),
        (["--algo", "dqn", "--env", "Pendulum-v1"], "--env Pendulum-v1: this algorithm needs"),
    ],
)
def test_mistakes_are_one_line(
    flags: list[str], message: str, tmp_path: Path, refusal: Refusal, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sb3_baseline, "train_seeds", lambda *args: pytest.fail("not refused"))
    error = refusal(sb3_baseline.main, *flags, "--results", tmp_path / "results")
    assert error.startswith(f"error: {message}")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("algo", CONFIGS)
def test_same_hyperparameters_same_name(algo: str) -> None:
    flags = ["--algo", algo, "--env", "CartPole-v1", "--seeds", "3", "--workers", "2"]
    own: dict[str, Any] = {}
    if algo == "rainbow":  # what SB3 has of it
        own = {**ALONE, "noisy": False, "distribution": "quantile"}
        flags += ["--no-double", "--no-dueling", "--n-steps", "1", "--no-prioritized", "--no-noisy"]
        flags += ["--distribution", "quantile"]
    name, config, workers = sb3_baseline.read_flags([*flags, "--learning-rate", "1e-4"])
    module = catalog.module("algos", algo)
    ours = from_preset(module.Config, module.PRESETS, "CartPole-v1", learning_rate=1e-4, **own)
    assert (name, workers, config.seeds) == (algo, 2, 3)
    assert identity(config) == identity(ours)
    theirs = RunFolder.of(config, f"sb3-{algo}").path
    assert theirs.name == RunFolder.of(ours, algo).path.name


TINY = ["--algo", "ppo", "--total-timesteps", "600", "--hidden", "8", "--num-steps", "8"]
TINY += ["--minibatch-size", "64"]


def tiny_folder(results: Path) -> RunFolder:
    _, config, _ = sb3_baseline.read_flags([*TINY, "--results", str(results)])
    return RunFolder.of(config, "sb3-ppo")


class NoReward(CartPoleEnv):
    """CartPole with rewards that are NaN."""

    def step(self, action: Any) -> Any:
        obs, _, *ends = super().step(action)
        return obs, math.nan, *ends


@pytest.mark.filterwarnings("ignore:.*The reward is a NaN value")
def test_rewards_that_are_nan_are_one_line(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    """SB3 cannot sample from a policy of NaN."""
    spec = EnvSpec("NoReward-v0", entry_point=NoReward, max_episode_steps=50)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    monkeypatch.setattr(sb3_baseline, "_end_with_parent", lambda: None)
    flags = [*TINY, "--env", "NoReward-v0", "--quiet", "--results", str(tmp_path)]
    algo, config, _ = sb3_baseline.read_flags(flags)
    with pytest.raises(SystemExit, match="1"):
        sb3_baseline.train_seed(sb3_baseline.SB3, algo, config, 3, tmp_path / "seeds-003-003")
    note, said = capsys.readouterr().err.splitlines()
    assert note == "note: NoReward-v0, seed 3, timestep 0: a reward is nan at step 1 of an episode"
    assert said.startswith("error: seed 3: SB3's policy became NaN: a reward was not finite")
    assert not list(tmp_path.iterdir())


def test_a_late_step_that_raises_is_one_line(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    class Breaks(CartPoleEnv):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps > 100:
                raise KeyError("boom")
            return super().step(action)

    spec = EnvSpec("Breaks-v0", entry_point=Breaks, max_episode_steps=50)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    monkeypatch.setattr(sb3_baseline, "_end_with_parent", lambda: None)
    flags = [*TINY, "--env", "Breaks-v0", "--quiet", "--results", str(tmp_path)]
    algo, config, _ = sb3_baseline.read_flags([*flags, "--eval-budget", "0.01"])
    with pytest.raises(SystemExit, match="1"):
        sb3_baseline.train_seed(sb3_baseline.SB3, algo, config, 3, tmp_path / "seeds-003-003")
    said = capsys.readouterr().err
    assert said == "error: seed 3: --env Breaks-v0: its step failed: KeyError: 'boom'\n"


@pytest.mark.slow
def test_a_failed_seed_is_named_and_costs_no_other(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    part = folder.path / "seeds-001-001"
    command = [sys.executable, SCRIPT, *TINY, "--seeds", "3", "--workers", "2"]
    command += ["--results", str(tmp_path)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(command, **pipes)
    while first.poll() is None and not (part / "config.json").exists():
        time.sleep(0.001)
    (part / "curve.parquet").mkdir()  # where the seed's results belong
    errors = first.communicate(timeout=120)[1]
    assert first.returncode == 1, errors
    assert "error: seed 1 failed: exit status 1" in errors
    assert "Traceback" not in errors
    assert not part.exists()
    assert folder.finished_seeds() == {0, 2}

    sealed = [folder.path / f"seeds-{seed:03d}-{seed:03d}/DONE.json" for seed in (0, 2)]
    before = [file.stat().st_mtime_ns for file in sealed]
    second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "seed 1: greedy return" in second.stdout
    assert "3 seeds" in second.stdout
    assert folder.finished_seeds() == {0, 1, 2}
    assert before == [file.stat().st_mtime_ns for file in sealed]

    config = read_json(folder.path / "seeds-001-001/config.json")
    assert (config["source"], config["algo"], config["seeds"]) == ("sb3", "sb3-ppo", [1])
    assert "stable-baselines3" in config["versions"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--total-timesteps", "200_000", "--seeds", "2"]
    command += ["--workers", "2", "--results", str(tmp_path)]
    parent = subprocess.Popen(command)
    wait_for(lambda: len(list(tmp_path.glob("runs/*/*/*/seeds-*/config.json"))) == 2, 300)
    started = children(parent.pid)
    assert len(started) >= 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: all(map(is_gone, started)))
