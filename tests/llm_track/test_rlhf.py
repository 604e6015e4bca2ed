"""Reward model and PPO of a language model: their mathematics against definitions and loops."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds.errors import UsageError
from manyseeds.llm_track import dpo, grpo, models, reward_model, rlhf_ppo, sampling, tasks
from manyseeds.llm_track.sampling import Samples
from manyseeds.record import RunFolder, read_json
from manyseeds.runs.language import LanguageRun, main
from manyseeds.runs.parallel import Processes
from tests.llm_track.batches import policy_metrics


def load(config: Any) -> tuple[Any, Any, Any, tasks.Task]:
    """Policy, scalar model with a random head, tokenizer and task."""
    device, processes = torch.device("cpu"), Processes()
    policy, tokenizer = models.load_model(config, device, processes)
    scalar = models.load_scalar(config.model, config, device, processes, "--model")
    torch.manual_seed(1)
    torch.nn.init.normal_(scalar.score.weight)
    return policy, scalar, tokenizer, tasks.make(config.task)


def ppo_config(model: str, **settings: Any) -> rlhf_ppo.Config:
    settings = {"prompts": 12, "minibatches": 2, "max_new_tokens": 8, **settings}
    return rlhf_ppo.Config(model=model, quiet=True, **settings)


def rm_config(model: str, **settings: Any) -> reward_model.Config:
    return reward_model.Config(model=model, quiet=True, **settings)


def write_rows(path: Path, rows: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def answered(n: int) -> list[dict[str, str]]:
    """Preferences that can be told apart: with an answer and without one."""
    rng = np.random.default_rng(0)
    rows = []
    for k in rng.choice(8100, n, replace=False):  # no prompt twice
        a, b = 10 + k // 90, 10 + k % 90
        thought = "".join(str(x) for x in rng.integers(0, 10, 4))
        with_answer = f"<think>{thought}</think><answer>{a + b}</answer>"
        rows.append({"prompt": f"{a}+{b}=", "chosen": with_answer, "rejected": f"<think>{thought}"})
    return rows


# ---- The reward model's loss ---------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [reward_model.bradley_terry_loss, grpo.bradley_terry_loss, dpo.preference_loss],
    ids=["reward_model", "grpo", "dpo"],
)
def test_bradley_terry_by_hand(loss: Any) -> None:
    """Margins 1 and -2: log(1 + e^-1) and log(1 + e^2); slopes -sigmoid(-1) and -sigmoid(2)."""
    chosen = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    losses = loss(chosen, rejected)
    expected = torch.tensor([0.31326168751822286, 2.1269280110429727], dtype=torch.float64)
    torch.testing.assert_close(losses, expected, atol=1e-14, rtol=0)
    losses.sum().backward()
    slopes = torch.tensor([-0.2689414213699951, -0.8807970779778823], dtype=torch.float64)
    torch.testing.assert_close(chosen.grad, slopes, atol=1e-14, rtol=0)
    torch.testing.assert_close(rejected.grad, -slopes, atol=1e-14, rtol=0)
    assert loss(torch.tensor([-1e4]), torch.tensor([1e4])).item() == 2e4  # no overflow


def test_a_ranked_list_is_all_of_its_pairs(tmp_path: Path) -> None:
    """And they weigh together what the one pair of another prompt weighs."""
    rows = [
        {"prompt": "p", "ranked": ["a", "b", "c"]},
        {"prompt": "q", "chosen": "d", "rejected": "e"},
    ]
    path = write_rows(tmp_path / "x.jsonl", rows)
    pairs = tasks.read_preferences(Path(path))
    assert [pair[:3] for pair in pairs] == [
        ("p", "a", "b"), ("p", "a", "c"), ("p", "b", "c"), ("q", "d", "e"),
    ]  # fmt: skip
    weights = reward_model.pair_weights(pairs)
    torch.testing.assert_close(weights, torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2]))
    write_rows(tmp_path / "x.jsonl", rows[:1])
    with pytest.raises(UsageError, match="needs at least two different prompts"):
        rm_config("tiny", preferences=path)


# ---- The reward model's data and training --------------------------------------------------


def subtracted(models: Sequence[Any], update: Callable[..., Any]) -> tuple[list[Tensor], Any]:
    """What an update by plain gradient descent subtracts from models' weights; its metrics."""
    before = [[p.detach().clone() for p in model.parameters()] for model in models]
    metrics = update([torch.optim.SGD(model.parameters(), lr=1.0) for model in models])
    after = [[p.detach() for p in model.parameters()] for model in models]
    steps = [b - a for x, y in zip(before, after, strict=True) for b, a in zip(x, y, strict=True)]
    return steps, metrics


