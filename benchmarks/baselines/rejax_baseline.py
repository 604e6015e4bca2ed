"""rejax's PPO, DQN and PQN with our hyperparameters; environments in JAX, seeds in one batch.

    .venv-jax/bin/python benchmarks/rejax_baseline.py --algo ppo --env CartPole-v1 --seeds 30

In an environment of its own, which `make jax-env` sets up. Flags and presets are those of the
algorithm's own file. rejax trains in gymnax's environments, DQN's seeds one by one; its weights at
each 1/20 of the training are loaded into our networks and evaluated as ours are, in our
environments.

What stays rejax's own:
 1. A time limit is a terminal state: nothing is bootstrapped behind it.
 2. Gradients are clipped per element, not by their norm; PPO's actor and critic have an optimizer
    each. Adam's epsilon is 1e-8 (SB3's PPO and ours: 1e-5).
 3. Layers start as LeCun normal with zero biases, those of PPO's policy, too.
 4. PPO: values are clipped by the policy's clip range, the larger of both errors counts, and
    nothing is annealed. The advantages' standard deviation is that of the population. Normalised
    observations and rewards are not limited to +-10; the discounted returns that scale rewards
    have gamma 0.99 and begin anew one step early.
 5. DQN: the loss is half the squared error, whatever --loss says.
 6. DQN: `gradient_steps` after every `train_freq` steps become the same number of updates per step,
    spread evenly: 128 after 256 is one after every two, taken in two environments.
 7. The training is cut into 20 equal pieces of whole updates, so that it is a little longer.
 8. PQN: Adam (ours: RAdam), half the squared error, and in returns the largest action value one
    step later than that of the successor. The variance that normalises a layer gets 1e-6 (1e-5).

Not rejax's: minibatches of DQN are drawn with replacement, as SB3, SBX and ours draw them. rejax's
draw without it takes a random number for every place of the buffer, most of the time of a training.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from manyseeds.algos import dqn, ppo, pqn
from manyseeds.benchmarks.experiments import jax_peer
from manyseeds.cli import ControlConfig, Preset, parse_both, read_algo
from manyseeds.errors import UsageError
from manyseeds.evaluate import POINTS
from manyseeds.runs.base import complete_seeds
from manyseeds.runs.control import Run, print_result

# The module can be read where it cannot be used.
jax, rejax = jax_peer.optional("jax"), jax_peer.optional("rejax")

Agent = ppo.ActorCritic | dqn.QNetwork | pqn.QNetwork
PACKAGES = ("rejax", "gymnax", "jax")
ENVS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "MountainCarContinuous-v0")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What this script has besides the flags of the algorithm."""

    algo: str = "ppo"
    """Algorithm: ppo, dqn or pqn."""


@dataclass(frozen=True)
class Peer:
    """An algorithm of rejax, and how the Config of ours that it follows is translated."""

    name: str
    config: type[ControlConfig]
    presets: Mapping[str, Preset]
    arguments: Callable[[Any], dict[str, Any]]  # of rejax's `create`
    kept: Callable[[Any], dict[str, Any]]  # what an evaluation needs of rejax's state
    agent: Callable[[Any, Any, Any], Agent]  # ours, from spec, Config and streams


def ppo_arguments(config: ppo.Config) -> dict[str, Any]:
    """Raises UsageError for what rejax's PPO does not have."""
    refuse(config.anneal_lr, "--anneal-lr", "has no schedules")
    refuse(config.anneal_clip, "--anneal-clip", "has no schedules")
    refuse(not config.clip_range, "--clip-range 0", "always clips")
    refuse(bool(config.target_kl), f"--target-kl {config.target_kl}", "has none")
    refuse(not config.normalize_advantage, "--no-normalize-advantage", "always normalises")
    if config.batch_size % config.minibatch:
        refuse(True, f"--minibatch-size {config.minibatch}", "needs minibatches of one size")
    return {
        "num_envs": config.num_envs,
        "num_steps": config.num_steps,
        "num_epochs": config.epochs,
        "num_minibatches": config.batch_size // config.minibatch,
        "gae_lambda": config.gae_lambda,
        "clip_eps": config.clip_range,
        "vf_coef": 2 * config.value_coef,  # rejax halves the squared error
        "ent_coef": config.entropy_coef,
        "normalize_observations": config.normalize_obs,
        "normalize_rewards": config.normalize_reward,
        "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": config.hidden},
    }


