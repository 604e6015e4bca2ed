"""Language models of a seed axis, in C and in PyTorch, against transformers in float64."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds import kernels, llama
from manyseeds.kernels import llama as in_c
from manyseeds.llama import Completions, SeedLlama, logprobs, sample, scalars
from manyseeds.optim import SeedAdam

each_way = pytest.mark.parametrize("way", ["C", "torch"])
END = 2  # the token that ends a completion
TEMPERATURES = torch.tensor([1.0, 0.7, 2.0, 1.3, 0.5])


@pytest.fixture(autouse=True)
def has_kernels() -> None:
    if not kernels.available():
        pytest.skip("needs a C compiler")


def computed(way: str) -> contextlib.AbstractContextManager[Any]:
    return kernels.off() if way == "torch" else contextlib.nullcontext()


class Shape(NamedTuple):
    """Of a model: the arguments of SeedLlama in their order."""

    vocabulary: int
    width: int
    mlp_width: int
    layers: int
    heads: int
    head_size: int
    tied: bool = True


SHAPES = {
    "tiny": Shape(103, 64, 256, 2, 4, 16),
    "untied": Shape(103, 64, 256, 2, 4, 16, tied=False),
    "odd": Shape(17, 30, 37, 1, 3, 10),
    "one head, odd": Shape(50, 33, 21, 3, 1, 34, tied=False),
    "least": Shape(3, 6, 1, 1, 2, 2),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of_transformers(shape: Shape, scalar: bool, seed: int) -> Any:
    """A model of transformers in float64, whose weights are float32's."""
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        head_dim=shape.head_size,
        tie_word_embeddings=shape.tied,
        pad_token_id=None,  # its embedding would get no gradient
        bos_token_id=None,
        eos_token_id=None,
        num_labels=1,
    )
    model = (LlamaForSequenceClassification if scalar else LlamaForCausalLM)(config).double()
    for i, (name, p) in enumerate(model.named_parameters()):
        scale = 0.1 if "norm" in name else 0.8 * p.shape[-1] ** -0.5
        noise = torch.randn(p.shape, generator=generator(100 * seed + i))
        p.data.copy_(scale * noise + ("norm" in name))
    return model


