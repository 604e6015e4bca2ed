"""Reward model: a scalar score learned from preferences (Ouyang et al. 2022, arXiv 2203.02155).

    python llm_track/reward_model.py --task addition
    python llm_track/reward_model.py --preferences pairs.jsonl

The second step of InstructGPT (sec. 3.5). After Bradley and Terry (1952) completion y_w is
preferred to y_l with probability sigmoid(r(x, y_w) - r(x, y_l)). For a prompt x with K ranked
completions the loss is the mean over all K (K - 1) / 2 pairs, so each prompt has weight 1 (eq. 1):

    L(theta) = - 1 / (K choose 2) * E_x[ sum over pairs log sigmoid(r(x, y_w) - r(x, y_l)) ]

r is a causal LM's backbone with a scalar head, read after the last token of the completion.

Preferences come from one of two places:

    the rules   (default) the model completes prompts, G times each; of a prompt with right and
                wrong completions one of each is a pair: the right one is preferred
    a file      `--preferences FILE.jsonl`, rows of `prompt, chosen, rejected` or of
                `prompt, ranked` (completions from best to worst); a tenth of its prompts is
                held out

`--total-samples` counts completions: all that were generated, whether they became part of a pair or
not; of a file two for each pair in each pass (a pass over N pairs is 2 N samples; InstructGPT makes
a single pass, as more of them overfit).

Shapes: K prompts in a step with G completions each; B pairs.

Implementation details:
 1. The head begins at 0, so the loss begins at log 2, and every held-out pair is a tie. (The
    "N implementation details of RLHF with PPO", Huang et al. 2024, draw it with a deviation of
    1 / sqrt(width + 1).)
 2. Every pair of a prompt is in the same step, divided by the number of the prompt's pairs in it.
    A completion of a ranked list is computed once for each of its pairs (InstructGPT: once
    altogether, which is the same gradient for less work).
 3. Completions that the model made are read back from their text, and end with the end of sequence,
    unless they were cut off at the task's longest completion: the reward model sees what it will
    see in llm_track/rlhf_ppo.py.
 4. The mean is over the prompts of an optimizer step, whatever micro-batches and processes it is
    divided into. A step without a single pair changes nothing.
 5. Scores are determined only up to a constant, and are left as they are. (InstructGPT and
    summarize_from_feedback_details subtract the mean score of the reference's completions. The
    heads of transformers have no bias to hold it. GRPO does not see a constant; the critic of
    rlhf_ppo.py begins as the reward model itself, and so with it.)
 6. AdamW without weight decay, a constant learning rate; the gradient is clipped to a norm of 1.
    No step is taken on a gradient of NaN or infinity. All weights are trained, so
    `--lora-rank` is refused.

Evaluated on pairs that are made once, of held-out prompts (or read from the held-out tenth of a
file): accuracy, the share of pairs that are ranked right, ties counting one half; margin, the mean
of r_chosen - r_rejected; loss. The model is saved as transformers' *ForSequenceClassification.

Logged per step: loss, accuracy and margin of its pairs, grad_norm, pairs (their number).
"""

from __future__ import annotations

from manyseeds.command import parse

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from manyseeds.cli import Positive, PositiveInt, Preset, Range, UsageError
from manyseeds.evaluate import share
from manyseeds.llm_track import models, tasks
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import encode, from_texts, grade, rates_of, total
from manyseeds.portable import logsigmoid
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.language_seeds import SeedsRun, main

MAX_GRAD_NORM = 1.0
HELD_OUT_PROMPTS = 256
HELD_OUT_SHARE = 10  # one prompt of a file in so many is held out
SAMPLING_BATCH = 512  # held-out completions in parallel
TRANSCRIPTS = 3
SEED = 2203_02155  # of the held-out pairs, for every seed the same


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """Reward model."""

    RATES: ClassVar = {"learning_rate": (1e-5, 1e-4)}

    preferences: str = ""
    """JSONL file of preferences ('': the model's own samples). Each row has prompt, chosen and
    rejected, or prompt and ranked. Own samples are ranked by rules."""
    prompts: PositiveInt = 32
    """K, prompts per step."""
    group_size: Annotated[int, Range(2)] = 8
    """G, completions sampled for each prompt (not for --preferences)."""
    learning_rate: Positive = 1e-3
    """Learning rate of AdamW."""
    temperature: Positive = 1.0
    """Sampling temperature."""

    def check(self) -> None:
        super().check()
        if self.lora_rank > 0:
            raise UsageError(f"--lora-rank {self.lora_rank}: a reward model is trained whole")
        if self.preferences:
            split(self.preferences, self.learned_from())

    def learned_from(self) -> dict[tasks.Preference, Sequence[str]]:
        return tasks.learned_preferences(self.preferences)