def dqn_arguments(config: dqn.Config) -> dict[str, Any]:
    """Raises UsageError for what rejax's DQN does not have."""
    shared = math.gcd(config.updates, config.block)
    return {
        "num_envs": config.block // shared,  # 6.
        "num_epochs": config.updates // shared,
        "buffer_size": config.buffer_size,
        "fill_buffer": config.learning_starts,
        "batch_size": config.batch_size,
        "target_update_freq": config.target_update_interval,
        "polyak": 1 - config.tau,
        "eps_start": config.exploration_initial_eps,
        "eps_end": config.exploration_final_eps,
        "exploration_fraction": config.exploration_fraction,
        "ddqn": False,
        "agent_kwargs": {"activation": "relu"},
    }


def pqn_arguments(config: pqn.Config) -> dict[str, Any]:
    """Raises UsageError for what rejax's PQN does not have."""
    refuse(config.anneal_lr, "--anneal-lr", "has no schedules")
    refuse(config.reward_scale != 1, f"--reward-scale {config.reward_scale}", "has none")
    refuse(not config.layer_norm, "--no-layer-norm", "always normalises")
    return {
        "num_envs": config.num_envs,
        "num_steps": config.num_steps,
        "num_epochs": config.epochs,
        "num_minibatches": config.batch_size // config.minibatch,
        "td_lambda": config.q_lambda,
        "eps_start": config.exploration_initial_eps,
        "eps_end": config.exploration_final_eps,
        "exploration_fraction": config.exploration_fraction,
    }


def refuse(condition: bool, flag: str, why: str) -> None:
    """Raise UsageError where a condition holds."""
    if condition:
        raise UsageError(f"{flag}: rejax {why}")


def kept_of_ppo(state: Any) -> dict[str, Any]:
    """Of one seed: the actor, its log standard deviations, the statistics of observations."""
    params = dict(state.actor_ts.params["params"])
    log_std = params.pop("action_log_std", None)
    kept = {"layers": params} | ({} if log_std is None else {"log_std": log_std})
    return kept | {"mean": state.obs_rms_state.mean, "var": state.obs_rms_state.var}


def ours_with(agent: Agent, kept: dict[str, Any]) -> Agent:
    """Our agent with rejax's weights: arrays [S, in, out] and [S, out] of each layer."""
    net = agent.networks if isinstance(agent, ppo.ActorCritic) else agent.q
    with torch.no_grad():
        for k, (kernel, bias) in enumerate(layers_of(kept["layers"])):
            width = kernel.shape[-1]
            net.weights[k][:, 0, :, :width] = torch.from_numpy(kernel)
            net.biases[k][:, 0, 0, :width] = torch.from_numpy(bias)
        if isinstance(agent, pqn.QNetwork):
            for k, (gain, shift) in enumerate(norms_of(kept["layers"])):
                net.gains[k][:, 0, 0] = torch.from_numpy(gain)
                net.shifts[k][:, 0, 0] = torch.from_numpy(shift)
        if isinstance(agent, ppo.ActorCritic):
            if agent.obs_stats is not None:
                agent.obs_stats.mean[:, 0] = torch.from_numpy(kept["mean"]).double()
                agent.obs_stats.var[:, 0] = torch.from_numpy(kept["var"]).double()
            if agent.log_std is not None:
                agent.log_std[:, 0, 0] = torch.from_numpy(kept["log_std"])
    return agent


