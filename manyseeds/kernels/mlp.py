"""Multilayer perceptrons of a seed axis in C (mlp.c), as an operation that autograd knows.

S seeds, K networks per seed, B samples, L layers. Weights are `[S, K, in, out]`, biases
`[S, K, 1, out]`, gains and shifts of normalised hidden layers likewise; float32, each matrix in one
piece.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manyseeds import kernels
from manyseeds.kernels.binding import CannotTake

ACTIVATIONS = ("tanh", "relu")  # as numbered in C
LANES = 16  # what the floats of a network are a multiple of


def networks(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    gains: Sequence[Tensor],
    shifts: Sequence[Tensor],
    *,
    columns: Sequence[int],
    activation: str,
) -> tuple[Tensor, ...]:
    """The outputs of all networks for x `[S, B, in]`: of network k `[S, B, columns[k]]`.

    columns: how many columns of its last layer each network uses. x gets no gradient. The gradients
    of the parameters have some of their own by those of the outputs, not by the parameters. Raises
    ValueError for another x than theirs.
    """
    S, _, n_in, _ = weights[0].shape
    if x.shape != (S, x.shape[1], n_in) or x.dtype != weights[0].dtype:
        raise ValueError(f"x {list(x.shape)} {x.dtype} for weights of {S} seeds, {n_in} inputs")
    parameters = in_order(weights, biases, gains, shifts)
    sizes = (x.shape[-1], *(bias.shape[-1] for bias in biases))
    kind = ACTIVATIONS.index(activation)
    if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
        return _Networks.apply(x, sizes, tuple(columns), kind, *parameters)  # type: ignore[no-any-return, no-untyped-call]
    return compute(x.contiguous(), sizes, tuple(columns), kind, parameters, None)


def in_order(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    gains: Sequence[Tensor],
    shifts: Sequence[Tensor],
) -> list[Tensor]:
    """The parameters as C numbers them."""
    pairs = (*zip(weights, biases, strict=True), *zip(gains, shifts, strict=True))
    return [p for pair in pairs for p in pair]


def takes(networks: Any, *args: Any) -> bool:
    """Whether `forward` and `only` can take arguments, of which x is the last."""
    return kernels.usable(args[-1]) and not args[-1].requires_grad


def forward(module: Any, /, x: Tensor) -> list[Tensor]:
    """What `SeedMLP.forward` of layers.py says."""
    settings = {"columns": module.outputs, "activation": module.activation}
    return list(networks(x, *module.parameter_lists(), **settings))


def only(module: Any, /, k: int, x: Tensor) -> Tensor:
    """What `SeedMLP.only` of layers.py says."""
    settings = {"columns": [module.outputs[k]], "activation": module.activation}
    (y,) = networks(x, *module.alone(k), **settings)
    return y


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sizes: tuple[int, ...],
        columns: tuple[int, ...],
        kind: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        x = x.contiguous()
        S, B = x.shape[:2]
        hidden = x.new_empty(S * len(columns) * B * width_of_hidden(sizes, len(parameters)))
        outputs = compute(x, sizes, columns, kind, parameters, hidden)
        ctx.settings = sizes, columns, kind
        ctx.save_for_backward(x, hidden, *parameters)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, *parameters = ctx.saved_tensors
        sizes, columns, kind = ctx.settings
        described = Described(sizes, columns, kind, x, hidden)
        if torch.is_grad_enabled():  # a gradient of the gradients is asked for
            of_parameters = _Gradients.apply(described, len(grads), *grads, *parameters)  # type: ignore[no-untyped-call]
        else:
            of_parameters = gradients(grads, parameters, described)
        return None, None, None, None, *of_parameters


class _Gradients(torch.autograd.Function):
    """The gradients as functions of those of the outputs, in which they are linear.

    What they are linear by is the Jacobian, J^T u, so the derivative along v by u is J v: what
    Fisher-vector products need. By the parameters they would need second derivatives: NaN.
    """

    @staticmethod
    def forward(ctx: Any, described: Described, count: int, *tensors: Tensor) -> Any:
        ctx.described, ctx.count = described, count
        ctx.save_for_backward(*tensors[count:])
        return gradients(tensors[:count], tensors[count:], described)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        parameters = ctx.saved_tensors
        unknown = [p.new_full((), torch.nan).expand_as(p) for p in parameters]
        return None, None, *derivatives(tangents, parameters, ctx.described), *unknown


def compute(
    x: Tensor,
    sizes: tuple[int, ...],
    columns: tuple[int, ...],
    kind: int,
    parameters: Sequence[Tensor],
    hidden: Tensor | None,
) -> tuple[Tensor, ...]:
    """The outputs. hidden gets those of the hidden layers, which `gradients` needs."""
    S, B = x.shape[:2]
    outputs = tuple(x.new_empty(S, B, width) for width in columns)
    described = describe(S, sizes, columns, kind, parameters)
    kept = None if hidden is None else hidden.data_ptr()
    as_c = ctypes.byref(described)
    failed = kernels.functions().mlp_forward(as_c, B, x.data_ptr(), kept, addresses(outputs))
    if failed:
        raise MemoryError("allocating memory for networks failed")
    return outputs


def width_of_hidden(sizes: tuple[int, ...], parameters: int) -> int:
    """What the function of mlp.h says; parameters: how many each network has."""
    width = sum(sizes[1:-1])
    return 2 * width + len(sizes) - 2 if normalized(sizes, parameters) else width


def normalized(sizes: tuple[int, ...], parameters: int) -> bool:
    """Whether hidden layers are, by how many parameters each network has."""
    return parameters > 2 * (len(sizes) - 1)


class Described(NamedTuple):
    """Networks whose outputs were computed, beside their parameters."""

    sizes: tuple[int, ...]
    columns: tuple[int, ...]
    kind: int
    x: Tensor  # [S, B, in]
    hidden: Tensor  # what the hidden layers have kept


def gradients(
    grads: Sequence[Tensor], parameters: Sequence[Tensor], networks: Described
) -> tuple[Tensor, ...]:
    """The gradients of all parameters, from those of the outputs."""
    of_parameters = tuple(p.new_empty(p.shape) for p in parameters)
    differentiate(kernels.functions().mlp_backward, grads, of_parameters, parameters, networks)
    return of_parameters


def derivatives(
    tangents: Sequence[Tensor], parameters: Sequence[Tensor], networks: Described
) -> tuple[Tensor, ...]:
    """The derivatives of the outputs along tangents, one for each parameter."""
    x = networks.x
    of_outputs = tuple(x.new_empty(*x.shape[:2], width) for width in networks.columns)
    differentiate(kernels.functions().mlp_tangent, tangents, of_outputs, parameters, networks)
    return of_outputs


def differentiate(
    function: Any,
    inputs: Sequence[Tensor],
    results: Sequence[Tensor],
    parameters: Sequence[Tensor],
    networks: Described,
) -> None:
    """Call a function of C that fills tensors with derivatives along, or by, its inputs."""
    sizes, columns, kind, x, hidden = networks
    inputs = [tensor.contiguous() for tensor in inputs]
    described = describe(len(x), sizes, columns, kind, parameters)
    pointers = x.data_ptr(), hidden.data_ptr(), addresses(inputs), addresses(results)
    if function(ctypes.byref(described), x.shape[1], *pointers):
        raise MemoryError("allocating memory for the derivatives of networks failed")


class _Description(ctypes.Structure):
    """`networks` of mlp.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("seeds", "networks", "layers", "activation")),
        *((name, ctypes.c_int) for name in ("threads", "normalized")),
        *((name, ctypes.c_void_p) for name in ("sizes", "columns", "parameters", "strides")),
        *(("places", ctypes.c_void_p), ("size", ctypes.c_long)),
    )


