"""Comparisons of the track's batches: with more padding, in double precision, of moved weights."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds.llm_track.policies import AnyModel, SeedModel


def close(a: Tensor, b: Any, atol: float = 1e-12) -> None:
    b = b if isinstance(b, Tensor) else torch.tensor(b, dtype=a.dtype)
    torch.testing.assert_close(a, b, rtol=0, atol=atol, check_dtype=False)


class float64(contextlib.ContextDecorator):
    """In it `float()` and new tensors are of double precision."""

    def __enter__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(torch.Tensor, "float", lambda x: x)
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *args: object) -> None:
        self.patch.undo()
        torch.set_default_dtype(torch.float32)


def moved(model: Any, scale: float = 0.05, seed: int = 1) -> Any:
    """Move a model's weights away from where they were."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += scale * torch.randn(p.shape, generator=generator).to(p)
    return model


def widened(samples: Any, left: int, right: int, token: int) -> Any:
    """The same samples with so many more columns of padding, in which a token stands."""
    wide = {}
    for name, x in vars(samples).items():
        if x.dim() == samples.tokens.dim():
            columns = (left, 0) if name.startswith("prompt") else (0, right)
            value = token if name in ("prompts", "tokens") else 0
            wide[name] = torch.nn.functional.pad(x, columns, value=value)
    return replace(samples, **wide)


def one_by_one(model: Any, prompt: Sequence[int], tokens: Sequence[int], T: float = 1.0) -> Tensor:
    """Log-probabilities of all tokens at each place, [len(tokens), V], each from a forward pass of
    its own."""
    rows = []
    for t in range(len(tokens)):
        ids = torch.tensor([[*prompt, *tokens[:t]]])
        logits = model(input_ids=ids, use_cache=False).logits[0, -1]
        rows.append((logits.double() / T).log_softmax(-1))
    return torch.stack(rows)


def policy_metrics(
    ratio: Tensor, quotient: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float
) -> dict[str, float]:
    """By name, the means over tokens that are logged; quotient: the reference's probabilities over
    the policy's."""
    below, above, better = ratio < low, ratio > high, advantages > 0
    terms = {"clipfrac": below | above, "clip_low": below & ~better, "clip_high": above & better}
    terms |= {"approx_kl": ratio - 1 - ratio.log(), "kl": quotient - 1 - quotient.log()}
    return {name: float(x[mask].double().mean()) for name, x in terms.items()}


def loss_of(
    module: Any, logprobs: Tensor, old: Tensor, reference: Tensor, advantages: Tensor,
    weights: Tensor, config: Any, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A method's loss of one seed, without an entropy bonus; all tensors [B, T]."""
    mask = torch.ones_like(logprobs).bool() if mask is None else mask
    known = {"logprobs": old, "reference": reference, "advantages": advantages, "mask": mask}
    part = SimpleNamespace(lengths=mask.sum(-1)[None], **{k: x[None] for k, x in known.items()})
    zeros = torch.zeros_like(logprobs)[None]
    (loss,) = module.policy_loss(logprobs[None], zeros, part, weights[None], config)
    return loss  # type: ignore[no-any-return]


class Watched:
    """An optimizer that keeps the gradient of each seed, as it was before clipping."""

    def __init__(self, policy: AnyModel) -> None:
        self.policy, self.optimizer = policy, policy.optimizer()

    def step(self, lr: Tensor, max_grad_norm: float) -> Tensor:
        if isinstance(self.policy, SeedModel):
            llama = self.policy.llama
            each = [llama.state_of(s, llama.flat.grad) for s in range(len(self.policy))]
            names = [name for name, _ in self.policy.template.named_parameters()]
        else:
            each = [{name: p.grad for name, p in self.policy.model.named_parameters()}]
            names = list(each[0])
        self.gradients = [torch.cat([own[k].flatten() for k in names]) for own in each]
        return self.optimizer.step(lr, max_grad_norm)
