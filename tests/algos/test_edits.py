"""What is read is what runs.

An edit of any equation changes a training, with a C compiler as without. Each is made in a copy
of the file in another folder, and trained for a few updates.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from manyseeds import envs, kernels
from manyseeds.algos import ppo
from manyseeds.digest import ROOT
from manyseeds.envs import kernels as c_environments
from manyseeds.kernels.guard import Guard
from manyseeds.runs.configurations import RowRun
from manyseeds.runs.planning import PlanningConfig, PlanningRun
from manyseeds.runs.prediction import PredictionConfig, PredictionRun

CONTINUOUS = {"env": "Pendulum-v1"}
NORMALIZED = {"normalize_obs": True}
PPO = {"num_envs": 2, "num_steps": 32, "minibatch_size": 32, "epochs": 2, "total_timesteps": 64}
A2C = {"num_envs": 4, "num_steps": 16, "total_timesteps": 128}
TRPO = {"num_envs": 2, "num_steps": 32, "critic_epochs": 1, "total_timesteps": 64}
DQN = {"learning_starts": 20, "buffer_size": 200, "hidden": (16, 16), "total_timesteps": 300}
PROCESS = {"noise_type": "ornstein-uhlenbeck", "noise_std": 9.0}
FAST = {"tau": 0.5, "gamma": 0.5}
RAINBOW = {"learning_starts": 20, "batch_size": 16, "hidden": (16, 16), "total_timesteps": 80}
PQN = {"num_envs": 2, "num_steps": 32, "minibatch_size": 16, "epochs": 2, "hidden": (16, 16)}
SAC = {"learning_starts": 20, "batch_size": 16, "hidden": (16, 16), "total_timesteps": 60}
SAC_DISCRETE = {**SAC, "target_entropy": 0.5}
GRPO = {"group_size": 3, "minibatch_size": 32, "epochs": 2, "total_timesteps": 200}
REINFORCE = {"episodes": 3, "critic_updates": 2, "total_timesteps": 200}
TABULAR = {"env": "FrozenLake-v1", "initial_value": 0.5, "total_timesteps": 500}
EPISODES = {"total_episodes": 5, "seeds": 2}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {**PPO, "entropy_coef": 0.01},
    "a2c": {**A2C, "entropy_coef": 0.01},
    "trpo": TRPO,
    "dqn": {**DQN, "target_update_interval": 100},
    "grpo": GRPO,
    "rainbow": {**RAINBOW, "buffer_size": 60, "target_update_interval": 30},
    "sac": SAC,
    "td3": SAC,
    "ddpg": SAC,
    "sac_discrete": SAC_DISCRETE,
    "pqn": {**PQN, "total_timesteps": 192},
    "reinforce": REINFORCE,
    "q_learning": TABULAR,
    "sarsa": TABULAR,
    "monte_carlo": EPISODES,
    "td_prediction": EPISODES,
    "policy_iteration": {"env": "Gridworld-v0", "gamma": 0.9, "evaluation": "exact"},
    "value_iteration": {"env": "Gridworld-v0", "gamma": 0.9},
}


class Edit(NamedTuple):
    """An edit of a function: what stands there once, and what is written instead."""

    algo: str
    function: str
    right: str
    wrong: str
    settings: dict[str, Any] = {}  # noqa: RUF012
    file: str = ""  # of the function, where it is not the algorithm's

    @property
    def path(self) -> Path:
        return ROOT / (self.file or f"algos/{self.algo}.py")

    @property
    def id(self) -> str:
        return f"{self.algo}.{self.function}"


GAE = "next_values * ~terminated - values", "next_values - values"
POLICY = "only(0, self.features(obs)))", "only(0, self.features(obs)) * 99)"
EVALUATE = "values.squeeze(-1)", "2 * values.squeeze(-1)"
NORMALIZE = "keepdim=True) + 1e-8)", "keepdim=True) + 1.0)"
VARIANCE = "return 1 - (returns", "return 2 - (returns"
SQUARE = "(values - returns).square().mean(-1)", "(values - returns).abs().mean(-1)"
BACKWARD = "    total.sum().backward()", "    (3 * total).sum().backward()"
ENTROPY = {"entropy_coef": 10.0}  # of a policy that is not uniform any more
QUANTILES = {"distribution": "quantile", "atoms": 9}
UNIFORM = {"prioritized": False}
NO_ZERO = {"max_grad_norm": 0.0}  # without clipping a factor shows
# Of policies without randomness, in TD3 as in DDPG.
DETERMINISTIC: list[tuple[Any, ...]] = [
    ("Actor.__init__", "torch.tensor(spec.action_low)", "0.5 * torch.tensor(spec.action_low)"),
    ("Actor.forward", ".tanh()", ".sin()"),
    ("Actor.act", "(squashed + noise)", "(squashed - noise)"),
    ("Actor.within_bounds", "(squashed + 1) / 2", "(squashed + 1) / 4"),
    ("Actor.squashed", "- self.low) - 1", "- self.low)"),
    ("Uniform.act", "2 * noise - 1", "1 - 2 * noise"),
    ("ActionNoise.draw", "noise = noise * broadcast", "noise = 2 * noise * broadcast"),
    ("ActionNoise.draw", "+ change * 0.1", "- change * 0.1", PROCESS),
    ("ActionNoise.end", "fill_(done.any(1)", "fill_(~done.any(1)", PROCESS),
    ("Replay.sample", "(noise * self.size)", "(0.5 * noise * self.size)"),
    ("Replay.add", "(new.rewards, new", "(2 * new.rewards, new"),
    ("set_gradients", "p.grad = gradient", "p.grad = -gradient"),
    ("update_target", "* new + broadcast(1 - tau", "* new + broadcast(1 - 2 * tau"),
]
EDITS: dict[str, list[tuple[Any, ...]]] = {
    "ppo": [
        ("gae", *GAE),
        ("gae", "goes_on) * goes_on", "goes_on) * torch.ones_like(goes_on)"),
        ("normalize", *NORMALIZE),
        ("policy_loss", "return -torch.minimum(", "return torch.minimum("),
        ("policy_loss", "clipped * advantages).mean(-1)", "clipped * advantages).sum(-1) * 0"),
        ("policy_loss", "1 + clip_range)", "1)", {"clip_range": 0.01}),
        ("value_loss", *SQUARE),
        ("value_loss", "clamp(-clip", "clamp(-0.1 * clip", {"clip_value_range": 0.01}),
        ("loss", "(logprobs - batch.logprobs).exp()\n    #", "1 + logprobs\n    #"),
        ("loss", "total - broadcast(config.entropy", "total + broadcast(config.entropy", ENTROPY),
        ("backpropagate", *BACKWARD, NO_ZERO),
        ("explained_variance", *VARIANCE),
        ("approximate_kl", "(log_ratio.exp() - 1 - log_ratio)", "(-log_ratio)"),
        ("estimate", "return logprobs, values, gae(", "return logprobs, values, 2 * gae(", NO_ZERO),
        ("prepare", "returns = advantages + values", "returns = advantages"),
        ("update", "optimizer.step(lr, ", "optimizer.step(2 * lr, "),
        ("ActorCritic.policy", *POLICY),
        ("ActorCritic.evaluate", *EVALUATE),
        ("ActorCritic.value", "features(obs)).squeeze", "features(-obs)).squeeze"),
    ],
    "a2c": [
        ("gae", *GAE),
        ("normalize", *NORMALIZE, {"normalize_advantage": True}),
        ("policy_loss", "return -(logprobs", "return (logprobs"),
        ("value_loss", *SQUARE),
        ("loss", "total - broadcast(config.entropy", "total + broadcast(config.entropy", ENTROPY),
        ("backpropagate", *BACKWARD, NO_ZERO),
        ("explained_variance", *VARIANCE),
        ("ActorCritic.policy", *POLICY),
        ("ActorCritic.evaluate", *EVALUATE),
    ],
    "trpo": [
        ("gae", *GAE),
        ("normalize", *NORMALIZE),
        ("surrogate", ".exp() * advantages", ".exp() * -advantages"),
        ("kl_hessian", "keepdim=True)) / p", "keepdim=True)) / 2 / p"),
        ("kl_hessian", "2 * v_log_std", "v_log_std", CONTINUOUS),
        ("fisher_vector_product", "vector) * vector", "vector) * 9 * vector"),
        ("conjugate_gradient", "+ new_square / square", "- new_square / square"),
        ("line_search", "theta + shrink**j", "theta + 0.5 * shrink**j"),
        ("policy_step", "broadcast(2 * config.target_kl", "broadcast(config.target_kl"),
        ("backpropagate", ".square().mean(-1)\n    loss.sum", ".abs().mean(-1)\n    loss.sum"),
        ("fit_critic", "optimizer.step(config", "optimizer.step(2 * config"),
        ("ActorCritic.policy", *POLICY),
        ("ActorCritic.value", "self.features(obs)).squeeze", "self.features(-obs)).squeeze"),
    ],
    "dqn": [
        ("epsilon_at", "initial + progress", "initial - progress"),
        ("epsilons", "steps.double()", "(200 + steps).double()"),
        ("td_target", " * ~terminated", ""),
        ("td_loss", "return errors.square().mean(-1)", "return errors.abs().mean(-1)"),
        ("td_loss", "0.5 * errors.square()", "errors.square()", {"loss": "huber"}),
        ("backpropagate", "    loss.sum()", "    (3 * loss).sum()", NO_ZERO),
        ("update_target", "broadcast(1 - keep, old)", "broadcast(0.5 - keep, old)"),
        ("QNetwork.act", "greedy = self(obs).argmax(-1)", "greedy = self(obs).argmin(-1)"),
        (
            "QNetwork.forward",
            "self.q.only(0, obs)",
            "self.q.only(0, obs) + 1",
            {"total_timesteps": 100},
        ),
        ("Replay.sample", "(noise * self.size)", "(0.5 * noise * self.size)"),
    ],
    "rainbow": [
        (
            "QNetwork.__init__",
            "self.final_eps = 0.0 if",
            "self.bounds = -50.0, 50.0\n        self.final_eps = 0.0 if",
        ),
        ("QNetwork.__init__", 'outputs, "relu"', '(*outputs, 1), "relu"'),
        ("QNetwork.__init__", "config.noise_std / math", "0.1 * config.noise_std / math"),
        ("QNetwork.outputs", "outputs - outputs.mean(-2, keepdim=True)", "outputs"),
        ("QNetwork.values", "outputs.softmax(-1) * self", "outputs.sigmoid() * self"),
        ("QNetwork.values", "return outputs.mean(-1)", "return outputs.amax(-1)", QUANTILES),
        ("QNetwork.support", "(Z - 1), like) * numbers", "(Z - 1), like) * numbers.sqrt()"),
        ("QNetwork.sampled", "noise.abs().sqrt()", "noise.abs()"),
        ("QNetwork.act", "(obs, weights)).argmax(-1)", "(obs, weights)).argmin(-1)"),
        ("Explorer.renew", "p.copy_(weights[name])", "p.copy_(0 * weights[name])"),
        ("Explorer.act", "self.net.act(obs,", "1 - self.net.act(obs,"),
        (
            "SumTree.set",
            "self.nodes.gather(1, 2 * node) +",
            "0.5 * self.nodes.gather(1, 2 * node) +",
        ),
        ("SumTree.find", "is_right = rest >= left", "is_right = rest >= 0.5 * left"),
        ("Replay.add", "(new.actions, new.rewards,", "(new.actions, 2 * new.rewards,"),
        ("Replay.places", "(uniforms * self.size)", "(0.5 * uniforms * self.size)", UNIFORM),
        ("Replay.sample", "discount = discount * (final", "discount = 0.5 * discount * (final"),
        ("Replay.sample", "(age.unsqueeze(-1) < N", "(age.unsqueeze(-1) < 3 * N"),
        ("Replay.set_priorities", "errors.double() + SMALLEST", "errors.double() + 1"),
        ("Replay.importance_weights", "leaves.amin(-1", "leaves.amax(-1"),
        ("beta_at", "+ progress * (1", "- progress * (1"),
        ("project", "probabilities * (1 - share)", "probabilities * share"),
        ("quantile_loss", "(errors < 0)", "(errors > 0)", QUANTILES),
        ("losses_of", "-(goal * outputs.log_softmax(-1))", "-2 * (goal * outputs.log_softmax(-1))"),
        ("losses_of", "divergence.clamp(min=0)", "divergence.clamp(min=1)"),
        ("of_actions", "outputs.gather(2, index)", "outputs.gather(2, 1 - index)"),
        ("update", "if config.double else", "if not config.double else"),
        ("update", "loss = losses.mean(-1)", "loss = losses.sum(-1)"),
    ],
    "sac": [
        ("SquashedGaussian.sample", "(of_u - of_tanh)", "(of_u + of_tanh)"),
        ("SquashedGaussian.sample", "u.tanh(), (", "0.5 * u.tanh(), ("),
        ("Actor.__init__", "torch.tensor(spec.action_low)", "0.5 * torch.tensor(spec.action_low)"),
        ("Critics.__init__", '(1, 1), "relu")', '(1, 1, 1), "relu")'),
        ("Temperature.__init__", "given = config", "given = 2 * config", {"alpha": 0.3}),
        ("Temperature.__init__", "len(spec.action_low) *", "-9 *"),
        ("Actor.forward", "clamp(-20, 2)", "clamp(-20, -2)"),
        ("Actor.act", "policy.sample(noise)[0]", "-policy.sample(noise)[0]"),
        ("Actor.within_bounds", "(squashed + 1) / 2", "(squashed + 1) / 4"),
        ("Actor.squashed", "- self.low) - 1", "- self.low)"),
        ("Uniform.act", "2 * noise - 1", "1 - 2 * noise"),
        ("Exploring.act", "[0] + added", "[0] - added", {"noise_std": 0.3}),
        ("Critics.forward", "torch.stack(self.q(", "3 * torch.stack(self.q("),
        ("Temperature.forward", "detach().exp()", "detach().cosh()"),
        ("Temperature.loss", "return -self.log_alpha", "return self.log_alpha"),
        ("Replay.sample", "(noise * self.size)", "(0.5 * noise * self.size)"),
        ("Replay.add", "(new.rewards, new", "(2 * new.rewards, new"),
        ("td_target", "next_q_values.amin(0)", "next_q_values.amax(0)"),
        ("critic_loss", "- targets).square()", "- targets).abs()"),
        ("actor_loss", "* logprobs - q_values", "* logprobs + q_values"),
        ("set_gradients", "p.grad = gradient", "p.grad = -gradient"),
        ("update_target", "* new + broadcast(1 - tau", "* new + broadcast(1 - 2 * tau"),
        ("update", "critics(batch.obs, actions), alpha)", "target(batch.obs, actions), alpha)"),
    ],
    "td3": [
        *DETERMINISTIC,
        ("Critics.__init__", '(1, 1), "relu")', '(1, 1, 1), "relu")'),
        ("Critics.forward", "torch.stack(self.q(", "3 * torch.stack(self.q("),
        ("smoothed", "broadcast(std, noise) * noise", "3 * broadcast(std, noise) * noise"),
        ("td_target", "next_q_values.amin(0)", "next_q_values.amax(0)"),
        ("critic_loss", "- targets).square()", "- targets).abs()"),
        ("actor_loss", "-q_values[0]", "-q_values[1]"),
        ("update", "policy_delay == 0", "policy_delay == 1"),
        (
            "update",
            "update_target(target_actor, actor",
            "update_target(target_actor, target_actor",
            FAST,
        ),
    ],
    "ddpg": [
        *DETERMINISTIC,
        ("Critic.__init__", '(1,), "relu")', '(1,), "tanh")'),
        ("Critic.forward", "dim=-1)).squeeze(-1)", "dim=-1)).squeeze(-1) * 2"),
        ("td_target", "+ broadcast(gamma, rewards)", "- broadcast(gamma, rewards)"),
        ("critic_loss", "- targets).square()", "- targets).abs()"),
        ("actor_loss", "-q_values", "-2 * q_values.tanh()"),
        ("update", "critic(batch.obs, actor(", "target_critic(batch.obs, actor("),
    ],
    "sac_discrete": [
        (
            "Actor.forward",
            "Categorical(self.net.only(0, obs))",
            "Categorical(self.net.only(0, -obs))",
        ),
        ("Actor.logprobs", "log_softmax(-1)", "log_softmax(-1) / 2"),
        ("Actor.act", "policy.sample(noise)", "policy.sample(-noise)"),
        ("Uniform.act", "noise.squeeze(-1).long()", "1 - noise.squeeze(-1).long()"),
        ("Critics.__init__", "spec.num_actions, spec.num_actions", "3 * (spec.num_actions,)"),
        ("Critics.forward", "torch.stack(self.q(obs))", "3 * torch.stack(self.q(obs))"),
        ("Temperature.__init__", "given = config", "given = 2 * config", {"alpha": 0.3}),
        ("Temperature.__init__", "= math.log(", "= 9 * math.log("),
        ("Temperature.forward", "detach().exp()", "detach().cosh()"),
        ("Temperature.loss", "return -self.log_alpha", "return self.log_alpha"),
        ("Replay.sample", "(noise * self.size)", "(0.5 * noise * self.size)"),
        ("Replay.add", "(new.actions, new.rewards", "(new.actions, 2 * new.rewards"),
        ("expectation", "(logprobs.exp() * values).sum", "(logprobs.exp() * values).mean"),
        ("td_target", "next_q_values.amin(0)", "next_q_values.amax(0)"),
        ("td_target", " * ~terminated", ""),
        ("critic_loss", "- targets).square()", "- targets).abs()"),
        ("actor_loss", "* logprobs - q_values", "* logprobs + q_values"),
        ("update_target", "* new + broadcast(1 - tau", "* new + broadcast(1 - 2 * tau"),
        ("update", "all_q_values = critics(batch.obs)", "all_q_values = target(batch.obs)"),
    ],
    "pqn": [
        ("exploration_rate", "(final - initial)", "(final + initial)"),
        ("lambda_returns", " * ~terminated", ""),
        ("lambda_returns", "(terminated | truncated)", "truncated"),
        ("lambda_returns", "goes_on[:, -1].zero_()", "goes_on[:, -1].fill_(1)"),
        ("lambda_returns", "(1 - decay) *", "decay *"),
        ("estimate", "rollout.rewards) * rollout.rewards", "rollout.rewards) + rollout.rewards"),
        ("estimate", ".amax(-1)", ".amin(-1)"),
        ("loss", "- batch.returns).square()", "- batch.returns).abs()"),
        ("backpropagate", "    total.sum()", "    (3 * total).sum()", NO_ZERO),
        ("update", "optimizer.step(lr, ", "optimizer.step(2 * lr, "),
        ("update", "permutations(shuffle)", "permutations(1 - shuffle)"),
        ("QNetwork.__init__", "config.layer_norm)", "not config.layer_norm)"),
        ("QNetwork.act", "greedy = self(obs).argmax(-1)", "greedy = self(obs).argmin(-1)"),
        ("QNetwork.forward", "self.q.only(0, obs)", "self.q.only(0, obs) + 1"),
        ("QNetwork.forward", "self.q.only(0, obs)", "self.q.only(0, -obs)"),
    ],
    "grpo": [
        ("evaluate_samples", "wanted, advantages.flatten(1)", "wanted, -advantages.flatten(1)"),
        ("returns_to_go", "torch.ones_like(rows) *", "0.5 * torch.ones_like(rows) *"),
        ("compare", "centered / (variance.sqrt() + 1e-8", "centered / (variance.sqrt() + 1.0"),
        ("group_advantages", "advantages = advantages * alive", "advantages = -advantages * alive"),
        ("masked_mean", ".clamp(min=1)\n\n\ndef clip", ".clamp(min=1) * 2\n\n\ndef clip"),
        ("clip_bounds", "broadcast(1 + above", "broadcast(1 + 0 * above"),
        ("policy_loss", "return -torch.minimum", "return torch.minimum"),
        ("k3", "log_ratio.exp() - log_ratio - 1", "-log_ratio", {"kl_coef": 0.1}),
        ("loss", "ratio = log_ratio.exp()", "ratio = 1 + 2 * log_ratio"),
        ("Actor.policy", *POLICY),
        ("Actor.evaluate", "self.policy(obs).logprob", "self.policy(-obs).logprob"),
    ],
    "reinforce": [
        ("returns_to_go", "torch.ones_like(rows) *", "0.5 * torch.ones_like(rows) *"),
        (
            "normalize",
            "variance.sqrt() + 1e-8",
            "variance.sqrt() + 1.0",
            {"normalize_advantage": True},
        ),
        ("phi", "weights - predicted", "weights", {"weight": "baseline"}),
        ("policy_gradient", "pg_loss = -(by", "pg_loss = (by"),
        ("Actor.policy", *POLICY),
        ("Actor.forward", "self.network.only(0, features))", "self.network.only(0, -features))"),
    ],
    "q_learning": [
        ("td_error", "~terminated - lookup", "~terminated + lookup"),
        ("greedy_value", "amax(-1)\n\n\ndef td", "amin(-1)\n\n\ndef td"),
        ("linear", "start + (end", "start - (end"),
        ("QTable.act", "explores < exploration", "explores > exploration"),
    ],
    "sarsa": [
        ("td_error", "~terminated - lookup", "~terminated + lookup"),
        ("expected_value", "1 - epsilon, best", "epsilon, best", {"expected": True}),
    ],
    "monte_carlo": [
        ("returns", "reward + gamma * G", "reward - gamma * G"),
        (
            "first_visits",
            "(first.gather(1, states) == t)",
            "(first.gather(1, states) <= t)",
            {"visits": "first"},
        ),
        ("learn", "target - values", "target + values"),
    ],
    "td_prediction": [
        ("n_step_sums", "discounts[i] * rewards", "2 * rewards"),
        (
            "learn_n_step",
            "reward + factor * values.gather(1, ahead)",
            "reward - factor * values.gather(1, ahead)",
        ),
        (
            "learn_traces",
            "broadcast(gamma * trace_decay",
            "broadcast(trace_decay / 2",
            {"trace_decay": 0.5},
        ),
    ],
    "policy_iteration": [
        ("action_values", "(R + gamma", "(-R + gamma"),
        ("evaluate", "config.gamma).squeeze(0)", "0.5).squeeze(0)"),
    ],
    "value_iteration": [
        ("action_values", "gamma * V[", "0.5 * V["),
        ("action_values", "(R + gamma", "(2 * R + gamma"),
    ],
}
ALGORITHMS = [Edit(algo, *edit) for algo, edits in EDITS.items() for edit in edits]
LAYERS, SAMPLES = "manyseeds/layers.py", "manyseeds/samples.py"
FEATURES = "else self.obs_stats.normalize(obs)", "else 2 * self.obs_stats.normalize(obs)"
OPTIM = "manyseeds/optim.py"
SHARED = [
    Edit(
        "ppo",
        "SeedAdam.step",
        "self.grads.square(), weight2)\n        scale",
        "self.grads, weight2)\n        scale",
        {},
        OPTIM,
    ),
    Edit("pqn", "SeedRAdam.step", "length > 5,", "length > 9,", {}, OPTIM),
    Edit("pqn", "SeedMLP._layers", "eps=1e-5", "eps=1e-1", {}, LAYERS),
    *(
        Edit(algo, "SeedPolicy.act", "policy.sample(noise)", "policy.sample(-noise)", {}, LAYERS)
        for algo in ("ppo", "a2c", "trpo", "grpo", "reinforce")
    ),
    Edit("ppo", "SeedPolicy.features", *FEATURES, NORMALIZED, LAYERS),
    Edit(
        "ppo",
        "SeedPolicy.distribution",
        "log_std[:, 0])  #",
        "log_std[:, 0] - 1)  #",
        CONTINUOUS,
        LAYERS,
    ),
    Edit(
        "ppo",
        "SeedPolicy.draw",
        "shape, self.action_size)",
        "shape, self.action_size) / 2",
        CONTINUOUS,
        LAYERS,
    ),
    Edit(
        "a2c",
        "n_step",
        "+ gamma * targets[:, 1:]",
        "- gamma * targets[:, 1:]",
        {"advantage": "n_step"},
        SAMPLES,
    ),
    Edit(
        "a2c",
        "monte_carlo",
        "+ gamma * following\n",
        "+ following\n",
        {"advantage": "monte_carlo"},
        SAMPLES,
    ),
]


class Dynamics(NamedTuple):
    """An edit of an environment's file."""

    env: str
    right: str
    wrong: str

    @property
    def id(self) -> str:
        return f"{self.env}: {self.right.strip()}"


