"""Direct preference optimization of a language model (Rafailov et al. 2023, arXiv 2305.18290).

    python llm_track/dpo.py --task addition

RLHF without a reward model and without RL. The policy that maximises a reward r under a KL penalty
to pi_ref is proportional to pi_ref(y | x) exp(r(x, y) / beta) (eq. 4), so every policy is optimal
for the implicit reward r(x, y) = beta log(pi(y | x) / pi_ref(y | x)) (eq. 5, up to a term of x
alone). Inserted into the Bradley-Terry model of preferring y_w to y_l, it gives the loss:

    L(theta) = - E[ log sigmoid(beta log(pi_theta(y_w | x) / pi_ref(y_w | x))
                              - beta log(pi_theta(y_l | x) / pi_ref(y_l | x))) ]       (eq. 7)

Siblings: llm_track/reward_model.py learns a reward model from the same pairs with the same loss;
llm_track/rlhf_ppo.py then maximises it.

Shapes: N pairs in a step; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The pairs are the initial model's own samples: of G completions of a training prompt a right one
    and a wrong one by the task's rule, chosen at random; a prompt whose completions are all right,
    or all wrong, gives none. (The paper: preferences of people or of a larger model; samples of the
    SFT model, as here, are what its sec. 4 asks for.) `--preferences` reads other pairs.
 2. All pairs are made before the first step; nothing is sampled later. On the axis of samples, the
    completions that were generated are spread evenly over the steps: at the end of a curve as many
    samples were generated as by an RL method, but in its middle all of them already. With
    `--preferences` nothing is generated, and the axis counts the completions learned from, two for
    each pair in each pass; the number of passes then follows from `--total-samples`.
 3. log pi(y | x) is the sum over the tokens of the completion and the one that ends it, never a
    mean. It is the model's own, at temperature 1, whatever the pairs were sampled with.
 4. The reference is the initial model (the paper: the SFT model), computed next to the policy in
    each step: at the beginning both are the same to the bit, and the loss is log 2.
 5. The loss is a mean over the pairs of an optimizer step, whatever micro-batches and processes it
    is divided into.
 6. Every pass goes through all pairs in a new order; a step may end one pass and begin the next.
 7. AdamW without weight decay, a learning rate annealed linearly to 0 (as TRL; `--lr-schedule`),
    the gradient clipped to a norm of 1 (the paper: RMSprop, 1e-6 after a warm-up of 150 steps,
    batches of 64). No step is taken on a gradient of NaN or infinity.
 8. The loss only widens a margin: the log-probability of the chosen completions may fall with that
    of the rejected ones (Pal et al. 2024, arXiv 2402.13228). It is therefore logged.
 9. Beta is 0.1, as in the paper, but 1 in the presets. There a right and a wrong completion differ
    by a few tokens, and at 0.1 the margin grows by making both of them unlikely: detail 8.

Logged per step: loss, accuracy (share of pairs with the larger implicit reward on the chosen one),
margin (difference of the two rewards), reward_chosen, reward_rejected, logprob_chosen,
logprob_rejected (nats per completion), grad_norm, pairs (how many there are to learn from).
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from manyseeds.cli import Added, Positive, PositiveInt, Preset, Range, UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.tasks import Preference
from manyseeds.runs.language import LanguageRun, main

MAX_GRAD_NORM = 1.0
PROMPTS = 64  # completed in parallel when pairs are made


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """DPO."""

    group_size: Annotated[int, Range(2)] = 4
    """G, completions sampled for each prompt. They give at most one pair."""
    preferences: str = ""
    """JSONL file of preferences ('': the model's own samples). Each row has prompt, chosen and
    rejected, or prompt and ranked."""
    batch_size: PositiveInt = 32
    """N, pairs per gradient step."""
    epochs: PositiveInt = 3
    """Passes over all pairs."""
    learning_rate: Positive = 3e-4
    """Initial learning rate of AdamW."""
    lr_schedule: Annotated[Literal["constant", "linear", "cosine"], Added("linear")] = "linear"
    """Learning rate schedule. linear and cosine anneal it to 0 after the warm-up."""
    temperature: Positive = 1.0
    """Sampling temperature of the pairs."""
    beta: Positive = 0.1
    """Weight of the implicit KL penalty to the reference."""

    def check(self) -> None:
        super().check()
        self.learned_from()

    def learned_from(self) -> dict[Preference, Sequence[str]]:
        return tasks.learned_preferences(self.preferences)


PRESETS = {
    task: Preset({"beta": 1.0}, source="our own search on addition, one seed: at 0.1 pass@1 falls")
    for task in tasks.GENERATED
}


# ---- The pairs -----------------------------------------------------------------------------


def make_pairs(
    policy: Any, tokenizer: Any, task: tasks.Task, config: Config, run: LanguageRun
) -> tuple[list[Preference], int]:
    """Pairs of the policy's own completions of training prompts, and how many it generated."""
    G, T = config.group_size, models.completion_tokens(config)
    mine = run.processes.share(PROMPTS)
    pairs: list[Preference] = []
    blocks = -(-config.total_samples // (PROMPTS * G))
    for block in range(blocks):
        rng = run.rng("prompts", block)
        drawn = tasks.next_problems(task, PROMPTS, block * PROMPTS, run, "prompts", rng)
        problems = [p for p in drawn[mine] for _ in range(G)]
        uniforms = run.uniforms(block, PROMPTS, G, T)[mine].flatten(0, 1)
        prompts = sampling.encode_prompts(tokenizer, task, [p.prompt for p in problems])
        samples = sampling.sample(
            policy, tokenizer, prompts, uniforms, config.temperature,
            size=config.sampling_batch_size,
        )  # fmt: skip
        texts = sampling.decode(tokenizer, samples)
        graded = [task.grade(p, text) for p, text in zip(problems, texts, strict=True)]
        pairs += tasks.pairs_of(run.processes.gather_lists(graded), rng)
    return pairs, blocks * PROMPTS * G


def rows_of_step(step: int, N: int, pairs: int, run: LanguageRun) -> list[int]:
    """Which pairs a step learns from: all of them in a random order, then all in another, ..."""
    places = range(step * N, (step + 1) * N)
    orders = {k: run.rng("minibatches", k).permutation(pairs) for k in {p // pairs for p in places}}
    return [int(orders[p // pairs][p % pairs]) for p in places]


# ---- The loss ------------------------------------------------------------------------------


def rewards(logprobs: Tensor, reference: Tensor, beta: float) -> Tensor:
    """The implicit reward of each completion, [B], from log pi and log pi_ref of it, [B]."""
    return beta * (logprobs - reference)


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(r_chosen - r_rejected) of each pair, [B]; rewards [B]."""
    return -torch.nn.functional.logsigmoid(chosen - rejected)


# ---- The training --------------------------------------------------------------------------


def update(
    policy: Any,
    reference: models.Reference,
    tokenizer: Any,
    task: tasks.Task,
    optimizer: torch.optim.Optimizer,
    pairs: Sequence[Preference],
    config: Config,
    run: LanguageRun,
) -> dict[str, Tensor]:
    """One gradient step on this process's share of N pairs; returns metrics."""
    processes, parameters = run.processes, models.trainable(policy)
    T = models.completion_tokens(config)
    size = max(config.micro_batch_size // 2, 1)  # of pairs: each is two samples
    sums = torch.zeros(7, device=run.device)
    for i in range(0, len(pairs), size):
        part = pairs[i : i + size]
        prompts = [pair.prompt for pair in part]
        texts = [pair.chosen for pair in part] + [pair.rejected for pair in part]
        both = sampling.from_texts(tokenizer, task, prompts * 2, texts, T, run.device)
        logprobs = sampling.logprobs(policy, both).sum(1)
        ref = reference.logprobs(both, 1.0, len(both)).sum(1)
        chosen, rejected = rewards(logprobs, ref, config.beta).chunk(2)
        loss = preference_loss(chosen, rejected).sum() / config.batch_size
        loss.backward()
        with torch.no_grad():
            terms = chosen > rejected, chosen - rejected, chosen, rejected, *logprobs.chunk(2)
            sums += torch.stack([loss, *(x.sum() / config.batch_size for x in terms)])
    processes.sum_gradients(parameters)
    grad_norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
    if 0 < grad_norm < math.inf:
        optimizer.step()
    optimizer.zero_grad()
    names = ["loss", "accuracy", "margin", "reward_chosen", "reward_rejected"]
    names += ["logprob_chosen", "logprob_rejected"]
    metrics = dict(zip(names, processes.sum(sums), strict=True))
    return {**metrics, "grad_norm": grad_norm}


def train(config: Config, run: LanguageRun) -> Any:
    """Train one seed; returns the policy."""
    processes = run.processes
    if not config.preferences:
        processes.share(PROMPTS)
    policy, tokenizer = models.load_model(config, run.device, processes)
    task = models.task_of(config, policy, tokenizer)
    from_file = models.fitting(config, policy.config, tokenizer, config.learned_from())
    reference = models.Reference(policy)
    parameters = models.trainable(policy)
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=0.0, fused=True)
    evaluator = TaskEvaluator(policy, tokenizer, task, config, reference)
    N = config.batch_size

    step, state = run.restore(parameters, optimizer)
    run.evaluate_if_due(run.samples, evaluator)
    pairs = from_file or [Preference(*pair) for pair in state.get("pairs", [])]
    axis = state.get("axis", config.total_samples)
    if not pairs:
        pairs, axis = make_pairs(policy, tokenizer, task, config, run)
        if not pairs:
            raise UsageError(
                f"--model {config.model}: of no prompt it has both right and wrong completions "
                f"among {axis:,}; there is nothing to compare"
            )
        run.save_if_due(0, parameters, optimizer, pairs=pairs, axis=axis)
    steps = -(-axis // (2 * N)) if from_file else -(-config.epochs * len(pairs) // N)
    while step < steps:
        rows = rows_of_step(step, N, len(pairs), run)[processes.rank :: processes.size]
        models.set_learning_rate(optimizer, config.learning_rate, step / steps, config)
        batch = [pairs[i] for i in rows]
        metrics = update(policy, reference, tokenizer, task, optimizer, batch, config, run)

        step += 1
        metrics["pairs"] = torch.tensor(len(pairs))
        run.log(2 * N * step if from_file else axis * step // steps, metrics)
        run.save_if_due(step, parameters, optimizer, pairs=[] if from_file else pairs, axis=axis)
        run.evaluate_if_due(run.samples, evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