def same_steps(found: tuple[list[Tensor], Any], expected: tuple[list[Tensor], Any]) -> None:
    for name in expected[1]:
        torch.testing.assert_close(found[1][name], expected[1][name], atol=2e-5, rtol=1e-3)
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)


def rm_step(config: reward_model.Config, pairs: Any) -> tuple[list[Tensor], Any]:
    _, scalar, tokenizer, task = load(config)
    run = LanguageRun(config, [0])
    return subtracted(
        [scalar], lambda x: reward_model.update(scalar, *x, tokenizer, task, pairs, config, run)
    )


def mixed_pairs() -> list[tasks.Preference]:
    ranked = tasks.all_pairs("12+34=", ["<answer>46</answer>", "46", "<think>", "1"])
    return [*ranked, *(tasks.Preference(**row) for row in answered(5))]


def test_reward_model_micro_batches_do_not_matter(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_model, "MAX_GRAD_NORM", 1e9)
    pairs = mixed_pairs()
    whole = rm_step(rm_config(folder, micro_batch_size=64), pairs)
    # The mean over prompts of the mean over a prompt's pairs.
    _, scalar, tokenizer, task = load(rm_config(folder))
    with torch.no_grad():
        chosen, rejected = reward_model.pair_scores(scalar, tokenizer, task, pairs, 32)
    for name, x in (
        ("loss", reward_model.bradley_terry_loss(chosen, rejected)),
        ("accuracy", (chosen > rejected).float()),
        ("margin", chosen - rejected),
    ):
        expected = torch.cat([x[:6].mean().view(1), x[6:]]).mean()
        torch.testing.assert_close(whole[1][name], expected, atol=1e-5, rtol=1e-5)
    for size in (1, 3):
        same_steps(rm_step(rm_config(folder, micro_batch_size=size), pairs), whole)


def train_without_folder(
    method: Any, config: Any, seed: int = 0
) -> tuple[Any, dict[str, Any], Any]:
    run = LanguageRun(config, [seed])
    result = method.train(config, run)
    return result, run.finish(result), run


def test_reward_model_learns_what_can_be_told_apart(folder: str, tmp_path: Path) -> None:
    """From exactly one half and log 2, by the head of 0, to nearly always right."""
    path = write_rows(tmp_path / "pairs.jsonl", answered(200))
    config = rm_config(folder, preferences=path, total_samples=640, learning_rate=3e-3)
    _, summary, run = train_without_folder(reward_model, config)
    assert summary["headline"] == "accuracy"
    assert summary["initial"]["accuracy"] == 0.5
    assert summary["initial"]["margin"] == 0
    assert summary["initial"]["loss"] == pytest.approx(math.log(2))
    assert summary["final"]["accuracy"] > 0.95
    assert summary["final"]["loss"] < 0.3
    metrics = run.metrics()
    assert metrics["samples"].tolist() == list(range(64, 641, 64))  # two for each of 32 pairs
    assert (metrics["pairs"] == 32).all()