class Case:
    """Models and completions, among them equal and empty ones, and weights of outputs in a loss."""

    def __init__(
        self, shape: Shape, S: int = 3, B: int = 9, P: int = 5, T: int = 9, scalar: bool = False
    ) -> None:
        self.theirs = [of_transformers(shape, scalar, s) for s in range(S)]
        self.model = SeedLlama(S, *shape[:6], tied=shape.tied, scalar=scalar)
        for s, model in enumerate(self.theirs):
            self.model.set_seed(s, model.state_dict())
        ids, lengths = torch.empty(S, B, P + T).long(), torch.empty(2, S, B).long()
        for s in range(S):  # whatever other seeds there are
            own = generator(s)
            ids[s] = torch.randint(shape.vocabulary, (B, P + T), generator=own)
            lengths[0, s] = torch.randint(1, P + 1, (B,), generator=own)
            lengths[1, s] = torch.randint(T + 1, (B,), generator=own)
        ids[:, 1:4] = ids[:, :1]  # four equal ones, but
        lengths[0, :, :4] = P
        ids[:, 1, P + T // 2 :] = (
            ids[:, 1, P + T // 2 :] + 1
        ) % shape.vocabulary  # parts from them
        lengths[1, :, :3] = T
        lengths[1, :, 3] = T // 2 + 1  # ends within them
        lengths[0, :, 4], lengths[1, :, 4] = P - 2, 0
        ids[:, 4, :P] = ids[:, 0, :P]  # the same prompt without its first tokens
        self.completions = Completions(ids[..., :P], lengths[0], ids[..., P:], lengths[1])
        self.temperatures = TEMPERATURES[:S]
        O = T + scalar  # noqa: E741
        self.weights = torch.stack(
            [torch.randn(2, B, O, generator=generator(s)) for s in range(S)], 1
        )
        self.scalar = scalar

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs and entropies, each completion alone, and the gradients `[S, 1, P]`."""
        prompts, prompt_lengths, tokens, lengths = self.completions
        outputs = torch.zeros(self.weights.shape, dtype=torch.float64)
        for s, model in enumerate(self.theirs):
            for b in range(prompts.shape[1]):
                n, m = int(prompt_lengths[s, b]), int(lengths[s, b])
                ids = torch.cat([prompts[s, b, prompts.shape[2] - n :], tokens[s, b, :m]])[None]
                if self.scalar:
                    states = model.model(input_ids=ids, use_cache=False).last_hidden_state
                    outputs[0, s, b, : m + 1] = model.score(states)[0, n - 1 :, 0]
                elif m:
                    logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0, n - 1 :]
                    logp = (logits / float(self.temperatures[s])).log_softmax(-1)
                    outputs[0, s, b, :m] = logp.gather(-1, ids[0, n:, None])[:, 0]
                    outputs[1, s, b, :m] = -(logp.exp() * logp).sum(-1)
        (outputs * self.weights).sum().backward()
        of_flat = SeedLlama.__new__(SeedLlama)
        of_flat.__dict__.update(vars(self.model))
        of_flat._parameters = {"flat": torch.nn.Parameter(torch.zeros_like(self.model.flat))}
        for s, model in enumerate(self.theirs):
            of_flat.set_seed(s, {name: p.grad for name, p in model.named_parameters()})
        return outputs[0].detach(), outputs[1].detach(), of_flat.flat.detach()

    def ours(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same, all at once."""
        self.model.flat.grad = None
        if self.scalar:
            outputs = scalars(self.model, self.completions)
            entropies = torch.zeros_like(outputs)
        else:
            outputs, entropies = logprobs(self.model, self.completions, self.temperatures)
        (torch.stack([outputs, entropies]) * self.weights).sum().backward()
        gradient = self.model.flat.grad
        assert gradient is not None
        return outputs.detach(), entropies.detach(), gradient

    def of_seeds(self, seeds: list[int]) -> Case:
        """Some of the seeds."""
        case = Case.__new__(Case)
        model = self.model
        sizes = model.vocabulary, model.width, model.mlp_width, model.layers, model.heads
        settings = {"tied": model.tied, "scalar": model.scalar}
        case.model = SeedLlama(len(seeds), *sizes, model.head_size, **settings)
        case.model.flat.data.copy_(model.flat.data[seeds])
        case.completions = Completions(*(x[seeds] for x in self.completions))
        case.temperatures, case.weights = self.temperatures[seeds], self.weights[:, seeds]
        case.scalar = self.scalar
        return case


# ---- Their numbers -------------------------------------------------------------------------


@each_way
@each_shape
@pytest.mark.parametrize("scalar", [False, True])
def test_outputs_and_gradients_are_those_of_transformers(
    shape: Shape, scalar: bool, way: str
) -> None:
    """Prompts of different lengths, temperatures, equal histories, empty completions."""
    case = Case(shape, scalar=scalar)
    with computed(way):
        outputs, entropies, gradient = case.ours()
    exact_outputs, exact_entropies, exact_gradient = case.exact()
    assert exact_outputs.abs().max() > 0.1
    assert (outputs - exact_outputs).abs().max() < 1e-5
    assert (entropies - exact_entropies).abs().max() < 1e-5
    assert (gradient - exact_gradient).abs().max() < 1e-5 * exact_gradient.abs().max()


@each_way
def test_more_tokens_than_are_computed_at_once(way: str) -> None:
    """Histories go on from one block of the kernel to the next, and a completion is longer."""
    case = Case(SHAPES["odd"], S=2, B=12, P=7, T=120)
    with computed(way):
        outputs, _, gradient = case.ours()
    exact_outputs, _, exact_gradient = case.exact()
    assert (outputs - exact_outputs).abs().max() < 2e-5
    assert (gradient - exact_gradient).abs().max() < 1e-5 * exact_gradient.abs().max()


def test_c_says_what_pytorch_says_for_any_shape() -> None:
    """Few tokens, so that many histories are equal; gradients of some outputs only."""
    for seed in range(30):
        numbers = np.random.default_rng(seed)

        def number(low: int, high: int, numbers: Any = numbers) -> int:
            return int(numbers.integers(low, high, endpoint=True))

        S, B, P, T = number(1, 3), number(1, 25), number(1, 12), number(0, 40)
        V, head_size, scalar = number(2, 6), 2 * number(1, 12), number(0, 2) == 0
        sizes = V, number(4, 70), number(1, 90), number(1, 3), number(1, 4), head_size
        model = SeedLlama(S, *sizes, tied=number(0, 1) == 0, scalar=scalar)
        model.flat.data.normal_(generator=generator(seed)).mul_(0.4)
        case = Case.__new__(Case)
        case.model, case.scalar, case.temperatures = model, scalar, TEMPERATURES[:S]
        prompts, tokens = numbers.integers(V, size=(S, B, P)), numbers.integers(V, size=(S, B, T))
        sizes_of = numbers.integers(1, P + 1, (S, B)), numbers.integers(0, T + 1, (S, B))
        rows = (prompts, sizes_of[0], tokens, sizes_of[1])
        case.completions = Completions(*map(torch.from_numpy, rows))
        weights = numbers.normal(size=(2, S, B, T + scalar)) * (numbers.random((S, B, 1)) < 0.5)
        case.weights = torch.from_numpy(weights).float()
        found = case.ours()
        with kernels.off():
            expected = case.ours()
        for x, y in zip(found, expected, strict=True):
            scale = max(1, float(y.abs().max())) if y.numel() else 1
            torch.testing.assert_close(x, y, rtol=0, atol=4e-5 * scale, msg=f"seed {seed}")


@pytest.mark.parametrize("scalar", [False, True])
def test_a_model_without_layers_is_computed(scalar: bool) -> None:
    case = Case(Shape(17, 6, 5, 0, 1, 2), scalar=scalar)
    found = case.ours()
    with kernels.off():
        expected = case.ours()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_it_is_computed_in_c() -> None:
    """Had it been PyTorch, the comparisons above would be of one thing with itself."""
    case = Case(SHAPES["odd"])
    outputs, _ = logprobs(case.model, case.completions, 1.0)
    assert "Outputs" in type(outputs.grad_fn).__name__
    with kernels.off():
        outputs, _ = logprobs(case.model, case.completions, 1.0)
    assert "Outputs" not in type(outputs.grad_fn).__name__


def test_an_edit_takes_effect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(SHAPES["odd"])
    before = case.ours()
    monkeypatch.setattr(llama, "rms_norm", lambda x, gain, eps: x * gain[:, None, None])
    assert (case.ours()[0] - before[0]).abs().max() > 0.1
    assert "PyTorch computes this now, not C" in capsys.readouterr().err


def test_weights_go_to_transformers_and_back() -> None:
    for scalar in (False, True):
        for shape in SHAPES.values():
            case = Case(shape, S=2, scalar=scalar)
            theirs = case.theirs[1].state_dict()
            ours = case.model.state_of(1)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name].double(), theirs[name]) for name in theirs)


