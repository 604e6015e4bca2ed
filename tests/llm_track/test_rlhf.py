"""Reward model and PPO of a language model: their mathematics against definitions and loops."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from manyseeds.errors import UsageError
from manyseeds.llm_track import (
    dpo,
    models,
    policies,
    process_grpo,
    reward_model,
    rlhf_ppo,
    sampling,
    tasks,
)
from manyseeds.llm_track.policies import AnyModel, HubModel, SeedModel
from manyseeds.llm_track.rollout import Rollout, collect, samples_of
from manyseeds.record import RunFolder, read_json
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.language_seeds import SeedsRun, main
from manyseeds.runs.parallel import Processes
from tests.llm_track.batches import Watched, moved, policy_metrics
from tests.random_models import make_model

CPU = torch.device("cpu")
LR = torch.tensor([1e-3], dtype=torch.float64)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small random Llama, whose seeds are trained together."""
    return make_model("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def small(few_samples: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, and an accuracy that random weights earn half of the time."""
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: len(text) % 2)
    monkeypatch.setattr(reward_model, "HELD_OUT_PROMPTS", 8)


def load(config: Any) -> tuple[HubModel, HubModel, tasks.Task]:
    """Policy, scalar model with a random head, and task."""
    policy, tokenizer = models.load_model(config, CPU, Processes())
    scalar = models.load_scalar(config.model, config, CPU, Processes(), "--model")
    torch.manual_seed(1)
    torch.nn.init.normal_(scalar.score.weight)
    of_both = (HubModel(x, tokenizer, config, Processes()) for x in (policy, scalar))
    return *of_both, tasks.make(config.task)  # type: ignore[return-value]


def different(model: HubModel, S: int, start: int = 0) -> tuple[list[HubModel], SeedModel]:
    """S models with other weights than this one, each alone and as seeds of one batch."""
    each = [copy.copy(model) for _ in range(S)]
    for s, one in enumerate(each):
        one.model = moved(copy.deepcopy(model.model), seed=start + s)
    return each, SeedModel.of_models([one.model for one in each], model.tokenizer)