def layers_of(params: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Kernels and biases from the input on: the layers of a network within, then its own."""

    within = [layer for inner in params.values() for layer in numbered(inner, "kernel")]
    layers = within + numbered(params, "kernel")
    return [(np.array(layer["kernel"]), np.array(layer["bias"])) for layer in layers]


def norms_of(params: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Gains and shifts of normalised layers, from the input on."""
    layers = numbered(params, "scale")
    return [(np.array(layer["scale"]), np.array(layer["bias"])) for layer in layers]


def numbered(layers: Mapping[str, Any], has: str) -> list[Any]:
    """The layers that have a parameter, in the order of the numbers in their names."""
    found = [name for name in layers if has in layers[name]]
    return [layers[x] for x in sorted(found, key=lambda x: int(re.sub(r"\D", "", x) or 0))]


def kept_of_dqn(state: Any) -> dict[str, Any]:
    """Of one seed of DQN or PQN: the action values."""
    return {"layers": state.q_ts.params["params"]}


PEERS: dict[str, Peer] = {
    "ppo": Peer("ppo", ppo.Config, ppo.PRESETS, ppo_arguments, kept_of_ppo, ppo.ActorCritic),
    "dqn": Peer("dqn", dqn.Config, dqn.PRESETS, dqn_arguments, kept_of_dqn, dqn.QNetwork),
    "pqn": Peer("pqn", pqn.Config, pqn.PRESETS, pqn_arguments, kept_of_dqn, pqn.QNetwork),
}


def train(peer: Peer, config: Any, run: Run) -> Agent:
    """Train all seeds of a run; returns our agent with their weights."""
    env = config.make_env()
    every = math.ceil(config.total_timesteps / POINTS)
    algo = rejax.get_algo(peer.name).create(
        env=config.env,
        total_timesteps=every * POINTS,
        eval_freq=every,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        max_grad_norm=config.max_grad_norm or math.inf,
        **peer.arguments(config),
    )
    if peer.name != "ppo":  # create() has no way to say it
        algo = algo.replace(agent=algo.agent.clone(hidden_layer_sizes=config.hidden))
    if peer.name == "dqn":
        rejax.buffers.ReplayBuffer.sample = sample_with_replacement

    def kept(algo: Any, state: Any, key: Any) -> dict[str, Any]:
        return {**peer.kept(state), "timestep": state.global_step}

    algo = algo.replace(eval_callback=kept)
    keys = jax.vmap(jax.random.PRNGKey)(np.array(run.seeds))
    # A batch of DQN's seeds copies all of their buffers at every step: half as fast as one by one.
    batched = partial(jax.lax.map, algo.train) if peer.name == "dqn" else jax.vmap(algo.train)
    _, points = jax.block_until_ready(jax.jit(batched)(keys))
    points = jax.tree.map(np.asarray, points)  # [S, points, ...]
    agent = peer.agent(env.spec, config, run.streams("init"))
    for k, timestep in enumerate(points["timestep"][0]):
        ours_with(agent, jax.tree.map(lambda x, k=k: x[:, k], points))
        if timestep:
            run.log(int(timestep), {"weight_norm": weight_norm(agent)})
        run.evaluate_if_due(int(timestep), env, agent)
    return agent


def sample_with_replacement(buffer: Any, num: int, key: Any) -> Any:
    """A minibatch of a ReplayBuffer of rejax."""
    chosen = jax.random.randint(key, (num,), 0, buffer.num_entries)
    return jax.tree.map(lambda x: x[chosen], buffer.data)


def weight_norm(agent: Agent) -> torch.Tensor:
    """The norm of each seed's parameters, [S]."""
    parameters = [p.detach().flatten(1) for p in agent.parameters()]
    return torch.cat(parameters, 1).norm(dim=1)


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Train the seeds that are not finished yet and print the table of the run."""
    words = sys.argv[1:] if args is None else args
    name = read_algo(words, Flags.algo, PEERS, "rejax")
    peer = PEERS[name]
    _, config = parse_both(Flags, peer.config, peer.presets, __doc__, words)
    refuse(config.env not in ENVS, f"--env {config.env}", f"has {', '.join(ENVS)}")
    peer.arguments(config)
    refuse(bool(config.init), f"--init {config.init}", "starts from weights of its own")
    refuse(bool(config.env_kwargs), "--env-kwargs", "has environments of its own")
    refuse(config.rescale_actions, "--rescale-actions", "has environments of its own")
    if rejax is None:
        raise UsageError(f"rejax is not installed here: make jax-env, then {jax_peer.PYTHON}")
    folder = complete_seeds(
        config,
        partial(train, peer),
        partial(Run, source="rejax"),
        f"rejax-{name}",
        [train, peer.arguments, peer.kept],
        PACKAGES,
    )
    print_result(folder, config, peer.presets.get(config.env))


if __name__ == "__main__":
    main()
