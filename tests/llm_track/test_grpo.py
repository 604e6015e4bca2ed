"""GRPO and its siblings: by hand, against slow loops and enumeration, and whole runs."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from manyseeds.errors import UsageError
from manyseeds.llm_track import (
    cispo,
    dapo,
    dr_grpo,
    evaluation,
    grpo,
    gspo,
    models,
    process_grpo,
    reinforce_pp,
    rlhf_ppo,
    rloo,
    sampling,
    tasks,
)
from manyseeds.llm_track.policies import HubModel, load_policy
from manyseeds.llm_track.rollout import (
    Batch,
    Rollout,
    collect,
    decode,
    from_texts,
    kl,
    kl_of_rewards,
    regularizer,
    rollout_of,
    sample_metrics,
    samples_of,
    whiten,
    with_signal,
)
from manyseeds.llm_track.sampling import Samples
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.parallel import Processes
from tests.llm_track.batches import close, float64, moved, one_by_one, policy_metrics, widened
from tests.random_models import digest, make_model

WITH_GROUPS: dict[str, Any] = {  # and an advantage for each of their completions
    x.__name__.rpartition(".")[2]: x for x in (grpo, dr_grpo, dapo, rloo, gspo, cispo, process_grpo)
}
METHODS: dict[str, Any] = {**WITH_GROUPS, "reinforce_pp": reinforce_pp}
MODULES = {**METHODS, "rlhf_ppo": rlhf_ppo}
SCALED = ("grpo", "dapo", "gspo", "cispo", "process_grpo")  # by the group's deviation
CPU = torch.device("cpu")
T_MAX = 12
COIN = "examples/random_reward.py:coin"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reward model with random weights."""
    return make_model("reward model", tmp_path_factory.mktemp("models") / "judge")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return models.tiny_tokenizer()


@pytest.fixture
def small(few_samples: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, and an accuracy that random weights earn half of the time."""
    monkeypatch.setattr(
        tasks.Addition, "accuracy", lambda self, problem, text: float(sum(map(ord, text)) % 2)
    )


def config_of(name: str, model: str = "x", **settings: Any) -> Any:
    """A Config of a module with small batches."""
    given = {"model": model, "prompts": 3, "group_size": 4, "max_new_tokens": T_MAX, "quiet": True}
    given |= {"minibatches": 1, "total_samples": 24, "evaluations": 1}
    given |= {"supervision": "outcome"} if name == "process_grpo" else {}
    return MODULES[name].Config(**given | settings)


# ---- Advantages ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_GROUPS)
def test_advantages_of_a_group_by_hand(name: str) -> None:
    """Deviations from the mean, over the group's std plus epsilon, or as they are, or from the mean
    of the others."""
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 2.0, 2.0]], dtype=torch.float64)
    deviations = torch.tensor([[0.5, -0.5, -0.5, 0.5], [1.0, -1.0, 0.0, 0.0]])
    stds = torch.tensor([[math.sqrt(1 / 3)], [math.sqrt(2 / 3)]], dtype=torch.float64)
    expected = deviations / (stds + 1e-4) if name in SCALED else deviations
    if name == "rloo":
        expected = torch.tensor([[2 / 3, -2 / 3, -2 / 3, 2 / 3], [4 / 3, -4 / 3, 0.0, 0.0]])
    close(WITH_GROUPS[name].group_advantages(rewards[None])[0], expected, 1e-7)
    seeds = torch.stack([rewards, rewards.flip(1)])
    both = WITH_GROUPS[name].group_advantages(seeds)
    close(both, torch.stack([expected, expected.flip(1)]), 1e-7)


def test_advantages_of_grpo_at_other_scales() -> None:
    """Over the deviation of all rewards of the seed, and over nothing."""
    rewards = torch.tensor([[[1.0, 0.0], [3.0, 3.0]], [[0.0, 4.0], [0.0, 0.0]]])
    deviations = torch.tensor([[[0.5, -0.5], [0.0, 0.0]], [[-2.0, 2.0], [0.0, 0.0]]])
    stds = torch.tensor([math.sqrt(6.75 / 3), math.sqrt(12 / 3)]).view(2, 1, 1)
    close(grpo.group_advantages(rewards, "batch"), deviations / (stds + 1e-4), 1e-6)
    close(grpo.group_advantages(rewards, "none"), deviations)


def test_returns_of_reinforce_pp_by_hand() -> None:
    """Each token bears the KL from it on; a group's mean is subtracted, or nothing."""
    rewards, penalties = (
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[[0.1, 0.2, 0.0], [0.3, 0.0, 0]]]),
    )
    close(
        reinforce_pp.token_returns(rewards, penalties, None),
        [[[0.7, 0.8, 1.0], [-0.3, 0.0, 0.0]]],
        1e-6,
    )
    close(
        reinforce_pp.token_returns(rewards, penalties, 2),
        [[[0.2, 0.3, 0.5], [-0.8, -0.5, -0.5]]],
        1e-6,
    )


@pytest.mark.parametrize("baseline", ["none", "group"])
@pytest.mark.parametrize("reward", [0.0, 0.1 + 0.2, 1.1, -0.9, 1 / 3, 1e6 + 0.1])
def test_equal_returns_of_a_batch_say_nothing_at_all(baseline: str, reward: float) -> None:
    """One of two seeds has a reward that is not like the others."""
    rewards, mask = torch.full((2, 9), reward), torch.ones(2, 9, 3).bool()
    rewards[1, 0] += 1
    returns = reinforce_pp.token_returns(
        rewards, torch.zeros(2, 9, 3), 3 if baseline == "group" else None
    )
    mask[0, 2, 1:] = False
    returns[0, 2, 1:] = 7.0  # nobody is to look at these
    white = whiten(returns, mask, Processes())
    assert (white[0] == 0).all()
    assert (white[1] != 0).any()


@pytest.mark.parametrize("name", WITH_GROUPS)
@pytest.mark.parametrize("G", [2, 3, 7, 8, 31])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1 + 0.2, 1.1, -0.9, 1 / 3, 1e6 + 0.1])
def test_equal_rewards_say_nothing_at_all(name: str, G: int, reward: float) -> None:
    """Exactly 0: a rounding error over 1e-4 would be a gradient of noise."""
    rewards = torch.full((1, 2, G), reward)
    rewards[0, 1, 0] += 1
    (advantages,) = WITH_GROUPS[name].group_advantages(rewards)
    assert (advantages[0] == 0).all()
    assert (advantages[1] != 0).all()


def test_steps_of_a_group_that_are_all_alike_say_nothing() -> None:
    for n, reward in itertools.product(range(1, 30), (0.1, 0.3, 1.1, 1 / 3)):
        rewards = [[reward] * n, [reward], [1.0, 0.0], [1.0]]
        got = process_grpo.process_advantages(rewards, [[*range(n)], [3], [0, 1], [1]], 2, 30)
        assert (got[:2] == 0).all()
        assert (got[2:] != 0).any()


@pytest.fixture(scope="module")
def pieces() -> Any:
    """A tokenizer whose tokens have several characters, many of them across the ends of steps."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    found = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    found.decoder = tokenizers.decoders.Fuse()
    texts = [p.demonstration for p in tasks.make("addition").train(np.random.default_rng(0), 200)]
    special = ["<pad>", "<eos>", "<unk>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=160, special_tokens=special, show_progress=False
    )
    found.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=found, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


class Stripping:
    """A tokenizer whose texts lose a space at their beginning, as SentencePiece's do."""

    pad_token_id = unk_token_id = None

    def decode(self, tokens: Sequence[int], clean_up_tokenization_spaces: bool) -> str:
        assert not clean_up_tokenization_spaces
        return " ".join("abc"[:n] for n in tokens)


