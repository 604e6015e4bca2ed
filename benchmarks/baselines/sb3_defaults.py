"""stable-baselines3's default hyperparameters, as fields of our Configs.

tests/benchmarks/test_search.py holds them to the signatures of SB3's classes.
"""

from __future__ import annotations

from typing import Any

# The networks of SB3's MlpPolicy; observations and rewards as they are.
NETWORKS: dict[str, Any] = {"hidden": (64, 64)}
PLAIN: dict[str, Any] = {"log_std_init": 0.0, "normalize_obs": False, "normalize_reward": False}
SB3_DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 1, "num_steps": 2048, "minibatch_size": 64, "epochs": 10, "gamma": 0.99}
    | {"learning_rate": 3e-4, "anneal_lr": False, "gae_lambda": 0.95, "clip_range": 0.2}
    | {"anneal_clip": False, "clip_value_range": 0.0, "normalize_advantage": True}
    | {"entropy_coef": 0.0, "value_coef": 0.5, "max_grad_norm": 0.5, "target_kl": 0.0}
    | NETWORKS
    | PLAIN,
    "a2c": {"num_envs": 1, "num_steps": 5, "learning_rate": 7e-4, "anneal_lr": False}
    | {"optimizer": "rmsprop", "gamma": 0.99, "advantage": "gae", "gae_lambda": 1.0}
    | {"normalize_advantage": False, "entropy_coef": 0.0, "value_coef": 0.5, "max_grad_norm": 0.5}
    | NETWORKS
    | PLAIN,
    "trpo": {"num_envs": 1, "num_steps": 2048, "target_kl": 0.01, "cg_steps": 15}
    | {"cg_damping": 0.1, "line_search_steps": 10, "line_search_shrink": 0.8, "critic_epochs": 10}
    | {"minibatch_size": 128, "learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95}
    | {"normalize_advantage": True}
    | NETWORKS
    | PLAIN,
    "dqn": {"num_envs": 1, "train_freq": 4, "gradient_steps": 1, "batch_size": 32, "gamma": 0.99}
    | {"buffer_size": 1_000_000, "learning_starts": 100, "learning_rate": 1e-4, "tau": 1.0}
    | {"target_update_interval": 10_000, "exploration_fraction": 0.1, "loss": "huber"}
    | {"exploration_initial_eps": 1.0, "exploration_final_eps": 0.05, "max_grad_norm": 10.0}
    | NETWORKS,
}
