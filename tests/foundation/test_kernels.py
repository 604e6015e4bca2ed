"""What is computed in C, against PyTorch in float64 and against definitions."""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import Callable, Iterator
from itertools import chain, pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import Tensor, nn

from manyseeds import kernels
from manyseeds.distributions import Categorical
from manyseeds.kernels import mlp
from manyseeds.kernels.mlp import networks
from manyseeds.layers import SeedMLP
from manyseeds.optim import SeedAdam, SeedOptimizer, SeedRAdam, SeedRMSprop
from manyseeds.samples import discounted_sums, permutations, take
from manyseeds.seeds import gumbel_of, normal_of

each_activation = pytest.mark.parametrize("activation", ["tanh", "relu"])


@pytest.fixture(autouse=True)
def has_kernels() -> None:
    if not kernels.available():
        pytest.skip("needs a C compiler")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- Networks: their numbers --------------------------------------------------------------


class Case:
    """Networks, inputs, and weights of the outputs in a loss."""

    def __init__(
        self,
        S: int,
        B: int,
        sizes: tuple[int, ...],
        outputs: tuple[int, ...],
        activation: str,
        seed: int = 0,
        layer_norm: bool = False,
    ) -> None:
        self.net = SeedMLP(S, sizes[0], sizes[1:], outputs, activation, layer_norm)
        self.x, self.weights = normal(seed, S, B, sizes[0]), []
        for i, p in enumerate(self.net.parameters()):
            p.data.copy_(normal(seed + 1 + i, *p.shape) / math.sqrt(p.shape[-2]))
        for i, width in enumerate(outputs):
            self.weights.append(normal(seed + 100 + i, S, B, width))

    def round_to_integers(self) -> None:
        """Numbers whose sums and products are exact: weights mostly 0, otherwise -1 or 1."""
        for w in self.net.weights:
            w.data.copy_(w.sign() * (w.abs() > 1.6 / math.sqrt(w.shape[-2])))
        for x in (self.x, *self.weights, *(b.data for b in self.net.biases)):
            x.copy_((x * 1.5).round())

    def loss(self, outputs: list[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=outputs[0].dtype)
        for y, weight in zip(outputs, self.weights, strict=True):
            total = total + (y * weight).sum()
        return total

    def exact(self) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and gradients in float64."""
        leaves = [p.detach().double().requires_grad_() for p in self.net.parameters()]
        L = len(self.net.weights)
        gains, shifts = leaves[2 * L : 3 * L - 1], leaves[3 * L - 1 :]
        x = self.x.double()[:, None]
        for i in range(L):
            x = x @ leaves[i] + leaves[L + i]
            if i < L - 1:
                if gains:
                    x = x - x.mean(-1, keepdim=True)
                    x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
                    x = gains[i] * x + shifts[i]
                x = x.tanh() if self.net.activation == "tanh" else x.relu()
        outputs = [x[:, k][..., :width] for k, width in enumerate(self.net.outputs)]
        grads = torch.autograd.grad(self.loss(outputs), leaves)
        return [y.detach() for y in outputs], list(grads)

    def ours(self) -> tuple[list[Tensor], list[Tensor]]:
        """The same in C."""
        outputs = self.net(self.x)
        self.loss(outputs).backward()
        return [y.detach() for y in outputs], self.gradients()

    def gradients(self) -> list[Tensor]:
        """And forget them."""
        grads = []
        for p in self.net.parameters():
            assert p.grad is not None
            grads.append(p.grad)
            p.grad = None
        return grads


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = [draw(st.integers(1, 20)), *draw(st.lists(st.integers(1, 130), max_size=4))]
    outputs = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    batch = draw(st.integers(1, 300))
    activation = draw(st.sampled_from(["tanh", "relu"]))
    case = Case(
        draw(st.integers(1, 5)),
        batch,
        tuple(sizes),
        tuple(outputs),
        activation,
        draw(st.integers(0, 1000)),
        # By a variance there are no exact numbers. Few units may have next to none: roundings grow.
        layer_norm=activation == "tanh" and min(sizes[1:], default=8) >= 8 and draw(st.booleans()),
    )
    if draw(st.booleans()):  # neither inputs nor gradients are contiguous
        for tensors in ([case.x], case.weights):
            tensors[:] = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in tensors]
        case.x = case.x.transpose(1, 2).contiguous().transpose(1, 2)
    if draw(st.booleans()):
        SeedAdam(case.net)  # parameters become views of one tensor
    return case


def distance(ours: Tensor, exact: Tensor, largest: float = 0.0) -> float:
    """The largest error, relative to the largest number; of several tensors, to the largest of all
    of them."""
    assert ours.shape == exact.shape
    assert ours.dtype == torch.float32
    scale = max(float(exact.abs().max()), largest, 1e-3)
    return float((ours - exact).abs().max()) / scale


@settings(max_examples=40, deadline=None)
@given(cases())
@example(Case(2, 9, (4, 3, 64), (3, 1), "relu"))
@example(Case(2, 9, (4, 3, 64), (3, 1), "tanh"))
@example(Case(3, 150, (4, 40, 17), (3, 1), "tanh", layer_norm=True))
def test_networks_are_pytorchs(case: Case) -> None:
    """Outputs and gradients, to float32's rounding; ReLU, which has a kink, with exact numbers."""
    if case.net.activation == "relu":
        case.round_to_integers()
    outputs, grads = case.ours()
    exact_outputs, exact_grads = case.exact()
    # A gradient whose terms cancel is small, and its rounding is that of the others.
    largest = max(float(grad.abs().max()) for grad in exact_grads)
    scales = [0.0] * len(outputs) + [largest] * len(grads)
    pairs = zip(outputs + grads, exact_outputs + exact_grads, scales, strict=True)
    for ours, exact, scale in pairs:
        if case.net.activation == "relu":
            assert exact.abs().max() < 2**22
            assert torch.equal(ours.double(), exact)
        else:
            assert distance(ours, exact, scale) < 4e-5  # measured 7e-6 in 1,500 examples


@settings(max_examples=20, deadline=None)
@given(cases(), st.data())
def test_one_head_alone(case: Case, data: st.DataObject) -> None:
    """Its outputs and gradients are those of all heads where the others are not in the loss."""
    k = data.draw(st.integers(0, len(case.weights) - 1))
    case.weights = [w if i == k else torch.zeros_like(w) for i, w in enumerate(case.weights)]
    outputs, grads = case.ours()
    y = case.net.only(k, case.x)
    assert torch.equal(y, outputs[k])
    with torch.no_grad():
        assert torch.equal(case.net.only(k, case.x), outputs[k])
        assert torch.equal(case.net(case.x)[k], outputs[k])
    (y * case.weights[k]).sum().backward()
    for alone, together in zip(case.gradients(), grads, strict=True):
        assert torch.equal(alone, together)
    for p, together in zip(case.net.parameters(), grads, strict=True):
        others = [i for i in range(len(case.weights)) if i != k]
        assert not together[:, others].any()
        if p is case.net.weights[-1] or p is case.net.biases[-1]:
            together[:, k, :, : case.net.outputs[k]] = 0
            assert not together.any()  # padding


def test_a_head_that_is_not_in_the_loss() -> None:
    """Autograd knows no gradient of its outputs; neither do frozen parameters get one."""
    case = Case(2, 5, (3, 8), (2, 1), "tanh")
    case.net.weights[0].requires_grad_(False)
    _, values = case.net(case.x)
    (values * case.weights[1]).sum().backward()
    assert case.net.weights[0].grad is None
    case.weights[0] = torch.zeros_like(case.weights[0])
    exact = case.exact()[1]
    for p, grad in list(zip(case.net.parameters(), exact, strict=True))[1:]:
        assert p.grad is not None
        assert distance(p.grad, grad) < 1e-5


def test_tanh() -> None:
    """Of all magnitudes, within 5e-7 and never beyond 1: its derivative would be negative."""
    net = SeedMLP(1, 1, (1,), (1,), "tanh")
    for w in net.weights:
        w.data[..., 0] = 1
    bits = torch.arange(0, 0x7F800001, 30_011).int()  # from 0 up to infinity
    x = torch.cat((bits.view(torch.float32), torch.tensor([math.inf])))
    x = torch.cat((x, -x)).view(1, -1, 1)
    y = net(x)[0].detach()
    assert y.abs().max() <= 1
    assert (y - x.double().tanh()).abs().max() <= 5e-7  # measured 3.7e-7
    small = (x.abs() > 1e-30) & (x.abs() < 1e-3)
    torch.testing.assert_close(y[small], x[small].double().tanh().float(), rtol=5e-7, atol=0)
    assert net(torch.full((1, 1, 1), math.nan))[0].isnan().all()


@each_activation
def test_nan_stays_in_its_seed(activation: str) -> None:
    """In a sample: its outputs. In a seed's weights: all its outputs, gradients as PyTorch's."""
    case = Case(3, 20, (4, 5, 70), (16, 16), activation)  # without padding
    outputs, grads = case.ours()
    case.x[1, 7] = math.nan
    for broken, y in zip(case.ours()[0], outputs, strict=True):
        assert broken[1, 7].isnan().all()
        broken[1, 7] = y[1, 7]
        assert torch.equal(broken, y)
    case.x[1, 7] = 0
    case.net.weights[0].data[1] = math.nan
    found = case.ours()
    with kernels.off():
        theirs = case.ours()
    for broken, same in zip(chain(*found), chain(*theirs), strict=True):
        assert torch.equal(broken.isnan(), same.isnan())
    for broken, right in zip(chain(*found), outputs + grads, strict=True):
        assert torch.equal(broken[[0, 2]], right[[0, 2]])
    assert all(y[1].isnan().all() for y in found[0])


def test_an_input_of_another_shape_is_an_error() -> None:
    """C would read what is not there."""
    net = SeedMLP(3, 4, (8,), (2,), "tanh")
    for shape in ((2, 5, 4), (4, 5, 4), (3, 5, 3), (3, 5)):
        with pytest.raises((ValueError, IndexError)):
            net(torch.zeros(shape))
    with pytest.raises(ValueError, match="float32 for weights"):
        net.double()(torch.zeros(3, 5, 4))


def derivative(net: SeedMLP, x: Tensor, tangents: list[Tensor]) -> list[Tensor]:
    """Of the outputs along tangents of the parameters: J v, by u -> J^T u."""
    outputs, parameters = net(x), list(net.parameters())
    u = [torch.zeros_like(y, requires_grad=True) for y in outputs]
    gradients = torch.autograd.grad(outputs, parameters, u, create_graph=True)
    return list(torch.autograd.grad(gradients, u, tangents))


@settings(max_examples=40, deadline=None)
@given(cases())
@example(Case(2, 300, (4, 64, 64), (3, 1), "tanh"))
@example(Case(2, 300, (4, 64, 33), (3, 1), "tanh", layer_norm=True))
@example(Case(2, 9, (4,), (3,), "relu"))
def test_gradients_have_derivatives_by_those_of_the_outputs(case: Case) -> None:
    if case.net.activation == "relu":  # on which side of 0 a number is must not be rounding
        case.round_to_integers()
    tangents = [normal(900 + i, *p.shape) for i, p in enumerate(case.net.parameters())]
    found = derivative(case.net, case.x, tangents)
    exact = copy.deepcopy(case.net).double()
    right = derivative(exact, case.x.double(), [v.double() for v in tangents])
    scale = max(y.abs().max().item() for y in right)
    for x, y in zip(found, right, strict=True):
        assert y.dtype == torch.float64  # by PyTorch
        torch.testing.assert_close(x.double(), y, rtol=0, atol=1e-5 * (1 + scale))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("hidden", [(), (20,), (40, 17, 33)])
def test_gradients_by_the_inputs(hidden: tuple[int, ...], layer_norm: bool) -> None:
    """What C's algorithms ask for, of more samples than a block has."""
    B, case = 150, Case(1, 150, (4, *hidden), (3,), "tanh", layer_norm=layer_norm)
    (weights,) = case.weights
    exact = copy.deepcopy(case.net).double()
    x = case.x.double().requires_grad_()
    (expected,) = torch.autograd.grad(exact(x)[0], x, weights.double())
    described = mlp.struct(case.net)
    sizes = (4, *hidden, 16)
    width = mlp.width_of_hidden(sizes, len(list(case.net.parameters())))
    kept, y, found = torch.empty(B * width), torch.empty(1, B, 3), torch.empty(1, B, 4)
    scratch = torch.empty(2 * 128 * max(sizes) + sum(map(math.prod, pairwise(sizes))) + 4 * 40)
    c, network = kernels.functions(), ctypes.byref(described)
    c.mlp_forward(network, B, case.x.data_ptr(), kept.data_ptr(), mlp.addresses([y]))
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (kept, weights, found, scratch)]
    c.network_input_gradient(network, 0, 0, B, *pointers)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_second_derivatives_are_not_known() -> None:
    """NaN, not a wrong number; with kernels off they are known."""
    case = Case(1, 4, (3, 4), (1,), "tanh")
    p = case.net.weights[0]

    def twice() -> Tensor:
        (grad,) = torch.autograd.grad(case.loss(case.net(case.x)), p, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), p)[0]

    assert twice().isnan().all()
    with kernels.off():
        assert twice().isfinite().all()
        assert twice().any()
    case.x.requires_grad_()  # what needs a gradient of its inputs is left to PyTorch
    (grad,) = torch.autograd.grad(case.loss(case.net(case.x)), case.x)
    assert grad.any()
    assert torch.autograd.grad(case.net.only(0, case.x).sum(), case.x)[0].any()