CAR, CAR_C = "MountainCar-v0", "MountainCarContinuous-v0"
ENVIRONMENTS = [
    Dynamics("CartPole-v1", "FORCE = 10.0", "FORCE = 0.5"),
    Dynamics("CartPole-v1", "GRAVITY = 9.8", "GRAVITY = 1.6"),
    Dynamics("CartPole-v1", "MASS_POLE = 0.1", "MASS_POLE = 0.5"),
    Dynamics("CartPole-v1", "noise * 0.1 - 0.05", "noise * 0.2 - 0.1"),
    Dynamics("CartPole-v1", "return torch.ones_like(physics[..., 0])", "return physics[..., 0]"),
    Dynamics("CartPole-v1", "THETA_LIMIT = 12", "THETA_LIMIT = 3"),
    Dynamics("CartPole-v1", "        return physics\n", "        return -physics\n"),
    Dynamics("CartPole-v1", "time_limit=500", "time_limit=7"),
    Dynamics("Acrobot-v1", "TORQUE = 1.0", "TORQUE = 3.0"),
    Dynamics("Acrobot-v1", "delta = phi - theta", "delta = phi + theta"),
    Dynamics("Acrobot-v1", "noise * 0.2 - 0.1", "noise * 0.4"),
    Dynamics(CAR, "GRAVITY = 0.0025", "GRAVITY = 0.001"),
    Dynamics(CAR, "    force = 0.001\n", "    force = 0.01\n"),
    Dynamics(CAR, "torch.full_like(physics[..., 0], -1)", "physics[..., 0].abs()"),
    Dynamics(CAR, "WALL = -1.2", "WALL = -0.5"),
    Dynamics(CAR_C, "    force = 0.0015\n", "    force = 0.01\n"),
    Dynamics(CAR_C, "value=-0.1)", "value=-1.0)"),
    Dynamics("Pendulum-v1", "value=0.001)", "value=1.0)"),
    Dynamics("Pendulum-v1", "TAU = 0.05", "TAU = 0.02"),
    Dynamics("Pendulum-v1", "theta.cos(), theta.sin()", "theta.sin(), theta.cos()"),
]
LAST = itertools.count()


