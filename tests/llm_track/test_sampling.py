"""Sampling and log-probabilities: against teacher forcing, enumeration and one row at a time."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import ByT5Tokenizer

from manyseeds.errors import UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.sampling import Samples
from manyseeds.runs.language import LanguageConfig
from manyseeds.runs.parallel import Processes
from tests.llm_track.batches import close, float64, one_by_one, widened
from tests.random_models import digest, make_model, new_model

KINDS = ["llama", "qwen2", "gpt2"]
GSM8K = str(Path(__file__).parent / "data" / "gsm8k.jsonl")
CPU = torch.device("cpu")
PROMPTS = ["1+2=", "47+85=", "3 5 7 to 22:", "9", "<think>7+5=12;</think>", "abc def ghi jkl mno"]


def random_model(kind: str) -> Any:
    """A model of two layers, far from uniform."""
    return models.prepare(new_model(kind, scale=0.5, layers=2), LanguageConfig(), CPU)


@pytest.fixture(scope="module", params=KINDS)
def model(request: Any) -> Any:
    return random_model(request.param)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return models.tiny_tokenizer()


@pytest.fixture(scope="module")
def llama() -> Any:
    return random_model("llama")


def encoded(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    return sampling.encode_prompts(tokenizer, tasks.make("addition"), prompts)


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def likely_to_end(model: Any, tokenizer: Any, weight: float) -> Any:
    """The same model with an output head of its own, in which the end has a constant logit."""
    model = copy.deepcopy(model)
    head = model.lm_head
    biased = torch.nn.Linear(head.in_features, head.out_features)
    with torch.no_grad():
        biased.weight.copy_(head.weight)
        biased.weight[tokenizer.eos_token_id] = 0
        biased.bias.zero_()
        biased.bias[tokenizer.eos_token_id] = weight
    model.lm_head = biased
    return model


# ---- Log-probabilities of what was sampled -------------------------------------------------


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_sampling_and_teacher_forcing_agree(model: Any, tokenizer: Any, temperature: float) -> None:
    """For prompts of many lengths, through compaction, and against one forward pass per token."""
    ending = likely_to_end(model, tokenizer, 6.0)
    prompts = encoded(tokenizer, PROMPTS * 5)
    samples = sampling.sample(ending, tokenizer, prompts, uniforms(30, 14), temperature)
    assert 3 < samples.ended.sum() < 30  # some rows were dropped, some never
    assert len(samples.lengths.unique()) > 4
    with torch.no_grad():
        forced = sampling.logprobs(ending, samples, temperature)
    close(samples.logprobs, forced, 1e-4)
    assert (samples.logprobs[samples.mask] < 0).any()
    for i in range(0, 30, 7):
        n = int(samples.lengths[i])
        tokens = samples.tokens[i, :n].tolist()
        logp = one_by_one(ending, prompts[i], tokens, temperature).detach()
        exact = logp.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        close(samples.logprobs[i, :n], exact, 1e-4)
        close(samples.entropy[i, :n], -(logp.exp() * logp).sum(1), 1e-4)


def test_a_row_does_not_depend_on_the_others(model: Any, tokenizer: Any) -> None:
    """Alone, in a batch of any size, in another order, with or without compaction."""
    ending = likely_to_end(model, tokenizer, 5.0)
    prompts, u = encoded(tokenizer, PROMPTS * 3), uniforms(18, 20)
    whole = sampling.sample(ending, tokenizer, prompts, u)
    assert 2 < whole.ended.sum() < 18
    texts = sampling.decode(tokenizer, whole)
    order = torch.randperm(18, generator=torch.Generator().manual_seed(3))
    shuffled = sampling.sample(ending, tokenizer, [prompts[i] for i in order], u[order])
    assert sampling.decode(tokenizer, shuffled) == [texts[i] for i in order]
    for size in (1, 4, 100):
        parts = sampling.sample(ending, tokenizer, prompts, u, size=size)
        for name in ("tokens", "mask", "prompt_mask", "ended"):
            assert torch.equal(getattr(parts, name), getattr(whole, name)), name
        close(parts.logprobs, whole.logprobs, 1e-4)


def test_first_tokens_have_the_model_s_frequencies(llama: Any, tokenizer: Any) -> None:
    """Evenly spaced uniform numbers draw each token as often as its probability says."""
    (prompt,), n = encoded(tokenizer, ["1+2="]), 4000
    even = (torch.arange(n).unsqueeze(1) + 0.5) / n
    for temperature in (0.5, 2.0):
        tokens = sampling.sample(llama, tokenizer, [prompt] * n, even, temperature).tokens
        expected = n * one_by_one(llama, prompt, [0], temperature)[0].exp()
        close(tokens[:, 0].bincount(minlength=len(tokenizer)), expected, 1.01)


def test_the_ends_of_the_unit_interval_draw_no_impossible_token(llama: Any, tokenizer: Any) -> None:
    """Neither 0 where the first tokens have probability 0, nor the largest float below 1 where the
    sum of a large vocabulary's probabilities is smaller in float32, and the last ones have 0."""
    V, model = 151_936, copy.deepcopy(llama)
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, V)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.randn(V, generator=torch.Generator().manual_seed(0)))
        model.lm_head.bias[[0, 1, 2, -3, -2, -1]] = -1e9
        total = model.lm_head.bias.log_softmax(0).exp().cumsum(0)[-1]
    u = torch.tensor([[0.0], [1 - 2**-24]])
    assert total < u[1]
    samples = sampling.sample(model, tokenizer, [[5]] * 2, u)
    assert samples.tokens[:, 0].tolist() == [3, V - 4]


