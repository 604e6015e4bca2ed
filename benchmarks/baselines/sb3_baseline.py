"""SB3's A2C, PPO, DQN, SAC, TD3 and DDPG, and sb3-contrib's TRPO and QR-DQN, with our settings.

    python benchmarks/sb3_baseline.py --algo ppo --env CartPole-v1 --seeds 10 --workers 2

The flags are those of the algorithm's own file, and so are the presets: the same Config decides
both sides, and the same hyperparameters give the run the same name. SB3 trains on Gymnasium's own
environment, every seed in a process of its own, and is evaluated as our policies are: our native
environment where there is one, the same start states, at step 0 and at the first update boundary
at or after each 1/20 of the training. Every seed is its own part, so that killing loses only the
seeds in flight.

What stays SB3's own:
 1. Schedules: SB3 takes the progress at the end of a rollout, we at its start. A rollout beyond
    total_timesteps would make a linear schedule negative; here it stops at 0.
 2. DQN: one draw of epsilon for all environments of a step; the Huber loss only.
 3. Seeds: SB3 seeds everything with k. Only its environments are re-seeded, with k * num_envs, ...:
    SB3's own k, k + 1, ... would share start states between neighbouring seeds.
 4. SAC: 1e-6 is added to 1 - tanh(u)^2 before its logarithm.
 5. Noise to explore by is added to the random actions before learning starts, too; an
    Ornstein-Uhlenbeck process starts anew with each episode, not at the end of a round.
 6. Normalisation: VecNormalize updates its statistics with every observation before the policy acts
    on it; ours are updated once per rollout, after it. Rewards are scaled in the same way, except
    that VecNormalize's statistics start with 1e-4 samples of mean 0 and variance 1.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import dataclasses
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN, TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
)
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from torch import Tensor, nn

from manyseeds import envs
from manyseeds.algos import a2c, ddpg, dqn, ppo, rainbow, sac, td3, trpo
from manyseeds.arguments import read_kwargs
from manyseeds.benchmarks.measurements.measure import measured, peak_memory
from manyseeds.cli import (
    ControlConfig,
    PositiveInt,
    Preset,
    exit_with,
    from_identity,
    parse_both,
    read_algo,
)
from manyseeds.envs.gymnasium_bridge import as_ours, registered_id
from manyseeds.errors import UsageError
from manyseeds.process import exit_reason, set_up_process
from manyseeds.record import RunFolder, part_name, read_part
from manyseeds.runs.base import carry_out, complete_parts
from manyseeds.runs.control import Run, print_result, say_notes
from manyseeds.runs.set_aside import Code
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What this script has besides the flags of the algorithm."""

    algo: str = "ppo"
    """Algorithm: a2c, trpo, ppo, dqn, rainbow (as QR-DQN), sac, td3 or ddpg."""
    workers: PositiveInt = 1
    """Number of seeds trained in parallel, each in its own process."""


class SB3Policy:
    """The policy of one SB3 model as the evaluation calls it: obs [1, N, O], actions [1, N, ...].

    Observations are normalised with the statistics of the training, where it has any.
    """

    def __init__(self, model: BaseAlgorithm, config: Any) -> None:
        self.model, self.config = model, config
        self.policy = cast(Any, model.policy)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """SB3's deterministic prediction without noise, sampled with it."""
        statistics = self.model.get_vec_normalize_env()
        if statistics is not None:
            normalized = statistics.normalize_obs(obs.numpy())
            obs = torch.from_numpy(np.asarray(normalized, dtype=np.float32))
        if noise is None:
            return self.policy._predict(obs[0], deterministic=True).unsqueeze(0)  # type: ignore[no-any-return]
        return self.sample(obs[0], noise[0]).unsqueeze(0)

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """The noise that sampled actions take, [1, *shape, ...], as our own policies draw it."""
        raise NotImplementedError

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [N, ...] of the stochastic policy for obs [N, O] and noise [N, ...]."""
        raise NotImplementedError


class Baseline:
    """An algorithm of SB3, and how the Config of ours that it follows is translated."""

    config: type[ControlConfig]
    presets: Mapping[str, Preset]
    model: type[BaseAlgorithm]
    policy: type[SB3Policy]

    @staticmethod
    def arguments(config: Any) -> dict[str, Any]:
        """Arguments of SB3's model, but for policy, env, seed and device."""
        raise NotImplementedError

    @staticmethod
    def wrap(env: VecEnv, config: Any) -> VecEnv:
        """The environments with the wrappers that the Config asks for."""
        return env