def test_only_completions_with_a_gradient_are_computed() -> None:
    """A gradient of exactly 0 is none: what a completion without one says is not even looked at."""
    case = Case(SHAPES["tiny"], S=2, B=40, T=12)
    case.weights[:, :, 5:30] = 0
    *_, gradient = case.ours()
    few = [*range(5), *range(30, 40)]
    case.completions = Completions(*(x[:, few] for x in case.completions))
    case.weights = case.weights[:, :, few]
    *_, of_few = case.ours()
    assert (gradient - of_few).abs().max() < 1e-6 * gradient.abs().max()
    case.weights.zero_()
    assert not case.ours()[2].any()


def test_equal_histories_are_computed_once() -> None:
    """Forward, backward and in sampling; and nothing backward where all gradients are 0."""
    model = SeedLlama(1, *SHAPES["tiny"][:6])
    model.flat.data.normal_(generator=generator(0)).mul_(0.1)
    ids = torch.randint(103, (1, 200, 30), generator=generator(0))
    sizes = torch.full((1, 200), 10), torch.full((1, 200), 20)
    uniforms = torch.rand(1, 200, 20, generator=generator(0))

    def seconds(ids: Tensor, uniforms: Tensor, weight: float = 1.0) -> list[float]:
        """Processor time of each, the least of three."""
        completions = Completions(ids[..., :10], sizes[0], ids[..., 10:], sizes[1])
        times = []
        for _ in range(3):
            began = time.process_time()
            loss = logprobs(model, completions, 1.0)[0].sum() * weight
            middle = time.process_time()
            loss.backward()
            end = time.process_time()
            sample(model, ids[..., :10], sizes[0], uniforms, END)
            times.append((middle - began, end - middle, time.process_time() - end))
        return [min(x) for x in zip(*times, strict=True)]

    different = seconds(ids, uniforms)
    equal = seconds(ids[:, :1].expand_as(ids), uniforms[:, :1].expand_as(uniforms))
    assert all(x < y / 4 for x, y in zip(equal, different, strict=True))  # measured 1 / 20 and less
    assert seconds(ids, uniforms, weight=0.0)[1] < different[1] / 4