def describe(
    seeds: int,
    sizes: tuple[int, ...],
    columns: tuple[int, ...],
    kind: int,
    parameters: Sequence[Tensor],
    places: tuple[int, ...] = (),
    size: int = 0,
) -> Any:
    """The networks as C wants them; places, size: of gradients that lie as those of a module."""
    pointers, strides = map(Tensor.data_ptr, parameters), map(Tensor.stride, parameters)
    threads = torch.get_num_threads()
    return _describe(
        *(seeds, sizes, columns, kind, threads, tuple(pointers), tuple(strides), places, size)
    )


@lru_cache(maxsize=256)
def _describe(
    seeds: int,
    sizes: tuple[int, ...],
    columns: tuple[int, ...],
    kind: int,
    threads: int,
    pointers: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    places: tuple[int, ...],
    size: int,
) -> Any:
    between = [x for stride in strides for x in stride[:2]]  # seeds and networks
    arrays = (
        (ctypes.c_int * len(sizes))(*sizes),
        (ctypes.c_int * len(columns))(*columns),
        (ctypes.c_void_p * len(pointers))(*pointers),
        (ctypes.c_long * len(between))(*between),
        (ctypes.c_long * len(places))(*places),
    )
    description = _Description(
        seeds,
        len(columns),
        len(sizes) - 1,
        kind,
        threads,
        normalized(sizes, len(pointers)),
        *[ctypes.addressof(array) for array in arrays],
        size,
    )
    description.arrays = arrays  # as long as what points to them
    return description


