"""Evaluation of a language model on held-out prompts, shared by all methods of the LLM track.

All seeds, methods and points of a curve use the same prompts and the same random numbers, so two
evaluations differ only in the model.

    pass@1      share of samples with the right answer, mean over prompts
    pass@k      chance that at least one of k samples is right, unbiased from n >= k samples:
                1 - C(n - c, k) / C(n, k) where c are right (Chen et al. 2021, arXiv 2107.03374)
    cons@k      share of prompts for which the most frequent of k answers is right (the first one
                given among equally frequent ones); from n > k samples the mean over disjoint
                groups of k
    greedy      share of prompts that the likeliest completion answers right
    reward      mean over samples of what `--reward` gives, with its weights; only with that flag

Points of a curve use `--eval-prompts` prompts with `--eval-samples` samples each. The evaluations
before and after the training take 16 samples each of 256 prompts of a generated task. Of a data set
they take as many prompts as cost 3% of the training's samples each, and at least `--eval-prompts`:
with the defaults all evaluations together sample a fifth of what the training does. Several
processes share the prompts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyseeds.evaluate import share
from manyseeds.llm_track import models, sampling
from manyseeds.llm_track.rewards import rewarded
from manyseeds.llm_track.rollout import Rollout, decode, total
from manyseeds.llm_track.tasks import JsonlTask, Problem, Task
from manyseeds.runs.language import LanguageConfig

FINAL_PROMPTS, FINAL_SAMPLES = 256, 16  # of a generated task
FINAL_SHARE = 0.03  # of a training's samples: of a data set
CURVE_K = 4  # pass@4 and cons@4 are measured at every point of a curve that has as many samples
BATCH = 512  # completions in parallel, unless --sampling-batch-size says otherwise
TEMPERATURE = 1.0
TRANSCRIPTS = 3
SEED = 2501_12948  # of the random numbers, the same for all seeds, methods and points


def pass_at_k(right: np.ndarray, k: int) -> float:
    """Unbiased pass@k of graded samples [prompts, n], n >= k, averaged over prompts."""
    n = right.shape[1]
    counts = right.sum(1).astype(int)
    return float(np.mean([1 - math.comb(n - c, k) / math.comb(n, k) for c in counts]))


def cons_at_k(votes: Sequence[Sequence[str | None]], right: np.ndarray) -> float:
    """Share of prompts whose most frequent answer is right; votes and right are [prompts, k].

    Completions without an answer do not vote; a prompt without any vote is not solved.
    """
    solved = 0
    for answers, graded in zip(votes, right, strict=True):
        counts = Counter(answer for answer in answers if answer is not None)
        if counts:
            winner = counts.most_common(1)[0][0]
            solved += bool(graded[list(answers).index(winner)])
    return solved / len(votes)


def cons_of_groups(votes: Sequence[Sequence[str | None]], right: np.ndarray, k: int) -> float:
    """The mean of cons@k over the disjoint groups of k of n >= k samples; [prompts, n] both."""
    starts = range(0, right.shape[1] - k + 1, k)
    groups = [cons_at_k([v[i : i + k] for v in votes], right[:, i : i + k]) for i in starts]
    return float(np.mean(groups))


def curve_size(config: LanguageConfig) -> tuple[int, int]:
    """Prompts, and samples of each, in evaluations during the training."""
    return config.eval_prompts, config.eval_samples


def final_size(task: Task, config: LanguageConfig) -> tuple[int, int]:
    """Prompts, and samples of each, in the evaluations before and after the training."""
    if not isinstance(task, JsonlTask):
        return FINAL_PROMPTS, FINAL_SAMPLES
    affordable = int(FINAL_SHARE * config.total_samples) // (FINAL_SAMPLES + 1)  # and the likeliest
    return min(len(task.tested), max(affordable, config.eval_prompts)), FINAL_SAMPLES


@dataclass
class Completed:
    """The completions of one seed."""

    texts: list[str] = field(default_factory=list)
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # tokens of each
    ended: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    entropy: float = 0.0  # nats, summed over tokens
    kl: float = 0.0  # likewise

    def add(self, other: Completed) -> None:
        """Append other completions."""
        self.texts += other.texts
        self.lengths = np.concatenate([self.lengths, other.lengths])
        self.ended = np.concatenate([self.ended, other.ended])
        self.entropy += other.entropy
        self.kl += other.kl


class TaskEvaluator:
    """Measures a policy (of policies.py); `SeedsRun.evaluate_if_due` calls it."""

    headline = "pass@1"

    def __init__(self, policy: Any, task: Task, config: LanguageConfig, reference: Any) -> None:
        """reference: the frozen model that the KL is measured to."""
        if getattr(config, "reward", ()) and not getattr(config, "rules", True):
            self.headline = "reward"
        self.policy, self.task, self.config, self.reference = policy, task, config, reference

    def __call__(
        self, final: bool, seeds: Sequence[int] = (0,)
    ) -> list[tuple[dict[str, float], list[dict[str, Any]]]]:
        """The measures of some seeds by name, and their first transcripts."""
        prompts, n = final_size(self.task, self.config) if final else curve_size(self.config)
        problems = self.task.test(share(prompts, self.config.eval_budget))
        repeated = [problem for problem in problems for _ in range(n)]
        policy, reference = self.policy.of(seeds), self.reference.of(seeds)
        drawn = self._complete(policy, reference, repeated)
        likeliest = self._complete(policy, None, problems)
        return [
            self._measures(problems, repeated, own, greedy, final)
            for own, greedy in zip(drawn, likeliest, strict=True)
        ]

    def save(self, folder: Path, seed: int = 0) -> None:
        """Write the policy of a seed."""
        self.policy.save(seed, folder)

    def _measures(
        self,
        problems: Sequence[Problem],
        repeated: Sequence[Problem],
        drawn: Completed,
        greedy: Completed,
        final: bool,
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Of one seed, from n completions of each problem and the likeliest one."""
        texts, n = drawn.texts, len(repeated) // len(problems)
        right = self._grade(repeated, texts).reshape(-1, n)
        lengths = drawn.lengths.reshape(-1, n)
        votes = [[self.task.vote(texts[i * n + j]) for j in range(n)] for i in range(len(problems))]
        tokens = int(lengths.sum())
        solved = right.mean(1)
        sizes = {n} if final or n < CURVE_K else sorted({CURVE_K, n})
        measures = {
            "pass@1": float(right.mean()),
            **{f"pass@{k}": pass_at_k(right, k) for k in sizes},
            **{f"cons@{k}": cons_of_groups(votes, right, k) for k in sizes},
            "greedy": float(self._grade(problems, greedy.texts).mean()),
            "format": float(np.mean([self.task.format(text) for text in texts])),
            "length": float(lengths.mean()),
            "length_right": float(lengths[right == 1].mean()) if right.any() else math.nan,
            "length_wrong": float(lengths[right == 0].mean()) if not right.all() else math.nan,
            "entropy": drawn.entropy / tokens,
            "truncated": 1 - float(np.mean(drawn.ended)),
            "all_solved": float((solved == 1).mean()),
            "all_failed": float((solved == 0).mean()),
            **self.task.measures(repeated, texts),
            "kl": drawn.kl / tokens,
        }
        if getattr(self.config, "reward", ()):
            graded = [self.task.grade(p, x) for p, x in zip(repeated, texts, strict=True)]
            own = [x.reward for x in rewarded(graded, self.config)]
            measures["reward"] = float(np.mean(own))
        transcripts = [
            {"prompt": p.prompt, "completion": texts[i * n], "right": bool(right[i, 0])}
            for i, p in enumerate(problems[:TRANSCRIPTS])
        ]
        return measures, transcripts

    def _complete(
        self, policy: Any, reference: Any, problems: Sequence[Problem]
    ) -> list[Completed]:
        """Of each seed; without a reference the likeliest completions."""
        S, texts = len(policy), [p.prompt for p in problems]
        prompts = sampling.encode_prompts(policy.tokenizer, self.task, texts)
        T = models.completion_tokens(self.config)
        rng = np.random.default_rng(SEED)
        completed = [Completed() for _ in range(S)]
        size = self.config.sampling_batch_size or BATCH
        for i in range(0, len(problems), size):
            part = prompts[i : i + size]
            uniforms = torch.from_numpy(rng.random((len(part), T), dtype=np.float32))
            mine = policy.processes.some(len(part))
            own = [Completed() for _ in range(S)]
            if part[mine]:
                drawn = policy.sample(
                    [part[mine]] * S,
                    uniforms[mine].to(policy.device).expand(S, -1, -1).contiguous(),
                    TEMPERATURE,
                    greedy=reference is None,
                )
                own = self._completed(drawn, reference)
            for s, whole in enumerate(completed):
                for found in policy.processes.gather_lists([own[s]]):
                    whole.add(found)
        return completed

    def _completed(self, drawn: Rollout, reference: Any) -> list[Completed]:
        kl = torch.zeros(drawn.lengths.shape[0])
        if reference is not None:
            # log pi - log pi_ref of each token: unbiased for the KL of the completions.
            kl = total(drawn.logprobs - reference.logprobs(drawn, TEMPERATURE))
        columns = drawn.lengths.cpu().numpy(), drawn.ended.cpu().numpy()
        sums = total(drawn.entropy).tolist(), kl.tolist()
        texts = decode(self.policy.tokenizer, drawn)
        return [Completed(*own) for own in zip(texts, *columns, *sums, strict=True)]

    def _grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> np.ndarray:
        pairs = zip(problems, texts, strict=True)
        return np.array([self.task.checked_accuracy(problem, text) for problem, text in pairs])
