"""Optimizers over the seed axis: no two seeds meet in a step.

S seeds, P parameters per seed (padded to a multiple of 16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from manyseeds.kernels import in_c, mlp, optim
from manyseeds.rows import broadcast, used


class SeedOptimizer:
    """What optimizers share: parameters and gradients of S seeds, flat, and their clipping.

    All parameters of the module become views of one `[S, P]` tensor and their gradients are
    gathered in another: clipping and the update are then a few passes, whatever the network.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())
        self.params = flatten_parameters(module)
        self.grads = torch.zeros_like(self.params)
        self.places = mlp.places_in(module)
        self._grad_views = views_like(self.grads, self.parameters)

    def __getstate__(self) -> dict[str, Any]:
        """What a step goes on from, without memory that every step fills anew."""
        left_out = ("grads", "_grad_views", "places")
        return {name: x for name, x in vars(self).items() if name not in left_out}

    def gather(self, max_grad_norm: Tensor | float, mask: Tensor | None) -> Tensor:
        """Gather and forget the gradients, and clip them; those that the mask leaves out are 0.

        max_grad_norm: scale each seed's gradient down to this norm (0: never), a number or `[S]`.
        mask: `[S]` bool.
        Returns the norms before clipping, `[S]`.
        """
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        torch._foreach_copy_(self._grad_views, grads)
        for p in self.parameters:
            p.grad = None
        norms = torch.linalg.vector_norm(self.grads, dim=1)
        if used(max_grad_norm):
            scale = broadcast(max_grad_norm, norms) * (norms + 1e-6).reciprocal()
            self.grads.mul_(scale.clamp(max=1.0).unsqueeze(1))
        if mask is not None:  # also a gradient that is not a number must not reach the moments
            self.grads.masked_fill_(~mask.unsqueeze(1), 0.0)
        return norms


