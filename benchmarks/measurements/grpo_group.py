"""Groups of completions from one step of GRPO, for the interactive page.

    python benchmarks/grpo_group.py

Trains the tiny model with llm_track/grpo.py's own functions for some steps, and a critic beside it
with those of llm_track/rlhf_ppo.py, which PPO's numbers on the page need. From the samples of the
last step it keeps

    mixed       of the groups with right and wrong completions those with one that is cut off, if
                there are any; of these those nearest to half right; of these the one with the most
                tokens whose ratio leaves [0.8, 1.2]
    all right   the first group, if any, that dynamic sampling discards because all are right
    all wrong   likewise, because all are wrong

with each token's log-probability under pi_old, which has sampled it, under the policy after the
step's updates, and under the reference, and the critic's value before it.

Writes grpo_group.json, which website.py shows. With `--results results` it is published.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.cli import PositiveInt, ScriptConfig, from_preset, parse
from manyseeds.llm_track import grpo, models, rlhf_ppo, tasks
from manyseeds.llm_track.policies import load_policy, load_scalars
from manyseeds.llm_track.rollout import Batch, collect, minibatches, rewards_of, samples_of
from manyseeds.llm_track.sampling import Samples
from manyseeds.process import set_up_process
from manyseeds.runs.language_seeds import SeedsRun

TASK, SEED = "addition", 0
EPOCHS = 2  # passes over the samples of a step, so that more ratios leave the clip range
CLIP = 0.2  # beyond which a token counts when the group is chosen
DIGITS = 6  # of the stored numbers, after the decimal point


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Groups of GRPO."""

    steps: PositiveInt = 3
    """Steps of training. The groups are those of the last one."""


@dataclass(frozen=True)
class Sampled:
    """The samples of a step [B, T], and what the page needs of them."""

    samples: Samples  # their log-probabilities are those of pi_old
    graded: Sequence[tasks.Graded]
    reference: Tensor  # [B, T], log pi_ref
    values: Tensor  # [B, T], the critic's V before each token
    current: Tensor  # [B, T], log pi after the step's updates


def update_critic(
    critic: Any, optimizer: Any, batch: rlhf_ppo.Batch, config: rlhf_ppo.Config
) -> None:
    """One gradient step of the critic on a whole batch, the value part of rlhf_ppo.update."""
    weights = batch.mask / batch.mask.sum()
    values = rlhf_ppo.values_of(critic, batch)
    rlhf_ppo.value_loss(values, batch.values, batch.returns, weights, config).sum().backward()
    optimizer.step(config.critic_learning_rate, rlhf_ppo.MAX_GRAD_NORM)


def train(config: grpo.Config, critic_config: rlhf_ppo.Config, steps: int) -> tuple[Sampled, Any]:
    """Some steps of GRPO, with a critic that learns the values of the same samples.

    Returns the last step, and the tokenizer.
    """
    run = SeedsRun(config, [SEED])
    policy = load_policy(config, run)
    critic = load_scalars(config.model, config, policy, run, "--model")
    reference, task = policy.frozen(), tasks.make(config.task)
    optimizer, of_critic = policy.optimizer(), critic.optimizer()
    G, B = config.group_size, config.prompts * config.group_size
    for step in range(steps):
        rollout, (graded,) = collect(policy, task, config, run, step)
        rewards = rewards_of([graded], rollout, None, config)
        advantages = grpo.group_advantages(rewards.unflatten(1, (-1, G))).flatten(1)
        prepared, _ = rlhf_ppo.prepare(rollout, rewards, critic, reference, critic_config, run)
        batch = Batch(
            **vars(rollout),
            reference=prepared.reference,
            advantages=advantages.unsqueeze(-1).expand_as(rollout.tokens),
        )
        for rows in minibatches(run, step, B, config):
            grpo.update(policy, optimizer, batch, rows, config.learning_rate, config, run)
            update_critic(critic, of_critic, prepared[rows], critic_config)
    with torch.no_grad():
        current = policy.logprobs(rollout, config.temperature)
    numbers = (x[0] for x in (prepared.reference, prepared.values, current))
    return Sampled(samples_of(rollout), graded, *numbers), policy.tokenizer


def chosen(step: Sampled, group_size: int) -> dict[str, int]:
    """The groups that are kept: their names, and which of the step's they are."""
    right = torch.tensor([x.accuracy for x in step.graded]).view(-1, group_size).mean(1)
    ratio = (step.current - step.samples.logprobs).exp()
    outside = (((ratio - 1).abs() > CLIP) & step.samples.mask).view(len(right), -1).sum(1)
    cut_off = (~step.samples.ended).view(-1, group_size).any(1)
    mixed = [k for k in range(len(right)) if 0 < right[k] < 1]
    found = {}
    if mixed:
        found["mixed"] = max(
            mixed, key=lambda k: (bool(cut_off[k]), -abs(float(right[k]) - 0.5), int(outside[k]))
        )
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "all right": lambda share: share == 1,
        "all wrong": lambda share: share == 0,
    }
    for name, rule in rules.items():
        if rule(right).any():
            found[name] = int(rule(right).int().argmax())
    return found


def stored_group(step: Sampled, tokenizer: Any, first: int, group_size: int) -> dict[str, Any]:
    """A group as it is written: lists of its completions' tokens and numbers."""
    problem = step.graded[first].problem

    def completion(i: int) -> dict[str, Any]:
        n = int(step.samples.lengths[i])
        numbers = {
            "old": step.samples.logprobs,
            "current": step.current,
            "reference": step.reference,
            "values": step.values,
        }
        return {
            "tokens": tokenizer.convert_ids_to_tokens(step.samples.tokens[i, :n].tolist()),
            **{name: [round(v, DIGITS) for v in x[i, :n].tolist()] for name, x in numbers.items()},
            "ended": bool(step.samples.ended[i]),
            "right": step.graded[i].accuracy == 1,
            "format": step.graded[i].format == 1,
        }

    completions = [completion(i) for i in range(first, first + group_size)]
    return {"prompt": problem.prompt, "answer": problem.answer, "completions": completions}


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Train, choose, and write the file."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    shared = {"task": TASK, "results": config.results, "quiet": True}
    grpo_config = from_preset(grpo.Config, grpo.PRESETS, TASK, epochs=EPOCHS, **shared)
    ppo_config = from_preset(rlhf_ppo.Config, rlhf_ppo.PRESETS, TASK, **shared)
    step, tokenizer = train(grpo_config, ppo_config, config.steps)
    longest = models.completion_tokens(grpo_config)
    G = grpo_config.group_size
    groups = {name: stored_group(step, tokenizer, G * k, G) for name, k in chosen(step, G).items()}
    trained = ["manyseeds.llm_track.grpo:train", "manyseeds.llm_track.rlhf_ppo:train"]
    origins = [*trained, *tasks.made_origins("tiny", TASK)]
    stored = {
        **origin(origins, ("transformers",)),
        "task": TASK,
        "seed": SEED,
        "step": config.steps,
        "longest": longest,
        "groups": groups,
    }
    write_measured(Path(config.results) / "grpo_group.json", stored)


if __name__ == "__main__":
    main()