def test_greedy_takes_the_likeliest(model: Any, tokenizer: Any) -> None:
    prompts = encoded(tokenizer, PROMPTS)
    for u in (uniforms(6, 10), uniforms(6, 10, seed=1)):  # whatever the random numbers
        samples = sampling.sample(model, tokenizer, prompts, u, 0.7, greedy=True)
        for i, prompt in enumerate(prompts):
            n = int(samples.lengths[i])
            tokens = samples.tokens[i, :n].tolist()
            logp = one_by_one(model, prompt, tokens, 0.7).detach()
            assert logp.argmax(1).tolist() == tokens
            close(samples.logprobs[i, :n], logp.max(1).values, 1e-4)
            close(samples.entropy[i, :n], -(logp.exp() * logp).sum(1), 1e-4)


# ---- The end of a completion ---------------------------------------------------------------


@pytest.mark.parametrize("padding", ["<pad>", "<eos>"])
def test_a_completion_stops_at_its_end(padding: str, llama: Any, tokenizer: Any) -> None:
    """Also where the padding is the end of sequence, as GPT-2's is: the masks tell it."""
    tokenizer, eos = copy.deepcopy(tokenizer), tokenizer.eos_token_id
    tokenizer.pad_token = padding
    ending, prompts = likely_to_end(llama, tokenizer, 6.0), encoded(tokenizer, PROMPTS * 6)
    samples = sampling.sample(ending, tokenizer, prompts, uniforms(36, 12))
    assert 3 < samples.ended.sum() < 36
    for i in range(36):
        row, n = samples.tokens[i].tolist(), int(samples.lengths[i])
        assert samples.mask[i].tolist() == [True] * n + [False] * (samples.tokens.shape[1] - n)
        assert eos not in row[: n - 1]
        assert (row[n - 1] == eos) == bool(samples.ended[i])
        assert row[n:] == [tokenizer.pad_token_id] * (len(row) - n)
        assert samples.ended[i] or n == 12
    assert (samples.logprobs[~samples.mask] == 0).all()
    assert (samples.entropy[~samples.mask] == 0).all()
    at_once = sampling.sample(
        likely_to_end(llama, tokenizer, 1e9), tokenizer, prompts, uniforms(36, 5)
    )
    assert at_once.tokens.tolist() == [[eos]] * 36  # one column, not five
    assert sampling.decode(tokenizer, at_once) == [""] * 36


def test_any_of_several_end_tokens_ends_a_completion(llama: Any, tokenizer: Any) -> None:
    """A chat model ends a turn with one and a text with another; the tokenizer names only one."""
    prompts, u = encoded(tokenizer, PROMPTS * 4), uniforms(24, 10)
    free = sampling.sample(llama, tokenizer, prompts, u)
    ends = [int(free.tokens[0, 3]), int(free.tokens[1, 5])]  # two that are drawn
    model = copy.deepcopy(llama)
    model.generation_config.eos_token_id = ends
    found = sampling.sample(model, tokenizer, prompts, u)
    met = set()
    for i in range(24):
        row = free.tokens[i, : int(free.lengths[i])].tolist()
        stops = [t for t, x in enumerate(row) if x in (*ends, tokenizer.eos_token_id)]
        n = stops[0] + 1 if stops else 10
        assert found.tokens[i, : int(found.lengths[i])].tolist() == row[:n]
        assert bool(found.ended[i]) == bool(stops)
        met.update(row[n - 1 : n] if stops else [])
    assert met >= set(ends)
    model.generation_config.eos_token_id = ends[0]  # a single one, besides the tokenizer's
    both = {ends[0], tokenizer.eos_token_id}
    assert set(sampling.end_tokens(model, tokenizer).tolist()) == both