class SeedAdam(SeedOptimizer):
    """Adam (Kingma and Ba, 2015) over parameters whose first dimension is the seed.

    Every seed has a step count of its own: one that is left out of a step keeps parameters, moments
    and bias correction exactly as they were. Everything is tensors, changed in place: a step can be
    captured.
    """

    def __init__(self, module: nn.Module, eps: float = 1e-8) -> None:
        super().__init__(module)
        self.betas, self.eps = (0.9, 0.999), eps
        self.mean = torch.zeros_like(self.params)
        self.square = torch.zeros_like(self.params)
        # beta ** (steps taken), [2, S, 1]
        self.beta_powers = self.params.new_ones(2, len(self.params), 1, dtype=torch.float64)
        self._all_seeds = torch.ones_like(self.beta_powers[0])

    @torch.no_grad()
    @in_c(optim.step, optim.takes)
    def step(
        self,
        lr: Tensor | float,
        max_grad_norm: Tensor | float = 0.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Update the parameters from the gradients, and forget the gradients.

        lr: learning rate, a number or 0-d for all seeds, `[S]` or `[S, 1]`. max_grad_norm: as
        `gather`.
        mask: `[S]` bool, which seeds to update (None: all).
        Returns the gradient norms before clipping, `[S]`.
        """
        norms = self.gather(max_grad_norm, mask)
        takes_step = self._all_seeds if mask is None else mask.double().unsqueeze(1)
        for power, beta in zip(self.beta_powers, self.betas, strict=True):
            power.mul_(1 - (1 - beta) * takes_step)
        correction1, correction2 = 1 - self.beta_powers[0], (1 - self.beta_powers[1]).sqrt()
        correction2 = correction2.clamp(min=1e-12)  # no step taken yet: 0 / 0 is to be 0
        rates = broadcast(lr, self.beta_powers[0])
        step_size = (takes_step * rates * correction2 / correction1).nan_to_num(0.0)
        weight1, weight2 = ((1 - beta) * takes_step.to(self.params.dtype) for beta in self.betas)
        # Kingma and Ba, the end of section 2: both bias corrections moved into the step size.
        self.mean.lerp_(self.grads, weight1)
        self.square.lerp_(self.grads.square(), weight2)
        scale = self.square.sqrt().add_((self.eps * correction2).to(self.params.dtype))
        self.params.addcmul_(self.mean / scale, step_size.to(self.params.dtype), value=-1)
        return norms


class SeedRAdam(SeedAdam):
    """Rectified Adam (Liu et al., 2020, arXiv 1908.03265) over parameters with the seed first.

    While the average of squares is of too few gradients (the first five steps), the step is the
    mean gradient, unscaled; then Adam's step times a factor that rises to 1. eps is added after the
    bias correction, as Adam's and optax's (PyTorch: before it). Masked as SeedAdam.
    """

    def __init__(self, module: nn.Module, eps: float = 1e-8) -> None:
        super().__init__(module, eps)
        self.steps = torch.zeros_like(self.beta_powers[0])  # taken by each seed, [S, 1]

    @torch.no_grad()
    @in_c(optim.step, optim.takes)
    def step(
        self,
        lr: Tensor | float,
        max_grad_norm: Tensor | float = 0.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Update the parameters from the gradients, and forget the gradients; as SeedAdam.step."""
        norms = self.gather(max_grad_norm, mask)
        takes_step = self._all_seeds if mask is None else mask.double().unsqueeze(1)
        self.steps.add_(takes_step)
        for power, beta in zip(self.beta_powers, self.betas, strict=True):
            power.mul_(1 - (1 - beta) * takes_step)
        correction1, correction2 = (1 - self.beta_powers).clamp(min=1e-12)  # 1e-12: no step yet
        # The number of gradients that the average of squares is of, in the limit and now.
        limit = 2 / (1 - self.betas[1]) - 1
        length = limit - 2 * self.steps * self.beta_powers[1] / correction2
        rectified, known = length > 5, length.clamp(min=5)
        share = (known - 4) * (known - 2) * limit / ((limit - 4) * (limit - 2) * known)
        factor = torch.where(rectified, (share * correction2).sqrt(), 1.0)
        step_size = takes_step * broadcast(lr, factor) * factor / correction1
        weight1, weight2 = ((1 - beta) * takes_step.to(self.params.dtype) for beta in self.betas)
        self.mean.lerp_(self.grads, weight1)
        self.square.lerp_(self.grads.square(), weight2)
        small = (self.eps * correction2.sqrt()).to(self.params.dtype)
        scale = torch.where(rectified, self.square.sqrt().add_(small), 1.0)
        self.params.addcmul_(self.mean / scale, step_size.to(self.params.dtype), value=-1)
        return norms


class SeedRMSprop(SeedOptimizer):
    """RMSprop (Tieleman and Hinton, 2012) over parameters whose first dimension is the seed.

    Without momentum and not centred. PyTorch's: the running average of squares starts at 0 and eps
    is added to its root. TensorFlow's, `tf`: it starts at 1 and eps is added under the root (SB3's
    RMSpropTFLike). Masked as SeedAdam.
    """

    def __init__(
        self, module: nn.Module, alpha: float = 0.99, eps: float = 1e-5, tf: bool = False
    ) -> None:
        super().__init__(module)
        self.alpha, self.eps, self.tf = alpha, eps, tf
        self.square = torch.full_like(self.params, 1.0 if tf else 0.0)

    @torch.no_grad()
    @in_c(optim.step, optim.takes)
    def step(
        self,
        lr: Tensor | float,
        max_grad_norm: Tensor | float = 0.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Update the parameters from the gradients, and forget the gradients; as SeedAdam.step."""
        norms = self.gather(max_grad_norm, mask)
        weight: Tensor | float = 1 - self.alpha
        if mask is not None:
            weight = weight * mask.to(self.params.dtype).unsqueeze(1)
        self.square.lerp_(self.grads.square(), weight)
        scale = (self.square + self.eps).sqrt_() if self.tf else self.square.sqrt().add_(self.eps)
        self.params.sub_((self.grads / scale).mul_(broadcast(lr, scale)))
        return norms


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