class PPOPolicy(SB3Policy):
    """Samples from SB3's distribution with the noise of algos/ppo.py."""

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        space: Any = self.model.action_space
        if isinstance(space, spaces.Box):
            return streams.normal(*shape, *space.shape)
        return streams.gumbel(*shape, int(space.n))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        distribution = self.policy.get_distribution(obs).distribution
        if isinstance(self.model.action_space, spaces.Box):
            return distribution.mean + distribution.stddev * noise  # type: ignore[no-any-return]
        return (distribution.logits + noise).argmax(-1)  # type: ignore[no-any-return]


def _networks(config: ppo.Config | a2c.Config | trpo.Config) -> dict[str, Any]:
    """`policy_kwargs` of an actor and a critic like ours."""
    return {
        "net_arch": {"pi": list(config.hidden), "vf": list(config.hidden)},
        "activation_fn": nn.Tanh,
        "log_std_init": config.log_std_init,
    }


class PPOBaseline(Baseline):
    """stable_baselines3.PPO"""

    config = ppo.Config
    presets = ppo.PRESETS
    model = PPO
    policy = PPOPolicy

    @staticmethod
    def arguments(config: ppo.Config) -> dict[str, Any]:
        if config.minibatch < 2:
            raise UsageError(f"--minibatch-size {config.minibatch_size}: SB3 needs at least 2")
        unclipped = math.inf  # ratios are clamped to -inf .. inf
        return {
            "n_steps": config.num_steps,
            "batch_size": config.minibatch,
            "n_epochs": config.epochs,
            "learning_rate": _schedule(config.learning_rate, config.anneal_lr),
            "gamma": config.gamma,
            "gae_lambda": config.gae_lambda,
            "clip_range": _schedule(config.clip_range or unclipped, config.anneal_clip),
            "clip_range_vf": config.clip_value_range or None,
            "normalize_advantage": config.normalize_advantage,
            "ent_coef": config.entropy_coef,
            "vf_coef": config.value_coef,
            "max_grad_norm": config.max_grad_norm or math.inf,
            "target_kl": config.target_kl or None,
            "use_sde": False,
            "policy_kwargs": _networks(config),
        }

    @staticmethod
    def wrap(env: VecEnv, config: ppo.Config) -> VecEnv:
        if not (config.normalize_obs or config.normalize_reward):
            return env
        return VecNormalize(
            env,
            norm_obs=config.normalize_obs,
            norm_reward=config.normalize_reward,
            gamma=config.gamma,
        )


class A2CBaseline(Baseline):
    """stable_baselines3.A2C, whose policies are PPO's"""

    config = a2c.Config
    presets = a2c.PRESETS
    model = A2C
    policy = PPOPolicy
    wrap = staticmethod(PPOBaseline.wrap)

    @staticmethod
    def arguments(config: a2c.Config) -> dict[str, Any]:
        if config.advantage == "n_step":
            raise UsageError(
                "--advantage n_step: SB3's A2C has GAE only, which includes the return"
            )
        policy_kwargs = _networks(config)
        if config.optimizer == "rmsprop_tf":
            policy_kwargs["optimizer_class"] = RMSpropTFLike
            policy_kwargs["optimizer_kwargs"] = {"alpha": 0.99, "eps": 1e-5, "weight_decay": 0}
        return {
            "n_steps": config.num_steps,
            "learning_rate": _schedule(config.learning_rate, config.anneal_lr),
            "gamma": config.gamma,
            "gae_lambda": 1.0 if config.advantage == "monte_carlo" else config.gae_lambda,
            "normalize_advantage": config.normalize_advantage,
            "ent_coef": config.entropy_coef,
            "vf_coef": config.value_coef,
            "max_grad_norm": config.max_grad_norm or math.inf,
            "use_rms_prop": config.optimizer == "rmsprop",
            "rms_prop_eps": 1e-5,
            "use_sde": False,
            "policy_kwargs": policy_kwargs,
        }


