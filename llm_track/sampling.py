"""Completions of a language model, their log-probabilities, and scalars along them.

Shapes: B samples, P tokens of the longest prompt, T of the longest completion, V the vocabulary.
Prompts are padded on the left, completions on the right: generated tokens follow one another in
every row. Padding is identified by the masks alone, so the padding token may be any token.

Logits are divided by the sampling temperature here and nowhere else: log-probabilities are always
those of the sampled distribution.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import jinja2
import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from manyseeds.errors import UsageError
from manyseeds.llm_track import tasks
from manyseeds.llm_track.tasks import THINK, Task

RENDERINGS = 8  # of a prompt by a chat template, to see whether they are equal
MAX_LOGITS = 2**26  # that are held at a time, with copies and gradients: 256 MB each
SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
COMPACT = 0.75  # rows that have ended are dropped once they are a quarter of the batch
FEW = 16  # histories: up to so many are not shared, as small matrix products may round differently
PASS = 150  # the fixed cost of a forward and backward pass, as a number of tokens


@dataclass(frozen=True)
class Samples:
    """A batch of completions; every field has B rows. A subclass may have more [B] and [B, T]."""

    prompts: Tensor  # [B, P] int64
    prompt_mask: Tensor  # [B, P] bool, true for what is not padding
    tokens: Tensor  # [B, T] int64
    mask: Tensor  # [B, T] bool, true up to and including the first end of sequence
    ended: Tensor  # [B] bool, false where the completion was cut off
    logprobs: Tensor  # [B, T] float32, log pi of each token at the temperature; 0 outside the mask
    entropy: Tensor  # [B, T] float32, nats, of the distribution each token was drawn from; likewise

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each completion, [B] int64."""
        return self.mask.sum(1)

    def __getitem__(self, rows: Any) -> Self:
        """Some rows, without columns that are padding in all of them."""
        P, T = self.prompt_mask[rows].sum(1).max(), self.lengths[rows].max()
        part = {}
        for f in fields(self):
            x = getattr(self, f.name)[rows]
            if f.name in ("prompts", "prompt_mask"):
                x = x[:, x.shape[1] - P :]
            elif x.dim() > 1:
                x = x[:, :T]
            part[f.name] = x
        return type(self)(**part)

    def ids(self) -> Tensor:
        """Prompt and completion of each row, [B, P + T] int64, with -1 for padding."""
        ids = torch.cat([self.prompts, self.tokens], 1)
        return ids.masked_fill(~torch.cat([self.prompt_mask, self.mask], 1), -1)

    def parts(self, rows: Any, size: int) -> Iterator[Self]:
        """Some rows in micro-batches of at most `size`, those of like length together."""
        rows = torch.as_tensor(rows, device=self.tokens.device)
        widths, order = self.lengths[rows].sort(stable=True)
        sizes = micro_batches(widths.cpu().numpy() + self.prompts.shape[1], size)
        for part in rows[order].split(sizes) if sizes else ():
            yield self[part]


def micro_batches(widths: np.ndarray, size: int) -> list[int]:
    """How many of the rows, in ascending order of their widths [B] in tokens, to take at a time.

    At most `size`, and the fastest division otherwise: every micro-batch is padded to its widest
    row, and costs one more pass.
    """
    least, sizes = [0.0], []
    for end in range(1, len(widths) + 1):  # the least cost of the first rows, and its last part
        start = max(end - size, 0)
        costs = np.array(least[start:]) + np.arange(end - start, 0, -1) * widths[end - 1] + PASS
        best = int(costs.argmin())
        least.append(costs[best])
        sizes.append(end - start - best)
    parts = []  # from the last to the first
    while sizes:
        parts.append(sizes[-1])
        del sizes[-parts[-1] :]
    return parts[::-1]


def joined(parts: Sequence[Samples]) -> Samples:
    """Samples one after another, padded to the widest."""
    P = max(part.prompts.shape[1] for part in parts)
    T = max(part.tokens.shape[1] for part in parts)

    def padded(name: str, x: Tensor) -> Tensor:
        if name in ("prompts", "prompt_mask"):
            return torch.nn.functional.pad(x, (P - x.shape[1], 0))
        return torch.nn.functional.pad(x, (0, T - x.shape[1])) if x.dim() > 1 else x

    names = [f.name for f in fields(Samples)]
    return Samples(
        **{name: torch.cat([padded(name, getattr(x, name)) for x in parts]) for name in names}
    )