def test_where_blocks_do_not_make_up_the_whole_prefixes_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_grpo, "BLOCK", 2)
    tokens = [1, 3, 2, 3, 1]  # a abc ab abc a
    found = process_grpo.last_tokens(Stripping(), tokens, range(1, 15))
    assert found == [0] + [1] * 4 + [2] * 3 + [3] * 4 + [4] * 2


@pytest.mark.parametrize(
    ("kind", "block"),
    [("characters", process_grpo.BLOCK), ("pieces", process_grpo.BLOCK), ("pieces", 3)],
)
def test_step_advantages_are_those_of_the_steps(
    kind: str, block: int, tokenizer: Any, pieces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right step, a wrong one, a completion without steps and one that is cut off."""
    monkeypatch.setattr(process_grpo, "BLOCK", block)
    made, task = (tokenizer if kind == "characters" else pieces), tasks.make("addition")
    problem = tasks.Problem("47+85=", "132")
    texts = [
        "<think>7+5=12;4+8+1=13;</think><answer>132</answer>",
        "<think>7+5=11;4+8+1=13;</think><answer>131</answer>",
        "<answer>132</answer>",
        "<think>7+5=12;</think>" + "7" * 40,
    ]
    samples = sampling.from_texts(made, task, [problem.prompt] * 4, texts, 36, CPU)
    assert samples.ended.tolist() == [True, True, True, False]
    graded = [task.grade(problem, text) for text in sampling.decode(made, samples)]
    assert [x.accuracy for x in graded] == [1, 0, 1, 0]
    outcomes = torch.tensor([1.1, 0.1, 1.0, 0.0])
    order = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])  # of two seeds
    rollout = Rollout(*(torch.cat([x, x]) for x in vars(rollout_of(samples)).values()))[order]
    seeds = [graded, graded[::-1]]
    got, other = process_grpo.step_advantages(made, task, seeds, rollout, outcomes[order], 4)
    close(other, got.flip(0))

    steps: list[list[tuple[float, int]]] = []  # the reward of each step, and its last character
    for x, outcome in zip(graded, outcomes.tolist(), strict=True):
        rewards = {"7+5=12;": 1.0, "7+5=11;": 0.0, "4+8+1=13;": 1.0}
        found = [(r, x.text.index(s) + len(s)) for s, r in rewards.items() if s in x.text]
        steps.append([*found, (outcome, 10**6)])
    every = [r for one in steps for r, _ in one]
    assert len(every) == 9
    for i, x in enumerate(graded):
        n = int(samples.lengths[i])
        for t in range(samples.tokens.shape[1]):
            # A token belongs to a step if it begins before the step's end.
            before = made.decode(samples.tokens[i, :t], skip_special_tokens=True)
            later = [r for r, end in steps[i] if len(before) < end and t < n]
            wanted = sum((r - np.mean(every)) / (np.std(every, ddof=1) + 1e-4) for r in later)
            assert got[i, t].item() == pytest.approx(wanted, abs=1e-5), (x.text, t)


# ---- The reward ----------------------------------------------------------------------------


def test_rewards_by_hand(tokenizer: Any) -> None:
    """Right and framed, right alone, wrong and framed, cut off."""
    task, problem = tasks.make("addition"), tasks.Problem("4+5=", "9")
    texts = [
        "<think></think><answer>9</answer>",
        "<answer>9</answer>",
        "<think></think><answer>8</answer>",
        "?" * 30,
    ]
    samples = sampling.from_texts(tokenizer, task, [problem.prompt] * 4, texts, 8, CPU)
    assert samples.lengths.tolist() == [6, 4, 6, 8]
    graded = [task.grade(problem, text) for text in texts]
    seeds, one = [graded, graded[::-1]], rollout_of(samples)
    rollout = Rollout(*(torch.cat([x, x.flip(1)]) for x in vars(one).values()))
    settings: dict[str, Any] = {"max_new_tokens": 8, "format_weight": 0.25}
    for name in METHODS.keys() - {"dapo"}:
        got = METHODS[name].rewards_of(seeds, rollout, None, config_of(name, **settings))
        close(got, [[1.25, 1.0, 0.25, 0.0], [0.0, 0.25, 1.0, 1.25]])
    config = config_of("dapo", **settings, overlong_cache=4)
    got = dapo.rewards_of(seeds, rollout, None, config)
    close(got, [[0.75, 1, -1.25, -2], [-2, -1.25, 1, 0.75]])
    config = config_of("dapo", **settings, overlong_cache=0)
    got = dapo.rewards_of(seeds, rollout, None, config)
    close(got, [[1.25, 1, -0.75, -1], [-1, -0.75, 1, 1.25]])


@pytest.mark.parametrize("name", METHODS)
def test_a_reward_model_is_added_to_the_rules_or_takes_their_place(
    name: str, judge: str, tokenizer: Any
) -> None:
    config = config_of(name, judge, reward_model=judge, micro_batch_size=2)
    model = models.load_scalar(judge, config, CPU, Processes(), "--reward-model")
    task, problem = tasks.make("addition"), tasks.Problem("4+5=", "9")
    texts = ["<answer>9</answer>", "", "nine", "9" * 30]
    samples = sampling.from_texts(tokenizer, task, [problem.prompt] * 4, texts, T_MAX, CPU)
    graded = [task.grade(problem, text) for text in texts]
    scores = []
    for i in range(4):  # alone, without padding, after the last token
        n, P = int(samples.lengths[i]), samples.prompts[i][samples.prompt_mask[i]]
        ids = torch.cat([P, samples.tokens[i, :n]])[None]
        with torch.no_grad():
            hidden = model.base_model(input_ids=ids).last_hidden_state
            scores.append(model.score(hidden)[0, -1, 0].item())
    assert np.std(scores) > 0.05
    rewards_of, rollout = METHODS[name].rewards_of, rollout_of(samples)
    judge_model = HubModel(model, tokenizer, config, Processes())
    (rules,) = rewards_of([graded], rollout, None, config)
    (both,) = rewards_of([graded], rollout, judge_model, config)
    close(both - rules, scores, 1e-5)
    (alone,) = rewards_of([graded], rollout, judge_model, replace(config, rules=False))
    punished = rules - torch.tensor(
        [(2 * x.accuracy - 1 if name == "dapo" else x.accuracy) + 0.1 * x.format for x in graded]
    )
    close(alone - punished, scores, 1e-5)


def test_sample_metrics_by_hand(tokenizer: Any) -> None:
    """Two groups that are solved, one that has failed and a mixed one; entropy is over tokens."""
    task, problem = tasks.make("addition"), tasks.Problem("4+5=", "9")
    texts = ["9", "", "123", "1", "12", "12345", "1", "1"]
    samples = sampling.from_texts(tokenizer, task, [problem.prompt] * 8, texts, 9, CPU)
    samples = replace(samples, entropy=2.0 * samples.mask)
    accuracies, formats = (1, 1, 0, 0, 1, 0, 1, 1), (1, 0, 0, 0, 0, 0, 0, 0)
    marks = zip(texts, accuracies, formats, strict=True)
    graded = [tasks.Graded(problem, text, float(a), float(f)) for text, a, f in marks]
    run, rollout = SeedsRun(config_of("grpo"), [0, 1]), rollout_of(samples)
    both = Rollout(*(torch.cat([x, x]) for x in vars(rollout).values()))
    both.lengths[1, 4:], both.entropy[1, 4:] = 0, 0  # the second seed has drawn half of them
    rewards = torch.arange(8.0).expand(2, -1)
    got = sample_metrics(both, [graded, graded[:4]], rewards, 2, run)
    expected = {"reward": 3.5, "accuracy": 5 / 8, "format": 1 / 8, "length": 22 / 8, "entropy": 2}
    expected |= {"all_solved": 1 / 2, "all_failed": 1 / 4}
    assert {key: float(x[0]) for key, x in got.items()} == pytest.approx(expected)
    expected = {"reward": 1.5, "accuracy": 2 / 4, "format": 1 / 4, "length": 9 / 4, "entropy": 2}
    expected |= {"all_solved": 1 / 2, "all_failed": 1 / 2}
    assert {key: float(x[1]) for key, x in got.items()} == pytest.approx(expected)


# ---- The loss ------------------------------------------------------------------------------


def by_loop(
    name: str, logprobs: Tensor, old: Tensor, reference: Tensor, advantages: Tensor, mask: Tensor,
    config: Any,
) -> Tensor:  # fmt: skip
    """The loss, token by token from the papers."""
    lengths = mask.sum(1).tolist()
    learned = [n for n in lengths if n > 0]
    objective = torch.zeros(())
    low, high = clip_of(config)
    for i, t in mask.nonzero().tolist():
        if name in ("grpo", "gspo", "rloo", "process_grpo"):  # 1/G sum_i 1/|o_i| sum_t
            weight = 1 / len(mask) / lengths[i]
        elif name == "dr_grpo":  # 1/G sum_i sum_t, over the longest completion there can be
            weight = 1 / len(mask) / T_MAX
        elif getattr(config, "token_level", True):  # 1 / sum_i |o_i|
            weight = 1 / sum(learned)
        else:
            weight = 1 / len(learned) / lengths[i]
        A, ratio = float(advantages[i, t]), (logprobs[i, t] - old[i, t]).exp()
        if name in ("gspo", "rloo"):
            logs = (logprobs[i] - old[i])[: lengths[i]]
            ratio = (logs.sum() if name == "rloo" else logs.mean()).exp()
        term = min(ratio * A, ratio.clamp(low, high) * A)
        if name == "cispo":
            term = min(ratio.item(), config.clip_range_high) * A * logprobs[i, t]
        if config.kl_coef and config.kl_in == "loss":
            term = term - config.kl_coef * kl_by_hand(
                logprobs[i, t], reference[i, t], old[i, t], config.kl_estimator
            )
        objective = objective + weight * term
    return -objective


def kl_by_hand(logp: Tensor, ref: Tensor, old: Tensor, estimator: str) -> Tensor:
    """Of one token."""
    quotient = (ref - logp).exp()
    k3 = quotient - quotient.log() - 1
    known = {"k1": -quotient.log(), "k2": quotient.log() ** 2 / 2, "k3": k3}
    return {**known, "corrected": k3 * (logp - old).exp()}[estimator]


def clip_of(config: Any) -> tuple[float, float]:
    """Between which ratios nothing is clipped."""
    if not hasattr(config, "clip_range"):
        return -math.inf, config.clip_range_high
    if config.clip_range == 0:
        return -math.inf, math.inf
    return 1 - config.clip_range, 1 + getattr(config, "clip_range_high", config.clip_range)


# ---- The KL --------------------------------------------------------------------------------


def test_estimators_have_the_mean_of_the_exact_kl_and_of_its_gradient() -> None:
    """Enumerated under pi; it is the KL of pi from pi_ref, not the other one. k1 and k3 have its
    mean; k2 and the corrected one have its gradient, in a loss; that of k1 is 0, k3's another."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        logits, other = torch.randn(2, 7, generator=generator, dtype=torch.float64)
        ref = other.log_softmax(0)

        def gradient(term: Any, logits: Tensor = logits) -> Tensor:
            """Of the mean over tokens that pi has drawn: their probabilities are not learned."""
            leaf = logits.clone().requires_grad_()
            logp = leaf.log_softmax(0)
            (grad,) = torch.autograd.grad((logp.detach().exp() * term(logp)).sum(), leaf)
            return grad

        logp = logits.log_softmax(0)
        exact = (logp.exp() * (logp - ref)).sum()
        assert (exact - (ref.exp() * (ref - logp)).sum()).abs() > 1e-4
        for name in ("k1", "k3"):
            close((logp.exp() * kl(logp, ref, name)).sum(), exact)
        assert (kl(logp, ref, "k2") - (logp - ref) ** 2 / 2).abs().max() < 1e-15
        assert (kl(logp, ref) > 0).all()
        assert (kl(logp, logp) == 0).all()
        leaf = logits.clone().requires_grad_()
        own = leaf.log_softmax(0)
        (of_kl,) = torch.autograd.grad((own.exp() * (own - ref)).sum(), leaf)
        batch = SimpleNamespace(logprobs=logp, reference=ref)

        def in_loss(estimator: str, batch: Any = batch) -> Tensor:
            config = config_of("grpo", kl_estimator=estimator, kl_coef=1.0)
            return gradient(lambda x: regularizer(x, torch.zeros(7), batch, config))

        close(in_loss("k2"), of_kl)
        close(in_loss("corrected"), of_kl)
        close(in_loss("k1"), torch.zeros(7))
        assert (in_loss("k3") - of_kl).abs().max() > 1e-3


def test_the_kl_in_the_reward_by_hand(tokenizer: Any) -> None:
    """The sum over a completion's tokens, of the estimate from the sampling's own probabilities."""
    texts = [["12", "a"], ["", "777"]]
    task = tasks.make("addition")
    empty = SimpleNamespace(tokenizer=tokenizer, device=CPU)
    batch = from_texts(empty, task, [["1+2="] * 2] * 2, texts, 4)
    logs, ref = -torch.arange(16.0).view(2, 2, 4) / 10, -torch.ones(2, 2, 4)
    batch = replace(batch, logprobs=logs)
    for estimator, of in {"k1": lambda d: d, "k2": lambda d: d * d / 2}.items():
        config = config_of("rloo", kl_coef=0.5, kl_estimator=estimator)
        got = kl_of_rewards(batch, ref, config)
        lengths = [[3, 2], [1, 4]]
        expected = [
            [0.5 * sum(of(float(d)) for d in (logs - ref)[s, b, : lengths[s][b]]) for b in (0, 1)]
            for s in (0, 1)
        ]
        close(got, expected, 1e-6)
    config = config_of("grpo", kl_coef=0.5)
    close(kl_of_rewards(batch, ref, config), torch.zeros(2, 2))  # it is in the loss


# ---- The update ----------------------------------------------------------------------------

TEXTS = [
    "<think></think><answer>3</answer>",
    "12",
    "a longer completion that is cut off",
    "b",
    "",
    "<answer>30</answer>",
    "what?",
    "<think>5+5=10;</think>",
    "another one that goes on for ever",
    "7+7",
    "<answer>",
    "0123456789",
]
PROMPTS = ["1+2=", "47+85=", "9+9="]
ROWS = np.array([7, 0, 2, 11, 4, 5, 9])  # of one minibatch


def made(name: str, model: str, **settings: Any) -> tuple[Any, Any, Any, Any]:
    """Config, policy (float64), tokenizer and a batch that an older policy has sampled."""
    config = config_of(name, model, temperature=0.7, **settings)
    policy, tokenizer = models.load_model(config, CPU, Processes())
    policy = policy.double()
    reference = models.Reference(policy)
    moved(policy, 0.02)
    task = tasks.make("addition")
    prompts = [p for p in PROMPTS for _ in range(4)]
    samples = sampling.from_texts(tokenizer, task, prompts, TEXTS, T_MAX, CPU)
    with float64(), torch.no_grad():
        samples = replace(samples, logprobs=sampling.logprobs(policy, samples, 0.7))
        ref = reference.logprobs(samples, 0.7, 64)
    moved(policy, 0.02, seed=2)
    rng = np.random.default_rng(3)
    advantages = torch.from_numpy(rng.normal(0, 1, samples.mask.shape))
    fields: dict[str, Any] = {"advantages": advantages, "reference": ref}
    if name == "dapo":
        fields["learned"] = samples.mask & samples.ended[:, None]
        fields["places"] = torch.arange(12)
    fields = {key: x.unsqueeze(0) for key, x in fields.items()}
    kind = dapo.Draws if name == "dapo" else Batch
    return config, policy, tokenizer, kind(**vars(rollout_of(samples)), **fields)


class Unclipped:
    """A step of the whole gradient."""

    def __init__(self, model: Any) -> None:
        self.parameters = list(model.parameters())

    def step(self, lr: Any, max_grad_norm: float) -> Tensor:
        norm = torch.cat([p.grad.flatten() for p in self.parameters]).norm()
        for p in self.parameters:
            p.data -= p.grad
        return norm.view(1)


def gradient_of(
    name: str, config: Any, policy: Any, batch: Any, rows: Any = ROWS
) -> tuple[dict[str, Tensor], Tensor]:
    """Metrics and the unclipped gradient of an update; the policy stays."""
    policy = copy.deepcopy(policy)
    before = torch.cat([p.detach().flatten().clone() for p in policy.parameters()])
    hub = HubModel(policy, models.tiny_tokenizer(), config, Processes())
    which = torch.from_numpy(np.asarray(rows)).unsqueeze(0)
    if name == "dapo":
        which = torch.isin(batch.places, which)
    with float64():
        run = SeedsRun(config, [0])
        metrics = METHODS[name].update(hub, Unclipped(policy), batch, which, 1.0, config, run)
    return metrics, before - torch.cat([p.detach().flatten() for p in policy.parameters()])


UPDATES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("dapo", {"token_level": False}),
]
# At ratios as far from 1 as these are, and with the flags that all of them have.
NARROW: dict[str, dict[str, Any]] = {
    **{name: {"clip_range": 0.05} for name in METHODS},
    "gspo": {"clip_range": 0.02, "clip_range_high": 0.03},
    "dapo": {"clip_range": 0.1, "clip_range_high": 0.3},
    "cispo": {"clip_range_high": 1.05},
}
CLIPS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"clip_range": 0.0}) for name in METHODS if name != "cispo"),
    *((name, {"kl_coef": 0.0, **settings}) for name, settings in NARROW.items()),
    *(
        ("grpo", {"kl_coef": 0.3, "kl_estimator": estimator})
        for estimator in ("k1", "k2", "corrected")
    ),
    ("grpo", {"entropy_coef": 0.1}),
    ("cispo", {"entropy_coef": 0.1, "kl_coef": 0.2}),
    ("dapo", {"entropy_coef": 0.1, "kl_coef": 0.2}),
]