def test_a_file_is_passed_through_prompt_by_prompt(qwen: str, tmp_path: Path) -> None:
    """Held-out prompts are never trained on; a pass sees all others once, with all their pairs."""
    rows: list[Any] = [{"prompt": f"{k}+1=", "ranked": ["a", "b", "c"]} for k in range(23)]
    rows += rows[:5]  # prompts that come back further down
    path = write_rows(tmp_path / "ranked.jsonl", rows)
    groups, held_out = reward_model.split(path, tasks.learned_preferences(path))
    assert len({pair.prompt for pair in held_out}) == 2
    assert len(groups) == 21
    assert not {pair.prompt for pair in held_out} & {pair.prompt for g in groups for pair in g}
    assert sum(map(len, groups)) + len(held_out) == 28 * 3
    config = rm_config(qwen, preferences=path, prompts=4)
    run = LanguageRun(config, [5])
    seen = [reward_model.next_pairs(groups, config, run, step) for step in range(21)]  # 4 passes
    order = [p for step in seen for p in dict.fromkeys(pair.prompt for pair in step)]
    for k in range(4):
        part = order[k * 21 : (k + 1) * 21]
        assert sorted(part) == sorted(group[0].prompt for group in groups)
    assert order[:21] != order[21:42]
    again = reward_model.next_pairs(groups, config, LanguageRun(config, [5]), 7)
    assert again == seen[7]
    other = reward_model.next_pairs(groups, config, LanguageRun(config, [6]), 7)
    assert other != seen[7]