# ---- Equal bits ---------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def learn(case: Case, S: int) -> dict[str, Tensor]:
    """Outputs, gradients, and the state after some steps, of the first S seeds."""
    net = SeedMLP(S, *case.shape)  # type: ignore[attr-defined]
    for p, q in zip(net.parameters(), case.net.parameters(), strict=True):
        p.data.copy_(q[:S])
    part = copy.copy(case)
    part.net, part.x, part.weights = net, case.x[:S], [w[:S] for w in case.weights]
    outputs, grads = part.ours()
    optimizer = SeedAdam(net)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    found |= {f"gradient {i}": grad for i, grad in enumerate(grads)}
    for i in range(3):
        part.loss(net(part.x)).backward()
        found[f"norms {i}"] = optimizer.step(0.01, max_grad_norm=1.0)
    return found | {"parameters": optimizer.params, "square": optimizer.square}


@each_activation
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("hidden", [(3,), (5, 3), (64, 64), (120, 84)])
def test_bits_depend_on_neither_seeds_nor_threads(
    hidden: tuple[int, ...], layer_norm: bool, activation: str, threads: Callable[[int], None]
) -> None:
    case = Case(32, 37, (4, *hidden), (3, 1), activation, layer_norm=layer_norm)
    case.shape = (4, hidden, (3, 1), activation, layer_norm)  # type: ignore[attr-defined]
    expected = learn(case, 32)
    for S, count in product((1, 2, 7, 32), (1, 2)):
        threads(count)
        for name, tensor in learn(case, S).items():
            assert torch.equal(tensor, expected[name][:S]), (name, S, count)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_bits_do_not_depend_on_other_samples(layer_norm: bool) -> None:
    """A policy's outputs for an environment are those for it alone."""
    case = Case(2, 33, (5, 7, 64), (3, 1), "tanh", layer_norm=layer_norm)
    for outputs, alone in zip(
        case.net(case.x), zip(*map(case.net, case.x.split(1, 1)), strict=True), strict=True
    ):
        assert torch.equal(outputs, torch.cat(alone, 1))