@pytest.mark.parametrize(("name", "settings"), [*UPDATES, *CLIPS])
def test_an_update_equals_a_slow_loop(name: str, settings: dict[str, Any], folder: str) -> None:
    """One forward pass for each token, without padding, at the temperature."""
    config, policy, _, batch = made(name, folder, **settings)
    metrics, got = gradient_of(name, config, policy, batch)
    of_seed = {key: x[0] for key, x in vars(batch).items()}
    batch, rows, entropies = SimpleNamespace(mask=batch.mask[0], **of_seed), [], []
    with float64():
        for i in ROWS.tolist():
            prompt, n = batch.prompts[i][-batch.prompt_lengths[i] :], int(batch.lengths[i])
            tokens = batch.tokens[i, :n]
            every = one_by_one(policy, prompt.tolist(), tokens.tolist(), 0.7)
            row = every[torch.arange(n), tokens]
            rows.append(torch.nn.functional.pad(row, (0, batch.tokens.shape[1] - n)))
            entropies.append(-(every.exp() * every).sum(1))
    logprobs, reference = torch.stack(rows), batch.reference[ROWS]
    mask = batch.learned[ROWS] if name == "dapo" else batch.mask[ROWS]
    given = batch.logprobs[ROWS], reference, batch.advantages[ROWS], mask
    loss = by_loop(name, logprobs, *given, config)
    if config.entropy_coef:  # by the weights of the tokens
        kept = [x for x, m in zip(entropies, mask, strict=True) if m.any()]
        mean = torch.stack([x.mean() for x in kept]).mean()
        mean = mean if name == "grpo" else torch.cat(kept).mean()
        loss = loss - config.entropy_coef * mean
    loss.backward(retain_graph=True)
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert float(metrics["loss"]) == pytest.approx(loss.item(), abs=1e-6)
    close(got, expected, 1e-6)  # some modules compute in float32
    assert float(metrics["grad_norm"]) == pytest.approx(expected.norm().item(), rel=1e-4)
    assert expected.norm() > 0.02
    with torch.no_grad():  # the other metrics are means over tokens
        logs = (logprobs - batch.logprobs[ROWS]) * mask
        sums, (low, high) = logs.sum(1, keepdim=True), clip_of(config)
        means = sums / mask.sum(1, keepdim=True).clamp(min=1)
        own = {"gspo": means, "rloo": sums}.get(name, logs).expand_as(logs).exp()
        ratio = logs.exp()
        quotient = (reference - logprobs).exp()
        wanted = policy_metrics(own, quotient, given[2], mask, low, high)
        wanted["approx_kl"] = float((ratio - 1 - logs)[mask].mean())
        if settings == NARROW[name] | {"kl_coef": 0.0}:
            assert wanted["clip_high"] > 0
            assert (wanted["clip_low"] > 0) == (name != "cispo")
        assert not wanted["clipfrac"] or high < math.inf
        found = {key: float(metrics[key]) for key in wanted}
        assert found == pytest.approx({key: wanted[key] for key in found}, abs=1e-6)