# ---- Padding and micro-batches -------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def exact(request: Any, tokenizer: Any) -> tuple[Any, Samples]:
    """A float64 model and completions of many lengths."""
    model = likely_to_end(random_model(request.param), tokenizer, 6.0)
    samples = sampling.sample(model, tokenizer, encoded(tokenizer, PROMPTS * 2), uniforms(12, 16))
    assert len(samples.lengths.unique()) > 3
    return model.double(), samples


@pytest.mark.parametrize(("left", "right", "token"), [(9, 0, 0), (0, 7, 0), (5, 3, 1), (5, 3, 40)])
def test_logprobs_do_not_see_padding(
    exact: tuple[Any, Samples], left: int, right: int, token: int
) -> None:
    model, samples = exact
    T = samples.tokens.shape[1]
    with float64(), torch.no_grad():
        expected = sampling.logprobs(model, samples, 0.8)
        got = sampling.logprobs(model, widened(samples, left, right, token), 0.8)
    assert expected.dtype == torch.float64
    close(got[:, :T], expected, 1e-9)
    assert (got[:, T:] == 0).all()


@pytest.mark.parametrize("size", [1, 5, 100])
@float64()
@torch.no_grad()
def test_logprobs_do_not_see_micro_batches(exact: tuple[Any, Samples], size: int) -> None:
    model, samples = exact
    expected = sampling.logprobs(model, samples)
    close(sampling.in_batches(lambda x: sampling.logprobs(model, x), samples, size), expected, 1e-9)
    rows = np.array([7, 0, 3, 11, 4])
    parts = list(samples.parts(rows, size))
    assert max(map(len, parts)) <= size
    lengths = torch.cat([part.lengths for part in parts])
    assert torch.equal(lengths, samples.lengths[rows].sort().values)  # like ones together
    found = torch.cat([sampling.logprobs(model, part).sum(1) for part in parts])
    close(found.sort().values, expected[rows].sum(1).sort().values, 1e-9)
    assert list(samples.parts(np.array([], dtype=np.int64), size)) == []


@pytest.mark.parametrize("rows", [[3, 1], slice(2, 7), torch.tensor([5, 5, 0]), np.array([11, 2])])
def test_some_rows_without_their_padding(exact: tuple[Any, Samples], rows: Any) -> None:
    """Also where they are joined again with other ones."""
    _, samples = exact
    part = samples[rows]
    index = torch.arange(12)[rows]
    assert part.prompt_mask.any(0).all()  # no column is padding alone
    assert part.mask.any(0).all()
    for x in (part, sampling.joined([part, samples])[: len(part)]):
        assert len(x) == len(index)
        for k, i in enumerate(index.tolist()):
            assert x.prompts[k][x.prompt_mask[k]].equal(samples.prompts[i][samples.prompt_mask[i]])
            for name in ("tokens", "logprobs", "entropy"):
                mine, whole = getattr(x, name)[k], getattr(samples, name)[i]
                assert mine[x.mask[k]].equal(whole[samples.mask[i]]), name
            assert x.ended[k] == samples.ended[i]
            assert x.prompt_mask[k, -1]  # on the left is the padding of prompts,
            assert x.mask[k, 0]  # on the right that of completions


# ---- Many logits ---------------------------------------------------------------------------


