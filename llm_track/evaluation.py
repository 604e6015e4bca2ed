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

Points of a curve use `--eval-prompts` prompts with `--eval-samples` samples each. The evaluations
before and after the training take 16 samples each of 256 prompts of a generated task, and of all
held-out prompts of a data set.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyseeds.evaluate import share
from manyseeds.llm_track import models, sampling
from manyseeds.llm_track.tasks import JsonlTask, Problem, Task
from manyseeds.runs.language import LanguageConfig

FINAL_PROMPTS, FINAL_SAMPLES = 256, 16  # of a generated task; of a data set all prompts
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


def final_size(task: Task) -> tuple[int, int]:
    """Prompts, and samples of each, in the evaluations before and after the training."""
    prompts = len(task.tested) if isinstance(task, JsonlTask) else FINAL_PROMPTS
    return prompts, FINAL_SAMPLES


class TaskEvaluator:
    """Measures a policy; `LanguageRun.evaluate_if_due` calls it."""

    headline = "pass@1"

    def __init__(
        self, policy: Any, tokenizer: Any, task: Task, config: LanguageConfig, reference: Any = None
    ) -> None:
        self.policy, self.tokenizer, self.task, self.config = policy, tokenizer, task, config
        self.reference = reference  # models.Reference: the model that the KL is measured to

    def __call__(self, final: bool) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """The measures by name, and the first transcripts."""
        prompts, n = final_size(self.task) if final else curve_size(self.config)
        problems = self.task.test(share(prompts, self.config.eval_budget))
        repeated = [problem for problem in problems for _ in range(n)]
        texts, samples = self._complete(repeated, greedy=False)
        right = self._grade(repeated, texts).reshape(-1, n)
        lengths = np.concatenate([x.lengths.cpu().numpy() for x in samples]).reshape(-1, n)
        votes = [[self.task.vote(texts[i * n + j]) for j in range(n)] for i in range(len(problems))]
        tokens = sum(int(x.mask.sum()) for x in samples)
        solved = right.mean(1)
        sizes = {n} if final or n < CURVE_K else sorted({CURVE_K, n})
        measures = {
            "pass@1": float(right.mean()),
            **{f"pass@{k}": pass_at_k(right, k) for k in sizes},
            **{f"cons@{k}": cons_of_groups(votes, right, k) for k in sizes},
            "greedy": float(self._grade(problems, self._complete(problems, greedy=True)[0]).mean()),
            "format": float(np.mean([self.task.format(text) for text in texts])),
            "length": float(lengths.mean()),
            "length_right": float(lengths[right == 1].mean()) if right.any() else math.nan,
            "length_wrong": float(lengths[right == 0].mean()) if not right.all() else math.nan,
            "entropy": sum(float(x.entropy.sum()) for x in samples) / tokens,
            "truncated": 1 - float(np.mean(np.concatenate([x.ended.cpu() for x in samples]))),
            "all_solved": float((solved == 1).mean()),
            "all_failed": float((solved == 0).mean()),
            **self.task.measures(repeated, texts),
        }
        if self.reference is not None:
            measures["kl"] = sum(float(self._kl(x)) for x in samples) / tokens
        transcripts = [
            {"prompt": p.prompt, "completion": texts[i * n], "right": bool(right[i, 0])}
            for i, p in enumerate(problems[:TRANSCRIPTS])
        ]
        return measures, transcripts

    def save(self, folder: Path) -> None:
        """Write the policy."""
        models.save(self.policy, self.tokenizer, folder)

    def _complete(
        self, problems: Sequence[Problem], greedy: bool
    ) -> tuple[list[str], list[sampling.Samples]]:
        prompts = sampling.encode_prompts(self.tokenizer, self.task, [p.prompt for p in problems])
        T = models.completion_tokens(self.config)
        rng = np.random.default_rng(SEED)
        device = next(self.policy.parameters()).device
        texts: list[str] = []
        samples = []
        size = self.config.sampling_batch_size or BATCH
        for i in range(0, len(problems), size):
            part = prompts[i : i + size]
            uniforms = torch.from_numpy(rng.random((len(part), T), dtype=np.float32)).to(device)
            completed = sampling.sample(
                self.policy, self.tokenizer, part, uniforms, TEMPERATURE, greedy
            )
            texts += sampling.decode(self.tokenizer, completed)
            samples.append(completed)
        return texts, samples

    def _grade(self, problems: Sequence[Problem], texts: Sequence[str]) -> np.ndarray:
        pairs = zip(problems, texts, strict=True)
        return np.array([self.task.accuracy(problem, text) for problem, text in pairs])

    def _kl(self, samples: sampling.Samples) -> torch.Tensor:
        """Sum of log pi - log pi_ref over tokens: unbiased for the KL of the completions."""
        size = self.config.micro_batch_size
        reference = self.reference.logprobs(samples, TEMPERATURE, size)
        own = samples.logprobs
        if self.policy.computes_in_half:  # sampling rounds differently
            own = sampling.in_batches(
                lambda part: sampling.logprobs(self.policy, part, TEMPERATURE), samples, size
            )
        return ((own - reference) * samples.mask).sum()