class TRPOBaseline(Baseline):
    """sb3_contrib.TRPO, whose policies are PPO's"""

    config = trpo.Config
    presets = trpo.PRESETS
    model = TRPO
    policy = PPOPolicy
    wrap = staticmethod(PPOBaseline.wrap)

    @staticmethod
    def arguments(config: trpo.Config) -> dict[str, Any]:
        return {
            "n_steps": config.num_steps,
            "batch_size": config.minibatch,
            "n_critic_updates": config.critic_epochs,
            "learning_rate": config.learning_rate,
            "gamma": config.gamma,
            "gae_lambda": config.gae_lambda,
            "cg_max_steps": config.cg_steps,
            "cg_damping": config.cg_damping,
            "line_search_shrinking_factor": config.line_search_shrink,
            "line_search_max_iter": config.line_search_steps,
            "target_kl": config.target_kl,
            "normalize_advantage": config.normalize_advantage,
            "use_sde": False,
            "policy_kwargs": _networks(config),
        }


class DQNPolicy(SB3Policy):
    """Epsilon-greedy with the final epsilon, drawn per environment as algos/dqn.py does."""

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        return streams.uniform(*shape, 2)

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        q_values = self.policy.q_net(obs)
        explores, which = noise.unbind(-1)
        random = (which * q_values.shape[-1]).long()
        return torch.where(
            explores < self.config.exploration_final_eps, random, q_values.argmax(-1)
        )


class DQNBaseline(Baseline):
    """stable_baselines3.DQN"""

    config = dqn.Config
    presets = dqn.PRESETS
    model = DQN
    policy = DQNPolicy

    @staticmethod
    def arguments(config: dqn.Config) -> dict[str, Any]:
        if config.loss != "huber":
            raise UsageError(f"--loss {config.loss}: SB3's DQN has the Huber loss only; use huber")
        same = (
            "learning_rate buffer_size learning_starts batch_size tau gamma train_freq "
            "gradient_steps target_update_interval exploration_fraction exploration_initial_eps "
            "exploration_final_eps"
        )
        return {
            **{name: getattr(config, name) for name in same.split()},
            "max_grad_norm": config.max_grad_norm or math.inf,
            "policy_kwargs": {"net_arch": list(config.hidden), "activation_fn": nn.ReLU},
        }


class QRDQNPolicy(SB3Policy):
    """Epsilon-greedy as DQN's, on the means of the quantiles."""

    draw = DQNPolicy.draw

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        q_values = self.policy.quantile_net(obs).mean(1)
        explores, which = noise.unbind(-1)
        random = (which * q_values.shape[-1]).long()
        return torch.where(
            explores < self.config.exploration_final_eps, random, q_values.argmax(-1)
        )


class QRDQNBaseline(Baseline):
    """sb3_contrib.QRDQN: Rainbow's quantiles without its other parts"""

    config = rainbow.Config
    presets = rainbow.PRESETS
    model = QRDQN
    policy = QRDQNPolicy

    @staticmethod
    def arguments(config: rainbow.Config) -> dict[str, Any]:
        parts = config.double, config.dueling, config.prioritized, config.noisy
        if config.distribution != "quantile" or any(parts) or config.n_steps > 1:
            raise UsageError(
                "--algo rainbow: sb3-contrib has its quantiles only; use --distribution quantile "
                "--no-double --no-dueling --n-steps 1 --no-prioritized --no-noisy"
            )
        same = (
            "learning_rate buffer_size learning_starts batch_size tau gamma train_freq "
            "gradient_steps target_update_interval exploration_fraction exploration_initial_eps "
            "exploration_final_eps"
        )
        return {
            **{name: getattr(config, name) for name in same.split()},
            "max_grad_norm": config.max_grad_norm or None,
            "policy_kwargs": {
                "n_quantiles": config.atoms,
                "net_arch": list(config.hidden),
                "activation_fn": nn.ReLU,
                "optimizer_class": torch.optim.Adam,
                "optimizer_kwargs": {"eps": config.adam_eps},
            },
        }


