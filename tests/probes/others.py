"""Code as other libraries write it: CleanRL's and SB3's lines, as functions of what probes give.

`sb3_*` let SB3's own methods compute. All others are copied, so that a test can plant a bug.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

# ---- CleanRL's ppo.py, with the bootstrapping that it lacks -------------------------------------


def ppo_gae(rewards, values, next_values, terminated, truncated, gamma, gae_lambda):
    advantages = torch.zeros_like(rewards)
    num_steps = len(rewards)
    lastgaelam = 0.0
    for t in reversed(range(num_steps)):
        bootstrap = 1.0 - terminated[t].float()
        nextnonterminal = 1.0 - (terminated[t] | truncated[t]).float()
        delta = rewards[t] + gamma * next_values[t] * bootstrap - values[t]
        advantages[t] = lastgaelam = delta + gamma * gae_lambda * nextnonterminal * lastgaelam
    return advantages


def ppo_loss(
    logprobs, old_logprobs, entropy, values, advantages, returns, clip_range, value_coef,
    entropy_coef, normalize_advantage,
):  # fmt: skip
    logratio = logprobs - old_logprobs
    ratio = logratio.exp()
    mb_advantages = advantages
    if normalize_advantage:
        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
    pg_loss1 = -mb_advantages * ratio
    pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
    pg_loss = torch.max(pg_loss1, pg_loss2).mean()
    v_loss = ((values - returns) ** 2).mean()
    entropy_loss = entropy.mean()
    return pg_loss - entropy_coef * entropy_loss + v_loss * value_coef


def ppo_ratio(logprobs, old_logprobs):
    return (logprobs - old_logprobs).exp()


def ppo_normalized(advantages):
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


# ---- SB3's a2c.py ------------------------------------------------------------------------------


def a2c_loss(logprobs, entropy, values, advantages, returns, value_coef, entropy_coef):
    policy_loss = -(advantages * logprobs).mean()
    value_loss = F.mse_loss(returns, values)
    entropy_loss = -torch.mean(entropy)
    return policy_loss + entropy_coef * entropy_loss + value_coef * value_loss


# ---- CleanRL's dqn.py; a double one, and one with prioritized replay -----------------------------


def dqn_loss(
    q_values, actions, rewards, terminated, truncated, next_q_values, online_next_q_values, gamma
):
    with torch.no_grad():
        target_max, _ = next_q_values.max(dim=1)
        td_target = rewards.flatten() + gamma * target_max * (1 - terminated.float())
    old_val = q_values.gather(1, actions.unsqueeze(-1)).squeeze()
    return F.mse_loss(td_target, old_val)


def dqn_target(rewards, terminated, next_q_values, gamma):
    target_max, _ = next_q_values.max(dim=1)
    return rewards + gamma * target_max * (1 - terminated.float())


def dqn_double_target(rewards, terminated, next_q_values, online_next_q_values, gamma):
    best = online_next_q_values.argmax(dim=1, keepdim=True)
    values = next_q_values.gather(1, best).squeeze(1)
    return rewards + gamma * (1 - terminated.float()) * values


def dqn_polyak(target, online, tau):
    return tau * online + (1.0 - tau) * target


def dqn_importance_weights(probabilities, beta):
    weights = (len(probabilities) * probabilities) ** (-beta)
    return weights / weights.max()


def dqn_weighted_loss(q_values, targets, weights):
    td_error = targets - q_values
    return (weights * td_error.pow(2)).mean()


def dqn_target_updates(total_timesteps, num_envs, train_freq, target_update_interval):
    updates = []
    for global_step in range(num_envs * train_freq, total_timesteps + 1, num_envs * train_freq):
        timestep = global_step
        updates.append(timestep // target_update_interval)
    return updates


def dqn_epsilon(
    timesteps, total_timesteps, exploration_fraction, exploration_initial_eps, exploration_final_eps
):
    duration = exploration_fraction * total_timesteps
    slope = (exploration_final_eps - exploration_initial_eps) / duration
    return (slope * timesteps + exploration_initial_eps).clamp(min=exploration_final_eps)


# ---- CleanRL's sac_continuous_action.py, with SB3's factor of the critics' loss ------------------


def sac_target(rewards, terminated, next_q_values, next_logprobs, alpha, gamma):
    min_qf_next_target = next_q_values.min(0).values - alpha * next_logprobs
    return rewards + (1 - terminated.float()) * gamma * min_qf_next_target


def sac_critic_loss(
    q_values, rewards, terminated, truncated, next_q_values, next_logprobs, alpha, gamma
):
    with torch.no_grad():
        qf1_next_target, qf2_next_target = next_q_values
        min_qf_next_target = torch.min(qf1_next_target, qf2_next_target) - alpha * next_logprobs
        next_q_value = rewards + (1 - terminated.float()) * gamma * min_qf_next_target
    qf1_loss = F.mse_loss(q_values[0], next_q_value)
    qf2_loss = F.mse_loss(q_values[1], next_q_value)
    return 0.5 * (qf1_loss + qf2_loss)


def sac_actor_loss(logprobs, q_values, alpha):
    qf1_pi, qf2_pi = q_values
    min_qf_pi = torch.min(qf1_pi, qf2_pi)
    return ((alpha * logprobs) - min_qf_pi).mean()


def sac_alpha_loss(log_alpha, logprobs, target_entropy):
    return (-log_alpha * (logprobs + target_entropy).detach()).mean()


def sac_logprobs(mean, log_std, noise):
    std = log_std.exp()
    normal = torch.distributions.Normal(mean, std)
    x_t = mean + std * noise
    y_t = torch.tanh(x_t)
    log_prob = normal.log_prob(x_t)
    log_prob -= torch.log(1 - y_t.pow(2) + 1e-6)
    return {"actions": y_t, "logprobs": log_prob.sum(1)}


def sac_polyak(target, online, tau):
    return tau * online + (1 - tau) * target


# ---- GRPO, for control and for language models (as TRL's grpo_trainer.py) ------------------------


def grpo_advantages(rewards, alive, gamma):
    L, K, G = rewards.shape
    returns, advantages = torch.zeros_like(rewards), torch.zeros_like(rewards)
    following = 0.0
    for t in reversed(range(L)):
        following = returns[t] = rewards[t] + gamma * following
    for t in range(L):
        for k in range(K):
            peers = returns[t, k][alive[t, k]]
            if len(peers) > 1:
                z = (peers - peers.mean()) / (peers.std() + 1e-8)
                advantages[t, k][alive[t, k]] = z
    return advantages


def grpo_loss(
    logprobs, old_logprobs, reference, entropy, advantages, mask, clip_range, clip_range_high,
    kl_coef, entropy_coef,
):  # fmt: skip
    kept = [x[mask] for x in (logprobs, old_logprobs, reference, entropy, advantages)]
    logprobs, old_logprobs, reference, entropy, advantages = kept
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range_high)
    kl = (reference - logprobs).exp() - (reference - logprobs) - 1
    objective = torch.min(ratio * advantages, clipped * advantages) - kl_coef * kl
    return -(objective + entropy_coef * entropy).mean()


def llm_advantages(rewards):
    mean = rewards.mean(dim=1, keepdim=True)
    std = rewards.std(dim=1, keepdim=True)
    return (rewards - mean) / (std + 1e-4)


def llm_loss(
    logprobs, old_logprobs, reference, entropy, advantages, mask, clip_range, kl_coef, entropy_coef
):
    completion_mask = mask.float()
    coef_1 = torch.exp(logprobs - old_logprobs)
    coef_2 = torch.clamp(coef_1, 1 - clip_range, 1 + clip_range)
    per_token_loss1 = coef_1 * advantages.unsqueeze(1)
    per_token_loss2 = coef_2 * advantages.unsqueeze(1)
    per_token_loss = -torch.min(per_token_loss1, per_token_loss2)
    per_token_kl = torch.exp(reference - logprobs) - (reference - logprobs) - 1
    per_token_loss = per_token_loss + kl_coef * per_token_kl - entropy_coef * entropy
    tokens = completion_mask.sum(-1).clamp(min=1.0)
    return ((per_token_loss * completion_mask).sum(-1) / tokens).mean()


def llm_dr_grpo_advantages(rewards):
    return rewards - rewards.mean(dim=1, keepdim=True)


def llm_dapo_loss(
    logprobs, old_logprobs, advantages, mask, clip_range, clip_range_high, **others: Any
):
    coef_1 = torch.exp(logprobs - old_logprobs)
    coef_2 = torch.clamp(coef_1, 1 - clip_range, 1 + clip_range_high)
    losses = -torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1))
    return (losses * mask).sum() / mask.sum()


def llm_dr_grpo_loss(
    logprobs, old_logprobs, advantages, mask, clip_range, max_tokens, **others: Any
):
    coef_1 = torch.exp(logprobs - old_logprobs)
    coef_2 = torch.clamp(coef_1, 1 - clip_range, 1 + clip_range)
    losses = -torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1))
    return (losses * mask).sum() / (len(mask) * max_tokens)


# ---- SB3's own methods ------------------------------------------------------------------------


def sb3_gae(rewards, values, next_values, terminated, truncated, gamma, gae_lambda):
    """Its buffer, filled as its collect_rollouts does."""
    T, N = rewards.shape
    box = spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(T, box, box, "cpu", gae_lambda=gae_lambda, gamma=gamma, n_envs=N)
    buffer.reset()
    cut = truncated & ~terminated
    buffer.rewards[:] = (rewards + gamma * next_values * cut).numpy()
    buffer.values[:] = values.numpy()
    done = (terminated | truncated).numpy()
    buffer.episode_starts[1:] = done[:-1]
    buffer.compute_returns_and_advantage(next_values[-1], done[-1])
    return buffer.advantages


class Model(SimpleNamespace):
    """What stands for a model of SB3's while its `train` computes a loss."""

    def _update_learning_rate(self, optimizers: Any) -> None: ...