# ---- Optimizers ---------------------------------------------------------------------------

S, STEPS = 4, 20

OPTIMIZERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "adam": (
        lambda net: SeedAdam(net, eps=1e-5),
        lambda ps: torch.optim.Adam(ps, eps=1e-5),
    ),
    "radam": (SeedRAdam, torch.optim.RAdam),
    "rmsprop": (
        lambda net: SeedRMSprop(net, alpha=0.9, eps=1e-3),
        lambda ps: torch.optim.RMSprop(ps, alpha=0.9, eps=1e-3),
    ),
    "rmsprop_tf": (
        lambda net: SeedRMSprop(net, alpha=0.9, eps=1e-3, tf=True),
        lambda ps: RMSpropTFLike(ps, alpha=0.9, eps=1e-3),
    ),
}
each_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)


class Module(nn.Module):
    """Two networks per seed, and a constant: 133 floats per network, so that there is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SeedMLP(S, 3, (5,), (2, 1), "tanh")
        self.constant = self.net.constant(17, 0.5)
        for i, p in enumerate(self.parameters()):
            p.data.copy_(normal(i, *p.shape))


def state_of(optimizer: SeedOptimizer) -> list[Tensor]:
    """All that a step may change, with the seed first."""
    found = [optimizer.params, optimizer.square]  # type: ignore[attr-defined]
    if isinstance(optimizer, SeedAdam):
        found += [optimizer.mean, optimizer.beta_powers.transpose(0, 1)]
    if isinstance(optimizer, SeedRAdam):
        found.append(optimizer.steps)
    return [x.clone() for x in found]


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("max_norm", [0.0, 6.0])
@pytest.mark.parametrize("rates", ["number", "0-d", "per seed"])
@each_optimizer
def test_optimizers_are_pytorchs(kind: str, rates: str, max_norm: float) -> None:
    """Each seed's, in float64: with clipping, masks and a parameter that never has a gradient."""
    make, make_theirs = OPTIMIZERS[kind]
    module = Module()
    theirs = [[nn.Parameter(p[s].detach().double()) for p in module.parameters()] for s in range(S)]
    optimizer, references = make(module), [make_theirs(ps) for ps in theirs]
    untouched = module.constant.detach().clone()
    clipped = 0
    for step in range(STEPS):
        per_seed = normal(1000 + step, S, 1).abs() * 0.01
        if rates != "per seed":
            per_seed = per_seed[:1].expand(S, 1)
        lr = {"number": per_seed[0, 0].item(), "0-d": per_seed[0, 0], "per seed": per_seed}[rates]
        mask = None if step % 3 == 0 else normal(2000 + step, S) > -0.5
        norms = []
        for i, p in enumerate(module.net.parameters()):
            missing = step % 4 == 1 and i == 2
            p.grad = None if missing else normal(31 * step + i, *p.shape) * 0.3 * (1 + step % 2)
        for s, (ps, reference) in enumerate(zip(theirs, references, strict=True)):
            for p, q in zip(module.net.parameters(), ps[1:], strict=True):  # ps[0]: constant
                q.grad = torch.zeros_like(q) if p.grad is None else p.grad[s].double()
            norms.append(float(nn.utils.clip_grad_norm_(ps, max_norm or math.inf)))
            if mask is None or mask[s]:
                reference.param_groups[0]["lr"] = float(per_seed[s])
                reference.step()
        before = state_of(optimizer)
        found = optimizer.step(lr, max_grad_norm=max_norm, mask=mask)
        torch.testing.assert_close(found, torch.tensor(norms), rtol=1e-6, atol=0)
        clipped += sum(norm > 6 for norm in norms)
        if mask is not None:
            for old, new in zip(before, state_of(optimizer), strict=True):
                assert torch.equal(old[~mask], new[~mask])
        assert all(p.grad is None for p in module.parameters())
    for s, ps in enumerate(theirs):
        for p, q in zip(module.parameters(), ps, strict=True):
            torch.testing.assert_close(p[s].double(), q, rtol=0, atol=5e-6)  # measured 9e-7
    assert torch.equal(module.constant, untouched)
    assert S * STEPS * 0.3 < clipped < S * STEPS  # both happen