def of_seed(rollout: Any, s: int) -> Any:
    """That of one seed alone."""
    return type(rollout)(**{f.name: getattr(rollout, f.name)[s : s + 1] for f in fields(rollout)})


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
    [reward_model.bradley_terry_loss, process_grpo.bradley_terry_loss, dpo.preference_loss],
    ids=["reward_model", "process_grpo", "dpo"],
)
def test_bradley_terry_by_hand(loss: Any) -> None:
    """Margins 1 and -2: log(1 + e^-1) and log(1 + e^2); slopes -sigmoid(-1) and -sigmoid(2)."""
    chosen = torch.tensor([[1.0], [0.0]], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([[0.0], [2.0]], dtype=torch.float64, requires_grad=True)
    losses = loss(chosen, rejected)
    expected = torch.tensor([[0.31326168751822286], [2.1269280110429727]], dtype=torch.float64)
    torch.testing.assert_close(losses, expected, atol=1e-14, rtol=0)
    losses.sum().backward()
    slopes = torch.tensor([[-0.2689414213699951], [-0.8807970779778823]], dtype=torch.float64)
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


Step = tuple[Tensor, dict[str, Tensor]]  # unclipped gradients, and metrics, of one seed


def same_steps(found: Step, expected: Step) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


def rm_step(
    config: reward_model.Config,
    pairs: Sequence[Sequence[tasks.Preference]],
    scalar: AnyModel | None = None,
) -> list[Step]:
    """Of each seed."""
    optimizer, S = Watched(scalar or load(config)[1]), len(pairs)
    task, run = tasks.make(config.task), SeedsRun(config, range(S))
    metrics = reward_model.update(
        optimizer.policy, optimizer, task, pairs, LR.expand(S), config, run
    )
    return [
        (gradient, {k: x[s] for k, x in metrics.items()})
        for s, gradient in enumerate(optimizer.gradients)
    ]


def mixed_pairs() -> list[tasks.Preference]:
    ranked = tasks.all_pairs("12+34=", ["<answer>46</answer>", "46", "<think>", "1"])
    return [*ranked, *(tasks.Preference(**row) for row in answered(5))]


def by_prompt(x: Tensor) -> Tensor:
    """The mean over prompts of the mean over a prompt's pairs, of the pairs above."""
    return torch.cat([x[:6].mean().view(1), x[6:]]).mean()


def test_reward_model_micro_batches_do_not_matter(folder: str) -> None:
    config, pairs = rm_config(folder, micro_batch_size=64), mixed_pairs()
    (whole,) = rm_step(config, [pairs])
    _, scalar, task = load(config)
    chosen, rejected = (x[0] for x in reward_model.pair_scores(scalar, task, [pairs], 32))
    loss = by_prompt(reward_model.bradley_terry_loss(chosen, rejected))
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in scalar.model.parameters()])
    terms = {"accuracy": (chosen > rejected).float(), "margin": chosen - rejected}
    expected = {name: by_prompt(x.detach()) for name, x in terms.items()}
    same_steps(whole, (gradient, {"loss": loss.detach(), "grad_norm": gradient.norm(), **expected}))
    for size in (1, 3):
        same_steps(rm_step(replace(config, micro_batch_size=size), [pairs])[0], whole)


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.usefixtures("computed")
def test_seeds_of_a_reward_model_have_pairs_of_their_own(llama: str, size: int) -> None:
    """Different models and numbers of pairs: a step of each is that of a model of transformers. One
    without a pair stays as it is."""
    config = rm_config(llama, micro_batch_size=size)
    each, together = different(load(config)[1], 3)
    pairs = [mixed_pairs(), [tasks.Preference(**row) for row in answered(2)], []]
    last = together.llama.state_of(2)
    found = rm_step(config, pairs, together)
    for s in (0, 1):
        same_steps(found[s], rm_step(config, [pairs[s]], each[s])[0])
    assert not found[2][0].any()
    assert all(torch.equal(x, last[name]) for name, x in together.llama.state_of(2).items())


def train_without_folder(
    method: Any, config: Any, seed: int = 0
) -> tuple[Any, dict[str, Any], Any]:
    run = SeedsRun(config, [seed])
    result = method.train(config, run)
    (summary,) = run.finish(result)
    return result, summary, run.runs[0]


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


