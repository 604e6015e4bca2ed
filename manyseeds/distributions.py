"""Distributions over actions, for S policies at once.

S seeds, B samples per seed, A discrete actions or D components of a continuous action. Noise comes
from outside, so that a seed's actions depend on its own stream alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from manyseeds.kernels import distributions, in_c


class Categorical(NamedTuple):
    """Distributions over A discrete actions."""

    logits: Tensor  # [S, B, A]; -inf for an action that cannot be taken

    def mode(self) -> Tensor:
        """The most probable actions, [S, B]."""
        return self.logits.argmax(-1)

    def sample(self, noise: Tensor) -> Tensor:
        """Actions [S, B] from standard Gumbel noise [S, B, A]: argmax(logits + noise)."""
        return (self.logits + noise).argmax(-1)

    @in_c(distributions.logprob_and_entropy, distributions.takes)
    def logprob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions [S, B], and entropies, both [S, B].

        An action that cannot be taken has probability 0, no part in the entropy and no gradient.
        """
        logprobs = self.logits.log_softmax(-1)
        impossible = logprobs.isneginf()  # 0 * log 0 is to be 0, not NaN
        entropy = -(logprobs.exp() * logprobs.masked_fill(impossible, 0.0)).sum(-1)
        return logprobs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropy


class Gaussian(NamedTuple):
    """Normal distributions over actions of D independent components."""

    mean: Tensor  # [S, B, D]
    log_std: Tensor  # [S, 1, D], the same in every state

    def mode(self) -> Tensor:
        """The most probable actions, [S, B, D]."""
        return self.mean

    def sample(self, noise: Tensor) -> Tensor:
        """Actions [S, B, D] from standard normal noise [S, B, D]."""
        return self.mean + self.log_std.exp() * noise

    def logprob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions [S, B, D], and entropies, both [S, B]."""
        z = (actions - self.mean) * (-self.log_std).exp()
        log_normalizer = self.log_std + 0.5 * math.log(2 * math.pi)
        logprob = (-0.5 * z.square() - log_normalizer).sum(-1)
        # Not expand_as: the mean of an expanded tensor depends on the size of the batch.
        return logprob, (0.5 + log_normalizer).sum(-1) + torch.zeros_like(logprob)