@pytest.mark.usefixtures("computed")
def test_clipping_of_a_tiny_gradient_is_pytorchs() -> None:
    """PyTorch adds 1e-6 to the norm: one of 1e-6 is halved by a limit of 1e-6."""
    module = nn.ParameterList([torch.zeros(1, 1, 1, 1)])
    optimizer = SeedRMSprop(module, alpha=0.0)
    module[0].grad = torch.full_like(module[0], 1e-6)
    optimizer.step(0.0, max_grad_norm=1e-6)
    assert optimizer.square[0, 0].sqrt().item() == pytest.approx(5e-7)


@each_optimizer
def test_padding_stays_0_in_the_optimizer(kind: str) -> None:
    """What was there before is no gradient: the memory of gradients may hold anything."""
    module = Module()
    optimizer = OPTIMIZERS[kind][0](module)
    padding = torch.ones(S, 2, optimizer.params.shape[1] // 2, dtype=torch.bool)
    padding[..., : sum(p[0, 0].numel() for p in module.parameters())] = False
    padding = padding.flatten(1)
    assert padding.any()
    for i in range(2):
        optimizer.grads[padding] = 1e3
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        norms = optimizer.step(0.1, max_grad_norm=1.0)
        assert (norms**2).round().tolist() == [(~padding[0]).sum()] * S, i
        assert not optimizer.params[padding].any()


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("max_norm", [0.0, 1.0])
@each_optimizer
def test_a_nan_gradient_stays_in_its_seed(kind: str, max_norm: float) -> None:
    """Clipping makes all of its parameters NaN; a mask that leaves it out keeps them."""
    found = {}
    for broken, mask in product((False, True), (None, torch.arange(S) != 1)):
        module = Module()
        optimizer = OPTIMIZERS[kind][0](module)
        for step in range(3):
            for i, p in enumerate(module.parameters()):
                p.grad = normal(31 * step + i, *p.shape)
                if broken and step == 1 and i == 0:
                    p.grad[1, 0, 0, 0] = math.nan
            norms = optimizer.step(0.1, max_grad_norm=max_norm, mask=mask)
            if step < 2:  # of weights that are NaN it may be anything
                assert norms.isnan().tolist() == [False, broken and step == 1, False, False]
        found[broken, mask is None] = state_of(optimizer)
    others = [0, 2, 3]
    for right, wrong in zip(found[False, True], found[True, True], strict=True):
        assert torch.equal(right[others], wrong[others])
    for right, wrong in zip(found[False, False], found[True, False], strict=True):
        assert torch.equal(right, wrong)
    broken_row = found[True, True][0][1].view(2, -1)[0, : 3 * 5]
    assert broken_row.isnan().all() if max_norm else broken_row.isnan().sum() == 1


# ---- Categorical --------------------------------------------------------------------------


def logits_of(kind: str, R: int, A: int) -> Tensor:
    x = normal(A, 2, R, A)
    impossible = (normal(1, *x.shape) > 0) & (torch.arange(A) > 0)  # never all of them
    return {
        "normal": x,
        "large": 1000 + x,
        "wide": 30 * x,
        "extreme": 80 * x.sign(),
        "equal": torch.full_like(x, -80.0),
        "masked": x.masked_fill(impossible, -math.inf),
    }[kind]


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("kind", ["normal", "large", "wide", "extreme", "equal", "masked"])
@pytest.mark.parametrize("A", [1, 2, 3, 18])
def test_categorical_is_pytorchs(A: int, kind: str, used: tuple[bool, bool]) -> None:
    """In float64, from the definition; actions that cannot be taken are asked for, too."""
    logits = logits_of(kind, 50, A).requires_grad_()
    actions = torch.randint(A, (2, 50), generator=torch.Generator().manual_seed(0))
    weights = normal(0, 2, 2, 50)
    exact_logits = logits.detach().double().requires_grad_()
    exact_all = exact_logits.log_softmax(-1)
    exact = (
        exact_all.gather(-1, actions[..., None])[..., 0],
        -(exact_all.exp() * exact_all.masked_fill(exact_all.isinf(), 0.0)).sum(-1),
    )
    ours = Categorical(logits).logprob_and_entropy(actions)

    def gradient(x: Tensor, outputs: tuple[Tensor, ...]) -> Tensor:
        terms = zip(outputs, weights, used, strict=True)
        total = torch.stack([(y * w).sum() for y, w, in_loss in terms if in_loss]).sum()
        return torch.autograd.grad(total, x)[0]

    for y, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(y.double(), expected, rtol=5e-7, atol=1e-6)
    found = gradient(logits, ours)
    spread = float(logits.detach().diff(dim=-1).nan_to_num(0, 0, 0).abs().sum(-1).max())
    expected, limit = gradient(exact_logits, exact), 1e-6 + 6e-8 * spread
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=limit)


