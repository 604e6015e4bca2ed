"""The chapters of the report and of the site, and what each says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from manyseeds.benchmarks.chapters import (
    ablations,
    aggregate,
    claims,
    environments,
    estimators,
    evidence,
    failures,
    gradient_variance,
    interchange,
    language_claims,
    language_models,
    missing,
    policy_gradients,
    rainbow,
    real_models,
    sensitivity,
    speed,
    tabular,
)
from manyseeds.benchmarks.chapters.blocks import Block, Page
from manyseeds.benchmarks.chapters.differences import opened
from manyseeds.benchmarks.experiments.suite import SUITES
from manyseeds.benchmarks.store.stored import StoredRun
from manyseeds.benchmarks.store.whole import Store


@dataclass(frozen=True)
class Chapter:
    """A page beside README.md.

    file, title, about: what README.md says of it. write: its content without the rule of verdicts;
    nothing: there is no such page. needs, files: a report of a person's own runs has the page where
    these runs ask for it, or where there is one of the files of measurements.
    """

    file: str
    title: str
    about: str
    write: Callable[[Store], Iterable[Block]]
    needs: Callable[[Sequence[StoredRun]], bool] = lambda own: False
    files: tuple[str, ...] = ()

    def page(self, store: Store) -> Page:
        return Page(self.file, self.title, self.blocks(store), self.about)

    def blocks(self, store: Store) -> list[Block]:
        """What is on the page; nothing without content."""
        return opened([*self.write(store)])

    def is_of(self, own: Sequence[StoredRun], results: Path) -> bool:
        """Whether a report of somebody's own runs in a folder has the page."""
        return self.needs(own) or any((results / name).exists() for name in self.files)


def of_kind(kind: str, env: str = "") -> Callable[[Sequence[StoredRun]], bool]:
    """Whether there is a run of a kind, on an environment."""
    return lambda own: any(run.kind == kind and env in ("", run.env) for run in own)


def of_suite(suite: str) -> Callable[[Sequence[StoredRun]], bool]:
    """Whether there is a run of a suite, but for those with the settings of a plain command."""

    @cache
    def runs() -> set[Path]:
        return {cell.run for cell in SUITES[suite] if cell.settings}

    return lambda own: any(Path(*run.path.parts[-3:]) in runs() for run in own)


def several_environments(own: Sequence[StoredRun]) -> bool:
    return len({run.env for run in own if run.kind == "control"}) > 1


CHAPTERS: tuple[Chapter, ...] = (
    Chapter(
        "verdicts.md",
        "Verdicts",
        "all, their error rates, revised ones, how to read the numbers",
        lambda store: evidence.page(store.found, store.loaded, store.results),
        # Other pages link to its rule, but for those of exact values.
        needs=lambda own: any(run.kind not in ("planning", "prediction") for run in own),
    ),
    Chapter(
        "aggregate.md",
        "Across environments",
        "IQM, performance profiles and probability of improvement on shared environments",
        lambda store: aggregate.page(store.found),
        needs=several_environments,
    ),
    Chapter(
        "speed.md",
        "Speed",
        "timesteps per second against SB3, rejax and RLtools",
        lambda store: speed.page(store.results),
        files=("throughput.json", "throughput-cuda.json", "rows_speed.json"),
    ),
    Chapter(
        "planning.md",
        "Planning",
        "policy iteration and value iteration on known models",
        lambda store: tabular.planning(store.of_kind("planning")),
        needs=of_kind("planning"),
    ),
    Chapter(
        "prediction.md",
        "Prediction",
        "Monte Carlo and TD estimates against the exact values",
        lambda store: tabular.prediction(store.of_kind("prediction")),
        needs=of_kind("prediction"),
    ),
    Chapter(
        "cliff.md",
        "Along the cliff",
        "Q-learning against SARSA, online and greedy",
        lambda store: tabular.cliff(store.of_kind("control")),
        needs=of_kind("control", "CliffWalking-v1"),
    ),
    Chapter(
        "policy-gradients.md",
        "Policy gradients",
        "weights of REINFORCE, advantages of A2C and GRPO, the cost of a critic",
        lambda store: policy_gradients.page(store.loaded, store.results),
        needs=of_suite("policy-gradient"),
        files=("critic_cost.json", "gradient_variance.json"),
    ),
    Chapter(
        "ablations.md",
        "Ablations",
        "clipping, GAE's lambda, normalised advantages, epochs, weights",
        lambda store: ablations.page(store.loaded),
        needs=of_suite("ablations"),
    ),
    Chapter(
        "claims.md",
        "What papers on control claim",
        "critic-free control, tuning, seeds",
        lambda store: claims.page(store.loaded, store.results),
        needs=of_suite("claims"),
        files=("replicas.json", "learning_rates.json"),
    ),
    Chapter(
        "failures.md",
        "Why trainings fail",
        "GRPO on MountainCar, REINFORCE on Pendulum, some of DQN's seeds on CartPole",
        lambda store: failures.page(store.loaded, store.results),
        needs=of_suite("failures"),
        files=("goal_first.json",),
    ),
    Chapter(
        "rainbow.md",
        "Rainbow's parts",
        "none, each alone, all, and all but one: which part carries it",
        lambda store: rainbow.page(store.loaded),
        needs=of_suite("rainbow"),
    ),
    Chapter(
        "gradient-variance.md",
        "Variance of the policy gradient",
        "every weight of REINFORCE, PPO and GRPO on the same frozen policies",
        lambda store: gradient_variance.page(store.results),
        files=("gradient_variance.json",),
    ),
    Chapter(
        "interchange.md",
        "Interchangeability",
        "PPO and DQN of four libraries with the same hyperparameters",
        lambda store: interchange.page(store.loaded, store.results),
        needs=of_suite("interchange"),
        files=("library_details_ppo.json", "library_details_dqn.json"),
    ),
    Chapter(
        "language-models.md",
        "Language models",
        "SFT to DAPO on small tasks, and against TRL",
        lambda store: language_models.page(store.methods, store.results),
        needs=of_kind("language"),
    ),
    Chapter(
        "real-models.md",
        "Models beyond the tiny one",
        "a model trained elsewhere: scores, transcripts, cost, limits",
        lambda store: real_models.page(store.methods),
        needs=of_kind("language"),
    ),
    Chapter(
        "language-claims.md",
        "What the language papers claim",
        "R1-Zero, many samples, group sizes, learned and random rewards, R1's stages, clips, "
        "entropy, length, self-correction",
        lambda store: language_claims.page(store.methods, store.results),
        needs=of_kind("language"),
    ),
    Chapter(
        "estimators.md",
        "Estimators, exactly",
        "bias and variance of language methods' gradients and KL terms",
        lambda store: estimators.page(store.results),
        files=("llm_oracle.json",),
    ),
    Chapter(
        "sensitivity.md",
        "Hyperparameters: searches and sensitivity",
        "what tuning gains, and which matter",
        lambda store: sensitivity.page(store.results),
        files=("studies",),
    ),
    Chapter(
        "environments.md",
        "Native environments against Gymnasium's",
        "the same policies in both",
        lambda store: environments.page(store.results),
        files=("tables/check.json",),
    ),
    Chapter(
        "missing.md",
        "Missing",
        "untrained seeds, and their cost",
        missing.page,
    ),
)