def model_with(evaluate: Any, **fields: Any) -> Any:
    told: dict[str, Any] = {}
    optimizer = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
    parameter = torch.nn.Parameter(torch.zeros(1))
    policy = SimpleNamespace(
        set_training_mode=lambda mode: None, optimizer=optimizer, evaluate_actions=evaluate,
        parameters=lambda: [parameter],
    )  # fmt: skip
    logger = SimpleNamespace(record=lambda key, value, **more: told.update({key: value}))
    common = {"n_epochs": 1, "batch_size": None, "_n_updates": 0, "max_grad_norm": 1.0}
    common |= {"_current_progress_remaining": 1.0, "target_kl": None, "told": told}
    return Model(policy=policy, logger=logger, **common | fields)


def of_gradients(loss: Any, **leaves: Tensor) -> dict[str, Any]:
    return {"loss": loss} | {f"{k}.grad": x.grad for k, x in leaves.items()}


def sb3_actor_critic(train: Any, samples: Any, settings: Any, leaves: Any) -> Any:
    """The gradients that a `train` sets, and what it logs."""
    buffer = SimpleNamespace(get=lambda batch_size: [SimpleNamespace(**samples)])
    flat = np.zeros(2)
    buffer.values = buffer.returns = flat
    names = ("values", "logprobs", "entropy")
    model = model_with(
        lambda obs, actions: tuple(leaves[k] for k in names), rollout_buffer=buffer,
        action_space=spaces.Box(-1, 1, (1,)), **settings,
    )  # fmt: skip
    train(model)
    return model.told