def test_categorical_of_what_is_not_contiguous_or_not_finite() -> None:
    logits, actions = normal(0, 5, 3, 4).transpose(0, 1), torch.tensor([[0, 1, 2, 3, 0]] * 3)
    logits[1, 2, 3] = math.nan
    logits.requires_grad_()
    ours = Categorical(logits).logprob_and_entropy(actions.mT.contiguous().mT)
    (ours[0] + ours[1]).sum().backward()
    with kernels.off():
        theirs = Categorical(logits).logprob_and_entropy(actions)
    for y, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(y, expected, equal_nan=True)
        assert y.isnan().sum() == 1
    assert logits.grad is not None
    assert logits.grad.isnan().any(-1).sum() == 1


# ---- Draws --------------------------------------------------------------------------------


def test_random_variables_are_those_of_their_uniforms() -> None:
    """In float64; an odd number of normals, and the smallest and the largest uniform."""
    uniforms = torch.rand(3, 2, 501, generator=torch.Generator().manual_seed(0))
    uniforms[..., 0], uniforms[..., 1] = 0, 1 - 2**-24
    exact = normal_of(uniforms.double(), 1001)
    assert exact.dtype == torch.float64  # by PyTorch
    torch.testing.assert_close(normal_of(uniforms, 1001).double(), exact, rtol=0, atol=3e-6)
    exact = gumbel_of(uniforms.double())
    torch.testing.assert_close(gumbel_of(uniforms).double(), exact, rtol=1e-6, atol=1e-6)