def edited(path: Path, right: str, wrong: str, folder: Path) -> ModuleType:
    """The module of a file's copy in another folder, with one edit."""
    text = path.read_text()
    assert text.count(right) == 1, f"{path.name} has {right!r} {text.count(right)} times"
    copy = folder / f"edited_{next(LAST)}_{path.name}"
    copy.write_text(text.replace(right, wrong))
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    assert spec
    assert spec.loader
    module = sys.modules[copy.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(module: ModuleType, settings: dict[str, Any]) -> np.ndarray:
    """All that a short training in memory ends with: weights, and metrics of its updates."""
    config = module.Config(**settings, quiet=True)
    if isinstance(config, PlanningConfig):
        return np.asarray(module.solve(config, PlanningRun(config)))
    if isinstance(config, PredictionConfig):
        return np.asarray(module.train(config, PredictionRun(config)))
    run = RowRun([config] * 2, [0, 1], curves=False)
    policy = module.train(run.config, run)
    weights = [x.detach().numpy().ravel() for x in policy.state_dict().values()]
    metrics = [x.ravel() for window in run.windows for x in window.metrics.values()]
    return np.concatenate([*weights, *metrics]).astype(np.float64)


def key_of(settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(settings.items()))


@cache
def unedited(algo: str, settings: tuple[tuple[str, Any], ...]) -> np.ndarray:
    return outcome(importlib.import_module(f"manyseeds.algos.{algo}"), dict(settings))


def assert_counts(module: ModuleType, settings: dict[str, Any], before: np.ndarray) -> None:
    """An edit has changed the outcome, and to the same with C as without."""
    now = outcome(module, settings)
    with kernels.off():
        without_c = outcome(module, settings)
    far = now.shape != before.shape or not np.allclose(now, before, 1e-4, 1e-6, equal_nan=True)
    assert far, "the edit changed nothing"
    np.testing.assert_allclose(now, without_c, rtol=5e-3, atol=1e-3)


@pytest.fixture(autouse=True)
def _has_kernels() -> None:
    if not kernels.available():
        pytest.skip("needs a C compiler")


def test_every_function_of_every_algorithm_is_edited() -> None:
    """But for what every run has: flags, loops, noise, loading."""
    others = {"train", "load", "solve", "play", "make_optimizer", "flat", "dot", "rows", "lookup"}
    others |= {"schedules", "greedy", "goal_of_residual", "improve", "fit", "metrics_of", "add_"}
    others |= {"minibatches", "kl_divergence"}
    for algo in SMALL:
        module = importlib.import_module(f"manyseeds.algos.{algo}")
        functions = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        edits = {edit.function for edit in ALGORITHMS if edit.algo == algo}
        copied = {edit.function for edit in ALGORITHMS if edit.algo != algo}  # held equal
        assert set(functions) - others - copied <= edits, algo


@pytest.mark.parametrize("edit", ALGORITHMS, ids=[f"{e.id}-{k}" for k, e in enumerate(ALGORITHMS)])
def test_an_edit_of_an_algorithm_counts(edit: Edit, tmp_path: Path) -> None:
    settings = {**SMALL[edit.algo], **edit.settings}
    module = edited(edit.path, edit.right, edit.wrong, tmp_path)
    assert_counts(module, settings, unedited(edit.algo, key_of(settings)))


IN_PLACE = [edit for edit in ALGORITHMS if edit.algo in ("ppo", "dqn", "trpo")] + SHARED


@pytest.mark.parametrize("edit", IN_PLACE, ids=[f"{e.id}-{k}" for k, e in enumerate(IN_PLACE)])
def test_a_function_that_takes_another_ones_place_counts(
    edit: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`algos.ppo.policy_loss = mine`, in the middle of a training, too."""
    settings = {**SMALL[edit.algo], **edit.settings}
    module = importlib.import_module(f"manyseeds.algos.{edit.algo}")
    before = unedited(edit.algo, key_of(settings))
    changed = edited(edit.path, edit.right, edit.wrong, tmp_path)
    cls, _, name = edit.function.rpartition(".")
    target, source = (getattr(m, cls) if cls else m for m in (module, changed))
    monkeypatch.setattr(target, name, vars(source)[name])
    assert_counts(module, settings, before)
    monkeypatch.undo()
    np.testing.assert_array_equal(outcome(module, settings), before)  # back in C, to the bit


LOG_STD = "self.log_std = self.networks.constant(self.action_size, config.log_std_init)"
FIXED = "fixed = self.networks.constant(self.action_size, -1.0).data; del self.log_std; "
FIXED += "self.log_std = fixed"
TIED = "self.reward_scale = None\n        self.networks.weights[1] = self.networks.weights[2]\n"
ELSEWHERE: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "ppo": [
        ("SeedAdam(agent,", "SeedAdam(agent.networks,", CONTINUOUS),
        (LOG_STD, FIXED, CONTINUOUS),
        ("self.reward_scale = None\n", TIED, {"hidden": (16, 16, 16)}),
        (
            "self.reward_scale = None\n",
            "self.reward_scale = None\n        self.networks.outputs = list(heads)\n",
            {"hidden": (8,)},
        ),
    ],
    "a2c": [
        (
            "optimizer = make_optimizer(agent,",
            "optimizer = make_optimizer(agent.networks,",
            CONTINUOUS,
        ),
        (LOG_STD, FIXED, CONTINUOUS),
    ],
    "grpo": [("SeedAdam(actor,", "SeedAdam(actor.network,", CONTINUOUS)],
    "reinforce": [("SeedAdam(actor,", "SeedAdam(actor.network,", CONTINUOUS)],
}
PARAMETERS = [Edit(algo, "train", *edit) for algo, edits in ELSEWHERE.items() for edit in edits]


@pytest.mark.parametrize("edit", PARAMETERS, ids=[f"{e.id}-{k}" for k, e in enumerate(PARAMETERS)])
def test_parameters_may_lie_where_no_kernel_expects_them(edit: Edit, tmp_path: Path) -> None:
    """One that the optimizer does not train, a constant, and one of two layers."""
    module = edited(edit.path, edit.right, edit.wrong, tmp_path)
    settings = {**SMALL[edit.algo], **edit.settings}
    now = outcome(module, settings)
    with kernels.off():
        np.testing.assert_allclose(now, outcome(module, settings), rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("edit", ENVIRONMENTS, ids=lambda e: e.id)
def test_an_edit_of_an_environment_counts(
    edit: Dynamics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training as in evaluation."""
    settings = {**SMALL["ppo"], "env": edit.env}
    before = unedited("ppo", key_of(settings))
    original = type(envs.NATIVE[edit.env]())
    path = Path(inspect.getfile(original))
    cls = getattr(edited(path, edit.right, edit.wrong, tmp_path), original.__name__)
    name = c_environments.GUARDS[original].kernel
    guard = Guard(name, *c_environments.DYNAMICS, c_of=original)
    monkeypatch.setitem(envs.NATIVE, edit.env, cls)
    monkeypatch.setitem(c_environments.GUARDS, cls, guard)
    assert_counts(ppo, settings, before)


def test_a_constant_that_is_bound_anew_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the dynamics have been computed with the old one."""
    settings = {**SMALL["ppo"], "env": "CartPole-v1"}
    before = unedited("ppo", key_of(settings))
    monkeypatch.setattr("manyseeds.envs.cartpole.FORCE", 0.5)
    assert_counts(ppo, settings, before)


def test_a_copy_that_says_the_same_runs_in_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Docstrings, comments and annotations say nothing."""
    right = "advantages: Tensor, clip_range: Tensor | None) -> Tensor:"
    wrong = "advantages, clip_range: Tensor | None) -> Tensor:  # mine"
    copy = edited(ROOT / "algos" / "ppo.py", right, wrong, tmp_path)
    asked: list[bool] = []
    monkeypatch.setattr(torch.Tensor, "backward", lambda *args: asked.append(True))
    settings = key_of(SMALL["ppo"])
    np.testing.assert_array_equal(outcome(copy, dict(settings)), unedited("ppo", settings))
    assert not asked
    assert "changed" not in capsys.readouterr().err