def sb3_ppo_loss(
    logprobs, old_logprobs, entropy, values, old_values, advantages, returns, clip_range,
    value_coef, entropy_coef, normalize_advantage,
):  # fmt: skip
    samples = {"old_log_prob": old_logprobs, "old_values": old_values, "advantages": advantages}
    samples |= {"returns": returns, "actions": None, "observations": None}
    settings = {"clip_range": lambda progress: clip_range, "clip_range_vf": None}
    settings |= {"ent_coef": entropy_coef, "vf_coef": value_coef}
    settings["normalize_advantage"] = normalize_advantage
    leaves = {"logprobs": logprobs, "entropy": entropy, "values": values}
    told = sb3_actor_critic(PPO.train, samples, settings, leaves)
    return of_gradients(told["train/loss"], **leaves)


def sb3_a2c_loss(
    logprobs, entropy, values, advantages, returns, value_coef, entropy_coef, normalize_advantage
):
    samples = {"advantages": advantages, "returns": returns, "actions": None, "observations": None}
    settings = {"ent_coef": entropy_coef, "vf_coef": value_coef}
    settings["normalize_advantage"] = normalize_advantage
    leaves = {"logprobs": logprobs, "entropy": entropy, "values": values}
    told = sb3_actor_critic(A2C.train, samples, settings, leaves)
    loss = told["train/policy_loss"] + entropy_coef * told["train/entropy_loss"]
    return of_gradients(loss + value_coef * told["train/value_loss"], **leaves)