def test_pairs_by_rules_are_right_against_wrong(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair is of one prompt, graded, and drawn anew each step; held-out ones are fixed."""
    task, sample, temperatures = tasks.make("addition"), sampling.sample, set()

    def listen(*args: Any, **settings: Any) -> Samples:
        temperatures.add(args[4])
        return sample(*args, **settings)

    monkeypatch.setattr(sampling, "sample", listen)

    def accuracy(self: Any, problem: Any, text: str) -> float:
        return float(len(text) % 2)  # a random model is right often enough

    monkeypatch.setattr(tasks.Addition, "accuracy", accuracy)
    config = rm_config(qwen, prompts=6, group_size=4, max_new_tokens=6, temperature=0.7)
    policy, _, tokenizer, _ = load(config)
    run = LanguageRun(config, [3])
    steps = [reward_model.draw_pairs(policy, tokenizer, task, config, run, k) for k in (0, 1, 0)]
    assert steps[0] == steps[2] != steps[1]
    assert len(steps[0]) + len(steps[1]) > 5
    for pair in steps[0] + steps[1]:
        assert len(pair.chosen) % 2 == 1
        assert len(pair.rejected) % 2 == 0
        assert not tasks.held_out(pair.prompt)
    held = reward_model.held_out_pairs(policy, tokenizer, task, config, run.device)
    assert held == reward_model.held_out_pairs(policy, tokenizer, task, config, run.device)
    assert len(held) > 100
    assert all(tasks.held_out(pair.prompt) for pair in held)
    assert temperatures == {0.7}


# ---- Rewards, values, advantages -----------------------------------------------------------


def gae_by_definition(
    rewards: Tensor, values: Tensor, lengths: Sequence[int], gamma: float, lam: float
) -> Tensor:
    """A_t = sum_k (gamma lambda)^k delta_{t+k} up to the last token: O(T^2), by loops."""
    advantages = torch.zeros_like(rewards)
    for b, n in enumerate(lengths):
        for t in range(n):
            for k in range(t, n):
                following = values[b, k + 1].item() if k + 1 < n else 0.0
                delta = rewards[b, k] + gamma * following - values[b, k]
                advantages[b, t] += (gamma * lam) ** (k - t) * delta
    return advantages


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_gae_equals_its_definition(lam: float, gamma: float) -> None:
    """What stands in the padding, however large, counts nothing."""
    generator = torch.Generator().manual_seed(0)
    lengths = [12, 1, 5, 11, 2]
    rewards, values = torch.randn(2, 5, 12, generator=generator, dtype=torch.float64)
    mask = torch.arange(12) < torch.tensor(lengths).unsqueeze(1)
    values = torch.where(mask, values, 1e6)
    rewards = torch.where(mask, rewards, -1e6)
    expected = gae_by_definition(rewards, values, lengths, gamma, lam)
    got = rlhf_ppo.gae(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    assert (got[~mask] == 0).all()
    if lam == gamma == 1:  # the reward to come, less the value
        to_go = (rewards * mask).flip(1).cumsum(1).flip(1)
        torch.testing.assert_close(got, (to_go - values) * mask, atol=1e-9, rtol=0)


def some_samples(config: Any, policy: Any, tokenizer: Any, task: tasks.Task) -> Samples:
    """Completions of random lengths (a random model's own seldom end)."""
    run = LanguageRun(config, [0])
    samples, _ = rlhf_ppo.collect(policy, tokenizer, task, config, run, 0)
    B, T = samples.tokens.shape
    lengths = torch.randint(1, T + 1, (B, 1), generator=torch.Generator().manual_seed(0))
    lengths[0] = T
    mask = (torch.arange(T) < lengths) & samples.mask
    return replace(samples, mask=mask, logprobs=samples.logprobs * mask)


def test_the_value_of_a_state_does_not_know_the_token_to_come(folder: str) -> None:
    config = ppo_config(folder)
    policy, critic, tokenizer, task = load(config)
    samples = some_samples(config, policy, tokenizer, task)
    n = int(samples.lengths[0])
    with torch.no_grad():
        values = rlhf_ppo.values_of(critic, samples)
        for t in range(n):
            tokens = samples.tokens.clone()
            tokens[0, t] = (tokens[0, t] + 1) % 100
            changed = rlhf_ppo.values_of(critic, replace(samples, tokens=tokens))
            torch.testing.assert_close(changed[0, : t + 1], values[0, : t + 1], atol=1e-5, rtol=0)
            assert ((changed[0, t + 1 : n] - values[0, t + 1 : n]).abs() > 1e-4).all()
        # The first state is the prompt, without padding and by the model's own means.
        ids = samples.prompts[0][samples.prompt_mask[0]].unsqueeze(0)
        first = critic.score(critic.base_model(input_ids=ids).last_hidden_state)[0, -1, 0]
        torch.testing.assert_close(values[0, 0], first, atol=1e-5, rtol=1e-5)
    assert (values[~samples.mask] == 0).all()


def test_whitening_sees_the_tokens_only() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64) * 3 + 5
    mask = torch.arange(6) < torch.tensor([[6], [1], [3], [4]])
    x = torch.where(mask, x, 1e9)
    got = rlhf_ppo.whiten(x, mask, Processes())
    inside = x[mask]
    expected = (inside - inside.mean()) / inside.std(correction=0)
    torch.testing.assert_close(got[mask], expected, atol=1e-6, rtol=0)
    assert (got[~mask] == 0).all()
    equal = rlhf_ppo.whiten(
        torch.full((2, 3), 0.7), torch.ones(2, 3, dtype=torch.bool), Processes()
    )
    assert equal.abs().max() < 1e-2  # not noise over nothing


# ---- The updates ---------------------------------------------------------------------------


def prepared(
    config: rlhf_ppo.Config,
) -> tuple[rlhf_ppo.Batch, Any, Any, LanguageRun, float]:
    """A batch, the models that it is of, their run, and the explained variance."""
    policy, critic, tokenizer, task = load(config)
    samples = some_samples(config, policy, tokenizer, task)
    run = LanguageRun(config, [0])
    reference = models.Reference(policy)
    with torch.no_grad():  # a reference of its own
        for p in reference.model.parameters():
            p.mul_(1.1)
    rewards = torch.linspace(0, 1, len(samples))
    batch, explained = rlhf_ppo.prepare(samples, rewards, critic, reference, config, run)
    return batch, policy, critic, run, float(explained)


def test_what_prepare_makes(folder: str) -> None:
    """Rewards, values and advantages belong together, and do not depend on micro-batches."""
    config = ppo_config(folder, kl_coef=0.5, gae_lambda=0.9)
    batch, _, critic, _, explained = prepared(config)
    with torch.no_grad():
        values = rlhf_ppo.values_of(critic, batch)
    rewards = -0.5 * (batch.logprobs - batch.reference)
    for i, n in enumerate(batch.lengths.tolist()):
        rewards[i, n - 1] += i / (len(batch) - 1)
    lengths = batch.lengths.tolist()
    advantages = gae_by_definition(rewards, values, lengths, 1.0, 0.9)
    torch.testing.assert_close(batch.values, values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(batch.returns, (advantages + values) * batch.mask, atol=1e-4, rtol=0)
    left, total = (x[batch.mask].var(correction=0) for x in (advantages, advantages + values))
    assert explained == pytest.approx(float(1 - left / total), abs=1e-4)
    whitened = rlhf_ppo.whiten(advantages, batch.mask, Processes())
    torch.testing.assert_close(batch.advantages, whitened, atol=1e-4, rtol=0)
    assert (batch.reference - batch.logprobs)[batch.mask].abs().max() > 0.01
    for size in (1, 5):
        other, *_ = prepared(replace(config, micro_batch_size=size))
        for field in fields(batch):
            a, b = getattr(batch, field.name), getattr(other, field.name)
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def ppo_step(
    config: rlhf_ppo.Config, rows: np.ndarray
) -> tuple[list[Tensor], dict[str, Tensor], dict[str, float]]:
    """What one step of plain gradient descent subtracts from policy and critic, its metrics, and
    those that are means over tokens by definition."""
    batch, policy, critic, run, _ = prepared(config)
    with torch.no_grad():  # ratios and values beyond their clips
        noise = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(2))
    moved = replace(
        batch,
        logprobs=batch.logprobs + 0.3 * noise * batch.mask,
        values=batch.values + 0.3 * noise.flip(0) * batch.mask,
    )
    part = moved[rows]
    with torch.no_grad():
        logprobs = sampling.logprobs(policy, part, config.temperature)
        values = rlhf_ppo.values_of(critic, part)
    ratio, quotient = (logprobs - part.logprobs).exp(), (part.reference - logprobs).exp()
    means = policy_metrics(ratio, quotient, part.advantages, part.mask, 0.8, 1.2)
    terms = {}
    A, V, G, near = part.advantages, part.values, part.returns, config.clip_value_range
    terms["policy_loss"] = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A)
    clipped = V + (values - V).clamp(-near, near) if near else values
    assert (clipped == values)[part.mask].all() == (near == 0)
    terms["value_loss"] = torch.max((values - G) ** 2, (clipped - G) ** 2) / 2
    means |= {name: float(x[part.mask].mean()) for name, x in terms.items()}
    steps, metrics = subtracted(
        [policy, critic],
        lambda x: rlhf_ppo.update(policy, critic, x, moved, rows, config, run),
    )
    return steps, metrics, means