@pytest.mark.parametrize(("name", "settings"), UPDATES)
def test_neither_micro_batches_nor_padding_matter(
    name: str, settings: dict[str, Any], folder: str
) -> None:
    config, policy, _, batch = made(name, folder, **settings)
    expected = gradient_of(name, config, policy, batch)
    assert expected[1].norm() > 0.02
    found = [
        gradient_of(name, replace(config, micro_batch_size=size), policy, batch)
        for size in (1, 2, 3, 5)
    ]
    wide = widened(batch, 4, 3, 40)
    wide.advantages[..., T_MAX:] = 7.0  # nobody is to look at these
    found.append(gradient_of(name, config, policy, wide))
    if name == "dapo":  # places belong to samples, wherever they stand
        order = torch.tensor([[9, 2, 5, 0, 7, 3, 11, 1, 10, 4, 8, 6]])
        shuffled = batch[order]
        assert torch.equal(shuffled.places, order)
        found.append(gradient_of(name, config, policy, shuffled))
    found.append(gradient_of(name, config, policy, batch, ROWS[::-1].copy()))
    for metrics, gradient in found:
        close(gradient, expected[1], 1e-9)
        for key, x in expected[0].items():
            assert float(metrics[key]) == pytest.approx(float(x), abs=1e-9), key