def addresses(tensors: Sequence[Tensor]) -> Any:
    """An array in C of where tensors begin."""
    return (ctypes.c_void_p * len(tensors))(*map(Tensor.data_ptr, tensors))


def struct(module: Any, root: Any = None, trains_gains: bool = False) -> ctypes.Structure:
    """The `networks` of a SeedMLP; root: the module whose gradients are computed with it, or the
    optimizer that takes a step with them. trains_gains: whether the kernel has a place for the
    gradients of gains and shifts. Raises CannotTake."""
    lists = module.parameter_lists()
    if root is not None and lists[2] and not trains_gains:
        raise CannotTake("layer normalisation is not trained by this kernel")
    places = NOWHERE if root is None else places_in(root)
    parameters = [p for ps in lists for p in ps]
    lies = tuple((id(p), p.data_ptr(), p.shape, p.stride()) for p in parameters)
    key = module.activation, tuple(module.outputs), torch.get_num_threads(), lies
    # Put together again only when something of this has changed: it takes as long as computing.
    known, described, _ = module.structs.get(id(places), (None, None, None))
    if known != key:
        described = _struct(module, lists, *places)
        if not isinstance(root, nn.Module):
            # What has a number in the key is kept, so that nothing else gets that number.
            keep(module.structs, id(places), (key, described, (places, parameters)))
    return described  # type: ignore[no-any-return]


def keep(kept: dict[Any, Any], key: Any, value: Any, most: int = 8) -> None:
    """Keep a value, in a dictionary that does not grow for ever."""
    if len(kept) >= most:
        kept.clear()
    kept[key] = value


def _struct(
    module: Any, lists: tuple[list[Tensor], ...], found: dict[int, int], size: int
) -> ctypes.Structure:
    weights, biases, *_ = lists
    parameters = in_order(*lists)
    sizes = (weights[0].shape[2], *(bias.shape[-1] for bias in biases))
    kind = ACTIVATIONS.index(module.activation)
    places = tuple(place_of(p, found) for p in parameters) if found else ()
    if len(set(places)) < len(places):
        raise CannotTake("a parameter of networks stands in two places")
    described: ctypes.Structure = describe(
        len(weights[0]), sizes, tuple(module.outputs), kind, parameters, places, size
    )
    return described


NOWHERE: tuple[dict[int, int], int] = {}, 0  # where no gradients are asked for


def place_of(p: Tensor, places: dict[int, int]) -> int:
    """Where a parameter lies in the flat ones. Raises CannotTake."""
    place = places.get(id(p))
    if place is None:
        raise CannotTake("a parameter is not among those that the optimizer trains")
    return place


def places_in(root: Any) -> tuple[dict[int, int], int]:
    """Where the parameters of a module lie in its flat ones (`optim.flatten_parameters`), by id,
    and the floats of a network, padding included. root: the module, or its optimizer, which has
    kept that."""
    if not isinstance(root, nn.Module):
        return root.places  # type: ignore[no-any-return]
    places, at = {}, 0
    for p in root.parameters():
        places[id(p)] = at
        at += p[0, 0].numel()
    return places, -(-at // LANES) * LANES


def set_gradients(root: nn.Module, gradients: Tensor) -> None:
    """Add gradients `[S, P]`, which lie as the parameters of a module do, to theirs."""
    per_network = gradients.view(*next(root.parameters()).shape[:2], -1)
    at = 0
    for p in root.parameters():
        size = p[0, 0].numel()
        accumulate(p, per_network[..., at : at + size].view(p.shape))
        at += size


def accumulate(p: Tensor, gradient: Tensor) -> None:
    """Add a gradient to that of a parameter, as `backward` does."""
    p.grad = gradient if p.grad is None else p.grad + gradient