def test_ppo_micro_batches_do_not_matter(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlhf_ppo, "MAX_GRAD_NORM", 1e9)
    for rows, near in ((np.arange(12), 0.2), (np.array([11, 2, 5, 7]), 0.0)):
        config = ppo_config(folder, temperature=0.7, clip_value_range=near)
        steps, metrics, means = ppo_step(config, rows)
        assert 0 < means["clip_low"] != means["clip_high"] > 0
        assert {name: float(metrics[name]) for name in means} == pytest.approx(means, abs=1e-5)
        assert metrics["loss"] == metrics["policy_loss"] + 0.1 * metrics["value_loss"]
        for size in (1, 3):
            same_steps(ppo_step(replace(config, micro_batch_size=size), rows)[:2], (steps, metrics))


# ---- The whole way -------------------------------------------------------------------------


def train_spied(
    config: rlhf_ppo.Config, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Samples, Tensor]]:
    """Samples and rewards that `prepare` was given."""
    seen = []
    prepare = rlhf_ppo.prepare

    def spy(samples: Samples, rewards: Tensor, *args: Any) -> Any:
        seen.append((samples, rewards.clone()))
        return prepare(samples, rewards, *args)

    monkeypatch.setattr(rlhf_ppo, "prepare", spy)
    run = LanguageRun(config, [0])
    run.evaluate_if_due = lambda *args: run.resume()  # type: ignore[method-assign]
    rlhf_ppo.train(config, run)
    return seen


