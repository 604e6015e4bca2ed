"""The seed axis: one random stream per seed, and an optimizer in which no two seeds meet.

S seeds, P parameters per seed (padded to a multiple of 16).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

PURPOSES = {"init": 0, "train": 1, "evaluate": 2, "start-states": 3}


class SeedStreams:
    """One stream of random numbers per seed, for one purpose.

    What seed k draws depends on k, the purpose and the position in the stream; never on the other
    seeds or on the device. Streams are numpy's PCG64 keyed by `SeedSequence(k, spawn_key)`, which
    numpy keeps stable over versions. Draw whole blocks: the cost of a draw grows with S.
    """

    def __init__(
        self, seeds: Sequence[int], purpose: str, device: torch.device | str = "cpu"
    ) -> None:
        key = (PURPOSES[purpose],)
        self.seeds = list(seeds)
        self.device = torch.device(device)
        self._generators = [
            np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
            for seed in self.seeds
        ]

    def uniform(self, *shape: int) -> Tensor:
        """Uniforms in [0, 1), `[S, *shape]` float32."""
        block = np.empty((len(self.seeds), *shape), dtype=np.float32)
        for generator, row in zip(self._generators, block, strict=True):
            generator.random(out=row, dtype=np.float32)
        return torch.from_numpy(block).to(self.device)

    def gumbel(self, *shape: int) -> Tensor:
        """Standard Gumbel variables: argmax(logits + gumbel) is a sample of softmax(logits)."""
        return -(-self.uniform(*shape).log()).log()

    def normal(self, *shape: int) -> Tensor:
        """Standard normals, `[S, *shape]` float32."""
        block = np.empty((len(self.seeds), *shape), dtype=np.float32)
        for generator, row in zip(self._generators, block, strict=True):
            generator.standard_normal(out=row, dtype=np.float32)
        return torch.from_numpy(block).to(self.device)


class SeedAdam:
    """Adam (Kingma and Ba, 2015) over parameters whose first dimension is the seed.

    All parameters of the module become views of one `[S, P]` tensor and their gradients are
    gathered in another: clipping and the update are then a few passes, whatever the network.

    masked: seeds may be left out of a step. Every seed then has a step count of its own, and one
    that is left out keeps parameters, moments and bias correction exactly as they were. Otherwise
    PyTorch's fused kernel does the update in one pass.
    """

    def __init__(
        self,
        module: nn.Module,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        masked: bool = False,
    ) -> None:
        self.parameters = list(module.parameters())
        self.params = flatten_parameters(module)
        self.grads = torch.zeros_like(self.params)
        self._grad_views = views_like(self.grads, self.parameters)
        self._update: FusedAdam | MaskedAdam
        kind = MaskedAdam if masked else FusedAdam
        self._update = kind(self.params, self.grads, betas, eps)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self, lr: float, max_grad_norm: float = 0.0, mask: Tensor | None = None) -> Tensor:
        """Update the parameters from the gradients.

        lr: learning rate of all seeds. max_grad_norm: each seed's gradient is scaled down to this
        norm (0: never). mask: `[S]` bool, which seeds to update (None: all).
        Returns the gradient norms before clipping, `[S]`.
        """
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        torch._foreach_copy_(self._grad_views, grads)
        norms = torch.linalg.vector_norm(self.grads, dim=1)
        if max_grad_norm > 0:
            self.grads *= (max_grad_norm / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1)
        self._update.step(lr, mask)
        return norms


class FusedAdam:
    """torch.optim.Adam on one `[S, P]` parameter: element-wise, so no two seeds meet."""

    def __init__(
        self, params: Tensor, grads: Tensor, betas: tuple[float, float], eps: float
    ) -> None:
        leaf = nn.Parameter(params)  # shares the storage
        leaf.grad = grads
        self._adam = torch.optim.Adam([leaf], betas=betas, eps=eps, fused=True)

    def step(self, lr: float, mask: Tensor | None) -> None:
        """Update all seeds."""
        assert mask is None, "SeedAdam(masked=True) leaves seeds out"
        self._adam.param_groups[0]["lr"] = lr
        self._adam.step()


class MaskedAdam:
    """Adam with a step count per seed."""

    def __init__(
        self, params: Tensor, grads: Tensor, betas: tuple[float, float], eps: float
    ) -> None:
        self.params, self.grads, self.betas, self.eps = params, grads, betas, eps
        self.mean = torch.zeros_like(params)
        self.square = torch.zeros_like(params)
        ones = params.new_ones(params.shape[0], 1, dtype=torch.float64)
        self.beta_powers = [ones, ones.clone()]  # beta ** (steps taken), [S, 1] each

    def step(self, lr: float, mask: Tensor | None) -> None:
        """Update the seeds in mask `[S]` (None: all)."""
        seeds = self.params.shape[0]
        mask = torch.ones(seeds, device=self.params.device) if mask is None else mask
        takes_step = mask.double().unsqueeze(1)
        for power, beta in zip(self.beta_powers, self.betas, strict=True):
            power *= 1 - (1 - beta) * takes_step
        correction1, correction2 = 1 - self.beta_powers[0], (1 - self.beta_powers[1]).sqrt()
        # No step taken yet: 0 / 0, and nothing to update.
        step_size = (takes_step * lr * correction2 / correction1).nan_to_num(0.0)
        weight1, weight2 = ((1 - beta) * takes_step.to(self.params.dtype) for beta in self.betas)
        # Kingma and Ba, the end of section 2: both bias corrections moved into the step size.
        self.mean.lerp_(self.grads, weight1)
        self.square.lerp_(self.grads.square(), weight2)
        scale = self.square.sqrt().add_((self.eps * correction2).to(self.params.dtype))
        update = torch.div(self.mean, scale, out=scale)
        self.params.addcmul_(update, step_size.to(self.params.dtype), value=-1)


def flatten_parameters(module: nn.Module) -> Tensor:
    """Re-lay parameters `[S, K, ...]`, for K networks per seed, as views of one `[S, P]` tensor.

    One network lies behind the other, so that `[S, K, in, out]` is a view as `[S * K, in, out]`
    too. P is padded to a multiple of 16 per network: a vectorised loop then never ends inside a
    seed, and a seed's bits cannot depend on S.
    """
    parameters = list(module.parameters())
    S, K = parameters[0].shape[:2]
    size = sum(p[0, 0].numel() for p in parameters)
    flat = parameters[0].new_zeros(S, K * (-(-size // 16) * 16)).detach()
    for p, view in zip(parameters, views_like(flat, parameters), strict=True):
        view.copy_(p.detach())
        p.data = view
    return flat


def views_like(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Views of `[S, P]` with the parameters' shapes `[S, K, ...]`, in their order."""
    per_network = flat.view(*parameters[0].shape[:2], -1)
    sizes = [p[0, 0].numel() for p in parameters]
    sizes.append(per_network.shape[-1] - sum(sizes))
    windows = per_network.split(sizes, dim=-1)[:-1]
    return [w.view(p.shape) for w, p in zip(windows, parameters, strict=True)]