def both_paths(
    model: Any, samples: Samples, monkeypatch: pytest.MonkeyPatch, temperature: float = 0.7
) -> list[tuple[Tensor, list[Tensor]]]:
    """Log-probabilities and gradients with all logits at once, and with those of five tokens."""
    found = []
    V = model.config.vocab_size
    for limit in (sampling.MAX_LOGITS, 5 * V + 1):
        monkeypatch.setattr(sampling, "MAX_LOGITS", limit)
        logp = sampling.logprobs(model, samples, temperature)
        assert not logp[~samples.mask].any()
        (logp * torch.arange(1.0, 1 + logp.numel()).view_as(logp).sin()).sum().backward()
        gradients = [p.grad.clone() for p in models.trainable(model)]
        model.zero_grad()
        found.append((logp.detach(), gradients))
    return found


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2"])
@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}, {"lora_rank": 2}])
def test_in_chunks_there_are_the_same_log_probabilities(
    kind: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "lora_rank" in settings:
        pytest.importorskip("peft")
    config = LanguageConfig(model=make_model(kind, tmp_path / "m"), **settings)
    model, tokenizer = models.load_model(config, CPU, Processes())
    if "lora_rank" in settings:  # adapters begin as 0
        for p in models.trainable(model):
            torch.nn.init.normal_(p, std=0.1)
    texts = ["<think>1+2=3;</think><answer>3</answer>", "12", "", "<answer>a longer one"]
    prompts = ["1+2=", "3", "45+67=", "8+9="]
    samples = sampling.from_texts(tokenizer, tasks.make("addition"), prompts, texts, 16, CPU)
    calls = []
    chunks = sampling.outputs_in_chunks
    monkeypatch.setattr(
        sampling, "outputs_in_chunks", lambda *args: (calls.append(args[3]), chunks(*args))[1]
    )
    (expected, gradients), (found, others) = both_paths(model, samples, monkeypatch)
    assert calls == [5]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert sum(float(x.abs().sum()) for x in gradients) > 1
    for x, y in zip(others, gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_in_chunks_only_a_chunk_of_logits_is_kept(
    llama: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["1" * 30, "2" * 40]
    samples = sampling.from_texts(tokenizer, tasks.make("addition"), ["1", "2"], texts, 64, CPU)
    V, kept = llama.config.vocab_size, []
    monkeypatch.setattr(sampling, "MAX_LOGITS", 5 * V)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: (kept.append(x.numel() if x.shape[-1] == V else 0), x)[1], lambda x: x
    ):
        sampling.logprobs(llama, samples)
    assert max(kept) <= 5 * V


@pytest.mark.parametrize("scaled", ["says so", "does so"])
def test_scaled_logits_are_computed_at_once(
    scaled: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("llama")
    samples = sampling.from_texts(tokenizer, tasks.make("addition"), ["1"], ["23"], 8, CPU)
    if scaled == "says so":
        model.config.final_logit_softcapping = 30.0
    else:
        forward = model.forward

        def doubled(*args: Any, **rest: Any) -> Any:
            found = forward(*args, **rest)
            found.logits = 2 * found.logits
            return found

        model.forward = doubled
    expected = sampling.logprobs(model, samples)
    monkeypatch.setattr(sampling, "MAX_LOGITS", 1)
    assert torch.equal(sampling.logprobs(model, samples), expected)


# ---- Texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["", "padding", "truncation", "split", "slow"])
def test_token_ids_are_those_of_the_tokenizer(setting: str) -> None:
    """Neither padded nor cut off, whatever a tokenizer was used for or saved with."""
    made = ByT5Tokenizer() if setting == "slow" else models.tiny_tokenizer()
    made.split_special_tokens = setting == "split"
    texts = ["12+34=", "", "<think>7;</think>"]
    expected = made(texts, add_special_tokens=False)["input_ids"]
    if setting == "padding":
        made.backend_tokenizer.enable_padding()
    if setting == "truncation":
        made.backend_tokenizer.enable_truncation(2)
    assert sampling.token_ids(made, texts, special=False) == expected
    assert len({*map(len, expected)}) == 3


def test_given_completions(tokenizer: Any) -> None:
    texts = ["<think>a</think><answer>3</answer>", "x", "", "eight ch"]
    samples = sampling.from_texts(
        tokenizer, tasks.make("addition"), ["1+2=", "47+85=", "3", "4"], texts, 7, CPU
    )
    assert samples.lengths.tolist() == [7, 2, 1, 7]  # tags are one token, the end counts
    assert samples.ended.tolist() == [True, True, True, False]
    assert sampling.decode(tokenizer, samples) == [*texts[:3], "eight c"]
    last = samples.tokens.gather(1, samples.lengths[:, None] - 1)[:, 0]
    assert ((last == tokenizer.eos_token_id) == samples.ended).all()
    assert (samples.logprobs == 0).all()
    prompts = [row[mask] for row, mask in zip(samples.prompts, samples.prompt_mask, strict=True)]
    assert tokenizer.batch_decode(prompts) == ["1+2=", "47+85=", "3", "4"]


CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[me]{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"


def test_a_chat_template_is_used_where_there_is_one(tokenizer: Any) -> None:
    """Without a system role (Gemma's refuses one) the instruction stands before the prompt."""
    chat, plain, math = copy.deepcopy(tokenizer), tasks.make("addition"), tasks.make(GSM8K)
    for template, task, expected in (
        (None, plain, "1+2="),
        (None, math, f"{math.instruction}\n\n1+2=\n"),
        (CHAT, plain, "[user]1+2=[me]"),
        (CHAT, math, f"[system]{math.instruction}[user]1+2=[me]"),
        (NO_SYSTEM + CHAT, math, f"[user]{math.instruction}\n\n1+2=[me]"),
    ):
        chat.chat_template = template
        (ids,) = sampling.encode_prompts(chat, task, ["1+2="])
        assert chat.decode(ids) == expected
    chat.chat_template = "{{ raise_exception('no chat at all') }}"
    with pytest.raises(Exception, match="no chat at all"):
        sampling.encode_prompts(chat, plain, ["1+2="])


def test_a_conversation_is_rendered_as_it_is(tokenizer: Any) -> None:
    """Its own system message takes the place of the instruction; a base model cannot read it."""
    chat, math = copy.deepcopy(tokenizer), tasks.make(GSM8K)
    turns = [("user", "1?"), ("assistant", "1"), ("user", "2?")]
    for system, template, expected in (
        ([], CHAT, f"[system]{math.instruction}[user]1?[assistant]1[user]2?[me]"),
        ([("system", "Hm.")], CHAT, "[system]Hm.[user]1?[assistant]1[user]2?[me]"),
        ([("system", "Hm.")], NO_SYSTEM + CHAT, "[user]Hm.\n\n1?[assistant]1[user]2?[me]"),
    ):
        chat.chat_template = template
        prompt = json.dumps([{"role": x, "content": y} for x, y in [*system, *turns]])
        (ids,) = sampling.encode_prompts(chat, math, [prompt])
        assert chat.decode(ids) == expected
    with pytest.raises(UsageError, match=r"^--model: has no chat template"):
        sampling.encode_prompts(tokenizer, math, [prompt])


def test_a_template_s_clock_stands_still(tokenizer: Any, tmp_path: Path) -> None:
    """A run depends on its flags, not on the day; nor on a template's own random numbers."""
    chat, task = copy.deepcopy(tokenizer), tasks.make("addition")
    chat.chat_template = "[{{ strftime_now('%d %b %Y') }}]" + CHAT
    chat.save_pretrained(tmp_path)
    read = models.read_tokenizer(str(tmp_path), "--model")
    (ids,) = sampling.encode_prompts(read, task, ["1+2="])
    assert read.decode(ids) == "[26 Jul 2024][user]1+2=[me]"
    # As TRL renders it, too.
    text = read.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False)
    assert text == "[26 Jul 2024][user]1"
    chat.chat_template = "{{ range(1000) | random }}" + CHAT
    with pytest.raises(UsageError, match="renders a prompt differently each time"):
        sampling.with_opening(task, chat)


@pytest.mark.parametrize("special", [False, True])
def test_what_was_generated_is_what_is_graded(special: bool, tokenizer: Any) -> None:
    """Tags too where they are special tokens; but for the end, padding and the unknown token."""
    own = copy.deepcopy(tokenizer)
    if special:
        own.add_special_tokens({"additional_special_tokens": list(tasks.TAGS)})
        assert set(tasks.TAGS) < set(own.all_special_tokens)
    task, text = tasks.make("addition"), "<think>7 + 5 , 12;</think><answer>132</answer>"
    samples = sampling.from_texts(own, task, ["47+85="] * 2, [text, "1"], 64, CPU)
    assert sampling.decode(own, samples) == [text, "1"]
    cut = replace(samples, ended=torch.zeros(2, dtype=torch.bool))
    assert sampling.decode(own, cut) == [text + "<eos>", "1<eos>"]
    assert sampling.text_of(own, [own.pad_token_id, *own("1")["input_ids"]]) == "1"


def test_a_template_may_open_the_thinking(tokenizer: Any) -> None:
    """Then completions are graded as if it stood before them, and steps end where they do."""
    task = tasks.make("addition")
    assert sampling.with_opening(task, tokenizer) is task
    chatty = copy.deepcopy(tokenizer)
    chatty.chat_template = CHAT
    assert sampling.with_opening(task, chatty) is task
    chatty.chat_template = CHAT.replace("[me]", "[me]<think>\n")
    opened = sampling.with_opening(task, chatty)
    problem = tasks.Problem("47+85=", "132", "<think>7+5=12;</think><answer>132</answer>")
    inside = "7+5=12;4+8+1=13;</think><answer>132</answer>"
    assert opened.grade(problem, inside) == tasks.Graded(problem, inside, 1.0, 1.0)
    assert opened.grade(problem, f"<think>{inside}").format == 0
    assert task.grade(problem, inside).format == 0
    assert [step.end for step in opened.steps(problem, inside)] == [7, 16]
    assert all(step.reward == 1 for step in opened.steps(problem, inside))
    assert opened.steps(problem, "no end") == []
    assert opened.shown(problem) == "7+5=12;</think><answer>132</answer>"
    assert task.shown(problem) == problem.demonstration
    assert sampling.with_opening(tasks.make(GSM8K), chatty).format(inside) == 1


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_weights_are_rounded_once_for_all_tokens(
    lora_rank: int, llama: Any, tokenizer: Any
) -> None:
    """In half precision, frozen ones too; a GPU would otherwise spend most of its time on it."""
    model = copy.deepcopy(llama)
    if lora_rank:
        pytest.importorskip("peft")
        model = models.with_lora(model, lora_rank)
    model.computes_in_half = True
    trained = models.trainable(model)
    weights = sum(isinstance(m, torch.nn.Linear) for m in model.modules())

    def casts(T: int) -> int:
        """Of what has the shape of a weight."""
        shapes = [list(m.weight.shape) for m in model.modules() if isinstance(m, torch.nn.Linear)]
        with torch.profiler.profile(record_shapes=True) as profile:
            samples = sampling.sample(
                model, tokenizer, encoded(tokenizer, ["1+2="] * 5), uniforms(5, T)
            )
        assert samples.tokens.shape[1] == T
        copies = [e for e in profile.events() if e.name == "aten::_to_copy"]
        return sum(e.input_shapes[0] in shapes for e in copies)

    assert casts(2) == casts(8) == weights
    assert [id(p) for p in models.trainable(model)] == [id(p) for p in trained]


def test_scalars_are_not_rounded(tokenizer: Any) -> None:
    """Two completions of a group would too often have the same score in bfloat16."""
    model = models.prepare(new_model("reward model"), LanguageConfig(dtype="bfloat16"), CPU)
    task, texts = tasks.make("addition"), list("abcdefgh")
    samples = sampling.from_texts(tokenizer, task, ["1+2="] * 8, texts, 4, CPU)
    found = sampling.scores(model, samples)
    assert found.dtype == torch.float32
    assert (found != found.bfloat16().float()).all()


# ---- Models --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_dropout_is_off(kind: str) -> None:
    """GPT-2's modules, Llama's attention; with it the ratio is not 1 before the first update."""
    model = new_model(kind)
    if kind == "llama":  # GPT-2 has 0.1 in three places
        model.config.attention_dropout = 0.5
        model = type(model)(model.config)
    ids = torch.arange(10)[None]
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)  # the negative control
    models.prepare(model, LanguageConfig(), CPU)
    for training in (False, True):  # gradient checkpointing needs it
        model.train(training)
        assert torch.equal(model(ids).logits, model(ids).logits)


def test_a_tiny_model_reads_back(tokenizer: Any, tmp_path: Path) -> None:
    model = new_model("tiny").eval()
    assert sum(p.numel() for p in model.parameters()) == 137_984
    models.save(model, tokenizer, tmp_path / "m")
    models.save(model, tokenizer, tmp_path / "m")  # over what is there
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    config = LanguageConfig(model=str(tmp_path / "m"))
    again, same = models.load_model(config, CPU, Processes())
    assert digest(again) == digest(model)
    for text in (models.CHARACTERS, "".join(tasks.TAGS), "<think>47+85=\n</think> <answer>~"):
        rows = [tok(text, add_special_tokens=False)["input_ids"] for tok in (tokenizer, same)]
        assert rows[0] == rows[1]
        assert same.decode(rows[1], skip_special_tokens=True) == text
    assert (same.eos_token_id, same.pad_token_id) == (1, 0)
    assert encoded(same, ["é€"])[0] == [tokenizer.unk_token_id] * 2


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def refusal(model: str, **settings: Any) -> str:
    """What models.load_model says; one line."""
    with pytest.raises(UsageError) as error:
        models.load_model(LanguageConfig(model=model, **settings), CPU, Processes())
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("model_type", ["own", "llama"])
def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path, model_type: str) -> None:
    sentinel = tmp_path / "sentinel"
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "own.py").write_text(f"import pathlib\npathlib.Path({str(sentinel)!r}).touch()\n")
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "auto_map": own}))
    message = refusal(str(folder))
    assert not sentinel.exists()
    if model_type == "own":
        assert message == (
            f"--model {folder}: needs code of its own to be run, which this project never does"
        )


