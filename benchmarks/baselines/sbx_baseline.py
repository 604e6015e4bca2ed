"""PPO and DQN of SBX, the JAX library by stable-baselines3's authors, with our hyperparameters.

    .venv-jax/bin/python benchmarks/sbx_baseline.py --algo ppo --env CartPole-v1 --seeds 30

In an environment of its own, which `make jax-env` sets up. Flags, presets, environments, seeds and
evaluation are those of benchmarks/sb3_baseline.py: SBX has SB3's interface, its rollouts, buffers
and wrappers, and networks and updates in JAX.

What stays SBX's own:
 1. PPO: actor and critic have an optimizer each, and gradients are clipped for each; SB3 and we
    clip them together. The advantages' standard deviation is that of the population.
 2. PPO: layers start as LeCun normal with zero biases; SB3's and ours are orthogonal, and the last
    one of the policy is small. DQN's start so, too; SB3's and ours are uniform and less wide.
 3. DQN: no clipping of gradients; two hidden layers of one width; epsilon is drawn once for all
    environments of a step, as in SB3.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyseeds.algos import dqn, ppo
from manyseeds.benchmarks.baselines.sb3_baseline import (
    DQNBaseline,
    DQNPolicy,
    Flags,
    Peer,
    PPOBaseline,
    PPOPolicy,
    complete_run,
)
from manyseeds.benchmarks.experiments import jax_peer
from manyseeds.errors import UsageError

# The module can be read where it cannot be used.
jax, sbx = jax_peer.optional("jax"), jax_peer.optional("sbx")
linen = jax_peer.optional("flax.linen")


@dataclass(frozen=True, kw_only=True)
class SBXFlags(Flags):
    """What this script has besides the flags of the algorithm."""

    algo: str = "ppo"
    """Algorithm: ppo or dqn."""


def check_installed() -> None:
    """Raise UsageError where SBX is not."""
    if sbx is None:
        raise UsageError(f"SBX is not installed here: make jax-env, then {jax_peer.PYTHON}")


class SBXPPOPolicy(PPOPolicy):
    """Samples from SBX's distribution with the noise of algos/ppo.py."""

    @cached_property
    def head(self) -> Any:
        """Logits, or means and standard deviations, for parameters and observations; compiled."""
        apply = self.policy.actor_state.apply_fn

        def head(params: Any, obs: Any) -> Any:
            distribution = apply(params, obs)
            if hasattr(distribution, "logits"):
                return (distribution.logits,)
            return distribution.mean(), distribution.stddev()

        return jax.jit(head)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions [1, N] or [1, N, D] for obs [1, N, O]; the mode without noise."""
        statistics = self.model.get_vec_normalize_env()
        seen: Any = obs[0].numpy()
        if statistics is not None:
            seen = np.asarray(statistics.normalize_obs(seen), dtype=np.float32)
        outputs = self.head(self.policy.actor_state.params, seen)
        first, *stddev = (torch.from_numpy(np.array(x)) for x in outputs)
        if stddev:
            actions = first if noise is None else first + stddev[0] * noise[0]
        else:
            actions = (first if noise is None else first + noise[0]).argmax(-1)
        return actions.unsqueeze(0)


class SBXPPOBaseline(PPOBaseline):
    """sbx.PPO"""

    model = sbx and sbx.PPO
    policy = SBXPPOPolicy

    @staticmethod
    def arguments(config: ppo.Config) -> dict[str, Any]:
        if config.clip_value_range:
            raise UsageError(
                f"--clip-value-range {config.clip_value_range}: SBX does not clip values"
            )
        if config.target_kl:
            raise UsageError(
                f"--target-kl {config.target_kl}: in SBX it changes the learning rate instead"
            )
        check_installed()
        arguments = PPOBaseline.arguments(config)
        arguments["policy_kwargs"]["activation_fn"] = linen.tanh
        return arguments


class SBXDQNPolicy(DQNPolicy):
    """Epsilon-greedy with the final epsilon, drawn per environment as algos/dqn.py does."""

    @cached_property
    def q(self) -> Any:
        """Action values for parameters and observations; compiled."""
        return jax.jit(self.policy.qf_state.apply_fn)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions [1, N] for obs [1, N, O]; greedy without noise."""
        q_values = torch.from_numpy(np.array(self.q(self.policy.qf_state.params, obs[0].numpy())))
        greedy = q_values.argmax(-1)
        if noise is None:
            return greedy.unsqueeze(0)
        explores, which = noise[0].unbind(-1)
        random = (which * q_values.shape[-1]).long()
        return torch.where(explores < self.config.exploration_final_eps, random, greedy).unsqueeze(
            0
        )


class SBXDQNBaseline(DQNBaseline):
    """sbx.DQN"""

    model = sbx and sbx.DQN
    policy = SBXDQNPolicy

    @staticmethod
    def arguments(config: dqn.Config) -> dict[str, Any]:
        if len(config.hidden) != 2 or len(set(config.hidden)) > 1:
            raise UsageError("--hidden: SBX's Q-network has two hidden layers of one width")
        check_installed()
        arguments = DQNBaseline.arguments(config)
        del arguments["max_grad_norm"]  # 3.
        arguments["policy_kwargs"]["activation_fn"] = linen.relu
        return arguments


SBX = Peer(
    "sbx",
    "SBX",
    {"ppo": SBXPPOBaseline, "dqn": SBXDQNBaseline},
    {"": ("sbx-rl", "jax", "stable-baselines3")},
)


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """What the command does."""
    complete_run(SBX, SBXFlags, __doc__, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
