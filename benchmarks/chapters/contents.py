"""The chapters of the report and of the site, and what each says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from manyseeds.benchmarks.chapters import (
    ablations,
    aggregate,
    environments,
    estimators,
    evidence,
    gradient_variance,
    interchange,
    language_claims,
    language_models,
    policy_gradients,
    sensitivity,
    speed,
    tabular,
)
from manyseeds.benchmarks.chapters.blocks import Block, Items, Page, Text
from manyseeds.benchmarks.store.whole import Store


class Chapter(NamedTuple):
    """A page beside README.md."""

    file: str
    title: str
    about: str  # what README.md says of it
    write: Callable[[Store], Iterable[Block]]  # its content; nothing: there is no such page

    def page(self, store: Store) -> Page:
        return Page(self.file, self.title, list(self.write(store)), self.about)


def missing_page(store: Store) -> list[Block]:
    if not store.missing:
        return []
    return [Text("Unfinished seeds of the suites:"), Items(store.missing)]


CHAPTERS = (
    Chapter(
        "verdicts.md",
        "Verdicts",
        "all of them, their error rates, revised ones, and how to read the numbers",
        lambda store: evidence.page(store.found, store.loaded, store.results),
    ),
    Chapter(
        "aggregate.md",
        "Across environments",
        "IQM, performance profiles and probability of improvement on shared environments",
        lambda store: aggregate.page(store.found),
    ),
    Chapter(
        "speed.md",
        "Speed",
        "timesteps per second against SB3 and rejax",
        lambda store: speed.page(store.results),
    ),
    Chapter(
        "planning.md",
        "Planning",
        "policy iteration and value iteration on known models",
        lambda store: tabular.planning(store.of_kind("planning")),
    ),
    Chapter(
        "prediction.md",
        "Prediction",
        "Monte Carlo and TD estimates against the exact values",
        lambda store: tabular.prediction(store.of_kind("prediction")),
    ),
    Chapter(
        "cliff.md",
        "Along the cliff",
        "Q-learning against SARSA, online and greedy",
        lambda store: tabular.cliff(store.of_kind("control")),
    ),
    Chapter(
        "policy-gradients.md",
        "Policy gradients",
        "weights of REINFORCE, advantages of A2C and GRPO, the cost of a critic",
        lambda store: policy_gradients.page(store.loaded, store.results),
    ),
    Chapter(
        "ablations.md",
        "Ablations",
        "clipping, GAE's lambda, normalised advantages, epochs, weights: which claims hold",
        lambda store: ablations.page(store.loaded),
    ),
    Chapter(
        "gradient-variance.md",
        "Variance of the policy gradient",
        "the same frozen policies with every weight of REINFORCE, PPO and GRPO",
        lambda store: gradient_variance.page(store.results),
    ),
    Chapter(
        "interchange.md",
        "Interchangeability",
        "PPO and DQN of four libraries with the same hyperparameters",
        lambda store: interchange.page(store.loaded, store.results),
    ),
    Chapter(
        "language-models.md",
        "Language models",
        "SFT to DAPO on small tasks, and against TRL",
        lambda store: language_models.page(store.methods, store.results),
    ),
    Chapter(
        "language-claims.md",
        "What the language papers claim",
        "R1-Zero, over-optimised rewards, DeepSeek-R1's stages, clip-higher, length, "
        "self-correction",
        lambda store: language_claims.page(store.methods, store.results),
    ),
    Chapter(
        "estimators.md",
        "Estimators, exactly",
        "bias and variance of the language methods' gradients and KL terms, without sampling",
        lambda store: estimators.page(store.results),
    ),
    Chapter(
        "sensitivity.md",
        "Hyperparameters: searches and sensitivity",
        "what tuning gains, and which hyperparameters matter",
        lambda store: sensitivity.page(store.results),
    ),
    Chapter(
        "environments.md",
        "Native environments against Gymnasium's",
        "the same policies in both",
        lambda store: environments.page(store.results),
    ),
    Chapter("missing.md", "Missing", "seeds of the suites that are not trained yet", missing_page),
)