# ---- Sums and orders ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 4), (2, 9, 1), (3, 40, 5)])
def test_discounted_sums_by_their_definition(shape: tuple[int, int, int]) -> None:
    """y_t = sum_k x_k prod_{t <= i < k} decay_i, from strided inputs."""
    x = normal(0, *shape[::-1]).permute(2, 1, 0)
    decay = normal(1, *shape).abs().clamp(max=1) * (normal(2, *shape) > -1)
    y = discounted_sums(x, decay)
    expected = torch.zeros(shape, dtype=torch.float64)
    for t in range(shape[1]):
        factor = torch.ones(shape[0], shape[2], dtype=torch.float64)
        for k in range(t, shape[1]):
            expected[:, t] += factor * x[:, k].double()
            factor = factor * decay[:, k].double()
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=1e-6)
    double = discounted_sums(x.double(), decay.double())
    torch.testing.assert_close(double, expected, rtol=1e-12, atol=1e-12)
    same = decay[:, :, :1].expand(shape)  # what has another shape or type is PyTorch's
    torch.testing.assert_close(discounted_sums(x, decay[:, :, :1]), discounted_sums(x, same))


@pytest.fixture
def subnormals() -> Iterator[None]:
    torch.set_flush_denormal(False)  # argsort would take them for 0
    yield
    torch.set_flush_denormal(True)