def test_gradients_add_up_and_graphs_are_alone() -> None:
    """Two graphs at a time keep what they need; a second one in between changes nothing."""
    case = Case(SHAPES["tiny"])
    *_, gradient = case.ours()
    given = case.model, case.completions, case.temperatures
    first = (torch.stack(logprobs(*given)) * case.weights).sum()
    second = (torch.stack(logprobs(*given)) * case.weights).sum() * 2
    case.model.flat.grad = None
    first.backward()
    assert torch.equal(case.model.flat.grad, gradient)
    case.model.flat.grad = None
    second.backward()
    assert torch.equal(case.model.flat.grad, 2 * gradient)
    loss = logprobs(*given)[0].sum()
    with torch.no_grad():
        case.model.flat.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_way
def test_without_entropies_the_rest_has_the_same_bits(way: str) -> None:
    """Whether or not a gradient is asked for; the entropies are 0."""
    case = Case(SHAPES["tiny"])
    given = case.model, case.completions, case.temperatures
    found = []
    with computed(way):
        for entropies in (True, False):
            case.model.flat.grad = None
            outputs = logprobs(*given, entropies)
            (outputs[0] * case.weights[0]).sum().backward()
            with torch.no_grad():
                found.append([*outputs, case.model.flat.grad, *logprobs(*given, entropies)])
    for i in (0, 2, 3):
        assert torch.equal(found[0][i], found[1][i])
    for i in (1, 4):
        assert found[0][i].max() > 1
        assert not found[1][i].any()
        assert found[0][i].shape == found[1][i].shape


# ---- Optimization --------------------------------------------------------------------------


def test_steps_are_those_of_adamw() -> None:
    """Each seed's gradient clipped by its own norm; a seed that is left out stays as it is."""
    case = Case(SHAPES["odd"], S=2)
    optimizer, theirs = SeedAdam(case.model), copy.deepcopy(case.model).double()
    alone = [theirs.flat.data[s].clone().requires_grad_() for s in range(2)]
    reference = [torch.optim.AdamW([p], lr=0.01, weight_decay=0.0) for p in alone]
    left_out = torch.tensor([True, False])
    for step in range(4):
        *_, gradient = case.ours()
        mask = left_out if step == 1 else None
        norms = optimizer.step(0.01, max_grad_norm=1.0, mask=mask)
        for s, p in enumerate(alone):
            p.grad = gradient[s].double()
            norm = torch.nn.utils.clip_grad_norm_([p], 1.0)
            assert norms[s] == pytest.approx(float(norm), rel=1e-5)
            assert norm > 1
            if mask is None or mask[s]:
                reference[s].step()
        for s, p in enumerate(alone):
            assert (case.model.flat[s] - p).abs().max() < 2e-6


