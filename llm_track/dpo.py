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
    or all wrong, gives none, and a seed without any pair stays the initial model. (The paper:
    preferences of people or of a larger model; samples of the SFT model, as here, are what its
    sec. 4 asks for.) `--preferences` reads other pairs.
 2. All pairs are made before the first step; nothing is sampled later. On the axis of samples, the
    completions that were generated are spread evenly over the steps: at the end of a curve as many
    samples were generated as by an RL method, but in its middle all of them already. With
    `--preferences` nothing is generated, and the axis counts the completions learned from, two for
    each pair in each pass; the number of passes then follows from `--total-samples`.
 3. log pi(y | x) is the sum over the tokens of the completion and the one that ends it, never a
    mean. It is the model's own, at temperature 1, whatever the pairs were sampled with.
 4. The reference is the initial model (the paper: the SFT model). What it says of the pairs is
    computed once, before the first step: at the beginning the policy says the same, and the loss is
    log 2.
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

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from manyseeds.cli import Added, Positive, PositiveInt, Preset, Range
from manyseeds.llm_track import models, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy
from manyseeds.llm_track.rollout import Rollout, encode, from_texts, grade, trimmed
from manyseeds.llm_track.tasks import Preference
from manyseeds.portable import logsigmoid
from manyseeds.record import plural, ranges
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.language_seeds import SeedsRun, main

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