# Our own search on addition with an earlier tiny model, 51,200 samples, seed 0: held-out accuracy
# 0.687 with 1e-3, 0.650 with 3e-3. Right and wrong sums look alike: the model must do the sum to
# tell them apart.
PRESETS = {
    "addition": Preset({}, source="our own search: the better of 2 learning rates, 1 seed"),
    "mixed": Preset({}, source="addition's"),
    "countdown": Preset({}, source="addition's"),
    "rambling": Preset({}, source="addition's"),
    "checking": Preset({}, source="addition's"),
}


# ---- The loss ------------------------------------------------------------------------------


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(r_chosen - r_rejected) of each pair, [S, B]; scores [S, B]."""
    return -logsigmoid(chosen - rejected)


def pair_weights(pairs: Sequence[tasks.Preference]) -> Tensor:
    """Weights [B] with which all pairs of a prompt weigh together as one, and all prompts as 1."""
    count = Counter(pair.prompt for pair in pairs)
    return torch.tensor([1 / count[pair.prompt] / len(count) for pair in pairs])


def ranked_right(margins: Tensor) -> Tensor:
    """1 where the chosen completion has the higher score, 1/2 for a tie, [S, B]."""
    return (margins > 0).float() + 0.5 * (margins == 0).float()


def pair_scores(
    reward_model: AnyModel,
    task: tasks.Task,
    pairs: Sequence[Sequence[tasks.Preference]],
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Scores of each seed's chosen and rejected completions, [S, B] each.

    Where a seed has fewer than B pairs, its last scores mean nothing.
    """
    prompts = [[pair.prompt for pair in own for _ in range(2)] for own in pairs]
    texts = [[text for pair in own for text in (pair.chosen, pair.rejected)] for own in pairs]
    both = from_texts(reward_model, task, prompts, texts, longest)
    chosen, rejected = reward_model.scores(both).unflatten(1, (-1, 2)).unbind(-1)
    return chosen, rejected


# ---- Where pairs come from -----------------------------------------------------------------


def draw_pairs(
    policy: AnyModel, task: tasks.Task, config: Config, run: SeedsRun, step: int
) -> list[list[tasks.Preference]]:
    """Each seed's pairs of a step, in every process all of them."""
    K, G, T = config.prompts, config.group_size, models.completion_tokens(config)
    mine = run.processes.share(K * G)
    problems = []
    for one in run.runs:
        drawn = tasks.next_problems(task, K, step * K, one, "pairs", one.rng("pairs", step))
        problems.append([p for p in drawn for _ in range(G)][mine])
    uniforms = run.uniforms(step, K * G, T, purpose="pair samples")[:, mine]
    rollout = policy.sample(encode(policy, task, problems), uniforms, config.temperature)
    graded = grade(policy, task, problems, rollout)
    return [
        tasks.pairs_of(run.processes.gather_lists(own), rng)
        for own, rng in zip(graded, run.rngs("minibatches", step), strict=True)
    ]


def held_out_pairs(policy: AnyModel, task: tasks.Task, config: Config) -> list[tasks.Preference]:
    """Pairs of held-out prompts, for every seed the same; UsageError where there are none."""
    G, T, rng = config.group_size, models.completion_tokens(config), np.random.default_rng(SEED)
    prompts = share(HELD_OUT_PROMPTS, config.eval_budget)
    problems = [p for p in task.test(prompts) for _ in range(G)]
    uniforms = torch.from_numpy(rng.random((1, len(problems), T), dtype=np.float32))
    policy, uniforms = policy.of([0]), uniforms.to(policy.device)
    size, graded = config.sampling_batch_size or SAMPLING_BATCH, list[tasks.Graded]()
    for i in range(0, len(problems), size):
        part, draws = [problems[i : i + size]], uniforms[:, i : i + size]
        rollout = policy.sample(encode(policy, task, part), draws, config.temperature)
        graded += grade(policy, task, part, rollout)[0]
    pairs = tasks.pairs_of(graded, rng)
    if not pairs:
        raise UsageError(
            f"--model {config.model}: of no held-out prompt it has both right and wrong "
            "completions; there is nothing to compare"
        )
    return pairs