# ---- Sampling ------------------------------------------------------------------------------


def prompts_of(case: Case, T: int) -> tuple[Tensor, Tensor, Tensor]:
    """The prompts of a case, and uniforms."""
    prompts, prompt_lengths, *_ = case.completions
    S, B, _ = prompts.shape
    uniforms = torch.stack([torch.rand(B, T, generator=generator(s)) for s in range(S)])
    return prompts, prompt_lengths, uniforms


def slow_sample(case: Case, T: int, greedy: bool) -> tuple[Tensor, ...]:
    """One token after another by transformers in float64."""
    prompts, prompt_lengths, uniforms = prompts_of(case, T)
    tokens, ended = torch.zeros(uniforms.shape).long(), torch.zeros(uniforms.shape[:2]).bool()
    lengths = torch.full(ended.shape, T)
    logps, entropies = torch.zeros(2, *uniforms.shape).double()
    for s, model in enumerate(case.theirs):
        for b in range(prompts.shape[1]):
            ids = prompts[s, b, prompts.shape[2] - int(prompt_lengths[s, b]) :].tolist()
            for t in range(T):
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
                logp = (logits / float(case.temperatures[s])).log_softmax(-1)
                above = (logp.exp().cumsum(0) > float(uniforms[s, b, t])).nonzero()[:, 0]
                token = int(logp.argmax() if greedy else above[0])
                tokens[s, b, t], logps[s, b, t] = token, logp[token]
                entropies[s, b, t] = -(logp.exp() * logp).sum()
                ids.append(token)
                if token == END:
                    lengths[s, b], ended[s, b] = t + 1, True
                    break
    return tokens, lengths, ended, logps, entropies


@each_way
@each_shape
@pytest.mark.parametrize("greedy", [False, True])
def test_samples_are_those_of_a_plain_loop(shape: Shape, greedy: bool, way: str) -> None:
    """Prompts of different lengths, equal ones, ends, ends at the limit, temperatures."""
    case = Case(shape, S=2, B=12)
    expected = slow_sample(case, 7, greedy)
    given = (*prompts_of(case, 7), END, case.temperatures, greedy)
    with computed(way):
        found = sample(case.model, *given)
    for x, y in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(x, y)
    for x, y in zip(found[3:], expected[3:], strict=True):
        assert (x - y).abs().max() < 1e-5
    assert not expected[2].all()


def test_completions_end_at_their_end_and_at_the_limit() -> None:
    """Otherwise the test above could not fail there."""
    *_, uniforms = given = prompts_of(case := Case(SHAPES["least"], S=2, B=60), 7)
    tokens, lengths, ended, logps, entropies = sample(case.model, *given, END)
    assert len(lengths.unique()) > 3
    assert (ended & (lengths == 7)).any()
    assert (~ended & (lengths == 7)).any()
    behind = torch.arange(7) >= lengths.unsqueeze(-1)
    assert not any(x[behind].any() for x in (tokens, logps, entropies))
    nothing = sample(case.model, *given[:2], uniforms[:, :, :0], END)
    assert not nothing[1].any()


@pytest.mark.parametrize("name", ["tiny", "untied", "odd", "one head, odd"])
def test_the_first_ratio_is_exactly_1(name: str) -> None:
    """Log-probabilities and entropies of samples are those of the sampling, to the bit; however
    many rows there are, whatever the widths."""
    case = Case(SHAPES[name], B=200)
    prompts, prompt_lengths, uniforms = prompts_of(case, 30)
    found = sample(case.model, prompts, prompt_lengths, uniforms, END, case.temperatures)
    completions = Completions(prompts, prompt_lengths, *found[:2])
    outputs, entropies = logprobs(case.model, completions, case.temperatures)
    assert torch.equal(outputs, found[3])
    assert torch.equal(entropies, found[4])
    assert found[1].float().mean() > 3


