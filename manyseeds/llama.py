"""Small Llamas of a seed axis: S models of one architecture that train as one batch.

The architecture is that of transformers' LlamaForCausalLM (Touvron et al., 2023, arXiv 2302.13971):
RMS norms before attention and MLP, rotary positions, SwiGLU, no biases; every head has its own keys
and values. With a scalar head it is a reward model or a critic.

S seeds, B completions per seed, P tokens of the longest prompt, T of the longest completion; V
tokens in the vocabulary, H the width, I that of the MLP, h heads of D numbers, A = h D. Functions
are what is read; with a C compiler the kernels llama_*.c compute them, without padding, equal
histories once, and a seed to the same bits whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from manyseeds.kernels import in_c, llama
from manyseeds.rows import broadcast

LANES = 16  # what the numbers of a seed are a multiple of


class Completions(NamedTuple):
    """Prompts and what completes them; a token follows the one in the column before it."""

    prompts: Tensor  # [S, B, P] int64, padded on the left
    prompt_lengths: Tensor  # [S, B] int64, at least 1
    tokens: Tensor  # [S, B, T] int64, padded on the right
    lengths: Tensor  # [S, B] int64, from 0


class SeedLlama(nn.Module):
    """The parameters of S models, one flat tensor, as an optimizer over the seed axis takes them.

    tied: logits are products with the embeddings. scalar: the head has one output, not V. Raises
    ValueError for an odd head_size, whose numbers are not rotated in pairs.
    """

    flat: nn.Parameter  # [S, 1, numbers of a seed]
    frequencies: Tensor  # [D / 2], radians per position of the rotations of a head

    def __init__(
        self,
        seeds: int,
        vocabulary: int,
        width: int,
        mlp_width: int,
        layers: int,
        heads: int,
        head_size: int = 0,
        eps: float = 1e-6,
        theta: float = 10_000.0,
        tied: bool = True,
        scalar: bool = False,
    ) -> None:
        super().__init__()
        self.vocabulary, self.width, self.mlp_width = vocabulary, width, mlp_width
        self.layers, self.heads, self.head_size = layers, heads, head_size or width // heads
        self.eps, self.tied, self.scalar = eps, tied and not scalar, scalar
        if self.head_size % 2:
            raise ValueError(f"head_size {self.head_size} is odd")
        size = sum(math.prod(shape) for shape in self.shapes().values())
        self.flat = nn.Parameter(torch.zeros(seeds, 1, -(-size // LANES) * LANES))
        self.register_buffer("frequencies", frequencies(self.head_size, theta), persistent=False)

    @classmethod
    def of_models(cls, each: Sequence[Any]) -> Self:
        """One seed for each of some models of transformers, of one architecture."""
        config, scalar = each[0].config, hasattr(each[0], "score")
        seeds = cls(
            len(each),
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.head_dim,
            config.rms_norm_eps,
            config.rope_parameters["rope_theta"],
            config.tie_word_embeddings,
            scalar,
        )
        for s, model in enumerate(each):
            seeds.set_seed(s, model.state_dict())
        return seeds.to(each[0].device)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters of a seed in their order; matrices are [in, out]."""
        H, I, A = self.width, self.mlp_width, self.heads * self.head_size  # noqa: E741
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, H)}
        for i in range(self.layers):
            shapes[f"{i}.norm1"] = (H,)
            shapes[f"{i}.qkv"] = (H, 3 * A)
            shapes[f"{i}.out"] = (A, H)
            shapes[f"{i}.norm2"] = (H,)
            shapes[f"{i}.gate_up"] = (H, 2 * I)
            shapes[f"{i}.down"] = (I, H)
        shapes["norm"] = (H,)
        if self.scalar:
            shapes["head"] = (H, 1)
        elif not self.tied:
            shapes["head"] = (H, self.vocabulary)
        return shapes

    def views(self, of: Tensor | None = None) -> dict[str, Tensor]:
        """The parameters by name, `[S, ...]`; of: something else that lies as they do."""
        flat = (self.flat if of is None else of).flatten(1)
        shapes = self.shapes()
        sizes = [math.prod(shape) for shape in shapes.values()]
        parts = flat[:, : sum(sizes)].split(sizes, 1)
        return {k: x.unflatten(1, shapes[k]) for k, x in zip(shapes, parts, strict=True)}

    # ---- From and to transformers ----------------------------------------------------------

    @torch.no_grad()
    def set_seed(self, s: int, state: Mapping[str, Tensor]) -> None:
        """Take the weights of a seed from the state dict of a model of transformers."""
        for name, x in self.views().items():
            names = self._names(name)
            parts = [state[key].to(x) for key in names]
            x[s] = torch.cat(parts).mT if x.dim() == 3 and name != "embedding" else parts[0]

    @torch.no_grad()
    def state_of(self, s: int, of: Tensor | None = None) -> dict[str, Tensor]:
        """The weights of a seed as the state dict of a model of transformers; of: as `views`."""
        state = {}
        for name, x in self.views(of).items():
            names = self._names(name)
            whole = x[s].mT if x.dim() == 3 and name != "embedding" else x[s]
            for key, part in zip(names, whole.chunk(len(names)), strict=True):
                state[key] = part.contiguous()
        if self.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        return state

    def _names(self, name: str) -> list[str]:
        """What transformers calls a parameter, or its parts."""
        outer = {
            "embedding": "model.embed_tokens.weight",
            "norm": "model.norm.weight",
            "head": "score.weight" if self.scalar else "lm_head.weight",
        }
        if name in outer:
            return [outer[name]]
        i, part = name.split(".")
        inner = {
            "norm1": ["input_layernorm"],
            "qkv": [f"self_attn.{x}_proj" for x in "qkv"],
            "out": ["self_attn.o_proj"],
            "norm2": ["post_attention_layernorm"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }
        return [f"model.layers.{i}.{x}.weight" for x in inner[part]]


def frequencies(head_size: int, theta: float) -> Tensor:
    """theta^(-2 i / D) for i < D / 2 (Su et al., 2021); decimal numbers are the same anywhere."""
    exponents = [Decimal(-2 * i) / head_size for i in range(head_size // 2)]
    return torch.tensor([float(Decimal(theta) ** x) for x in exponents])


# ---- The layers ----------------------------------------------------------------------------


class Past(NamedTuple):
    """The keys and values of a layer, of all tokens so far."""

    keys: Tensor  # [S, B, h, L, D]
    values: Tensor  # [S, B, h, L, D]


def hidden(
    model: SeedLlama, ids: Tensor, padding: Tensor, past: list[Past] | None = None
) -> Tensor:
    """The normalised outputs of the last layer, `[S, B, L, H]`, for ids `[S, B, L]`.

    padding: `[S, B]`, columns on the left that are none. past: of each layer, what was before these
    ids, which is replaced; an empty list at first.
    """
    S, _, L = ids.shape
    w = model.views()
    before = past[0].keys.shape[3] if past else 0
    columns = torch.arange(before, before + L, device=ids.device)
    positions = (columns - padding.unsqueeze(-1)).clamp(min=0)  # [S, B, L]
    angles = positions.unsqueeze(-1).to(w["norm"]) * model.frequencies.to(w["norm"])
    rotation = angles.cos().unsqueeze(2), angles.sin().unsqueeze(2)  # [S, B, 1, L, D / 2]
    keys = torch.arange(before + L, device=ids.device)
    visible = (keys <= columns.unsqueeze(-1)) & (keys >= padding[..., None, None])
    visible |= keys == columns.unsqueeze(-1)  # padding sees itself: otherwise NaN
    layers_past, x = [], w["embedding"][torch.arange(S, device=ids.device)[:, None, None], ids]
    for i in range(model.layers):
        own = {k.removeprefix(f"{i}."): p for k, p in w.items() if k.startswith(f"{i}.")}
        y = rms_norm(x, own["norm1"], model.eps)
        attended, now = attention(
            model, matmul(y, own["qkv"]), rotation, visible, past[i] if past else None
        )
        x = x + matmul(attended, own["out"])
        gate, up = matmul(rms_norm(x, own["norm2"], model.eps), own["gate_up"]).chunk(2, -1)
        x = x + matmul(nn.functional.silu(gate) * up, own["down"])
        layers_past.append(now)
    if past is not None:
        past[:] = layers_past
    return rms_norm(x, w["norm"], model.eps)


def matmul(x: Tensor, weights: Tensor) -> Tensor:
    """x `[S, B, L, in]` times weights `[S, in, out]`."""
    return torch.bmm(x.flatten(1, 2), weights).unflatten(1, x.shape[1:3])


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x `[S, B, L, H]` scaled to a mean square of 1 (Zhang and Sennrich, 2019), times the gain."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gain[:, None, None]


def attention(
    model: SeedLlama,
    qkv: Tensor,
    rotation: tuple[Tensor, Tensor],
    visible: Tensor,
    past: Past | None,
) -> tuple[Tensor, Past]:
    """What tokens attend to, `[S, B, L, A]`, and the keys and values up to them.

    qkv: `[S, B, L, 3 A]`. rotation: cosines and sines. visible: `[S, B, L, keys]` bool.
    """
    heads = qkv.unflatten(-1, (3, model.heads, model.head_size)).permute(3, 0, 1, 4, 2, 5)
    queries, keys, values = rotate(heads[0], *rotation), rotate(heads[1], *rotation), heads[2]
    if past is not None:
        keys, values = torch.cat([past.keys, keys], 3), torch.cat([past.values, values], 3)
    scores = queries @ keys.mT / math.sqrt(model.head_size)
    weights = scores.masked_fill(~visible.unsqueeze(2), -math.inf).softmax(-1)
    return (weights @ values).transpose(2, 3).flatten(3), Past(keys, values)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """x `[S, B, h, L, D]` with number i of a head rotated with number i + D / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines], -1)


def log_softmax(model: SeedLlama, states: Tensor, temperature: Tensor | float) -> Tensor:
    """Log-probabilities of all tokens `[S, B, L, V]`, from states `[S, B, L, H]`."""
    if model.scalar:
        raise ValueError("a model with a scalar head has no log-probabilities")
    w = model.views()
    logits = matmul(states, w["embedding"].mT if model.tied else w["head"])
    return (logits / broadcast(temperature, logits)).log_softmax(-1)


def entropy(logp: Tensor) -> Tensor:
    """Of distributions `[..., V]`, in nats."""
    return -(logp.exp() * logp.clamp(min=-1e4)).sum(-1)  # 0 * -inf is to be 0


# ---- Log-probabilities and scalars ---------------------------------------------------------


@in_c(llama.logprobs, llama.takes)
def logprobs(
    model: SeedLlama,
    completions: Completions,
    temperature: Tensor | float,
    entropies: bool = True,
) -> tuple[Tensor, Tensor]:
    """Log pi of each token of the completions, and the entropy of the distribution that it comes
    from, `[S, B, T]`, 0 after the last; differentiable.

    temperature: what logits are divided by, a number or `[S]`. entropies: False: those are 0.
    """
    T = completions.tokens.shape[-1]
    states, inside = states_of(model, completions)
    logp = log_softmax(model, states[:, :, :T], temperature)
    chosen = completions.tokens.masked_fill(~inside, 0)
    of_tokens = logp.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    of_tokens = of_tokens.masked_fill(~inside, 0.0)
    if not entropies:
        return of_tokens, torch.zeros_like(of_tokens)
    return of_tokens, entropy(logp).masked_fill(~inside, 0.0)


@in_c(llama.scalars, llama.takes_scalar)
def scalars(model: SeedLlama, completions: Completions) -> Tensor:
    """The scalar after the prompt and after each token of the completions, `[S, B, T + 1]`, 0
    after the last; differentiable.

    Those of a critic are the first T: values before each token. A reward model's score is the one
    after the last token, number `lengths`.
    """
    states, inside = states_of(model, completions)
    values = matmul(states, model.views()["head"]).squeeze(-1)
    return values.masked_fill(~nn.functional.pad(inside, (1, 0), value=True), 0.0)


def states_of(model: SeedLlama, completions: Completions) -> tuple[Tensor, Tensor]:
    """The states after each prompt and after each token of its completion, `[S, B, T + 1, H]`, and
    which tokens exist, `[S, B, T]` bool."""
    prompts, prompt_lengths, tokens, lengths = completions
    P, T = prompts.shape[-1], tokens.shape[-1]
    padding = P - prompt_lengths
    inside = torch.arange(T, device=tokens.device) < lengths.unsqueeze(-1)
    in_prompt = torch.arange(P, device=tokens.device) >= padding.unsqueeze(-1)
    ids = torch.cat([prompts.masked_fill(~in_prompt, 0), tokens.masked_fill(~inside, 0)], -1)
    return hidden(model, ids, padding)[:, :, P - 1 :], inside


# ---- Sampling ------------------------------------------------------------------------------


@torch.no_grad()
@in_c(llama.sample, llama.takes)
def sample(
    model: SeedLlama,
    prompts: Tensor,
    prompt_lengths: Tensor,
    uniforms: Tensor,
    end: int,
    temperature: Tensor | float = 1.0,
    greedy: bool = False,
) -> tuple[Tensor, ...]:
    """Complete prompts `[S, B, P]`, padded on the left, up to the token `end` or T tokens.

    uniforms: `[S, B, T]` in [0, 1), one for each token. greedy: take the likeliest token instead;
    the rest stays that of the temperature.
    Returns tokens `[S, B, T]` with the end, their number `[S, B]`, whether a completion has ended
    `[S, B]` (otherwise it was cut off), and as `logprobs` their log-probabilities and entropies
    `[S, B, T]`. All is 0 after the end.
    """
    S, B, T = uniforms.shape
    tokens = prompts.new_zeros(S, B, T)
    logps, entropies = torch.zeros_like(uniforms), torch.zeros_like(uniforms)
    lengths, ended = prompts.new_full((S, B), T), torch.zeros_like(prompt_lengths, dtype=torch.bool)
    padding, past = prompts.shape[-1] - prompt_lengths, list[Past]()
    columns = torch.arange(prompts.shape[-1], device=prompts.device)
    ids = prompts.masked_fill(columns < padding.unsqueeze(-1), 0)
    for t in range(T):
        logp = log_softmax(model, hidden(model, ids, padding, past)[:, :, -1:], temperature)[
            :, :, 0
        ]
        if greedy:
            token = logp.argmax(-1)
        else:  # the first token whose cumulative probability exceeds u
            cumulative = logp.exp().cumsum(-1)
            limit = uniforms[:, :, t : t + 1] * cumulative[:, :, -1:]
            token = torch.searchsorted(cumulative, limit, right=True)[:, :, 0]
            token = token.clamp(max=model.vocabulary - 1)
        tokens[:, :, t] = token.masked_fill(ended, 0)
        chosen = logp.gather(-1, token.unsqueeze(-1)).squeeze(-1)
        logps[:, :, t] = chosen.masked_fill(ended, 0.0)
        entropies[:, :, t] = entropy(logp).masked_fill(ended, 0.0)
        ends = (token == end) & ~ended
        lengths.masked_fill_(ends, t + 1)
        ended |= ends
        if ended.all():
            break
        ids = token.unsqueeze(-1)
    return tokens, lengths, ended, logps, entropies