def split(
    path: str, pairs: Iterable[tasks.Preference]
) -> tuple[list[list[tasks.Preference]], list[tasks.Preference]]:
    """The pairs of each prompt of a file to learn from, and all pairs of those held out."""
    prompts: dict[str, list[tasks.Preference]] = {}
    for pair in pairs:
        prompts.setdefault(pair.prompt, []).append(pair)
    if len(prompts) < 2:
        raise UsageError(f"--preferences {path}: needs at least two different prompts")
    groups = list(prompts.values())
    order = np.random.default_rng(SEED).permutation(len(groups))
    n = max(len(groups) // HELD_OUT_SHARE, 1)
    return [groups[i] for i in order[n:]], [pair for i in order[:n] for pair in groups[i]]


def next_pairs(
    groups: Sequence[list[tasks.Preference]], config: Config, run: LanguageRun, step: int
) -> list[tasks.Preference]:
    """The pairs of a step's K prompts: passes over all prompts, each in an order of its own."""
    places = range(step * config.prompts, (step + 1) * config.prompts)
    N = len(groups)
    passes = {place // N for place in places}
    orders = {k: run.rng("pairs", k).permutation(N) for k in passes}
    return [pair for place in places for pair in groups[orders[place // N][place % N]]]


# ---- The evaluation ------------------------------------------------------------------------


class PairEvaluator:
    """Measures a reward model on held-out pairs; `SeedsRun.evaluate_if_due` calls it."""

    headline = "accuracy"

    def __init__(
        self,
        reward_model: AnyModel,
        task: tasks.Task,
        config: Config,
        pairs: Sequence[tasks.Preference],
    ) -> None:
        self.reward_model, self.task, self.config, self.pairs = reward_model, task, config, pairs

    @torch.no_grad()
    def __call__(
        self, final: bool, seeds: Sequence[int] = (0,)
    ) -> list[tuple[dict[str, float], list[dict[str, Any]]]]:
        """The measures of some seeds by name, and the first pairs with their scores."""
        T, size = models.completion_tokens(self.config), max(self.config.micro_batch_size // 2, 1)
        reward_model, scores = self.reward_model.of(seeds), []
        for i in range(0, len(self.pairs), size):
            part = [self.pairs[i : i + size]] * len(seeds)
            scores.append(pair_scores(reward_model, self.task, part, T))
        chosen, rejected = (torch.cat(side, 1) for side in zip(*scores, strict=True))
        found = []
        for won, lost in zip(chosen, rejected, strict=True):
            measures = {
                "accuracy": float(ranked_right(won - lost).mean()),
                "margin": float((won - lost).mean()),
                "loss": float(bradley_terry_loss(won, lost).mean()),
            }
            shown = zip(self.pairs[:TRANSCRIPTS], won.tolist(), lost.tolist(), strict=False)
            transcripts = [
                {
                    "prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected,
                    "chosen_score": better, "rejected_score": worse,
                }
                for pair, better, worse in shown
            ]  # fmt: skip
            found.append((measures, transcripts))
        return found

    def save(self, folder: Path, seed: int = 0) -> None:
        """Write the reward model of a seed."""
        self.reward_model.save(seed, folder)


# ---- The training --------------------------------------------------------------------------


def update(
    reward_model: AnyModel,
    optimizer: Any,
    task: tasks.Task,
    pairs: Sequence[Sequence[tasks.Preference]],
    lr: Tensor,
    config: Config,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """One gradient step on each seed's pairs, of which each process takes its share; returns
    metrics, [S] each. A seed without pairs is left out."""
    T = models.completion_tokens(config)
    size = max(config.micro_batch_size // 2, 1)  # of pairs: each is two samples
    mine = slice(run.processes.rank, None, run.processes.size)
    weights = pad_sequence([pair_weights(own)[mine] for own in pairs], batch_first=True)
    shares = [own[mine] for own in pairs]
    sums = torch.zeros(3, len(pairs), device=run.device)
    for i in range(0, weights.shape[1], size):
        chosen, rejected = pair_scores(reward_model, task, [own[i : i + size] for own in shares], T)
        losses, margins = bradley_terry_loss(chosen, rejected), (chosen - rejected).detach()
        part = weights[:, i : i + size].to(run.device)
        (part * losses).sum().backward()
        terms = losses.detach(), ranked_right(margins), margins
        sums += torch.stack([total(part * x) for x in terms])
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    metrics = dict(zip(("loss", "accuracy", "margin"), run.processes.sum(sums), strict=True))
    return {**metrics, "grad_norm": grad_norm}


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their reward models."""
    if not config.preferences:
        run.processes.share(config.prompts)  # a group stays in one process
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    reward_model = load_scalars(config.model, config, policy, run, "--model")
    if config.preferences:
        known = models.fitting(config, policy.config, policy.tokenizer, config.learned_from())
        groups, held_out = split(config.preferences, known)
    else:
        held_out = held_out_pairs(policy, task, config)
    optimizer = reward_model.optimizer()
    evaluator = PairEvaluator(reward_model, task, config, held_out)

    step, _ = run.restore(reward_model, optimizer)
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        learning = run.unfinished
        lr = rates_of(run, config)
        if config.preferences:
            pairs = [
                next_pairs(groups, config, one, step) if s in learning else []
                for s, one in enumerate(run.runs)
            ]
        else:
            pairs = draw_pairs(policy, task, config, run, step)
        counts = torch.tensor([len(own) for own in pairs])
        drawn = 2 * counts if config.preferences else config.prompts * config.group_size
        metrics = {"pairs": counts}
        if any(pairs):
            metrics |= update(reward_model, optimizer, task, pairs, lr, config, run)

        step += 1
        for there, found in ((True, metrics), (False, {"pairs": counts})):  # of no pair no loss
            if seeds := [s for s in learning if bool(pairs[s]) is there]:
                run.log(drawn, found, seeds)
        run.save_if_due(step, reward_model, optimizer)
        run.evaluate_if_due(evaluator)
    return reward_model


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