@pytest.mark.usefixtures("offline")
def test_pickled_weights_are_refused(qwen: str, tmp_path: Path) -> None:
    """Also where they are harmless: what a pickle runs is known only once it has run."""
    folder = tmp_path / "m"
    folder.mkdir()
    for config in (None, "{not json"):  # nor is a folder without a model
        if config:
            (folder / "config.json").write_text(config)
        assert refusal(str(folder)).startswith(f"--model {folder}: ")
    shutil.copytree(qwen, folder, dirs_exist_ok=True)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    message = refusal(str(folder))
    assert message.startswith(f"--model {folder}: ")
    assert "safetensors" in message


@pytest.mark.usefixtures("offline")
def test_a_model_that_padding_changes_is_refused(tmp_path: Path) -> None:
    """RoBERTa's positions begin behind the padding token's id, so ours would be others."""
    folder = make_model("roberta", tmp_path / "m")
    message = f"--model {folder}: a roberta model computes other log-probabilities for a prompt"
    assert refusal(folder, max_new_tokens=8).startswith(message)


def test_half_precision_is_refused_on_a_gpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    for supported in (True, False):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda supported=supported, **_: supported
        )
        assert models.half_precision(LanguageConfig(), gpu) == supported
        assert not models.half_precision(LanguageConfig(dtype="float32"), gpu)
        assert models.half_precision(LanguageConfig(dtype="bfloat16"), CPU)
    with pytest.raises(UsageError, match="--dtype bfloat16: Tesla T4 cannot"):
        models.half_precision(LanguageConfig(dtype="bfloat16"), gpu)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_micro_batches_are_the_cheapest_there_are(widths: list[int], size: int) -> None:
    """Among all ways to cut the sorted rows: padded tokens, and PASS for each part."""
    widths = sorted(widths)

    def cost(sizes: Sequence[int]) -> float:
        ends = list(itertools.accumulate(sizes))
        return sum(n * widths[end - 1] + sampling.PASS for n, end in zip(sizes, ends, strict=True))

    def cuts(n: int) -> Iterator[tuple[int, ...]]:
        if n == 0:
            yield ()
        for k in range(1, min(n, size) + 1):
            yield from ((*rest, k) for rest in cuts(n - k))

    found = sampling.micro_batches(np.array(widths), size)
    assert sum(found) == len(widths)
    assert max(found) <= size
    assert cost(found) == min(map(cost, cuts(len(widths))))


