"""The C of algorithms: NAME.c stands for functions of algos/NAME.py, and NAME.py here calls it.

S seeds, T steps of N environments, B samples, M per gradient step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import actor_critic, mlp
from manyseeds.kernels.binding import Kernel


class Terms(NamedTuple):
    """What the objective of a minibatch was made of, without gradients."""

    policy_loss: Tensor  # [S], like the next
    value_loss: Tensor
    entropy: Tensor  # [S, M], like the next
    logprobs: Tensor


def takes(agent: Any, *args: Any) -> bool:
    """Whether a kernel can compute with an agent: it is on a CPU."""
    return kernels.usable(first_parameter(agent))


def first_parameter(module: Any) -> Any:
    """A parameter of a module; `next(module.parameters())` takes as long as a small kernel."""
    for p in module._parameters.values():
        if p is not None:
            return p
    for child in module._modules.values():
        if (p := first_parameter(child)) is not None:
            return p
    return None


def gae_estimate(
    agent: Any, rollout: Any, rewards: Tensor, config: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """What `estimate` of ppo.py and trpo.py says."""
    logprobs, values, advantages = rewards.new_empty(3, len(rewards), config.batch_size).unbind()
    actor_critic.estimate(
        agent,
        rollout,
        rewards,
        logprobs=logprobs,
        values=values,
        advantages=advantages,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )
    return logprobs, values, advantages


def set_gradients_of_loss(kernel: Kernel, agent: Any, samples: Any, **given: Any) -> Terms:
    """Let C compute a loss of samples `[S, M]`, and set its gradients; returns its terms."""
    (S, M), networks = samples.returns.shape, mlp.struct(agent.networks, agent)
    gradients = samples.obs.new_zeros(S, networks.networks * networks.size)
    new = samples.obs.new_empty
    terms = Terms(*new(2, S).unbind(), *new(2, S, M).unbind())
    kernel(
        S=S,
        M=M,
        P=gradients.shape[1],
        gradients=gradients,
        policy_loss=terms.policy_loss,
        value_loss=terms.value_loss,
        entropies=terms.entropy,
        logprobs=terms.logprobs,
        **given,
    )
    mlp.set_gradients(agent, gradients)
    return terms