@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize("B", [1, 2, 255, 256, 257, 5000])
def test_permutations_are_stable_sorts(B: int) -> None:
    """Of uniforms; of few values, 0 among them; of neighbours; of numbers next to 0."""
    generator = torch.Generator().manual_seed(B)
    uniforms = torch.rand(3, B, generator=generator)
    bits = torch.randint(0, 300, (3, B), generator=generator).int()
    keys = torch.stack(
        (
            uniforms,
            (uniforms * 4).floor() / 4,
            (bits + 0x3EFFFF80).view(torch.float32),  # about 0.5
            bits.view(torch.float32),
            torch.zeros(3, B),
        )
    )
    assert torch.equal(permutations(keys), keys.argsort(stable=True, dim=-1))
    turned = keys.transpose(0, 1)
    assert torch.equal(permutations(turned), turned.argsort(stable=True, dim=-1))


def test_all_of_this_is_computed_in_c() -> None:
    """Had it been PyTorch, the comparisons above would be of it with itself."""
    case = Case(1, 2, (3, 4), (2,), "tanh")
    (y,) = case.net(case.x)
    assert "Networks" in type(y.grad_fn).__name__
    lists = case.net.parameter_lists()
    assert torch.equal(networks(case.x, *lists, columns=[2], activation="tanh")[0], y)
    logprob, _ = Categorical(y).logprob_and_entropy(torch.zeros(1, 2).long())
    assert "Categorical" in type(logprob.grad_fn).__name__
    assert isinstance(kernels.execution(), dict)
    with kernels.off():
        (y,) = case.net(case.x)
        assert "Networks" not in type(y.grad_fn).__name__


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("tail", [(), (1,), (3,), (2, 3)])
def test_samples_are_taken_seed_by_seed(dtype: torch.dtype, tail: tuple[int, ...]) -> None:
    """From strided memory, in any order, some of them twice."""
    x = (100 * normal(0, *tail, 7, 3)).permute(-1, -2, *range(len(tail))).to(dtype)
    indices = torch.tensor([[6, 0], [3, 3], [1, 5]])
    expected = torch.stack([x[s, indices[s]] for s in range(3)])
    assert torch.equal(take(x, indices), expected)
    with kernels.off():
        assert torch.equal(take(x, indices), expected)