class SquashedPolicy(SB3Policy):
    """What SB3's policies of actions from -1 to 1 have in common."""

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """As the environment takes them: SB3's policy has them from -1 to 1."""
        actions: Any = self.policy.unscale_action(super().act(obs, noise).numpy())
        return torch.from_numpy(actions)

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        space: Any = self.model.action_space
        return streams.normal(*shape, *space.shape)


class SACPolicy(SquashedPolicy):
    """Samples from SB3's distribution with the noise of algos/sac.py."""

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        mean, log_std, _ = self.policy.actor.get_action_dist_params(obs)
        return torch.tanh(mean + log_std.exp() * noise)


class SACBaseline(Baseline):
    """stable_baselines3.SAC"""

    config = sac.Config
    presets = sac.PRESETS
    model = SAC
    policy = SACPolicy

    @staticmethod
    def arguments(config: sac.Config) -> dict[str, Any]:
        D = len(config.make_env().spec.action_low)
        return {
            **_from_memory(config),
            "ent_coef": config.alpha or "auto",
            "target_entropy": D * config.target_entropy,
        }


class TD3Policy(SquashedPolicy):
    """SB3's deterministic policy, with the noise of algos/td3.py to explore by."""

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        return super().draw(streams, *shape) * self.config.noise_std

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return (self.policy.actor(obs) + noise).clamp(-1, 1)  # type: ignore[no-any-return]


class TD3Baseline(Baseline):
    """stable_baselines3.TD3"""

    config = td3.Config
    presets = td3.PRESETS
    model = TD3
    policy = TD3Policy

    @staticmethod
    def arguments(config: td3.Config) -> dict[str, Any]:
        names = "policy_delay", "target_policy_noise", "target_noise_clip"
        return _from_memory(config) | {name: getattr(config, name) for name in names}


class DDPGBaseline(Baseline):
    """stable_baselines3.DDPG"""

    config = ddpg.Config
    presets = ddpg.PRESETS
    model = DDPG
    policy = TD3Policy

    @staticmethod
    def arguments(config: ddpg.Config) -> dict[str, Any]:
        return _from_memory(config)


def _from_memory(config: sac.Config | td3.Config | ddpg.Config) -> dict[str, Any]:
    """What SB3's SAC, TD3 and DDPG have in common."""
    same = (
        "learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps"
    )
    return {
        **{name: getattr(config, name) for name in same.split()},
        "action_noise": _noise(config),
        "policy_kwargs": {"net_arch": list(config.hidden), "activation_fn": nn.ReLU},
    }


def _noise(config: sac.Config | td3.Config | ddpg.Config) -> ActionNoise | None:
    """The noise to explore by; None: there is none."""
    if not config.noise_std:
        return None
    D = len(config.make_env().spec.action_low)
    mean, std = np.zeros(D), np.full(D, config.noise_std)
    is_process = config.noise_type == "ornstein-uhlenbeck"
    return (OrnsteinUhlenbeckActionNoise if is_process else NormalActionNoise)(mean, std)


def _schedule(start: float, anneal: bool) -> float | Callable[[float], float]:
    """A constant, or from start to 0 as SB3's progress_remaining falls from 1 to 0 (or below)."""
    return (lambda remaining: start * max(remaining, 0.0)) if anneal else start


BASELINES: dict[str, type[Baseline]] = {
    "a2c": A2CBaseline,
    "trpo": TRPOBaseline,
    "ppo": PPOBaseline,
    "dqn": DQNBaseline,
    "rainbow": QRDQNBaseline,
    "sac": SACBaseline,
    "td3": TD3Baseline,
    "ddpg": DDPGBaseline,
}


@dataclass(frozen=True)
class Peer:
    """A library whose algorithms are trained with our hyperparameters, through SB3's interface."""

    name: str  # how the store names its runs: sb3-ppo
    title: str  # in messages
    baselines: Mapping[str, type[Baseline]]
    packages: Mapping[str, tuple[str, ...]]  # whose versions are recorded; "" for all the others

    def packages_of(self, algo: str) -> tuple[str, ...]:
        """The packages that an algorithm is made of."""
        return self.packages.get(algo, self.packages[""])


SB3 = Peer(
    "sb3",
    "SB3",
    BASELINES,
    {
        "": ("stable-baselines3",),
        "trpo": ("stable-baselines3", "sb3-contrib"),
        "rainbow": ("stable-baselines3", "sb3-contrib"),
    },
)