@pytest.mark.parametrize("name", METHODS)
def test_rows_without_a_signal_are_left_out_of_the_update(name: str, folder: str) -> None:
    """They have exactly no gradient, unless there is a KL: fewer forward passes, the same step."""
    config, policy, _, batch = made(name, folder, micro_batch_size=1, kl_coef=0.0)
    batch.advantages[0, ROWS[::2]] = 0.0
    faint = batch.advantages.where(batch.advantages != 0, 1e-300)
    rows: list[int] = []
    kept = sampling.outputs

    def outputs(model: Any, part: Any, *rest: Any) -> tuple[Tensor, Tensor]:
        rows.append(len(part))
        return kept(model, part, *rest)

    def counted(batch: Any) -> tuple[int, Tensor]:
        rows.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "outputs", outputs)
            gradient = gradient_of(name, config, policy, batch)[1]
        return sum(rows), gradient

    (few, got), (every, expected) = (counted(x) for x in (batch, replace(batch, advantages=faint)))
    learned = batch.learned[0, ROWS].any(1) if name == "dapo" else torch.ones(len(ROWS)).bool()
    assert (few, every) == (learned[1::2].sum(), learned.sum())
    assert expected.norm() > 0.01
    close(got, expected, 1e-12)


@pytest.mark.parametrize(
    ("settings", "all_of_them"),
    [
        ({"kl_coef": 0.0}, False),
        ({"kl_coef": 0.04}, True),
        ({"kl_coef": 0.04, "kl_in": "reward"}, False),
        ({"kl_coef": 0.0, "entropy_coef": 0.01}, True),
    ],
)
def test_which_rows_have_a_signal(settings: dict[str, Any], all_of_them: bool, folder: str) -> None:
    """All of them with a KL in the loss or an entropy bonus; otherwise those with an advantage."""
    config, _, _, batch = made("grpo", folder, **settings)
    batch.advantages[0, 3] = 0.0
    batch.advantages[0, 5, int(batch.lengths[0, 5]) :] = 9.0
    batch.advantages[0, 5, : int(batch.lengths[0, 5])] = 0.0  # what stands in the padding is none
    lengths = with_signal(batch, config).lengths[0]
    there = torch.tensor([i not in (3, 5) or all_of_them for i in range(12)])
    assert torch.equal(lengths, batch.lengths[0] * there)


# ---- Dynamic sampling ----------------------------------------------------------------------

PATTERNS = {"solved": [1, 1, 1], "failed": [0, 0, 0], "mixed": [0, 1, 1]}


def planned(monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[str]) -> Iterator[float]:
    """Let the groups of three that are sampled next turn out as told."""
    plan = iter([float(x) for outcome in outcomes for x in PATTERNS[outcome]])
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: next(plan))
    return plan


def draw(
    model: str, monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[str], **settings: Any
) -> tuple[Samples, list[tasks.Graded], list[int], int]:
    """collect_step with K = G = 3; samples, graded, places, and how many outcomes it left."""
    given = {"group_size": 3, "total_samples": 1000, **settings}
    config = config_of("dapo", model, **given)
    run = SeedsRun(config, [0])
    policy, plan = load_policy(config, run), planned(monkeypatch, outcomes)
    rollout, (graded,), places = dapo.collect_step(policy, tasks.make("addition"), config, run, 5)
    return samples_of(rollout), graded, places[0].tolist(), len(list(plan)) // 3