def encode_prompts(tokenizer: Any, task: Task, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts, in the tokenizer's chat template where it has one.

    Otherwise with what the tokenizer puts before a text (Llama's beginning of sequence). Raises
    UsageError for a conversation without a template.
    """
    different = list(dict.fromkeys(prompts))
    if tokenizer.chat_template is None:
        if any(map(tasks.conversation, different)):
            raise UsageError("--model: has no chat template, which a prompt of messages needs")
        texts = [f"{task.instruction}\n\n{p}\n" if task.instruction else p for p in different]
        rows = token_ids(tokenizer, texts)
    else:
        rows = tokenizer.apply_chat_template(
            chats(tokenizer, task, different),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
    encoded = dict(zip(different, rows, strict=True))
    return [encoded[p] for p in prompts]


def chats(tokenizer: Any, task: Task, prompts: Sequence[str]) -> list[list[dict[str, str]]]:
    """Prompts as conversations, with the instruction in the system message, or, where the template
    has no system role (Gemma's), before the prompt.

    A prompt that is a conversation with a system message of its own gets no instruction.
    """
    conversations = []
    for prompt in prompts:
        chat = tasks.conversation(prompt) or [{"role": "user", "content": prompt}]
        if task.instruction and chat[0]["role"] != "system":
            chat = [{"role": "system", "content": task.instruction}, *chat]
        conversations.append(chat)
    example = [{"role": "system", "content": ""}, {"role": "user", "content": ""}]
    try:
        if any(chat[0]["role"] == "system" for chat in conversations):
            tokenizer.apply_chat_template(example, tokenize=False)
    except jinja2.TemplateError:
        return [without_system_role(chat) for chat in conversations]
    return conversations


def without_system_role(chat: list[dict[str, str]]) -> list[dict[str, str]]:
    """A conversation whose system message stands at the beginning of the message after it."""
    if chat[0]["role"] != "system":
        return chat
    system, first, *rest = chat
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def with_opening(task: Task, tokenizer: Any) -> Task:
    """The task of a model whose chat template itself opens the thinking, otherwise the same.

    The prompts of such a model (DeepSeek-R1) end with `<think>`, and its completions begin inside
    the thinking. Raises UsageError for a template that renders a prompt differently each time.
    """
    if tokenizer.chat_template is None:
        return task
    rendered = {
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        for chat in chats(tokenizer, task, [""] * RENDERINGS)
    }
    if len(rendered) > 1:
        raise UsageError("--model: its chat template renders a prompt differently each time")
    (prompt,) = rendered
    opens = prompt.rstrip().endswith(THINK)
    return task.but(opening=THINK) if opens else task


def token_ids(tokenizer: Any, texts: Sequence[str], special: bool = True) -> list[list[int]]:
    """Token ids of each text. special: with what the tokenizer puts before and after a text."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or fast.padding or fast.truncation or tokenizer.split_special_tokens:
        return tokenizer(list(texts), add_special_tokens=special)["input_ids"]  # type: ignore[no-any-return]
    # The same in a third of the time, as no offsets into the text are made.
    return [x.ids for x in fast.encode_batch_fast(list(texts), add_special_tokens=special)]


def pad_rows(
    rows: Sequence[Sequence[int]], pad: int, device: torch.device, left: bool = False
) -> tuple[Tensor, Tensor]:
    """Ids and mask, [B, L] each. left: padded there."""
    lengths = np.array([len(row) for row in rows]).reshape(-1, 1)
    places = np.arange(lengths.max())
    mask = places >= places.size - lengths if left else places < lengths
    ids = np.full(mask.shape, pad)
    ids[mask] = list(itertools.chain.from_iterable(rows))
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def decode(tokenizer: Any, samples: Samples) -> list[str]:
    """The texts of completions, without the token that ends them."""
    lengths = (samples.lengths - samples.ended.long()).tolist()
    rows = zip(samples.tokens.tolist(), lengths, strict=True)
    return [text_of(tokenizer, row[:n]) for row, n in rows]


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text that was generated, special tokens such as `<think>` included.

    Only the tokens that stand for no text are left out: padding and the unknown one.
    """
    no_text = (tokenizer.pad_token_id, tokenizer.unk_token_id)
    kept = [token for token in tokens if token not in no_text]
    return tokenizer.decode(kept, clean_up_tokenization_spaces=False)  # type: ignore[no-any-return]


def from_texts(
    tokenizer: Any,
    task: Task,
    prompts: Sequence[str],
    completions: Sequence[str],
    max_new_tokens: int,
    device: torch.device,
) -> Samples:
    """Given completions as samples; log-probabilities are 0.

    Every completion ends with the end of sequence, unless it is cut off at max_new_tokens.
    """
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    P, prompt_mask = pad_rows(encode_prompts(tokenizer, task, prompts), pad, device, left=True)
    rows = [[*row, eos] for row in token_ids(tokenizer, completions, special=False)]
    ended = torch.tensor([len(row) <= max_new_tokens for row in rows], device=device)
    tokens, mask = pad_rows([row[:max_new_tokens] for row in rows], pad, device)
    zeros = torch.zeros(mask.shape, device=device)
    return Samples(P, prompt_mask, tokens, mask, ended, zeros, zeros)


def precision(model: Any, device: torch.device) -> Any:
    """The context in which a model computes: bfloat16 where `models.prepare` said so."""
    return torch.autocast(device.type, torch.bfloat16, enabled=model.computes_in_half)


@contextlib.contextmanager
def rounding_once(model: Any) -> Iterator[None]:
    """Within `precision`, without gradients: round frozen weights once, not at every use.

    Autocast keeps the rounded copies of weights that require a gradient, and only of those. In
    float32 nothing is rounded, and a linear layer may compute different bits with that flag.
    """
    frozen = [p for p in model.parameters() if model.computes_in_half and not p.requires_grad]
    try:
        for p in frozen:
            p.requires_grad_(True)
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


def positions(mask: Tensor) -> Tensor:
    """Position of each token, [B, L] int64, not counting the padding on the left."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


# ---- Sampling ------------------------------------------------------------------------------


def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    uniforms: Tensor,
    temperature: float = 1.0,
    greedy: bool = False,
    size: int = 0,
) -> Samples:
    """Complete prompts (B lists of ids), `size` of them at a time (0: all).

    uniforms: [B, T] in [0, 1), one for each token: the draw of a row depends on no other row, so
    neither on the batch it is in, nor on the process. greedy: take the likeliest token instead
    (entropy and log-probabilities stay those at the temperature).
    """
    if 0 < size < len(prompts):
        parts = [slice(i, i + size) for i in range(0, len(prompts), size)]
        return joined([
            sample(model, tokenizer, prompts[part], uniforms[part], temperature, greedy)
            for part in parts
        ])  # fmt: skip
    device = uniforms.device
    ids, mask = pad_rows(prompts, tokenizer.pad_token_id, device, left=True)
    first, group = distinct(ids.masked_fill(~mask, -1))
    training = model.training  # with gradient checkpointing: then transformers keeps no cache
    model.eval()
    with precision(model, device), rounding_once(model):  # around all tokens
        tokens, logprobs, entropy, lengths, ended = _sample(
            model, ids[first], mask[first], group, uniforms, temperature, greedy, tokenizer
        )
    model.train(training)
    T = int(lengths.max())
    inside = torch.arange(T, device=device) < lengths.unsqueeze(1)
    # A row that had ended was continued until it was dropped.
    tokens = tokens[:, :T].masked_fill(~inside, tokenizer.pad_token_id)
    logprobs, entropy = logprobs[:, :T] * inside, entropy[:, :T] * inside
    return Samples(ids, mask, tokens, inside, ended, logprobs, entropy)


def end_tokens(model: Any, tokenizer: Any) -> Tensor:
    """The tokens that end a completion, [E] int64: chat models have one for the end of a turn."""
    own = getattr(model.generation_config, "eos_token_id", None)
    more = own if isinstance(own, list) else [own]
    return torch.tensor(sorted({tokenizer.eos_token_id, *more} - {None}))


@torch.no_grad()  # in inference mode autocast would round the weights again for every token
def _sample(
    model: Any,
    ids: Tensor,
    mask: Tensor,
    group: Tensor,
    uniforms: Tensor,
    temperature: float,
    greedy: bool,
    tokenizer: Any,
) -> tuple[Tensor, ...]:
    """Tokens, log-probabilities and entropies [B, T], lengths [B] int64, ended [B] bool.

    ids, mask: the distinct prompts. group: [B] int64, which of them each row completes.

    Rows that have drawn the same tokens after the same prompt have the same history. Where there
    are more than FEW histories, the model reads one row for each, otherwise one for each row here.
    """
    from transformers import DynamicCache

    B, T = uniforms.shape
    tokens = torch.full((B, T), tokenizer.pad_token_id, device=ids.device)
    logprobs, entropy = torch.zeros_like(uniforms), torch.zeros_like(uniforms)
    lengths = torch.full((B,), T, device=ids.device)
    ended = torch.zeros(B, dtype=torch.bool, device=ids.device)
    rows = torch.arange(B, device=ids.device)  # those still in the batch
    alive = torch.ones_like(ended)  # of these rows
    history = at = group  # of these rows: which history, and which row of the model's batch
    last = end_tokens(model, tokenizer).to(ids.device)
    cache = DynamicCache(config=model.config)
    inputs, places = ids, positions(mask)
    padded, mask = not mask.all(), mask.long()
    for t in range(T):
        logits = model(
            input_ids=inputs,
            attention_mask=mask if padded else None,
            position_ids=places if padded else None,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        logp = (logits.float() / temperature).log_softmax(-1)  # [rows of the model's batch, V]
        p = logp.exp()
        if greedy:
            token = logp.argmax(-1)[at]
        else:  # the first token whose cumulative probability exceeds u
            cumulative = p.cumsum(-1)[at]
            token = torch.searchsorted(
                cumulative, uniforms[rows, t : t + 1] * cumulative[:, -1:], right=True
            ).clamp(max=logp.shape[1] - 1)[:, 0]
        logprobs[rows, t] = logp[at, token]
        entropy[rows, t] = -(p * logp.clamp(min=-1e4)).sum(-1)[at]  # 0 * -inf is to be 0
        tokens[rows, t] = token
        ends = torch.isin(token, last) & alive
        lengths[rows[ends]] = t + 1
        ended[rows[ends]] = True
        alive = alive & ~ends
        count = int(alive.sum())
        if count == 0:
            break
        if count <= COMPACT * len(rows):
            rows, history, at, token, alive = (x[alive] for x in (rows, history, at, token, alive))
        token = token.where(alive, last[0])  # completions that have ended share one history
        first, history = distinct(history * logp.shape[1] + token)
        if len(first) > FEW:
            kept, inputs, at = at[first], token[first], history
        else:
            kept, inputs, at = at, token, torch.arange(len(rows), device=ids.device)
        inputs, places = inputs.unsqueeze(1), places[kept, -1:] + 1
        mask = torch.cat([mask[kept], mask.new_ones(len(kept), 1)], 1)
        if not kept.equal(torch.arange(len(logp), device=ids.device)):
            cache.batch_select_indices(kept)
    return tokens, logprobs, entropy, lengths, ended


def distinct(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of each distinct value of x [B, ...], and which of the values each row has [B].

    Values are in ascending order; where no two rows are the same, in that of the rows.
    """
    dim = 0 if x.dim() > 1 else None  # with a dimension it is slow
    values, which = torch.unique(x, dim=dim, return_inverse=True)
    rows = torch.arange(len(x), device=x.device)
    if len(values) == len(x):
        return rows, rows
    return rows.new_full((len(values),), len(x)).scatter_reduce(0, which, rows, "amin"), which


# ---- Teacher forcing -----------------------------------------------------------------------


def sequences(samples: Samples, last: bool = True) -> dict[str, Tensor]:
    """Prompts with their completions, [B, P + T], as a model takes them; with the last token, or
    without it, [B, P + T - 1].

    Where no prompt is padded nothing needs a mask: no token attends to the padding behind it.
    """
    L = samples.prompts.shape[1] + samples.tokens.shape[1] - (not last)
    ids = torch.cat([samples.prompts, samples.tokens], 1)[:, :L]
    if samples.prompt_mask.all():
        return {"input_ids": ids}
    mask = torch.cat([samples.prompt_mask, samples.mask], 1)[:, :L]
    return {"input_ids": ids, "attention_mask": mask.long(), "position_ids": positions(mask)}


def logprobs(model: Any, samples: Samples, temperature: float = 1.0) -> Tensor:
    """Log pi of each token of the completions, [B, T], 0 outside the mask; differentiable."""
    return outputs(model, samples, temperature, entropy=False)[0]


def outputs(
    model: Any, samples: Samples, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log pi of each token of the completions, and the entropy of the distribution that it is from
    (if asked for, otherwise 0), [B, T], 0 outside the mask; differentiable.

    Where the logits [B, T, V] are many, only those of a part of the tokens are held at a time.
    """

    def of_logits(logits: Tensor, tokens: Tensor) -> Tensor:
        """Both, [..., 2], of tokens [...] and the logits [..., V] before them."""
        logp = (logits.float() / temperature).log_softmax(-1)
        of_tokens = logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        entropies = -(logp.exp() * logp).sum(-1) if entropy else torch.zeros_like(of_tokens)
        return torch.stack([of_tokens, entropies], -1)

    T = samples.tokens.shape[1]
    V = model.config.get_text_config().vocab_size
    if samples.tokens.numel() * V > MAX_LOGITS and has_plain_head(model, samples):
        both = outputs_in_chunks(model, samples, of_logits, max(MAX_LOGITS // V, 1))
    else:
        with precision(model, samples.tokens.device):
            output = model(**sequences(samples, last=False), use_cache=False, logits_to_keep=T)
        both = of_logits(output.logits, samples.tokens) * samples.mask.unsqueeze(-1)
    return both[..., 0], both[..., 1]


def outputs_in_chunks(
    model: Any, samples: Samples, of_logits: Callable[[Tensor, Tensor], Tensor], tokens: int
) -> Tensor:
    """What `of_logits` says of each token, [B, T, 2], with the logits of at most `tokens` tokens at
    a time, which are recomputed for their gradient."""
    T = samples.tokens.shape[1]
    inner = without_adapters(model)

    def of_chunk(hidden: Tensor, chosen: Tensor) -> Tensor:
        """Of tokens [N] from the hidden states before them [N, H]."""
        return of_logits(inner.get_output_embeddings()(hidden), chosen)

    with precision(model, samples.tokens.device):
        inputs = sequences(samples, last=False)
        hidden = inner.base_model(**inputs, use_cache=False).last_hidden_state
        hidden = hidden[:, -T:][samples.mask]  # [tokens of all completions, H]
        chunks = zip(hidden.split(tokens), samples.tokens[samples.mask].split(tokens), strict=True)
        both = [
            checkpoint(of_chunk, *chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in chunks
        ]
    zeros = torch.zeros(*samples.tokens.shape, 2, device=samples.tokens.device)
    return zeros.masked_scatter(samples.mask.unsqueeze(-1), torch.cat(both))


def without_adapters(model: Any) -> Any:
    """The model of transformers, whose layers LoRA may have replaced, without PEFT's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def has_plain_head(model: Any, samples: Samples) -> bool:
    """Whether a model's logits are its output embeddings of the last hidden state and nothing more.

    False for a model that scales them, whether its config or only its computation shows it.
    """
    inner = without_adapters(model)
    config = inner.config.get_text_config()
    if any(getattr(config, name, None) not in (None, 1.0) for name in SCALED_LOGITS):
        return False
    if inner.base_model is inner or inner.get_output_embeddings() is None:
        return False
    if not hasattr(inner, "plain_head"):
        inputs = {name: x[:1] for name, x in sequences(samples).items()}
        with torch.no_grad(), precision(model, samples.tokens.device):
            expected = inner(**inputs, use_cache=False, logits_to_keep=1).logits.float()
            hidden = inner.base_model(**inputs, use_cache=False).last_hidden_state[:, -1:]
            plain = inner.get_output_embeddings()(hidden).float()
        inner.plain_head = torch.allclose(plain, expected, rtol=1e-3, atol=1e-3)
    return bool(inner.plain_head)


def scalars(model: Any, samples: Samples) -> Tensor:
    """A scalar head's output after each token of prompt and completion, [B, P + T].

    model: a transformers model for sequence classification with one label.
    """
    with precision(model, samples.tokens.device):
        hidden = model.base_model(**sequences(samples), use_cache=False).last_hidden_state
    return model.score(hidden.float()).squeeze(-1)  # type: ignore[no-any-return]


def scores(model: Any, samples: Samples) -> Tensor:
    """A reward model's score of each completion, [B]: its scalar after the last token."""
    T = samples.tokens.shape[1]
    completion = scalars(model, samples)[:, -T:]
    return completion.gather(1, samples.lengths.unsqueeze(1) - 1).squeeze(1)


@torch.no_grad()
def in_batches(function: Callable[[Samples], Tensor], samples: Samples, size: int) -> Tensor:
    """Apply a function of samples without gradients, `size` rows at a time; [B, ...].

    A result with columns is padded with 0 where its part is narrower than the whole batch.
    """
    order = samples.lengths.argsort(stable=True)  # as `parts` takes them
    results, width = [], samples.tokens.shape[1]
    for part in samples.parts(range(len(samples)), size):
        x, missing = function(part), width - part.tokens.shape[1]
        results.append(torch.nn.functional.pad(x, (0, missing)) if x.dim() > 1 else x)
    return torch.cat(results)[order.argsort()]
