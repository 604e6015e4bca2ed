"""What stands for functions of algos/rainbow.py in C (rainbow.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, optim
from manyseeds.kernels.binding import CannotTake

SOURCE = Path(__file__).parent / "rainbow.c"
RAINBOW_UPDATE = kernels.kernel(SOURCE, "rainbow_update")
DISTRIBUTIONS = ("none", "categorical", "quantile")  # as numbered in C
MOST_LAYERS = 64


def takes_update(net: Any, target: Any, optimizer: Any, replay: Any, *args: Any) -> bool:
    """Whether `rainbow_update` can compute an update: there is one."""
    return kernels.usable(net.q.weights[0], replay.rows, *args[:2]) and args[0].numel() > 0


def update(
    net: Any,
    target: Any,
    optimizer: Any,
    replay: Any,
    draws: Tensor,
    noise: Tensor,
    beta: Tensor,
    config: Any,
) -> dict[str, Tensor]:
    """What `update` of rainbow.py says. Raises CannotTake."""
    S, G, M = draws.shape
    check_networks(net, target, config)
    A, Z = net.shape
    width, per_width = 0.0, 0.0
    if config.distribution == "categorical":
        width = (config.v_max - config.v_min) / (Z - 1)
        per_width = (Z - 1) / (config.v_max - config.v_min)
    metrics, tree = draws.new_empty(2, S), replay.priorities
    if config.prioritized != (tree is not None):
        raise CannotTake("the memory has priorities that are not asked for, or lacks them")
    RAINBOW_UPDATE(
        S=S,
        G=G,
        M=M,
        O=replay.obs_size,
        C=replay.rows.shape[1],
        N=replay.num_envs,
        A=A,
        Z=Z,
        K=len(net.q.outputs),
        P=optimizer.params.shape[1],
        n_steps=config.n_steps,
        noise_size=net.noise_size,
        is_double=config.double,
        distribution=DISTRIBUTIONS.index(config.distribution),
        huber=config.loss == "huber",
        net=mlp.struct(net.q, optimizer),
        target=mlp.struct(target.q),
        sigma=None if net.sigma is None else mlp.struct(net.sigma, optimizer),
        target_sigma=None if net.sigma is None else mlp.struct(target.sigma),
        optimizer=optim.struct(optimizer, config.learning_rate, config.max_grad_norm),
        added=replay.added,
        rows=replay.rows,
        depth=0 if tree is None else tree.depth,
        nodes=None if tree is None else tree.nodes,
        largest=None if tree is None else tree.largest,
        draws=draws,
        noise=noise,
        gamma=config.gamma,
        returns=net.returns().struct(S),
        v_min=config.v_min,
        width=width,
        per_width=per_width,
        alpha=config.priority_alpha,
        beta=beta,
        metrics=metrics,
    )
    return {"td_loss": metrics[0], "q_values": metrics[1]}


def check_networks(net: Any, target: Any, config: Any) -> None:
    """Raise CannotTake for networks that are not those of a Config."""
    A, Z = net.shape
    outputs = (A * Z, Z) if config.dueling else (A * Z,)
    modules = [net.q, target.q, *(x for x in (net.sigma, target.sigma) if x is not None)]
    shapes = [[p.shape for p in module.parameters()] for module in modules]
    same = all(module.outputs == outputs for module in modules)
    same = same and all(of_module == shapes[0] for of_module in shapes)
    same = same and len(modules) == (4 if config.noisy else 2)
    for one in (net, target):
        same = same and one.shape == (A, config.outputs)
        same = same and one.categorical == (config.distribution == "categorical")
        bounds = zip(one.bounds, (config.v_min, config.v_max), strict=True)
        same = same and all(is_same(x, y) for x, y in bounds)
    if not same or len(net.q.weights) > MOST_LAYERS:
        raise CannotTake("the networks are not those of algos/rainbow.py")


def is_same(x: Tensor | float, y: Tensor | float) -> bool:
    """Whether two hyperparameters are the same."""
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return isinstance(x, Tensor) and isinstance(y, Tensor) and torch.equal(x, y)
    return x == y