def test_a_copy_computes_with_its_own_weights() -> None:
    """Views that a network keeps of its weights are not copied with it."""
    for _ in range(20):
        net = Case(2, 4, (3, 8), (2, 1), "tanh").net
        SeedAdam(net)
        x = normal(0, 2, 4, 3)
        with torch.no_grad():
            net.only(0, x)
            twin = copy.deepcopy(net)
            del net
            optimizer = SeedAdam(twin)  # where the first one's parameters were, now and then
            for p in twin.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step(0.1)
            assert torch.equal(twin.only(0, x), twin(x)[0])


def test_samples_that_need_a_gradient_get_one() -> None:
    x = normal(0, 2, 5).requires_grad_()
    take(x, torch.tensor([[1, 1], [0, 4]])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 2, 0, 0, 0], [1, 0, 0, 0, 1]]
    assert take(x, torch.tensor([[1], [0]], dtype=torch.int32)).shape == (2, 1)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_an_index_that_is_none_is_an_error(wrong: int) -> None:
    with pytest.raises(IndexError):
        take(torch.zeros(2, 3), torch.tensor([[0], [wrong]]))
    with pytest.raises(IndexError):
        Categorical(torch.zeros(1, 2, 3)).logprob_and_entropy(torch.tensor([[0, wrong]]))


@pytest.mark.parametrize("flush", [True, False])
def test_small_numbers_are_the_same_whatever_the_mode_of_the_caller(
    flush: bool, threads: Callable[[int], None]
) -> None:
    """On every thread: CPUs do not agree in what is so small that it counts as 0."""
    threads(2)
    torch.set_flush_denormal(False)
    values = normal(0, 4, 1, 1) * 1e-39
    net = SeedMLP(4, 1, (), (1,), "tanh")
    net.biases[0].data.fill_(1e-39)
    torch.set_flush_denormal(flush)
    try:
        sums = discounted_sums(values, torch.ones_like(values))
        assert torch.equal(sums.view(torch.int32), values.view(torch.int32))
        (y,) = net(torch.zeros(4, 1, 1))
        assert (y.view(torch.int32) > 0).all()
    finally:
        torch.set_flush_denormal(True)