def sb3_dqn_loss(q_values, actions, rewards, terminated, next_q_values, gamma):
    columns = {"rewards": rewards, "dones": terminated.float(), "actions": actions}
    samples = {k: x.unsqueeze(1) for k, x in columns.items()}
    data = SimpleNamespace(**samples, observations=None, next_observations=None, discounts=None)
    model = model_with(
        None, q_net=lambda obs: q_values, q_net_target=lambda obs: next_q_values, gamma=gamma,
        replay_buffer=SimpleNamespace(sample=lambda *args, **kwargs: data),
        _vec_normalize_env=None,
    )  # fmt: skip
    DQN.train(model, 1)
    leaves = {"q_values": q_values, "next_q_values": next_q_values}
    return {"loss": model.told["train/loss"]} | {
        f"{k}.grad": gradient_of(x) for k, x in leaves.items()
    }


def sb3_sac(
    q_values=None, q_of_policy=None, logprobs=None, next_logprobs=None, rewards=None,
    terminated=None, next_q_values=None, alpha=1.0, gamma=0.9, log_alpha=None, target_entropy=0.0,
):  # fmt: skip
    """SAC.train on given outputs of its networks; what is not given does not matter."""
    some = next(x for x in (logprobs, next_logprobs) if x is not None)
    zeros = torch.zeros_like(some, requires_grad=True)
    q_values, q_of_policy, next_q_values = (
        torch.zeros(2, len(some), requires_grad=True) if x is None else x
        for x in (q_values, q_of_policy, next_q_values)
    )
    samples = {"rewards": zeros if rewards is None else rewards}
    samples["dones"] = zeros if terminated is None else terminated.float()
    columns = {k: x.detach().unsqueeze(1) for k, x in samples.items()}
    states = {"observations": "now", "next_observations": "next", "actions": "taken"}
    data = SimpleNamespace(**columns, **states, discounts=None)
    optimizer = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
    of_states = {"now": logprobs, "next": next_logprobs}
    of_states = {k: zeros if x is None else x for k, x in of_states.items()}

    class Critic:
        """Of the actions that were taken, and of the policy's."""

        def __init__(self, **of_actions: Tensor) -> None:
            self.of_actions, self.optimizer = of_actions, optimizer

        def __call__(self, obs: str, actions: str) -> Any:
            return tuple(x.unsqueeze(1) for x in self.of_actions[actions])

        def parameters(self) -> list[Tensor]:
            return []

    model = model_with(
        None,
        actor=SimpleNamespace(
            action_log_prob=lambda obs: (obs, of_states[obs]), optimizer=optimizer
        ),
        critic=Critic(taken=q_values, now=q_of_policy),
        critic_target=Critic(next=next_q_values),
        replay_buffer=SimpleNamespace(sample=lambda *args, **kwargs: data),
        ent_coef_optimizer=None if log_alpha is None else optimizer,
        log_ent_coef=log_alpha,
        ent_coef_tensor=torch.tensor(alpha),
        **{"gamma": gamma, "target_entropy": target_entropy, "use_sde": False, "tau": 0.1},
        **{"_vec_normalize_env": None, "target_update_interval": 1},
        **{"batch_norm_stats": [], "batch_norm_stats_target": []},
    )
    SAC.train(model, 1)
    return model.told


def gradient_of(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def sb3_sac_critic_loss(q_values, rewards, terminated, next_q_values, next_logprobs, alpha, gamma):
    told = sb3_sac(
        q_values, rewards=rewards, terminated=terminated, next_q_values=next_q_values,
        next_logprobs=next_logprobs, alpha=alpha, gamma=gamma,
    )  # fmt: skip
    leaves = {"q_values": q_values, "next_q_values": next_q_values, "next_logprobs": next_logprobs}
    return {"loss": told["train/critic_loss"]} | {
        f"{k}.grad": gradient_of(x) for k, x in leaves.items()
    }


def sb3_sac_actor_loss(logprobs, q_values, alpha):
    told = sb3_sac(q_of_policy=q_values, logprobs=logprobs, alpha=alpha)
    return of_gradients(told["train/actor_loss"], logprobs=logprobs, q_values=q_values)


def sb3_sac_alpha_loss(log_alpha, logprobs, target_entropy):
    told = sb3_sac(logprobs=logprobs, log_alpha=log_alpha, target_entropy=target_entropy)
    # The log-probabilities also have the gradient of the actor's loss.
    return of_gradients(told["train/ent_coef_loss"], log_alpha=log_alpha)