def test_each_learns_at_its_own_learning_rate(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of Adam moves a weight by the learning rate, whatever the gradient."""
    load_model, load_scalar, made = models.load_model, models.load_scalar, []

    def spy(model: Any) -> Any:
        made.append((model, [p.detach().clone() for p in model.parameters()]))
        return model

    def spy_model(*args: Any) -> Any:
        model, tokenizer = load_model(*args)
        return spy(model), tokenizer

    monkeypatch.setattr(models, "load_model", spy_model)
    monkeypatch.setattr(models, "load_scalar", lambda *args: spy(load_scalar(*args)))
    rates = {"learning_rate": 1e-4, "critic_learning_rate": 1e-2}
    train_spied(ppo_config(qwen, total_samples=12, minibatches=1, epochs=1, **rates), monkeypatch)
    for (model, before), rate in zip(made, rates.values(), strict=True):
        moved = [(p - old).abs().max() for p, old in zip(model.parameters(), before, strict=True)]
        assert max(moved).item() == pytest.approx(rate, rel=0.05)


def test_a_completion_that_is_cut_off_loses_the_penalty(
    qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: 0.25)
    config = ppo_config(qwen, prompts=64, total_samples=64, missing_eos_penalty=0.5)
    config = replace(config, max_new_tokens=40, format_weight=0.0)
    ((samples, rewards),) = train_spied(config, monkeypatch)
    assert samples.ended.any()
    assert not samples.ended.all()
    torch.testing.assert_close(rewards, torch.where(samples.ended, 0.25, -0.25))


@pytest.fixture(scope="module")
def trained(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the reward model."""
    here = tmp_path_factory.mktemp("reward")
    path = write_rows(here / "pairs.jsonl", answered(40))
    config = rm_config(
        folder, preferences=path, prompts=8, total_samples=32, results=str(here), name="rm"
    )
    main(config, reward_model.train, {})
    return RunFolder.of(config, "reward_model").path / "seeds-000-000"


def test_ppo_from_a_reward_model(
    trained: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its score is the reward, its weights are where the critic begins; what it says is what its
    run's transcripts say."""
    config = ppo_config(
        folder, reward_model=str(trained), rules=False, total_samples=24, results=str(tmp_path)
    )
    config = replace(config, missing_eos_penalty=0.0)
    load_scalar, made, begun = models.load_scalar, [], []

    def spy(*args: Any) -> Any:
        made.append(load_scalar(*args))
        begun.append([p.detach().clone() for p in made[-1].parameters()])
        return made[-1]

    monkeypatch.setattr(models, "load_scalar", spy)
    ((samples, rewards), _) = train_spied(config, monkeypatch)
    judge, critic = made
    with torch.no_grad():
        torch.testing.assert_close(sampling.scores(judge, samples), rewards, atol=1e-4, rtol=0)
    _, _, tokenizer, task = load(rm_config(folder))
    rows = [x for x in read_json(trained / "transcripts.json") if x["samples"] == 32]
    pairs = [tasks.Preference(x["prompt"], x["chosen"], x["rejected"]) for x in rows]
    with torch.no_grad():
        chosen, rejected = reward_model.pair_scores(judge, tokenizer, task, pairs, 32)
    assert chosen.tolist() == pytest.approx([x["chosen_score"] for x in rows], abs=1e-4)
    assert rejected.tolist() == pytest.approx([x["rejected_score"] for x in rows], abs=1e-4)
    stored = load_scalar(str(trained), config, torch.device("cpu"), Processes(), "")
    for k, p in enumerate(stored.parameters()):
        assert torch.equal(begun[1][k], p)  # the critic begins as the reward model
        assert torch.equal(list(judge.parameters())[k], p)  # which itself stays
        assert not torch.equal(list(critic.parameters())[k], p)


@pytest.mark.slow
def test_both_learn_addition(tiny_results: str) -> None:
    """The reward model by rules, PPO with the rules; the tiny model is made on the way."""
    rm = reward_model.Config(results=tiny_results, total_samples=20_480, evaluations=1, quiet=True)
    _, summary, run = train_without_folder(reward_model, rm)
    assert summary["initial"]["accuracy"] == 0.5
    # Over 1,200 pairs, each met for the first time; chance is 0.5 +- 0.014.
    assert run.metrics().tail(40)["accuracy"].mean() > 0.55
    ppo = rlhf_ppo.Config(
        results=tiny_results, gae_lambda=1.0, total_samples=5_120, evaluations=1, quiet=True
    )
    _, summary, run = train_without_folder(rlhf_ppo, ppo, seed=100)
    assert summary["final"]["pass@1"] > summary["initial"]["pass@1"] + 0.1
    late = run.metrics().tail(5)
    assert late["explained_variance"].mean() > 0.02