def test_the_ends_of_the_unit_interval_draw_no_impossible_token() -> None:
    """Neither 0 where the first tokens have probability 0, nor the largest float below 1."""
    model = SeedLlama(1, 1000, 4, 4, 1, 1, tied=False)
    w = model.views()
    with torch.no_grad():
        w["embedding"].fill_(1)
        w["norm"].fill_(1)
        w["head"].copy_(torch.randn(4, 1000, generator=generator(0)))
        w["head"][..., [0, 1, 2, -3, -2, -1]] = -1e9
    uniforms = torch.tensor([[[0.0], [1 - 2**-24]]])
    tokens, *_ = sample(model, torch.zeros(1, 2, 1).long(), torch.ones(1, 2).long(), uniforms, END)
    assert tokens.flatten().tolist() == [3, 996]


# ---- Bits ----------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("scalar", [False, True])
def test_a_seed_has_the_same_bits_in_any_batch(
    scalar: bool, threads: Callable[[int], None]
) -> None:
    """Alone, with others, on two threads, with or without gradients, with wider padding."""
    case = Case(SHAPES["tiny"], S=5, B=30, scalar=scalar)
    expected = case.ours()
    for number, seeds in ((1, [3]), (1, [4, 3]), (2, [4, 0, 3]), (2, [3, 1, 2, 4, 0])):
        threads(number)
        found = case.of_seeds(seeds).ours()
        for x, y in zip(found, expected, strict=True):
            assert torch.equal(x[seeds.index(3)], y[3])
    with torch.no_grad():
        given = case.model, case.completions
        outputs = scalars(*given) if scalar else logprobs(*given, case.temperatures)[0]
    assert torch.equal(outputs, expected[0])
    pad = torch.nn.functional.pad
    prompts, prompt_lengths, tokens, lengths = case.completions
    wider = Completions(pad(prompts, (3, 0), value=7), prompt_lengths, pad(tokens, (0, 9)), lengths)
    case.completions, case.weights = wider, pad(case.weights, (0, 9))
    outputs, _, gradient = case.ours()
    assert torch.equal(outputs[..., :-9], expected[0])
    assert torch.equal(gradient, expected[2])


def test_a_completion_has_the_same_bits_among_others() -> None:
    """Whatever shares its history, and wherever blocks end."""
    case = Case(SHAPES["tiny"], S=2, B=60)
    expected, _, _ = case.ours()
    order = torch.randperm(60, generator=generator(0))[:23]
    case.completions = Completions(*(x[:, order] for x in case.completions))
    case.weights = case.weights[:, :, order]
    assert torch.equal(case.ours()[0], expected[:, order])


def test_samples_of_a_seed_have_the_same_bits_in_any_batch(threads: Callable[[int], None]) -> None:
    """Alone, with others, on two threads; a completion also among others, and in another order."""
    case = Case(SHAPES["tiny"], S=5, B=120)
    given = prompts_of(case, 12)
    expected = sample(case.model, *given, END, case.temperatures)
    order = torch.randperm(120, generator=generator(0))[:23]
    for number, seeds in ((1, [3]), (2, [4, 0, 3]), (2, [3, 1, 2, 4, 0])):
        threads(number)
        some = case.of_seeds(seeds)
        found = sample(some.model, *(x[seeds] for x in given), END, some.temperatures)
        assert all(torch.equal(x, y[seeds]) for x, y in zip(found, expected, strict=True))
        few = (x[seeds][:, order] for x in given)
        found = sample(some.model, *few, END, some.temperatures)
        assert all(torch.equal(x, y[seeds][:, order]) for x, y in zip(found, expected, strict=True))


def test_nan_weights_draw_some_token() -> None:
    """Also greedily; and other seeds draw theirs."""
    case = Case(SHAPES["tiny"])
    given = prompts_of(case, 5)
    expected = sample(case.model, *given, END)
    case.model.flat.data[1] = torch.nan
    for greedy in (False, True):
        tokens, lengths, *_ = found = sample(case.model, *given, END, greedy=greedy)
        assert 0 <= tokens.min() <= tokens.max() < 103
        assert lengths[1].tolist() == [5] * 9
        assert greedy or all(
            torch.equal(x[::2], y[::2]) for x, y in zip(found, expected, strict=True)
        )


