"""PPO's losses in C against those of its file, in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from algos import ppo
from manyseeds import kernels

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no C compiler")

S, M = 3, 37


def batch_of(seed: int, size: int = M) -> tuple[ppo.Batch, Tensor, Tensor]:
    """A minibatch, log-probabilities and values, some of them far from those of the rollout."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(S, size, generator=generator)

    old_logprobs, old_values = normal(), normal()
    nothing = torch.zeros(S, size)
    batch = ppo.Batch(nothing, nothing, old_logprobs, old_values, 3 * normal() + 1, 5 * normal())
    return batch, old_logprobs + 0.3 * normal(), old_values + 0.3 * normal()


def losses_and_gradients(
    batch: ppo.Batch, logprobs: Tensor, values: Tensor, config: ppo.Config, clip: Tensor | None
) -> list[Tensor]:
    logprobs, values = (x.clone().requires_grad_() for x in (logprobs, values))
    policy, value = ppo.losses(logprobs, values, batch, config, clip)
    (2 * policy + 3 * value).sum().backward()
    assert logprobs.grad is not None
    assert values.grad is not None
    return [policy.detach(), value.detach(), logprobs.grad, values.grad]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("value_clip", [0.0, 0.1])
@pytest.mark.parametrize("size", [1, 2, M])
def test_they_are_those_of_the_file(
    normalize: bool, clip: float | None, value_clip: float, size: int
) -> None:
    batch, logprobs, values = batch_of(size, size)
    config = dataclasses.replace(
        ppo.Config(), normalize_advantage=normalize, clip_value_range=value_clip
    )
    clip_range = None if clip is None else torch.tensor(clip)
    found = losses_and_gradients(batch, logprobs, values, config, clip_range)
    exact = ppo.Batch(*(x.double() for x in batch))
    right = losses_and_gradients(exact, logprobs.double(), values.double(), config, clip_range)
    assert right[0].dtype == torch.float64  # by PyTorch
    for x, y in zip(found, right, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2e-5, atol=2e-6)


def test_a_seed_that_is_no_number_leaves_the_others() -> None:
    batch, logprobs, values = batch_of(0)
    clip = torch.tensor(0.2)
    before = losses_and_gradients(batch, logprobs, values, ppo.Config(), clip)
    logprobs[1, 3] = values[1, 5] = torch.nan
    after = losses_and_gradients(batch, logprobs, values, ppo.Config(), clip)
    for x, y in zip(before, after, strict=True):
        assert torch.equal(x[[0, 2]], y[[0, 2]])
        assert y[1].isnan().any()


def test_a_clip_range_for_each_seed() -> None:
    batch, logprobs, values = batch_of(0)
    together = losses_and_gradients(
        batch, logprobs, values, ppo.Config(), torch.tensor([0.1, 0.2, 0.3])
    )
    for s, clip in enumerate((0.1, 0.2, 0.3)):
        alone = losses_and_gradients(batch, logprobs, values, ppo.Config(), torch.tensor(clip))
        for x, y in zip(together, alone, strict=True):
            assert torch.equal(x[s], y[s])