@pytest.mark.parametrize("kind", ["qwen", "llama"])
@pytest.mark.usefixtures("small")
def test_pairs_by_rules_are_right_against_wrong(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair is of one prompt, graded, and drawn anew each step; held-out ones are fixed."""
    monkeypatch.setattr(reward_model, "HELD_OUT_PROMPTS", 256)
    task, temperatures = tasks.make("addition"), set()
    model = request.getfixturevalue(kind)
    config = rm_config(model, prompts=6, group_size=4, max_new_tokens=6, temperature=0.7)
    seeds = [3] if kind == "qwen" else [4, 3]
    run = SeedsRun(config, seeds)
    policy = policies.load_policy(config, run)
    assert len(policy) == len(seeds)
    sample = type(policy).sample

    def listen(*args: Any) -> Rollout:
        temperatures.add(args[3])
        return sample(*args)

    monkeypatch.setattr(type(policy), "sample", listen)
    steps = [reward_model.draw_pairs(policy, task, config, run, k) for k in (0, 1, 0)]
    assert steps[0] == steps[2] != steps[1]
    for s, seed in enumerate(seeds):
        alone = SeedsRun(config, [seed])
        assert steps[0][s : s + 1] == reward_model.draw_pairs(
            policy.of([s]), task, config, alone, 0
        )
        assert len(steps[0][s]) + len(steps[1][s]) > 5
        for pair in steps[0][s] + steps[1][s]:
            assert len(pair.chosen) % 2 == 1
            assert len(pair.rejected) % 2 == 0
            assert not tasks.held_out(pair.prompt)
    assert kind == "qwen" or steps[0][0] != steps[0][1]
    held = reward_model.held_out_pairs(policy, task, config)
    assert held == reward_model.held_out_pairs(policy, task, config)
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
    """Of two seeds; what stands in the padding, however large, counts nothing."""
    generator = torch.Generator().manual_seed(0)
    lengths = [[12, 1, 5, 11, 2], [3, 4, 1, 1, 9]]
    rewards, values = torch.randn(2, 2, 5, 12, generator=generator, dtype=torch.float64)
    mask = torch.arange(12) < torch.tensor(lengths).unsqueeze(-1)
    values = torch.where(mask, values, 1e6)
    rewards = torch.where(mask, rewards, -1e6)
    expected = [gae_by_definition(rewards[s], values[s], lengths[s], gamma, lam) for s in range(2)]
    got = rlhf_ppo.gae(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(got, torch.stack(expected), atol=1e-12, rtol=0)
    assert (got[~mask] == 0).all()
    if lam == gamma == 1:  # the reward to come, less the value
        to_go = (rewards * mask).flip(-1).cumsum(-1).flip(-1)
        torch.testing.assert_close(got, (to_go - values) * mask, atol=1e-9, rtol=0)


def some_completions(config: Any, policy: AnyModel, seeds: Sequence[int] = (0,)) -> Rollout:
    """Completions of random lengths (a random model's own seldom end)."""
    rollout, _ = collect(policy, tasks.make(config.task), config, SeedsRun(config, seeds), 0)
    T = rollout.tokens.shape[-1]
    lengths = torch.randint(
        1, T + 1, rollout.lengths.shape, generator=torch.Generator().manual_seed(0)
    )
    lengths[:, 0] = T
    rollout = replace(rollout, lengths=lengths.minimum(rollout.lengths))
    return replace(rollout, logprobs=rollout.logprobs * rollout.mask)


def test_the_value_of_a_state_does_not_know_the_token_to_come(folder: str) -> None:
    config = ppo_config(folder)
    policy, critic, _ = load(config)
    rollout = some_completions(config, policy)
    n = int(rollout.lengths[0, 0])
    with torch.no_grad():
        values = rlhf_ppo.values_of(critic, rollout)
        for t in range(n):
            tokens = rollout.tokens.clone()
            tokens[0, 0, t] = (tokens[0, 0, t] + 1) % 100
            changed = rlhf_ppo.values_of(critic, replace(rollout, tokens=tokens))[0, 0]
            torch.testing.assert_close(changed[: t + 1], values[0, 0, : t + 1], atol=1e-5, rtol=0)
            assert ((changed[t + 1 : n] - values[0, 0, t + 1 : n]).abs() > 1e-4).all()
        # The first state is the prompt, without padding and by the model's own means.
        ids, model = rollout.prompts[0, :1, -int(rollout.prompt_lengths[0, 0]) :], critic.model
        first = model.score(model.base_model(input_ids=ids).last_hidden_state)[0, -1, 0]
        torch.testing.assert_close(values[0, 0, 0], first, atol=1e-5, rtol=1e-5)
    assert (values[~rollout.mask] == 0).all()


def test_whitening_sees_the_tokens_only() -> None:
    """Those of each seed by themselves; more padding changes no bit."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64) * 3 + 5
    x[1] *= -7
    mask = torch.arange(6) < torch.tensor([[6, 1, 3, 4], [2, 5, 5, 1]]).unsqueeze(-1)
    x = torch.where(mask, x, 1e9)
    got = rlhf_ppo.whiten(x, mask, Processes())
    for s in range(2):
        inside = x[s][mask[s]]
        expected = (inside - inside.mean()) / inside.std(correction=0)
        torch.testing.assert_close(got[s][mask[s]], expected, atol=1e-6, rtol=0)
    assert (got[~mask] == 0).all()
    x, mask = (torch.nn.functional.pad(one, (0, 11)) for one in (x.float(), mask))
    for s, T in ((0, 6), (1, 5), (1, 9)):
        alone = rlhf_ppo.whiten(x[s : s + 1, :, :T], mask[s : s + 1, :, :T], Processes())
        assert torch.equal(alone[0], rlhf_ppo.whiten(x, mask, Processes())[s, :, :T])
    equal = rlhf_ppo.whiten(
        torch.full((1, 2, 3), 0.7), torch.ones(1, 2, 3, dtype=torch.bool), Processes()
    )
    assert equal.abs().max() < 1e-2  # not noise over nothing


# ---- The updates ---------------------------------------------------------------------------


def prepared(
    config: rlhf_ppo.Config,
) -> tuple[rlhf_ppo.Batch, HubModel, HubModel, float]:
    """A batch, the models that it is of, and the explained variance."""
    policy, critic, _ = load(config)
    rollout, reference = some_completions(config, policy), policy.frozen()
    with torch.no_grad():  # a reference of its own
        for p in reference.reference.model.parameters():
            p.mul_(1.1)
    rewards = torch.linspace(0, 1, rollout.lengths.shape[1]).unsqueeze(0)
    run = SeedsRun(config, [0])
    batch, explained = rlhf_ppo.prepare(rollout, rewards, critic, reference, config, run)
    return batch, policy, critic, float(explained)


def test_what_prepare_makes(folder: str) -> None:
    """Rewards, values and advantages belong together, and do not depend on micro-batches."""
    config = ppo_config(folder, kl_coef=0.5, gae_lambda=0.9)
    batch, _, critic, explained = prepared(config)
    values = rlhf_ppo.values_of(critic, batch).detach()
    rewards = -0.5 * (batch.logprobs - batch.reference)[0]
    lengths = batch.lengths[0].tolist()
    for i, n in enumerate(lengths):
        rewards[i, n - 1] += i / (len(lengths) - 1)
    advantages = gae_by_definition(rewards, values[0], lengths, 1.0, 0.9).unsqueeze(0)
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


def shaken(batch: rlhf_ppo.Batch) -> rlhf_ppo.Batch:
    """With ratios and values beyond their clips."""
    noise = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(2))
    return replace(
        batch,
        logprobs=batch.logprobs + 0.3 * noise * batch.mask,
        values=batch.values + 0.3 * noise.flip(1) * batch.mask,
    )


def step_of(
    policy: AnyModel, critic: AnyModel, batch: rlhf_ppo.Batch, rows: Tensor, config: rlhf_ppo.Config
) -> list[Step]:
    """Of each seed."""
    watched, run = [Watched(policy), Watched(critic)], SeedsRun(config, range(len(rows)))
    metrics = rlhf_ppo.update(policy, critic, watched, batch, rows, [1e-3, 1e-3], config, run)
    return [
        (torch.cat(gradients), {k: x[s] for k, x in metrics.items()})
        for s, gradients in enumerate(zip(*(x.gradients for x in watched), strict=True))
    ]


def ppo_step(config: rlhf_ppo.Config, rows: Sequence[int]) -> tuple[Step, dict[str, float]]:
    """A step of a model of transformers, and those of its metrics that are means over tokens by
    definition."""
    batch, policy, critic, _ = prepared(config)
    batch, of_rows = shaken(batch), torch.tensor([rows])
    part = batch[of_rows]
    with torch.no_grad():
        logprobs = policy.logprobs(part, config.temperature)
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
    return step_of(policy, critic, batch, of_rows, config)[0], means


def test_ppo_micro_batches_do_not_matter(folder: str) -> None:
    for rows, near in ((range(12), 0.2), ([11, 2, 5, 7], 0.0)):
        config = ppo_config(folder, temperature=0.7, clip_value_range=near)
        step, means = ppo_step(config, list(rows))
        metrics = {name: float(x) for name, x in step[1].items()}
        assert 0 < means["clip_low"] != means["clip_high"] > 0
        assert {name: metrics[name] for name in means} == pytest.approx(means, abs=1e-5)
        loss = means["policy_loss"] + 0.1 * means["value_loss"]
        assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
        for size in (1, 3):
            same_steps(ppo_step(replace(config, micro_batch_size=size), list(rows))[0], step)


@pytest.mark.usefixtures("computed")
def test_seeds_of_ppo_are_those_of_transformers(llama: str) -> None:
    """Of different models, completions and minibatches: what each is prepared, and its step."""
    config = ppo_config(llama, temperature=0.7, kl_coef=0.5, gae_lambda=0.9)
    policy, critic, _ = load(config)
    each, ours = different(policy, 2)
    critics, critic_of_all = different(critic, 2)
    references, reference = different(policy, 2, start=2)
    rollout = some_completions(config, ours, [0, 1])
    assert ours.tokenizer.pad_token_id == 0  # whose embedding transformers does not train
    rollout = replace(rollout, tokens=rollout.tokens.clamp(min=1))
    rewards, run = torch.linspace(0, 1, 24).view(2, 12), SeedsRun(config, [0, 1])
    batch, explained = rlhf_ppo.prepare(
        rollout, rewards, critic_of_all, reference.frozen(), config, run
    )
    rows = torch.tensor([[11, 2, 5, 7], [1, 0, 10, 9]])
    steps = step_of(ours, critic_of_all, shaken(batch), rows, config)
    for s in range(2):
        own, alone = of_seed(rollout, s), SeedsRun(config, [s])
        expected, variance = rlhf_ppo.prepare(
            own, rewards[s : s + 1], critics[s], references[s].frozen(), config, alone
        )
        torch.testing.assert_close(vars(of_seed(batch, s)), vars(expected), atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(explained[s : s + 1], variance, atol=1e-4, rtol=0)
        given = of_seed(shaken(batch), s)
        same_steps(steps[s], step_of(each[s], critics[s], given, rows[s : s + 1], config)[0])


# ---- The whole way -------------------------------------------------------------------------


def train_spied(
    config: rlhf_ppo.Config, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Rollout, Tensor]]:
    """Completions and rewards that `prepare` was given."""
    seen = []
    prepare = rlhf_ppo.prepare

    def spy(rollout: Rollout, rewards: Tensor, *args: Any) -> Any:
        seen.append((rollout, rewards.clone()))
        return prepare(rollout, rewards, *args)

    monkeypatch.setattr(rlhf_ppo, "prepare", spy)
    run = SeedsRun(config, [0])
    run.evaluate_if_due = lambda *args: run.runs[0].resume()  # type: ignore[method-assign]
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
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: 1.0)
    config = ppo_config(qwen, prompts=64, total_samples=64, missing_eos_penalty=0.5)
    config = replace(config, max_new_tokens=40, format_weight=0.0)
    ((rollout, rewards),) = train_spied(config, monkeypatch)
    assert rollout.ended.any()
    assert not rollout.ended.all()
    torch.testing.assert_close(rewards, torch.where(rollout.ended, 1.0, 0.5))


def reward_model_of(model: str, here: Path) -> Path:
    """A finished run of the reward model."""
    path = write_rows(here / "pairs.jsonl", answered(40))
    config = rm_config(
        model, preferences=path, prompts=8, total_samples=32, results=str(here), name="rm"
    )
    main(config, reward_model.train, {})
    return RunFolder.of(config, "reward_model").path / "seeds-000-000"


@pytest.fixture(scope="module")
def trained(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reward_model_of(folder, tmp_path_factory.mktemp("reward"))


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
    ((rollout, rewards), _) = train_spied(config, monkeypatch)
    judge, critic = made
    with torch.no_grad():
        scores = sampling.scores(judge, samples_of(rollout))
    torch.testing.assert_close(scores, rewards[0], atol=1e-4, rtol=0)
    policy, _, task = load(rm_config(folder))
    scorer = HubModel(judge, policy.tokenizer, config, Processes())
    rows = [x for x in read_json(trained / "transcripts.json") if x["samples"] == 32]
    pairs = [tasks.Preference(x["prompt"], x["chosen"], x["rejected"]) for x in rows]
    with torch.no_grad():
        chosen, rejected = (x[0] for x in reward_model.pair_scores(scorer, task, [pairs], 32))
    assert chosen.tolist() == pytest.approx([x["chosen_score"] for x in rows], abs=1e-4)
    assert rejected.tolist() == pytest.approx([x["rejected_score"] for x in rows], abs=1e-4)
    stored = load_scalar(str(trained), config, torch.device("cpu"), Processes(), "")
    for k, p in enumerate(stored.parameters()):
        assert torch.equal(begun[1][k], p)  # the critic begins as the reward model
        assert torch.equal(list(judge.parameters())[k], p)  # which itself stays
        assert not torch.equal(list(critic.parameters())[k], p)


def together(
    name: str, model: str, seeds: Sequence[int], folder: Path
) -> tuple[AnyModel, list[pd.DataFrame], list[dict[str, Any]]]:
    """The models, metrics and summaries of seeds that are trained at once."""
    module, settings = LESSONS[name]
    if name == "reward_model, a file":
        texts = ["a", "bb", "ccc", "dddd"]
        rows = [{"prompt": f"{k}+1=", "ranked": texts[: 2 + k % 3]} for k in range(20)]
        settings = {**settings, "preferences": write_rows(folder / "ranked.jsonl", rows)}
    if name == "rlhf_ppo, a reward model":
        settings = {**settings, "reward_model": str(reward_model_of(model, folder))}
    config = module.Config(model=model, max_new_tokens=20, evaluations=2, quiet=True, **settings)
    run = SeedsRun(config, seeds)
    found = module.train(config, run)
    metrics = [one.metrics().drop(columns="learn_s") for one in run.runs]
    return found, metrics, run.finish(found)


LESSONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "reward_model": (reward_model, {"prompts": 3, "group_size": 2, "total_samples": 60}),
    "reward_model, a file": (reward_model, {"prompts": 4, "total_samples": 90}),
    "rlhf_ppo": (rlhf_ppo, {"prompts": 8, "group_size": 2, "total_samples": 48, "epochs": 2}),
    "rlhf_ppo, a reward model": (rlhf_ppo, {"prompts": 16, "rules": False, "total_samples": 32}),
}


@pytest.mark.parametrize("name", LESSONS)
@pytest.mark.usefixtures("small")
def test_seeds_learn_together_what_they_learn_alone(name: str, llama: str, tmp_path: Path) -> None:
    """To the bit, also where steps have no pairs, or prompts of a file different numbers of them,
    and so seeds have different numbers of steps."""
    models, metrics, summaries = together(name, llama, [0, 1, 2], tmp_path)
    assert len(models) == 3
    for s in range(3):
        alone, (own,), (summary,) = together(name, llama, [s], tmp_path)
        assert torch.equal(models.tensors()["parameters"][s], alone.tensors()["parameters"][0])
        pd.testing.assert_frame_equal(metrics[s], own, rtol=1e-6, atol=1e-7)
        for key in ("initial", "final"):
            assert summaries[s][key] == pytest.approx(summary[key], rel=1e-6, nan_ok=True)
    weights = models.tensors()["parameters"]
    assert not weights[0].equal(weights[1])
    if name == "reward_model":
        pairs = pd.concat(metrics)["pairs"]
        assert (pairs == 0).any()
        assert (pd.concat(metrics)["loss"].isna() == (pairs == 0)).all()
    if name == "reward_model, a file":
        assert len({len(own) for own in metrics}) > 1


@pytest.mark.parametrize("name", ["reward_model", "reward_model, a file"])
@pytest.mark.usefixtures("small")
def test_a_small_llama_learns_what_transformers_would(
    name: str, llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, (metrics,), _ = together(name, llama, [1], tmp_path)
    monkeypatch.setattr(policies, "together", lambda config: False)
    theirs, (expected,), _ = together(name, llama, [1], tmp_path)
    assert isinstance(ours, SeedModel)
    assert isinstance(theirs, HubModel)
    pd.testing.assert_frame_equal(metrics, expected, rtol=1e-3, atol=1e-4)
    for key, x in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.llama.state_of(0)[key], x, rtol=0, atol=3e-4)


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