@each_way
@pytest.mark.parametrize("scalar", [False, True])
def test_nan_stays_in_its_seed(way: str, scalar: bool) -> None:
    case = Case(SHAPES["tiny"], scalar=scalar)
    with computed(way):
        expected = case.ours()
        case.model.flat.data[1] = torch.nan
        found = case.ours()
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x[::2], y[::2])
    assert found[0][1].isnan().any()
    assert found[2][1].isnan().any()


def trained() -> list[Tensor]:
    """All that kernels compute in two steps, of several shapes (see test_kernel_builds.py)."""
    found = []
    for (name, shape), scalar in product(SHAPES.items(), (False, True)):
        model = SeedLlama(2, *shape[:6], tied=shape.tied, scalar=scalar)
        numbers = np.random.default_rng(0)
        size = math.prod(model.flat.shape)
        model.flat.data.view(-1).copy_(torch.from_numpy(numbers.random(size) - 0.5))
        tokens = torch.from_numpy(numbers.integers(shape.vocabulary, size=(2, 2, 40, 20)))
        lengths = torch.from_numpy(numbers.integers(1, 21, size=(2, 2, 40)))
        completions = Completions(tokens[0], lengths[0], tokens[1], lengths[1])
        uniforms = torch.from_numpy(numbers.random((2, 40, 20), dtype=np.float32))
        optimizer = SeedAdam(model)
        for _ in range(2):
            if scalar:
                outputs = scalars(model, completions)
            else:
                outputs = torch.stack(logprobs(model, completions, 1.5))
                found += sample(model, tokens[0], lengths[0], uniforms, END, 0.7)
            outputs.backward(torch.ones_like(outputs))
            optimizer.step(0.01, max_grad_norm=1.0)
            found.append(outputs.detach())
        found.append(model.flat.detach())
        assert found[-1].isfinite().all(), name
    return found


# ---- What is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"), [(0, -1), (0, 103), (1, 0), (1, 6), (2, 103), (3, -1), (3, 10)]
)
def test_a_token_or_length_out_of_range_is_an_error(field: int, value: int) -> None:
    case = Case(SHAPES["tiny"], S=2)
    case.completions[field][1, 0] = value
    with pytest.raises(IndexError):
        logprobs(case.model, case.completions, 1.0)
    if field < 2:
        with pytest.raises(IndexError):
            sample(case.model, *prompts_of(case, 5), END)


def test_a_model_with_another_head_is_an_error() -> None:
    """C would read what is not there."""
    case = Case(SHAPES["untied"], S=2)
    with pytest.raises(RuntimeError):
        scalars(case.model, case.completions)
    case = Case(SHAPES["untied"], S=2, scalar=True)
    with pytest.raises(ValueError, match="scalar head"):
        logprobs(case.model, case.completions, 1.0)
    with pytest.raises(ValueError, match="scalar head"):
        sample(case.model, *prompts_of(case, 5), END)
    with pytest.raises(ValueError, match="head_size 3 is odd"):
        SeedLlama(1, 5, 6, 6, 1, 2)


def test_nothing_to_compute() -> None:
    case = Case(SHAPES["odd"], S=2, B=5)
    case.completions.lengths.zero_()
    outputs, entropies, gradient = case.ours()
    assert not outputs.any()
    assert not entropies.any()
    assert not gradient.any()
    none = Completions(*(x[:, :0] for x in case.completions))
    assert logprobs(case.model, none, 1.0)[0].shape == (2, 0, 9)


def test_memory_is_used_again() -> None:
    """Of graphs that are gone, however they went."""
    case = Case(SHAPES["odd"])
    case.ours()
    (kept,) = in_c.Kept.free
    logprobs(case.model, case.completions, 1.0)
    assert [x.data_ptr() for x in in_c.Kept.free] == [kept.data_ptr()]