@pytest.mark.parametrize(
    ("outcomes", "settings", "places", "left"),
    [
        # The fourth draw is not needed; a tenth mixed group is left out.
        ("smffsf mmmmmm", {}, [-1, 0, -1, -1, -1, -1, 1, 2, -1], 3),
        # The samples are spent.
        ("sfmfsf", {"total_samples": 18}, [-1, -1, 0, -1, -1, -1], 0),
        ("ssssss", {"total_samples": 10}, [-1] * 6, 0),
        # Exactly enough at once, and everything.
        ("mmmmmm", {}, [0, 1, 2], 3),
        ("smfm", {"dynamic_sampling": False}, [0, 1, 2], 1),
        # A learned reward is not what groups are chosen by.
        ("mmmmmm", {"rules": False, "reward_model": "x"}, [0, 1, 2], 3),
    ],
)
def test_draws_go_on_until_there_are_enough_mixed_groups(
    outcomes: str, settings: dict[str, Any], places: list[int], left: int, qwen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Solved, mixed and failed groups; the place of each that is drawn among those learned from."""
    names = {x[0]: x for x in PATTERNS}
    plan = [names[x] for x in outcomes.replace(" ", "")]
    samples, graded, index, more = draw(qwen, monkeypatch, plan, **settings)
    assert index == [3 * k + i if k >= 0 else -1 for k in places for i in range(3)]
    assert more == left
    marks = [x for outcome in plan[: len(places)] for x in PATTERNS[outcome]]
    assert [x.accuracy for x in graded] == marks  # each place is of the sample it belongs to
    groups = [{x.problem.prompt for x in graded[i : i + 3]} for i in range(0, len(graded), 3)]
    assert {len(group) for group in groups} == {1}
    assert len(set.union(*groups)) == len(groups)  # each draw has its own
    texts = sampling.decode(models.tiny_tokenizer(), samples)
    assert texts == [x.text for x in graded]
    assert len(set(texts)) == len(texts)


def test_each_seed_draws_as_often_as_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has enough at once, the second after two draws, the third spends its samples."""
    model = make_model("tiny", tmp_path / "model")
    config = config_of("dapo", model, group_size=3, total_samples=100)
    run = SeedsRun(config, [2, 5, 7])
    run.runs[2].samples = 100 - 2 * 9
    draws = ["mmm", "sfm", "fff"], ["mmm", "ffm"], ["ssf"]  # nobody makes the last one
    names = {x[0]: x for x in PATTERNS}
    plan = planned(monkeypatch, [names[x] for draw in draws for own in draw for x in own])
    policy = load_policy(config, run)
    rollout, graded, places = dapo.collect_step(policy, tasks.make("addition"), config, run, 5)
    assert len(list(plan)) == 9
    assert [len(own) for own in graded] == [9, 18, 18]
    assert (rollout.lengths > 0).sum(1).tolist() == [9, 18, 18]
    expected = [[0, 1, 2, -1, -1, -1], [-1, -1, 0, 1, 2, -1], [-1, -1, -1, -1, -1, 0]]
    index = [[3 * k + i if k >= 0 else -1 for k in own for i in range(3)] for own in expected]
    assert places.tolist() == index
    texts = decode(policy.tokenizer, rollout)
    assert all(
        [x.text for x in own] == found[: len(own)] for own, found in zip(graded, texts, strict=True)
    )


def test_draws_stop_at_their_limit(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that solves nothing would otherwise spend all samples in one step."""
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: 0.0)
    config = config_of("dapo", qwen, total_samples=120, max_draws=3)
    run = SeedsRun(config, [0])
    dapo.train(config, run)
    assert list(run.runs[0].metrics()["drawn"]) == [36, 36, 36, 12]


@pytest.mark.parametrize("mixed", [0, 1])
def test_the_last_samples_may_be_fewer_than_minibatches(
    mixed: int, qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three samples, or none, no four minibatches are made."""
    config = config_of("dapo", qwen, minibatches=4, prompts=2, group_size=3, total_samples=6)
    planned(monkeypatch, ["mixed" if mixed else "solved", "failed"])
    seen = spied("dapo", config, monkeypatch)
    assert [int(rows.sum()) for _, rows in seen] == ([1, 1, 1] if mixed else [0])


def test_minibatches_of_seeds_that_learn_from_more_and_fewer() -> None:
    """The second has two of four; the third has nothing to learn from, the fourth is finished."""
    config = config_of("dapo", minibatches=4, epochs=3, total_samples=24)
    run = SeedsRun(config, [0, 1, 2, 3])
    run.runs[3].samples = 24
    rows = [[3, -1, 0, 2, -1, 1, 4, 5], [-1, -1, 1, 0, -1, -1, -1, -1], [-1] * 8, [*range(8)]]
    places = torch.tensor(rows)
    found = list(dapo.minibatches(places, run, 0, config))
    assert len(found) == 12
    assert [there.tolist() for _, there in found] == [
        [True, True, True, False],
        [True, True, False, False],
        [True, False, False, False],
        [True, False, False, False],
    ] * 3
    for epoch in (found[:4], found[4:8], found[8:]):
        times = torch.stack([chosen for chosen, _ in epoch]).sum(0)  # each is chosen once
        assert torch.equal(times, (places >= 0).long())


def test_every_sample_drawn_counts(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of groups that are left out; all of them are in the metrics."""
    monkeypatch.setattr(
        evaluation.TaskEvaluator, "__call__", lambda self, *args: [({"pass@1": 0.0}, [])]
    )
    outcomes = ["mixed", "mixed", "solved"] * 2 + ["mixed"] * 3
    outcomes += ["solved", "failed", "solved"] * 2
    planned(monkeypatch, outcomes)
    config = config_of("dapo", qwen, group_size=3, total_samples=45)
    run = SeedsRun(config, [0])
    dapo.train(config, run)
    metrics = run.runs[0].metrics()
    assert metrics["samples"].tolist() == [18, 27, 45]
    assert metrics["drawn"].tolist() == [18, 9, 18]
    assert metrics["all_solved"].tolist() == pytest.approx([1 / 3, 0, 2 / 3])
    assert metrics["all_failed"].tolist() == pytest.approx([0, 0, 1 / 3])
    assert metrics["accuracy"].tolist() == pytest.approx([(4 * 2 + 6) / 18, 2 / 3, 2 / 3])
    assert metrics["grad_norm"].iloc[2] == 0  # nothing to learn from
    assert run.samples == 45


# ---- Runs ----------------------------------------------------------------------------------


def trained(name: str, config: Any) -> tuple[Any, dict[str, Any], pd.DataFrame]:
    """The model that seed 0 has trained, its summary and its logged metrics."""
    run = SeedsRun(config, [0])
    policy = MODULES[name].train(config, run)
    (summary,) = run.finish(policy)
    return model_of(policy), summary, run.runs[0].metrics()


def model_of(policy: Any) -> Any:
    """That of transformers which seed 0 is saved as."""
    if isinstance(policy, HubModel):
        return policy.model
    model = copy.deepcopy(policy.template)
    model.load_state_dict(policy.llama.state_of(0), strict=False)
    return model


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in MODULES),
        ("process_grpo", {"supervision": "process"}),
        ("reinforce_pp", {"baseline": "group"}),
    ],
)
@pytest.mark.usefixtures("small")
def test_end_to_end(name: str, settings: dict[str, Any], folder: str) -> None:
    config = config_of(name, folder, minibatches=2, epochs=2, **settings)
    policy, summary, metrics = trained(name, config)
    assert summary["samples"] == metrics["samples"].iloc[-1] >= 24
    assert summary["diverged"] is None
    assert summary["initial"]["kl"] == pytest.approx(0, abs=1e-4)
    assert summary["final"]["kl"] != 0
    assert metrics.notna().all().all()
    assert (metrics["grad_norm"] > 0).any()
    assert digest(policy) != digest(models.load_model(config, CPU, Processes())[0])
    documented = (MODULES[name].__doc__ or "").split("Logged per step:")[1]
    documented += (grpo.__doc__ or "") * ("as grpo.py" in documented)
    for key in set(metrics) - {"seed", "samples", "learn_s"}:
        assert key in documented, key


def spied(name: str, config: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Tensor]]:
    """The batch and the rows of every update of a training that is not evaluated."""
    seen, update = [], MODULES[name].update

    def spy(*args: Any) -> Any:
        seen.append(args[-5:-3])  # before the rates, the config and the run
        return update(*args)

    run = SeedsRun(config, [0])
    monkeypatch.setattr(MODULES[name], "update", spy)
    monkeypatch.setattr(run, "evaluate_if_due", lambda *args: None)
    MODULES[name].train(config, run)
    return seen


@pytest.mark.parametrize("name", ["grpo", "rlhf_ppo"])
def test_the_reference_is_taken_at_the_temperature_of_sampling(
    name: str, qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first step the reference is the policy: so are its log-probabilities."""
    config = config_of(name, qwen, temperature=0.5, total_samples=12, epochs=1)
    ((batch, _),) = spied(name, config, monkeypatch)
    assert (batch.logprobs < -0.1).any()
    close(batch.reference, batch.logprobs, 1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_every_epoch_has_an_order_of_its_own(
    name: str, qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each visits all samples of a step once, in two minibatches; no two of them are alike."""
    everything = {"dynamic_sampling": False} if name == "dapo" else {}
    config = config_of(name, qwen, epochs=3, minibatches=2, **everything)
    rows = []
    for batch, chosen in spied(name, config, monkeypatch):
        places = batch.places[chosen] if name == "dapo" else chosen[0]
        rows.append(places.tolist())
    assert [len(x) for x in rows] == [6] * 12  # 2 steps, 3 epochs, 2 minibatches
    epochs = [tuple(rows[i] + rows[i + 1]) for i in range(0, 12, 2)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len(set(epochs)) == 6


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("small")
def test_a_group_is_completions_of_one_prompt(name: str, qwen: str) -> None:
    """Its samples stand next to one another, which is how advantages are computed."""
    config = config_of(name, qwen)
    run, task = SeedsRun(config, [0]), tasks.make("addition")
    policy = load_policy(config, run)
    step = (0, 0) if name == "dapo" else (0,)  # and the draw
    rollout, (graded,) = collect(policy, task, config, run, *step)
    samples, prompts = samples_of(rollout), [x.problem.prompt for x in graded]
    groups = [prompts[i : i + 4] for i in (0, 4, 8)]
    assert [len(set(group)) for group in groups] == [1, 1, 1]
    assert len({group[0] for group in groups}) == 3
    for i, ids in enumerate(sampling.encode_prompts(policy.tokenizer, task, prompts)):
        assert samples.prompts[i][samples.prompt_mask[i]].tolist() == ids


@pytest.mark.usefixtures("small")
def test_process_supervision_reads_the_steps(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every completion gets a wrong step at its second character; the outcome follows."""
    step = tasks.ReasoningStep(2, -1.0)
    monkeypatch.setattr(tasks.Addition, "steps", lambda self, p, text: [step])
    differ = 0
    for batch, _ in spied(
        "process_grpo", config_of("process_grpo", qwen, supervision="process"), monkeypatch
    ):
        for row, n in zip(batch.advantages[0], batch.lengths[0].tolist(), strict=True):
            assert (row[:n].diff().abs() > 1e-6).sum() <= 1
            assert (row[n:] == 0).all()
            differ += bool(n > 3 and row[n - 1] > row[0] + 0.1)  # the step was a bad one
    assert differ > 8


def test_rewards_of_completions_make_it_grpo(tmp_path: Path) -> None:
    """With outcomes and one iteration: to the bit."""
    model = make_model("tiny", tmp_path / "model")
    found = []
    for name in ("grpo", "process_grpo"):
        config = config_of(name, model, minibatches=2, seeds=2)
        policy = MODULES[name].train(config, SeedsRun(config, [3, 4]))
        found.append(policy.llama.flat)
    assert torch.equal(*found)


@pytest.mark.parametrize("filtering", [True, False])
@pytest.mark.usefixtures("small")
def test_completions_that_are_cut_off_are_left_out(
    filtering: bool, qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count in their group's mean all the same."""
    config = config_of("dapo", qwen, overlong_filtering=filtering, total_samples=48)
    cut = 0
    for batch, _ in spied("dapo", config, monkeypatch):
        learned = batch.mask & (batch.ended.unsqueeze(-1) | (not filtering))
        assert torch.equal(batch.learned, learned)
        cut += int((~batch.ended).sum())
        advantages = batch.advantages[0, :, 0].view(-1, 4)
        assert (advantages.sum(1).abs() < 1e-5).all()
        assert (advantages != 0).any()
    assert cut > 8


@pytest.mark.usefixtures("small")
def test_adapters_are_trained_and_nothing_else(folder: str) -> None:
    """LoRA: the base is frozen, and is what the KL is measured to."""
    pytest.importorskip("peft")
    config = config_of("grpo", folder, lora_rank=4, learning_rate=1e-2, minibatches=2)
    before, _ = models.load_model(config, CPU, Processes())
    policy, summary, metrics = trained("grpo", config)
    assert (metrics["grad_norm"] > 0).any()
    changed = 0
    for (key, p), old in zip(policy.named_parameters(), before.parameters(), strict=True):
        assert p.requires_grad == ("lora_" in key)
        assert p.requires_grad or torch.equal(p, old), key
        changed += p.requires_grad and not torch.equal(p, old)
    assert changed >= 4
    assert summary["initial"]["kl"] == pytest.approx(0, abs=1e-6)
    assert abs(summary["final"]["kl"]) > 1e-4  # to the model without its adapters


def test_adapters_add_twice_their_product(folder: str) -> None:
    """The scale alpha / rank is 2 for every rank."""
    pytest.importorskip("peft")
    for rank in (1, 4):
        config = config_of("grpo", folder, lora_rank=rank)
        policy, _ = models.load_model(config, CPU, Processes())
        layers = [m for m in policy.modules() if hasattr(m, "lora_A")]
        assert len(layers) > 3
        for layer in layers:
            A, B = (x["default"].weight for x in (layer.lora_A, layer.lora_B))
            assert A.shape[0] == B.shape[1] == rank
            torch.nn.init.normal_(B)
            x = torch.randn(3, A.shape[1], generator=torch.Generator().manual_seed(0))
            close(layer(x), layer.base_layer(x) + 2 * x @ A.T @ B.T, 1e-4)


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.usefixtures("small")
def test_checkpointing_activations_changes_nothing(lora_rank: int, folder: str) -> None:
    """Neither what is sampled nor what is learned."""
    if lora_rank:
        pytest.importorskip("peft")
    found = []
    for on in (False, True):
        config = config_of("grpo", folder, gradient_checkpointing=on, lora_rank=lora_rank)
        policy, _, metrics = trained("grpo", config)
        checkpointed = [getattr(x, "gradient_checkpointing", False) for x in policy.modules()]
        assert any(checkpointed) == on
        found.append((policy.state_dict(), metrics.drop(columns="learn_s")))
    (plain, one), (saving, two) = found
    pd.testing.assert_frame_equal(one, two, rtol=1e-4, atol=1e-5)
    for key, x in plain.items():
        close(saving[key], x, 1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("small")
def test_in_half_precision(name: str, folder: str) -> None:
    """Weights stay float32; pi_old is recomputed: the ratio is 1 before the first step."""
    # Random models hardly ever end: DAPO would leave out everything.
    whole = {"overlong_filtering": False} if name == "dapo" else {}
    config = config_of(name, folder, dtype="bfloat16", learning_rate=1e-3, **whole)
    policy, summary, metrics = trained(name, config)
    assert metrics.notna().all().all()
    assert (metrics["approx_kl"].abs() < 1e-6).all()
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert summary["final"]["kl"] != 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_is_the_model_before_all_updates(
    dtype: str, rank: int, folder: str, tokenizer: Any
) -> None:
    """To the bit; in half precision it is stored in it, for less memory. Until it is reset."""
    if rank:
        pytest.importorskip("peft")
    config = config_of("grpo", folder, dtype=dtype, lora_rank=rank)
    policy, _ = models.load_model(config, CPU, Processes())
    reference = models.Reference(policy)
    if not rank:
        sizes = [sum(p.nbytes for p in m.parameters()) for m in (reference.model, policy)]
        assert (sizes[0] < 0.8 * sizes[1]) == (dtype == "bfloat16")
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    prompts = [p for p in PROMPTS for _ in range(4)]
    samples = sampling.from_texts(tokenizer, tasks.make("addition"), prompts, TEXTS, T_MAX, CPU)
    before = sampling.in_batches(lambda x: sampling.logprobs(policy, x), samples, 64)
    with torch.no_grad():
        for p in models.trainable(policy):
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    after = sampling.in_batches(lambda x: sampling.logprobs(policy, x), samples, 64)
    assert (after - before).abs().max() > 0.1
    assert torch.equal(reference.logprobs(samples, 1.0, 64), before)
    if not rank:
        reference.reset(policy)
        assert torch.equal(reference.logprobs(samples, 1.0, 64), after)


def test_probabilities_of_tokens_that_the_upper_clip_stops() -> None:
    """Of six tokens the third has a negative advantage, the fifth cannot become so much likelier,
    and the last is left out of the loss."""
    part: Any = SimpleNamespace(
        logprobs=torch.log(torch.tensor([[[0.5, 0.25, 0.125, 0.75, 0.875, 0.0625]]])),
        advantages=torch.tensor([[[1.0, 1.0, -1.0, 1.0, 1.0, 1.0]]]),
    )
    ratio = torch.tensor([[[1.1, 1.3, 1.3, 1.3, 1.1, 1.3]]])
    mask = torch.tensor([[[True, True, True, True, True, False]]])
    sums = dapo.movable_sums(ratio, part, mask, 1.2)
    assert sums.squeeze().tolist() == pytest.approx([3.0, 0.5 + 0.25 + 0.75, 0.25 + 0.75])


# ---- The iterative mode --------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("iterations", "fresh"), [(1, [0]), (2, [0, 3]), (3, [0, 2, 4])])
def test_the_reference_is_refreshed_between_the_parts(
    iterations: int, fresh: list[int], qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six steps, one update each: its KL is 0 right after a refresh, and only there."""
    resets = []
    reset = models.Reference.reset
    monkeypatch.setattr(
        models.Reference, "reset", lambda self, policy: (resets.append(1), reset(self, policy))
    )
    settings: dict[str, Any] = {"iterations": iterations, "total_samples": 72, "evaluations": 6}
    config = config_of("process_grpo", qwen, learning_rate=3e-3, **settings)
    first, _ = models.load_model(config, CPU, Processes())
    run = SeedsRun(config, [0])
    policy = process_grpo.train(config, run)
    run.finish(policy)
    (record,) = run.runs
    kls = record.metrics()["kl"].to_numpy()
    assert [k for k in range(6) if kls[k] < 1e-6] == fresh
    assert len(resets) == iterations - 1  # none at the end
    assert kls[[k for k in range(6) if k not in fresh]].min() > 1e-5
    # Evaluations measure to the first model all the time.
    evaluator: Any = record.evaluator
    assert digest(evaluator.reference.reference.model) == digest(first)
    assert digest(model_of(policy)) != digest(first)
    measured = record.curve()["kl"].to_numpy()
    assert measured[0] == pytest.approx(0, abs=1e-6)
    assert (measured[1:] > 1e-4).all()


@pytest.mark.usefixtures("small")
def test_the_reward_model_goes_on_learning_from_the_policy(
    qwen: str, judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From all pairs since the last lesson, and a tenth of older ones, at a rate of its own."""
    lessons: list[list[tasks.Preference]] = []
    graded: list[tasks.Graded] = []
    learn, grade = process_grpo.learn_preferences, tasks.Addition.grade

    def spy_learn(model: Any, optimizer: Any, task: Any, pairs: Any, *rest: Any) -> None:
        (own,) = pairs
        lessons.append(list(own))

        def margin() -> Tensor:
            texts = ([[p.chosen for p in own]], [[p.rejected for p in own]])
            prompts = [[p.prompt for p in own]]
            with torch.no_grad():
                chosen, rejected = (
                    model.scores(from_texts(model, task, prompts, x, T_MAX)) for x in texts
                )
            return (chosen - rejected).mean()

        before = margin()
        learn(model, optimizer, task, pairs, *rest)
        assert margin() > before
        assert all(p.grad is None for p in model.model.parameters())

    def spy_grade(self: Any, problem: Any, text: str) -> Any:
        graded.append(grade(self, problem, text))
        return graded[-1]

    monkeypatch.setattr(process_grpo, "learn_preferences", spy_learn)
    monkeypatch.setattr(tasks.Addition, "grade", spy_grade)
    settings = {"prompts": 8, "reward_model": judge, "iterations": 3, "total_samples": 192}
    config = config_of("process_grpo", qwen, learning_rate=1e-12, **settings)
    process_grpo.train(config, SeedsRun(config, [0]))
    assert len(lessons) == 2
    assert len(graded) == 192
    first, second = lessons
    for lesson, some in ((first, graded[:64]), (second, graded[64:128])):
        right = {(x.problem.prompt, x.text) for x in some if x.accuracy}
        wrong = {(x.problem.prompt, x.text) for x in some if not x.accuracy}
        new = [p for p in lesson if p not in first or lesson is first]
        assert {p.prompt for p in new} == {p for p, _ in right} & {p for p, _ in wrong}
        assert all((p.prompt, p.chosen) in right for p in new)
        assert all((p.prompt, p.rejected) in wrong for p in new)
    old = [p for p in second if p in first]
    assert len(old) == (len(second) - len(old)) // 9 == 1


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("renewed", "lessons", "resets"),
    [("both", 2, 2), ("reward_model", 2, 0), ("reference", 0, 2)],
)
def test_one_of_the_two_is_renewed_alone(
    renewed: str,
    lessons: int,
    resets: int,
    qwen: str,
    judge: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taught, reset = [], []
    learn, old = process_grpo.learn_preferences, models.Reference.reset

    def spy(*args: Any) -> None:
        taught.append(len(args[3][0]))
        learn(*args)

    monkeypatch.setattr(process_grpo, "learn_preferences", spy)
    monkeypatch.setattr(
        models.Reference, "reset", lambda self, policy: (reset.append(1), old(self, policy))
    )
    settings = {"prompts": 8, "reward_model": judge, "iterations": 3, "total_samples": 192}
    config = config_of("process_grpo", qwen, renewed=renewed, **settings)
    run = SeedsRun(config, [0])
    policy = process_grpo.train(config, run)
    run.finish(policy)
    assert (len(taught), len(reset)) == (lessons, resets)
    metrics = run.runs[0].metrics()
    if renewed == "reference":
        assert "pairs" not in metrics
    else:  # those of the last lesson that are not new were counted before
        first, second = taught
        assert metrics["pairs"].iloc[-1] == first + second - second // 10
        assert metrics["pairs"].iloc[0] == 0


def test_pairs_that_the_reward_ranks_right() -> None:
    """Two groups of three. The first has two pairs, one of them a tie, the second none."""
    rewards = torch.tensor([[0.5, 0.2, 0.5, 1.0, 2.0, 3.0]])
    accuracy = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    assert process_grpo.ranking(rewards, accuracy, 3).tolist() == [[2.0], [1.5]]
    assert process_grpo.ranking(-rewards, accuracy, 3).tolist() == [[2.0], [0.5]]
    assert process_grpo.ranking(rewards, 1 - accuracy, 6).tolist() == [[5.0], [3.5]]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("side", "learned"), [("right", {0.0, 1.0}), ("wrong", {0.0, -1.0})])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_rloo_learns_from_right_or_from_wrong_completions_alone(
    side: str, learned: set[float], kl_coef: float, qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the format earns; without a baseline, and less the KL."""
    found: list[Tensor] = []
    graded: list[Tensor] = []
    taken: list[Tensor] = []

    def spy(**own: Any) -> Any:
        found.append(own["advantages"][..., 0])
        return batch(**own)

    def accuracy(*args: Any) -> Any:
        graded.append(measured(*args))
        return graded[-1]

    def kl_of(*args: Any) -> Tensor:
        taken.append(penalty(*args))
        return taken[-1]

    batch, measured, penalty = rloo.Batch, rloo.measured, rloo.kl_of_rewards
    monkeypatch.setattr(rloo, "Batch", spy)
    monkeypatch.setattr(rloo, "measured", accuracy)
    monkeypatch.setattr(rloo, "kl_of_rewards", kl_of)
    config = config_of("rloo", qwen, learn_from=side, kl_coef=kl_coef)
    rloo.train(config, SeedsRun(config, [0]))
    advantages, right, kl = (torch.cat(x, 1) for x in (found, graded, taken))
    assert (kl != 0).any() == (kl_coef > 0)
    close(advantages, (right if side == "right" else right - 1) - kl, 1e-6)
    assert {*(advantages + kl).round(decimals=4).unique().tolist()} == learned


@pytest.mark.parametrize(
    "other",
    [{"rules": False, "reward": (COIN,)}, {"reward": (COIN,)}, {"reward_model": "tiny-reward"}],
)
def test_right_and_wrong_are_the_only_rewards_of_what_is_learned_from(other: Any) -> None:
    rloo.Config(task="addition", **other).check()
    with pytest.raises(UsageError, match="--learn-from wrong: is the reward; without --reward, "):
        rloo.Config(task="addition", learn_from="wrong", **other).check()


# ---- R1-Zero -------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_base_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a few steps here, at rates annealed to 0; without the cold start of tiny."""
    rates, step = [], models.SeedAdam.step

    def spy(self: Any, lr: float, *args: Any) -> Any:
        rates.append(lr)
        return step(self, lr, *args)

    monkeypatch.setattr(models.SeedAdam, "step", spy)
    sizes = {"tiny-base": 137_984, "tiny-base-800": 137_984, "micro-base-3200": 19_776}
    assert tuple(models.BASES) == tasks.BASES
    for name, parameters in sizes.items():
        monkeypatch.setitem(models.BASES, name, replace(models.BASES[name], steps=3))
        config = config_of("grpo", name, results=str(tmp_path))
        policy, _ = models.load_model(config, CPU, Processes())
        assert sum(p.numel() for p in policy.parameters()) == parameters
        (folder,) = (x for x in models.store_of(name, config).iterdir() if x.is_dir())
        assert folder.name == f"{name.removeprefix('tiny-')}-addition-0"
    assert rates == pytest.approx([2e-3, 2e-3 * 2 / 3, 2e-3 / 3] * 3)