class RunCallback(BaseCallback):
    """Reports to a Run at SB3's update boundaries: before each rollout and at the end."""

    def __init__(self, run: Run, env: envs.Env, policy: SB3Policy) -> None:
        super().__init__()
        self.run, self.env, self.policy = run, env, policy
        self.episodes: list[dict[str, float]] = []  # that ended since the last boundary

    def _on_step(self) -> bool:
        self.episodes += [info["episode"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_start(self) -> None:
        self._boundary()

    def _on_training_end(self) -> None:
        self._boundary()

    def _boundary(self) -> None:
        timestep = self.model.num_timesteps
        if timestep > 0:
            n = len(self.episodes)
            metrics = {
                "train_return": sum(e["r"] for e in self.episodes) / n if n else math.nan,
                "train_length": sum(e["l"] for e in self.episodes) / n if n else math.nan,
            }
            if "train/loss" in self.logger.name_to_value:  # absent until DQN starts to learn
                metrics["loss"] = self.logger.name_to_value["train/loss"]
            self.run.log(timestep, {name: torch.tensor([x]) for name, x in metrics.items()})
            self.episodes.clear()
        self.run.evaluate_if_due(timestep, self.env, self.policy)


def build(baseline: type[Baseline], config: Any, seed: int) -> BaseAlgorithm:
    """The untrained SB3 model of one seed."""
    # Episodes are cut as we cut them, in training and in evaluation, also where no limit is
    # registered; observations and actions are written as our policies see them.
    spec = config.make_env().spec
    kwargs = {**read_kwargs(config.env_kwargs), "max_episode_steps": spec.time_limit}
    with warnings.catch_warnings():  # no render mode, bounds of float64: nothing of use
        warnings.simplefilter("ignore")
        env = make_vec_env(
            config.env,
            n_envs=config.num_envs,
            vec_env_cls=DummyVecEnv,
            wrapper_class=partial(as_ours, spec=spec, rescale=config.rescale_actions),
            env_kwargs=kwargs,
        )
    env = baseline.wrap(env, config)
    model: Any = baseline.model
    arguments = baseline.arguments(config)
    built = model("MlpPolicy", env, seed=seed, device="cpu", **arguments)
    env.seed(seed * config.num_envs)  # from the next reset on, which is learn's
    return cast(BaseAlgorithm, built)


def train(baseline: type[Baseline], config: Any, run: Run) -> SB3Policy:
    """Train the one seed of a run; returns its policy."""
    (seed,) = run.seeds
    model = build(baseline, config, seed)
    policy = baseline.policy(model, config)
    model.learn(config.total_timesteps, callback=RunCallback(run, config.make_env(), policy))
    return policy


def train_seed(library: Peer, algo: str, config: ControlConfig, seed: int, part: Path) -> None:
    """Train one seed and store it as a part: what a worker process does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_up_process(config.threads)
    baseline = library.baselines[algo]
    run = Run(config, [seed], part, f"{library.name}-{algo}", source=library.name)
    definitions = [train, baseline]
    packages = library.packages_of(algo)
    try:
        carry_out(config, partial(train, baseline), run, definitions, packages)
    except (OSError, UsageError) as error:  # a full disk, a folder that vanished
        print(f"error: seed {seed}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except ValueError as error:
        if "found invalid values" not in str(error):  # what torch says of a distribution of NaN
            raise
        why = "SB3's policy became NaN: a reward was not finite, or the training diverged"
        print(f"error: seed {seed}: {why}", file=sys.stderr)
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def train_seeds(
    library: Peer,
    algo: str,
    config: ControlConfig,
    folder: RunFolder,
    seeds: Sequence[int],
    workers: int,
) -> list[int]:
    """Train seeds, `workers` at a time; returns those that failed.

    Not a ProcessPoolExecutor: one worker that dies would take all others with it, unnamed.
    """
    context = multiprocessing.get_context("spawn")
    waiting, failed = list(seeds), []
    running: dict[int, tuple[int, Any]] = {}  # sentinel -> seed and its process
    quiet = dataclasses.replace(config, quiet=True)
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                seed = waiting.pop(0)
                part = folder.path / part_name([seed])
                work = (library, algo, quiet, seed, part)
                process = context.Process(target=train_seed, args=work)
                # Workers inherit that Ctrl-C is ignored: the parent ends them itself.
                handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
                process.start()
                signal.signal(signal.SIGINT, handler)
                running[process.sentinel] = seed, process
            for sentinel in wait(list(running)):
                seed, process = running.pop(cast(int, sentinel))
                process.join()
                if process.exitcode:
                    failed.append(seed)
                    reason = exit_reason(process.exitcode)
                    print(f"error: seed {seed} failed: {reason}", file=sys.stderr, flush=True)
                elif not config.quiet:
                    _print_seed(folder.path / part_name([seed]), seed)
    finally:
        for _, process in running.values():
            process.kill()
            process.join()
    return sorted(failed)


def _print_seed(part: Path, seed: int) -> None:
    summary = read_part(part)[1]
    returns, seconds = summary["final"]["greedy"]["mean"]["value"], summary["total_seconds"]
    text = "unknown" if returns is None else f"{returns:.1f}"
    print(f"seed {seed}: greedy return {text}, {seconds:.0f} s", flush=True)


def measure(algo: str, settings: str) -> dict[str, float]:
    """Train seed 0 without evaluation, on one thread: what `throughput.py` times.

    settings: fields of the algorithm's Config, as JSON.
    """
    torch.set_num_threads(1)
    baseline = BASELINES[algo]
    config = from_identity(baseline.config, json.loads(settings))
    model = build(baseline, config, seed=0)
    began = time.perf_counter()
    model.learn(config.total_timesteps)
    learn_s = time.perf_counter() - began
    return {
        "timesteps": model.num_timesteps,
        "learn_s": learn_s,
        "warm_up_s": 0.0,
        "memory": peak_memory(),
    }


def read_flags(
    args: Sequence[str],
    library: Peer = SB3,
    flags_class: type[Flags] = Flags,
    description: str | None = __doc__,
) -> tuple[str, ControlConfig, int]:
    """Algorithm, its Config and the number of workers; a mistake is one line and status 2."""
    try:
        algo = read_algo(args, flags_class.algo, library.baselines, library.title)
        baseline = library.baselines[algo]
        flags, config = parse_both(
            flags_class, baseline.config, baseline.presets, description, args
        )
        if config.device == "cuda":
            raise UsageError(
                f"--device cuda: {library.title}'s small networks are trained on the CPU"
            )
        if config.init:
            raise UsageError(
                f"--init {config.init}: {library.title} starts from weights of its own"
            )
        if isinstance(config, ppo.Config) and config.anneal_clip and config.clip_range == 0:
            raise UsageError("--clip-range 0: SB3 cannot anneal it; add --no-anneal-clip")
        check_env(config)
        baseline.arguments(config)
        return algo, config, flags.workers
    except UsageError as error:
        exit_with(error)


def check_env(config: ControlConfig) -> None:
    """Refuse what SB3 would train on otherwise than we do."""
    actions = gymnasium.make(
        registered_id(config.env), **read_kwargs(config.env_kwargs)
    ).action_space
    if getattr(actions, "start", 0) != 0:
        raise UsageError(f"--env {config.env}: SB3 needs actions that begin at 0")


def complete_run(
    library: Peer, flags_class: type[Flags], description: str | None, args: Sequence[str]
) -> None:
    """Train the seeds of a command that are not finished yet and print the table of the run."""
    algo, config, workers = read_flags(args, library, flags_class, description)
    say_notes(config, config.make_env())

    def train_missing(folder: RunFolder, todo: Sequence[int]) -> None:
        if failed := train_seeds(library, algo, config, folder, todo, workers):
            print(f"error: failed seeds: {', '.join(map(str, failed))}", file=sys.stderr)
            raise SystemExit(1)

    code = Code(config, [train, library.baselines[algo]], Run.kind_origins())
    folder = complete_parts(code, f"{library.name}-{algo}", train_missing)
    print_result(folder, config, library.baselines[algo].presets.get(config.env))


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """What the command does."""
    words = sys.argv[1:] if args is None else args
    if not measured(words, measure=measure):
        complete_run(SB3, Flags, __doc__, words)


if __name__ == "__main__":
    main()