def sampling_counted(model: Any, prompts: Any, u: Tensor, t: float = 1.0) -> tuple[Samples, Any]:
    """Samples, and how many rows the model read for each of their tokens."""
    read, forward = [], model.forward

    def counting(*args: Any, **inputs: Any) -> Any:
        read.append(len(inputs["input_ids"]))
        return forward(*args, **inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", counting)
        return sampling.sample(model, models.tiny_tokenizer(), prompts, u, t), read


def histories(samples: Samples) -> tuple[list[int], list[int], list[bool]]:
    """After t tokens: how many different histories go on, how many have ended, did any part."""
    ids = torch.cat([samples.prompts, samples.tokens], 1)
    P, T = samples.prompts.shape[1], samples.tokens.shape[1]

    def different(rows: Tensor, length: int) -> int:
        return len({tuple(row) for row in ids[rows, : P + length].tolist()})

    going = [samples.lengths > t for t in range(T)]
    counts = [different(rows, t) for t, rows in enumerate(going)]
    ended = [different(~rows, T) for rows in going]
    before = [different(rows, t - 1) for t, rows in enumerate(going)]
    return counts, ended, [n < count for n, count in zip(before, counts, strict=True)]


def copies_of_the_cache(patch: pytest.MonkeyPatch) -> list[int]:
    """Filled with the rows of every copy of keys and values, of all layers."""
    from transformers import DynamicCache

    copies: list[int] = []
    select = DynamicCache.batch_select_indices

    def counting(cache: Any, indices: Tensor) -> None:
        copies.append(len(indices))
        select(cache, indices)

    patch.setattr(DynamicCache, "batch_select_indices", counting)
    return copies


@pytest.mark.parametrize("different", [1, 3, 24])
def test_equal_histories_are_read_once(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, different: int
) -> None:
    """Until they part; and what is sampled is the same as with a row for each completion."""
    ending = likely_to_end(model, tokenizer, 5.0)
    prompts = encoded(tokenizer, [f"{i}+{3 * i}=" for i in range(different)] * (96 // different))
    u = uniforms(96, 24, seed=different)
    copies = copies_of_the_cache(monkeypatch)
    shared, read = sampling_counted(ending, prompts, u, 0.6)
    counts, ended, parted = histories(shared)
    assert read[0] == different
    alive = [int((shared.lengths > t).sum()) for t in range(len(counts))]
    for rows, n, over, one_each in list(zip(read, counts, ended, alive, strict=True))[1:]:
        if n > sampling.FEW:
            assert n <= rows <= n + over
        elif rows <= sampling.FEW:
            assert one_each <= rows <= one_each / sampling.COMPACT
    smaller = sum(after <= sampling.COMPACT * n for n, after in itertools.pairwise(read))
    assert len(copies) <= sum(parted) + smaller + 1  # one where they are no longer shared
    assert sampling.FEW < max(counts) < 96  # there is something to share
    assert counts != sorted(counts)  # some histories end, and others part
    assert len(set(shared.lengths.tolist())) > 4
    monkeypatch.setattr(sampling, "FEW", 96)
    single, read = sampling_counted(ending, prompts, u, 0.6)
    assert read[1] == 96
    assert torch.equal(shared.tokens, single.tokens)
    assert torch.equal(shared.mask, single.mask)
    assert torch.equal(shared.ended, single.ended)
    close(shared.logprobs, single.logprobs, 1e-5)
    close(shared.entropy, single.entropy, 1e-5)


def test_the_reference_computes_equal_completions_once(
    exact: tuple[Any, Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each micro-batch; a completion that only looks the same, padded, is another."""
    model, samples = exact
    logprobs, read = sampling.logprobs, []

    def counting(model: Any, part: Samples, temperature: float) -> Tensor:
        read.append(len(part))
        return logprobs(model, part, temperature)

    monkeypatch.setattr(sampling, "logprobs", counting)
    reference = models.Reference(model)
    rows = [*range(12), *range(12), 3, 3]
    with torch.no_grad():
        expected = logprobs(model, samples[rows], 0.7)
    close(reference.logprobs(samples[rows], 0.7, 26), expected, 1e-5)
    assert sum(read) == 12
    longest = int(samples.lengths.argmax())
    both = samples[[longest, longest]]
    both.mask[1, -1] = False
    found = reference.logprobs(both, 0.7, 2)
    assert found[0, -1] < 0 == found[1, -1]


def test_a_prompt_is_read_once_however_often_it_is_completed(model: Any) -> None:
    """A padding token within a prompt makes it another one than the same tokens after padding."""
    tokenizer = models.tiny_tokenizer()
    pad = tokenizer.pad_token_id
    prompts = [[7, 8], [pad, 7, 8], [7, 8], [9], [pad, 7, 8]]
    uniforms = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))
    together, read = sampling_counted(model, prompts, uniforms)
    assert read[:2] == [3, 5]
    for i, prompt in enumerate(prompts):
        alone = sampling.sample(model, tokenizer, [prompt], uniforms[i : i + 1])
        n = int(alone.lengths)
        assert together.tokens[i, :n].tolist() == alone.tokens[0].tolist()
        assert torch.allclose(together.logprobs[i, :n], alone.logprobs[0], atol=1e-5)