def generated(config: Config) -> int:
    """How many completions pairs are made from: those of whole blocks of prompts."""
    block = PROMPTS * config.group_size
    return -(-config.total_samples // block) * block


def make_pairs(
    policy: AnyModel, task: tasks.Task, config: Config, run: SeedsRun
) -> list[list[Preference]]:
    """Pairs of each seed's own completions of training prompts; says which seeds have none."""
    G, T = config.group_size, models.completion_tokens(config)
    mine = run.processes.share(PROMPTS)
    pairs: list[list[Preference]] = [[] for _ in run.seeds]
    for block in range(generated(config) // (PROMPTS * G)):
        rngs, problems = run.rngs("prompts", block), []
        for one, rng in zip(run.runs, rngs, strict=True):
            drawn = tasks.next_problems(task, PROMPTS, block * PROMPTS, one, "prompts", rng)
            problems.append([p for p in drawn[mine] for _ in range(G)])
        uniforms = run.uniforms(block, PROMPTS, G, T)[:, mine].flatten(1, 2)
        rollout = policy.sample(encode(policy, task, problems), uniforms, config.temperature)
        graded = grade(policy, task, problems, rollout)
        for own, new, rng in zip(pairs, graded, rngs, strict=True):
            own += tasks.pairs_of(run.processes.gather_lists(new), rng)
    none = [seed for seed, own in zip(run.seeds, pairs, strict=True) if not own]
    if none and run.processes.main:
        print(
            f"note: {plural(len(none), 'seed')} ({ranges(none)}) without a prompt that has both "
            f"right and wrong completions among {generated(config):,}: what learns from no pair "
            "stays the initial model",
            file=sys.stderr,
        )
    return pairs


def rows_of_step(step: int, N: int, pairs: int, run: LanguageRun) -> list[int]:
    """Which pairs a step learns from: all of them in a random order, then all in another, ..."""
    places = range(step * N, (step + 1) * N)
    orders = {k: run.rng("minibatches", k).permutation(pairs) for k in {p // pairs for p in places}}
    return [int(orders[p // pairs][p % pairs]) for p in places]


@dataclass(frozen=True)
class Compared(Rollout):
    """Completions of pairs: rows 2 k and 2 k + 1 are the chosen and the rejected one of pair k."""

    reference: Tensor  # [S, B], log pi_ref of each completion


@torch.no_grad()
def compare(
    policy: AnyModel,
    reference: Any,
    task: tasks.Task,
    pairs: Sequence[Sequence[Preference]],
    config: Config,
    run: SeedsRun,
) -> Compared | None:
    """The completions of each seed's pairs; where a seed has fewer, its last rows are empty. None
    without any pair."""
    if not any(pairs):
        return None
    prompts = [[pair.prompt for pair in own for _ in range(2)] for own in pairs]
    texts = [[text for x in own for text in (x.chosen, x.rejected)] for own in pairs]
    both = from_texts(policy, task, prompts, texts, models.completion_tokens(config))
    logprobs = torch.zeros(both.lengths.shape, device=run.device)
    places, processes = torch.arange(logprobs.shape[1], device=run.device), run.processes
    for columns in places.split(config.micro_batch_size)[processes.rank :: processes.size]:
        part = trimmed(both[columns.expand(len(logprobs), -1)])
        logprobs[:, columns] = of_completions(reference.logprobs(part, 1.0))
    return Compared(**vars(both), reference=processes.sum(logprobs))


# ---- The loss ------------------------------------------------------------------------------


def of_completions(logprobs: Tensor) -> Tensor:
    """Log pi of each completion, [S, B], from that of its tokens, [S, B, T], one after another:
    padding changes no bit."""
    return logprobs.cumsum(-1)[..., -1]


def rewards(logprobs: Tensor, reference: Tensor, beta: float) -> Tensor:
    """The implicit reward of each completion, [S, B], from log pi and log pi_ref of it, [S, B]."""
    return beta * (logprobs - reference)


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(r_chosen - r_rejected) of each pair, [S, B]; rewards [S, B]."""
    return -logsigmoid(chosen - rejected)


# ---- The training --------------------------------------------------------------------------


def update(
    policy: AnyModel,
    optimizer: Any,
    batch: Compared | None,
    rows: Sequence[Sequence[int]],
    lr: Tensor,
    config: Config,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """One gradient step on this process's share of N of each seed's pairs; returns metrics, [S]
    each.

    rows: the numbers of each seed's pairs, as many as of the others or none.
    """
    learns = torch.tensor([bool(own) for own in rows], device=run.device)
    n = max(map(len, rows))
    size = max(config.micro_batch_size // 2, 1)  # of pairs: each is two samples
    numbers = torch.tensor([list(own) or [0] * n for own in rows], device=run.device)
    sums = torch.zeros(7, len(rows), device=run.device)
    for some in numbers.split(size, 1) if n else ():
        assert batch
        part = batch[torch.cat([2 * some, 2 * some + 1], 1)]
        part = trimmed(replace(part, lengths=part.lengths * learns.unsqueeze(1)))
        logprobs = of_completions(policy.logprobs(part, 1.0))
        chosen, rejected = rewards(logprobs, part.reference, config.beta).chunk(2, 1)
        losses = preference_loss(chosen, rejected).sum(1) * learns / config.batch_size
        losses.sum().backward()
        with torch.no_grad():
            terms = chosen > rejected, chosen - rejected, chosen, rejected, *logprobs.chunk(2, 1)
            shares = [x.sum(1) * learns / config.batch_size for x in terms]
            sums += torch.stack([losses, *shares])
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    names = ["loss", "accuracy", "margin", "reward_chosen", "reward_rejected"]
    names += ["logprob_chosen", "logprob_rejected"]
    metrics = dict(zip(names, run.processes.sum(sums), strict=True))
    return {**metrics, "grad_norm": grad_norm}


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    if not config.preferences:
        run.processes.share(PROMPTS)
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    given = models.fitting(config, policy.config, policy.tokenizer, config.learned_from())
    reference, optimizer = policy.frozen(), policy.optimizer()
    evaluator = TaskEvaluator(policy, task, config, reference)
    N, S = config.batch_size, len(policy)

    step, state = run.restore(policy, optimizer)
    run.evaluate_if_due(evaluator)
    if given:
        pairs, made = [given] * S, {}
        steps = [-(-config.total_samples // (2 * N))] * S
        axis = 2 * N * steps[0]
    else:
        pairs = [[Preference(*pair) for pair in own] for own in state.get("pairs", [])]
        pairs = pairs or make_pairs(policy, task, config, run)
        made, axis = {"pairs": pairs}, generated(config)
        # A seed without a pair stays what it was: its one step is on nothing.
        steps = [max(1, -(-config.epochs * len(own) // N)) for own in pairs]
        run.save_if_due(step, policy, optimizer, **made)
    each = list(zip(pairs, steps, run.runs, strict=True))
    # Of many given pairs a short training does not reach all.
    reached = [rows_of_step(0, min(n * N, len(own)), len(own), one) for own, n, one in each]
    learned = [[own[i] for i in rows] for own, rows in zip(pairs, reached, strict=True)]
    batch = compare(policy, reference, task, learned, config, run)
    places = [{row: k for k, row in enumerate(rows)} for rows in reached]
    while step < max(steps):
        done = [min(step, n - 1) / n for n in steps]
        rates = [models.learning_rate(config.learning_rate, x, config) for x in done]
        lr = torch.tensor(rates, dtype=torch.float64)
        rows = []
        for (own, n, one), place in zip(each, places, strict=True):
            drawn = rows_of_step(step, N, len(own), one) if own and step < n else []
            rows.append([place[i] for i in drawn[run.processes.rank :: run.processes.size]])
        metrics = update(policy, optimizer, batch, rows, lr, config, run)

        step += 1
        metrics["pairs"] = torch.tensor([len(own) for own in pairs])
        after = torch.tensor([axis * min(step, n) // n for n in steps])
        learning = [s for s, n in enumerate(steps) if step <= n]
        run.log(after - torch.tensor([one.samples for one in run.runs]), metrics, learning)
        run.save_if_due(step, policy, optimizer, **made)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
