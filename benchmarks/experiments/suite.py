"""Experiments as data: which algorithm, on which environment, with how many seeds.

A cell of a suite is one command that a person could type, and one run in the store of results.
`python benchmarks/sweep.py --suite NAME` runs them.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.experiments.revised import FRESH, REVISED
from manyseeds.benchmarks.experiments.verdicts import EQUIVALENT_FROM, LOOKS, OURS
from manyseeds.cli import PUBLISHED, RESULTS, RunConfig, from_preset, words_of
from manyseeds.digest import PACKAGE, origin_of, room_file
from manyseeds.record import RunFolder, plural, read_config
from manyseeds.runs.set_aside import code_of, differs
from manyseeds.runs.stale import KINDS, digest_today
from manyseeds.stats import Statistic

SCRIPTS = {  # by source
    "manyseeds": "{package}/{algo}.py",
    "sb3": "benchmarks/sb3_baseline.py",
    "sbx": "benchmarks/sbx_baseline.py",
    "rejax": "benchmarks/rejax_baseline.py",
    "trl": "benchmarks/trl_baseline.py",
}


@dataclass(frozen=True)
class Target:
    """The final score that we want to see: the mean or IQM of the seeds, or that of a share."""

    score: float
    statistic: Statistic = "mean"
    share: float = 0.0  # of seeds that reach the score; 0: the statistic does


@dataclass(frozen=True)
class Cell:
    """One experiment, with the preset of its environment but for `settings`."""

    algo: str  # a module of the package, also for a baseline
    env: str  # or task
    seeds: int  # 0: there are none, it plans
    source: str = "manyseeds"  # who trains: manyseeds, sb3 or trl
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of the algorithm's Config
    cut: Mapping[str, Any] = field(default_factory=dict)  # "seeds" and budgets of the cut suite
    target: Target | None = None
    package: str = "algos"  # or llm_track
    first_seed: int = 0

    @property
    def script(self) -> str:
        """The script, relative to the checkout."""
        return SCRIPTS[self.source].format(package=self.package, algo=self.algo)

    @property
    def label(self) -> str:
        """The algorithm's name in the store: ppo, sb3-ppo."""
        return self.algo if self.source == "manyseeds" else f"{self.source}-{self.algo}"

    def matches(self, word: str) -> bool:
        """Whether a word such as `sb3`, `ppo`, `CartPole-v1` or `ppo/CartPole-v1` names it."""
        names = {self.source, self.label, self.algo, self.env}
        return word in names | {f"{self.label}/{self.env}", f"{self.source}/{self.env}"}

    def shortened(self) -> Cell:
        """The same cell with the budget of the cut suite."""
        budget = dict(self.cut)
        seeds = budget.pop("seeds", self.seeds)
        return dataclasses.replace(self, seeds=seeds, settings={**self.settings, **budget}, cut={})

    def command(
        self, results: str = RESULTS, workers: int = 1, seeds: Sequence[int] = ()
    ) -> list[str]:
        """What a person would type after `python` in the current folder to train this cell.

        workers: processes of a baseline, whose seeds are not one batch. seeds: consecutive ones,
        instead of all.
        """
        words = [os.path.relpath(room_file(self.script))]
        if self.source != "manyseeds":
            words += ["--algo", self.algo]
        words += ["--env" if self.package == "algos" else "--task", self.env]
        if self.seeds:
            words += ["--seeds", str(len(seeds) or self.seeds)]
        if first := seeds[0] if seeds else self.first_seed:
            words += ["--first-seed", str(first)]
        for name, value in self.settings.items():
            words += words_of(name, value)
        if results != RESULTS:
            words += ["--results", results]
        if self.source in ("sb3", "sbx") and workers > 1:
            words += ["--workers", str(workers)]
        return words

    def config(self, results: str = RESULTS) -> RunConfig:
        """The configuration that the command gives."""
        module: Any = importlib.import_module(f"{PACKAGE}.{self.package}.{self.algo}")
        overrides = {**self.settings, "results": results}
        if self.seeds:
            overrides |= {"seeds": self.seeds, "first_seed": self.first_seed}
        config: RunConfig = from_preset(module.Config, module.PRESETS, self.env, **overrides)
        return config

    @cached_property  # a Config checks itself by making its environment
    def run(self) -> Path:
        """Its run: ENV/ALGORITHM/NAME."""
        return Path(*RunFolder.of(self.config(), self.label).path.parts[-3:])

    def folder(self, results: str = RESULTS) -> RunFolder:
        """Where its run belongs."""
        return RunFolder(Path(results) / "runs" / self.run)

    @property
    def all_seeds(self) -> range:
        """Its seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def missing(self, results: str = RESULTS, by_any_code: bool = False) -> list[list[int]]:
        """The seeds that its command would train, in runs of consecutive ones; a plan's are none.

        Those of other code are among them, unless by_any_code. Published runs are finished by any
        code, and without their weights, which are not committed.
        """
        folder = self.folder(results)
        published = Path(results).resolve() == PUBLISHED
        kept = by_any_code or published or self.settings.get("keep_stale", False)

        def accepts(config: dict[str, Any]) -> bool:
            return kept or self.is_current(config)

        if self.seeds:
            return folder.missing(self.all_seeds, not published, accepts)
        plans = [read_config(part) for part in folder.parts(not published)]
        return [] if any(map(accepts, plans)) else [[]]

    @cached_property
    def origins(self) -> list[str]:
        """Where the code of its command begins; of a baseline what it shares with our run."""
        module: Any = importlib.import_module(f"{PACKAGE}.{self.package}.{self.algo}")
        ours = [getattr(module, name) for name in ("train", "solve") if hasattr(module, name)]
        begins = ours if self.source == "manyseeds" else []
        return [*map(origin_of, begins), *self.config().origins()]

    def is_current(self, config: dict[str, Any]) -> bool:
        """Whether its command would train a part, by its config.json, with the same code."""
        baseline = [x for x in code_of(config)["origins"] if x.startswith("manyseeds.benchmarks.")]
        origins = tuple(sorted({*self.origins, *baseline}))
        kind = config.get("kind")
        return kind in KINDS and not differs(config, digest_today(origins, kind))

    def __str__(self) -> str:
        settings = "".join(f", {name} {value}" for name, value in self.settings.items())
        seeds = f", {plural(self.seeds, 'seed')}" if self.seeds else ""
        seeds += f" from {self.first_seed} on" if self.first_seed else ""
        return f"{self.label} on {self.env}{settings}{seeds}"


SHORT_Q = {"total_timesteps": 50_000}
SHORT = {"seeds": 3, "total_timesteps": 20_000}
SHORT_LANGUAGE = {"seeds": 1, "total_samples": 2_560}
# Settings that TRL has, too: it does not sample again. Without a punishment of long completions.
LIKE_TRL: dict[str, dict[str, Any]] = {
    "sft": {},
    "reward_model": {},
    "dpo": {},
    "grpo": {},
    "dr_grpo": {},
    "dapo": {"dynamic_sampling": False, "overlong_cache": 0},
}
# Each of DAPO's changes switched off, and the other ways to train by GRPO.
DAPO_SWITCHES: tuple[dict[str, Any], ...] = (
    {"clip_range_high": 0.2},
    {"dynamic_sampling": False},
    {"token_level": False},
    {"overlong_filtering": False, "overlong_cache": 0},
)
GRPO_MODES: tuple[dict[str, Any], ...] = ({}, {"supervision": "outcome", "iterations": 4})
# Experiments, each of which can show a claim of a paper to be true or false; see
# chapters/language_claims.py. Seed k begins with model k: intervals contain the initial model's.
OWN = {"initial_per_seed": True}
# R1-Zero begins without SFT: pretraining has 200, 400 or 800 steps, and 15, 5, 1 or 0% of its text
# are demonstrations.
ZERO = {"total_samples": 25_600, "eval_samples": 16, **OWN}
DOSES = ("", "-400", "-800", "-800-5", "-800-1", "-800-0")
R1_ZERO: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("grpo", {"model": f"tiny-base{base}", **ZERO}) for base in DOSES),
    *((algo, {"model": "tiny-base-800", **ZERO}) for algo in ("dr_grpo", "rlhf_ppo")),
)
MANY_SAMPLES: dict[str, Any] = {
    "model": "tiny-base-800",
    **ZERO,
    "eval_samples": 256,
    "eval_prompts": 64,
}
# Groups of each size with as many samples per step and in all. A step learns from all its samples
# at once: minibatches would part groups of 2. These with an eighth of the samples in all: in as
# many steps as the largest, or in steps of as many samples.
WHOLE = {"minibatches": 1, **OWN}
GROUPS: tuple[dict[str, Any], ...] = tuple(
    {"prompts": 256 // n, "group_size": n, **WHOLE} for n in (16, 8, 4, 2)
)
PAIRS: tuple[dict[str, Any], ...] = tuple(
    {"prompts": n, "group_size": 2, "total_samples": 6_400, **WHOLE} for n in (16, 128)
)
# RLOO, and learning from right completions alone or from wrong ones alone. Without a KL and without
# a reward of the format, and with one gradient step on each sample, where no clip acts. At a third
# of the usual rate: at that, wrong ones alone break some models, which the last run shows.
SIGNED = {"kl_coef": 0.0, "format_weight": 0.0, "eval_samples": 256, "eval_prompts": 64, **WHOLE}
SIGNS: tuple[dict[str, Any], ...] = tuple(
    {"total_samples": 25_600, "learning_rate": 1e-4, **SIGNED, **x}
    for x in ({}, {"learn_from": "right"}, {"learn_from": "wrong"})
)
FAST_WRONG = {"total_samples": 25_600, **SIGNED, "learn_from": "wrong"}
LEARNED = {"reward_model": "tiny-reward", "total_samples": 12_800, "eval_samples": 16, **OWN}
RLHF: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("rlhf_ppo", {**LEARNED, "rules": False, "kl_coef": beta}) for beta in (0.05, 0.2, 0.5)),
    ("rlhf_ppo", LEARNED),
)
# The weight of the KL at which pass@1 rises, with a coin's rewards: what it gains with these has
# another cause than a learned reward.
PLACEBO = {
    **{"rules": False, "reward": ("examples/random_reward.py:coin",), "kl_coef": 0.5},
    **{"total_samples": 12_800, "eval_samples": 16, **OWN},
}
# The reward model, the reference, both or neither are renewed, and the policy learns so slowly that
# the first two times are before its accuracy falls.
SLOWLY = {
    **{**LEARNED, "rules": False, "learning_rate": 3e-5, "supervision": "outcome"},
    "total_samples": 25_600,
}
RENEWED: dict[str, dict[str, Any]] = {
    "neither": SLOWLY,
    "the reference": {**SLOWLY, "iterations": 10, "renewed": "reference"},
    "the reward model": {**SLOWLY, "iterations": 10, "renewed": "reward_model"},
    "both": {**SLOWLY, "iterations": 10},
}
# With so many gradient steps per rollout that the clip acts.
CLIPPED = {"minibatches": 16, "epochs": 2, "dynamic_sampling": False, **ZERO}
CLIP_HIGHER = tuple({**CLIPPED, "clip_range_high": high} for high in (0.2, 0.28, 0.5))
# The same with rewards by a coin, so slowly and for so long that the policy forgets no more than
# half of what it knows. A clip of 0 is none, and one of 1 has no lower end.
COIN: dict[str, Any] = {
    **{**CLIPPED, "learning_rate": 3e-5, "total_samples": 5_120, "rules": False},
    **{"reward": ("examples/random_reward.py:coin",), "overlong_filtering": False},
    "overlong_cache": 0,
}
RANDOM: dict[str, dict[str, Any]] = {
    "none": {**COIN, "clip_range": 0.0},
    "below": {**COIN, "clip_range": 0.2, "clip_range_high": 1e6},
    "above": {**COIN, "clip_range": 1.0, "clip_range_high": 0.2},
    "both": {**COIN, "clip_range": 0.2, "clip_range_high": 0.2},
}
# What becomes of lengths on `rambling`, so slowly that they are free for most of the training.
SLOW = {"learning_rate": 3e-5, "total_samples": 12_800, **OWN}
# Dr. GRPO has no KL, which would hold lengths closer to the initial model's, and leaves out two
# divisions of GRPO: by the deviation of a group, and by the length.
LENGTHS: dict[str, tuple[str, dict[str, Any]]] = {
    "with a KL": ("grpo", SLOW),
    "without a KL": ("grpo", {**SLOW, "kl_coef": 0.0}),
    "without a KL or a division by deviations": ("grpo", {**SLOW, "kl_coef": 0.0, "scale": "none"}),
    "": ("dr_grpo", SLOW),
}
# DAPO's token-level loss and overlong handling, each alone, where many completions are cut off.
PLAIN_DAPO = {"dynamic_sampling": False, "clip_range_high": 0.2, "max_new_tokens": 30, **SLOW}
OFF = {"token_level": False, "overlong_filtering": False, "overlong_cache": 0}
LONG: tuple[dict[str, Any], ...] = (
    {**PLAIN_DAPO, **OFF},
    {**PLAIN_DAPO, **OFF, "token_level": True},
    {**PLAIN_DAPO, **OFF, "overlong_filtering": True},
    {**PLAIN_DAPO, **OFF, "overlong_cache": 8},
)
# GRPO with its defaults, and PPO with GRPO's prompts, passes and weight of the KL.
LIKE_PPO = {"prompts": 32, "group_size": 8, **OWN}
EQUAL = {"epochs": 1, "kl_coef": 0.04, **LIKE_PPO}
EXPERIMENTS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    *((algo, "addition", 30, x) for algo, x in R1_ZERO),
    *(("grpo", "addition", 30, x) for x in (MANY_SAMPLES, *GROUPS, *PAIRS)),
    *((algo, "addition", 30, x) for algo, x in RLHF),
    *(("rlhf_ppo", "addition", 30, x) for x in (PLACEBO, EQUAL, OWN)),
    ("grpo", "addition", 30, LIKE_PPO),
    *(("dapo", "addition", 30, x) for x in (*CLIP_HIGHER, *RANDOM.values())),
    *(("rloo", "addition", 30, x) for x in (*SIGNS, FAST_WRONG)),
    *(("process_grpo", "addition", 30, x) for x in RENEWED.values()),
    *(("dapo", "rambling", 30, x) for x in LONG),
    *((algo, "rambling", 30, x) for algo, x in LENGTHS.values()),
    ("grpo", "checking", 30, OWN),
)
SHORT_PREDICTION = {"seeds": 10, "total_episodes": 20}

PREDICTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("monte_carlo", {"visits": "first", "learning_rate": 0.0}),
    ("monte_carlo", {"visits": "every", "learning_rate": 0.0}),
    *(("monte_carlo", {"visits": "every", "learning_rate": a}) for a in (0.03, 0.1, 0.3)),
    *(("td_prediction", {"n_steps": 1, "learning_rate": a}) for a in (0.03, 0.1, 0.3)),
    *(("td_prediction", {"n_steps": 4, "learning_rate": a}) for a in (0.03, 0.1, 0.3)),
    *(
        ("td_prediction", {"n_steps": 1, "trace_decay": 0.8, "learning_rate": a})
        for a in (0.03, 0.1, 0.3)
    ),
)

ADVANTAGES: tuple[dict[str, Any], ...] = (  # of GRPO; the first is the default
    {},
    {"peers": "all"},
    {"std": "batch"},
    {"std": "none"},
    {"advantage": "outcome"},
    {"advantage": "outcome", "std": "none"},
    {"advantage": "process"},
    {"advantage": "process", "peers": "all"},
)
# With as few minibatches per epoch as for short episodes: a check of what the default costs these.
LARGE_MINIBATCHES: tuple[dict[str, Any], ...] = (
    {"advantage": "outcome", "minibatch_size": 2048},
    {"advantage": "process", "peers": "all", "minibatch_size": 2048},
)
# Process and outcome supervision in equal settings. Without a discount, as in the paper: with the
# gamma of Pendulum's preset, the return that outcome credits to all 200 steps has 95% of its weight
# on the first 60. Also with larger minibatches: those of the presets suit less noisy advantages.
SUPERVISION: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = tuple(
    (
        {"advantage": "process", "gamma": 1.0, **size},
        {"advantage": "outcome", "gamma": 1.0, **size},
    )
    for size in ({}, {"minibatch_size": 2048})
)
CLASSIC = (
    *("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),
    *("MountainCarContinuous-v0", "Pendulum-v1"),
)
ABLATED = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1")
# Of GRPO's presets; on MountainCar it has no signal.
BUDGETS = {**dict.fromkeys(ABLATED, 300_000), "Acrobot-v1": 200_000, "MountainCar-v0": 300_000}
WEIGHTS = ("total_return", "return_to_go", "baseline", "q")  # of REINFORCE
# How A2C estimates advantages; the first is what the others are compared with. The rollouts of the
# presets, 5 and 8 steps, hide the differences: n-step and Monte Carlo returns end with the rollout,
# and GAE with lambda 1 is the Monte Carlo advantage. One environment and 64 steps give an update
# about as many samples as the presets do (40, 80 and 64), so that the budget has about as many
# updates; with as many environments as in the presets, Pendulum does not learn within its budget.
# Lambda 0.95 weights 20 steps on average, as many as the longest n.
LONG_ROLLOUT = {"num_envs": 1, "num_steps": 64}
A2C_ADVANTAGES: tuple[dict[str, Any], ...] = (
    {**LONG_ROLLOUT, "gae_lambda": 0.95},
    *({**LONG_ROLLOUT, "advantage": "n_step", "n_steps": n} for n in (1, 5, 20)),
    {**LONG_ROLLOUT, "advantage": "monte_carlo"},
)

# Rainbow without parts, with each alone, with all, and with all but one; everything else is the
# preset's, so also the budget. The distribution is C51's, and alone also that of quantiles.
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # on, and off
    "double": ({"double": True}, {"double": False}),
    "dueling": ({"dueling": True}, {"dueling": False}),
    "n steps": ({"n_steps": 3}, {"n_steps": 1}),
    "prioritized": ({"prioritized": True}, {"prioritized": False}),
    "noisy": ({"noisy": True}, {"noisy": False}),
    "C51": ({"distribution": "categorical"}, {"distribution": "none"}),
}
NO_PARTS = {name: x for _, off in PARTS.values() for name, x in off.items()}
ALONE = {
    **{name: {**NO_PARTS, **on} for name, (on, _) in PARTS.items()},
    "quantiles": {**NO_PARTS, "distribution": "quantile"},
}
WITHOUT = {name: off for name, (_, off) in PARTS.items()}
# sb3-contrib's QR-DQN, at the zoo's sizes.
QR_DQN = {
    env: {**ALONE["quantiles"], "hidden": (256, 256), "atoms": atoms}
    for env, atoms in (("CartPole-v1", 10), ("Acrobot-v1", 25), ("MountainCar-v0", 25))
}

# What de Oliveira et al. (2025, arXiv 2511.03527) vary in GRPO: the discount, and the size of the
# group, of which an update has one; besides, its size at as many episodes per update.
DISCOUNTS = (0.9, 0.99)
GROUP_SIZES = (8, 32, 128)
EQUAL_EPISODES = ((16, 2), (4, 8), (1, 32))  # groups, and episodes in each
OUTCOME = {"advantage": "outcome"}  # the paper's: one advantage per episode
VARIED: tuple[dict[str, Any], ...] = (
    *({"gamma": gamma} for gamma in DISCOUNTS),
    *(
        {"groups": n, "group_size": size}
        for n, size in dict.fromkeys((*((1, size) for size in GROUP_SIZES), *EQUAL_EPISODES))
    ),
)

# Why GRPO fails on MountainCar, where PPO learns within GRPO's budget; REINFORCE on Pendulum; and
# some of DQN's seeds on CartPole. What is suspected is taken away, or put into what works.
BEFORE_GRPO = {"total_timesteps": 300_000}
UNTRAINED_CRITIC = {"value_coef": 0.0}
MORE_STEPS: tuple[dict[str, Any], ...] = (
    {"total_timesteps": 6_000_000},
    {"learning_rate": 1e-2},
)
BASELINE = {"weight": "baseline"}  # of REINFORCE's preset, and where it learns
ONE_STEP = {"epochs": 1, "minibatch_size": 6_400}  # all samples of an update
STEADIER: dict[str, dict[str, Any]] = {
    "a quarter of the learning rate": {"learning_rate": 0.000575},
    "a quarter of the gradient steps": {"gradient_steps": 32},
    "a target network that is 1,024 timesteps old": {"target_update_interval": 1_024},
}

# PPO and DQN by four libraries with the hyperparameters that all of them can set: no schedules, of
# which rejax has none, and budgets at which nothing is learned any more.
LIBRARIES = ("manyseeds", "sb3", "sbx", "rejax")
COMMON: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "CartPole-v1"): {"anneal_lr": False, "anneal_clip": False},
    ("ppo", "Acrobot-v1"): {"total_timesteps": 200_000},
    ("ppo", "MountainCar-v0"): {"total_timesteps": 300_000},
    ("dqn", "CartPole-v1"): {},
    ("dqn", "Acrobot-v1"): {},
    ("dqn", "MountainCar-v0"): {},
}


@dataclass(frozen=True)
class Ablation:
    """Runs that differ from a base in one field and, where there are several lines, in another."""

    name: str
    algo: str
    varied: str  # the field
    values: tuple[Any, ...]
    lines: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})

    def values_on(self, env: str) -> tuple[Any, ...]:
        """The values in an environment, with that of its base among them; numbers ascend."""
        base = BASES[self.algo, env][self.varied]
        values = tuple(dict.fromkeys((*self.values, base)))
        return values if isinstance(base, bool | str) else tuple(sorted(values))

    def cell(self, env: str, line: str, value: Any) -> Cell:
        """The cell of a value. Without the settings that the base has anyway, so that it is the
        same cell in every ablation, and on CartPole the preset's."""
        chosen = {**self.lines[line], self.varied: value}
        base = BASES[self.algo, env]
        settings = {name: x for name, x in chosen.items() if base[name] != x}
        if (self.algo, env) in SHORTENED:
            settings["total_timesteps"] = SHORTENED[self.algo, env]
        return Cell(self.algo, env, 30, settings=settings, cut=SHORT)


ABLATION_ENVS = ("CartPole-v1", "Acrobot-v1")
# What the presets have of the fields that are ablated.
BASES: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "CartPole-v1"): {"learning_rate": 1e-3, "clip_range": 0.2, "gae_lambda": 0.8}
    | {"normalize_advantage": True, "epochs": 20},
    ("ppo", "Acrobot-v1"): {"learning_rate": 3e-4, "clip_range": 0.2, "gae_lambda": 0.94}
    | {"normalize_advantage": True, "epochs": 4},
    ("reinforce", "CartPole-v1"): {"weight": "return_to_go", "normalize_advantage": True}
    | {"gamma": 0.99},
    ("reinforce", "Acrobot-v1"): {"weight": "total_return", "normalize_advantage": True}
    | {"gamma": 0.98},
}
# Budgets that are not the preset's: of a million timesteps, the fifth that GRPO has.
SHORTENED = {("ppo", "Acrobot-v1"): BUDGETS["Acrobot-v1"]}
ABLATIONS = (
    Ablation(
        "clipping",
        "ppo",
        "learning_rate",
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
        {"clip range 0.2": {"clip_range": 0.2}, "no clipping": {"clip_range": 0.0}},
    ),
    Ablation("lambda", "ppo", "gae_lambda", (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)),
    Ablation("normalisation", "ppo", "normalize_advantage", (True, False)),
    Ablation("epochs", "ppo", "epochs", (1, 3, 5, 10, 20)),
    Ablation(
        "weights",
        "reinforce",
        "weight",
        WEIGHTS,
        {
            "normalised weights": {"normalize_advantage": True, "gamma": 1.0},
            "raw weights": {"normalize_advantage": False, "gamma": 1.0},
        },
    ),
)


def ablation_cells() -> tuple[Cell, ...]:
    """The cells of all ablations, each once."""
    cells = [
        ablation.cell(env, line, value)
        for env in ABLATION_ENVS
        for ablation in ABLATIONS
        for line in ablation.lines
        for value in ablation.values_on(env)
    ]
    return tuple({(c.algo, c.env, *sorted(c.settings.items())): c for c in cells}.values())


CONTROL = {  # the environments of each algorithm
    "ppo": CLASSIC,
    "a2c": CLASSIC,
    "trpo": CLASSIC,
    "dqn": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),  # discrete actions
    "sac": ("Pendulum-v1", "MountainCarContinuous-v0"),
    "td3": ("Pendulum-v1",),
    "ddpg": ("Pendulum-v1",),
    "sac_discrete": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),
    "pqn": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),
    "reinforce": ABLATED,
    "grpo": (*ABLATED, "MountainCar-v0"),
}
# Seeds of ours: as many as verdicts count where one takes seconds of a core, 6 at most; at least as
# many as equivalence takes where SB3 has the algorithm; elsewhere 30.
SEEDS = {
    **dict.fromkeys(("ppo", "a2c", "trpo"), OURS),
    **dict.fromkeys(("dqn", "sac", "td3", "ddpg"), EQUIVALENT_FROM),
}
WITH_SB3 = ("ppo", "a2c", "trpo", "dqn", "sac", "td3", "ddpg")
TARGETS = {
    ("ppo", "Acrobot-v1"): Target(-85.0),
    ("ppo", "MountainCarContinuous-v0"): Target(90.0),
    ("ppo", "Pendulum-v1"): Target(-180.0),
    ("dqn", "MountainCar-v0"): Target(-115.0),
    ("rainbow", "CartPole-v1"): Target(475.0, share=0.9),
    ("sac", "Pendulum-v1"): Target(-160.0, "iqm"),
    ("sac", "MountainCarContinuous-v0"): Target(90.0, share=0.9),
    ("td3", "Pendulum-v1"): Target(-160.0, "iqm"),
    ("ddpg", "Pendulum-v1"): Target(-160.0, "iqm"),
    ("reinforce", "CartPole-v1"): Target(475.0),
    ("grpo", "CartPole-v1"): Target(475.0),
    ("grpo", "Acrobot-v1"): Target(-95.0),
    ("grpo", "Pendulum-v1"): Target(-190.0),
}


def language(
    algo: str,
    task: str,
    seeds: int = 5,
    settings: Mapping[str, Any] | None = None,
    source: str = "manyseeds",
) -> Cell:
    """A cell of the language track."""
    return Cell(algo, task, seeds, source, settings or {}, SHORT_LANGUAGE, package="llm_track")


SUITES = {
    # The cuts together take about five minutes on two cores, most of it SB3.
    "quick": (
        Cell("ppo", "CartPole-v1", 30, cut={"seeds": 10}),
        Cell("ppo", "CartPole-v1", LOOKS[0], "sb3", cut={"seeds": 2}),
        Cell("dqn", "CartPole-v1", 30, cut={"seeds": 3}),
        Cell("dqn", "CartPole-v1", LOOKS[0], "sb3", cut={"seeds": 2}),
        Cell("q_learning", "FrozenLake-v1", 10, cut=SHORT_Q),
        Cell("q_learning", "CartPole-v1", 10, cut=SHORT_Q),
    ),
    # The algorithms of deep reinforcement learning on classic control, and SB3's at the same
    # settings: `--until-decided` adds seeds of SB3's by the rule of experiments/verdicts.py.
    "classic-control": (
        *(
            Cell(algo, env, SEEDS.get(algo, 30), cut=SHORT, target=TARGETS.get((algo, env)))
            for algo, where in CONTROL.items()
            for env in where
        ),
        *(
            Cell(algo, env, LOOKS[0], "sb3", cut=SHORT)
            for algo, where in CONTROL.items()
            for env in where
            if algo in WITH_SB3
        ),
    ),
    # Planning, prediction and control on tables, some minutes in all.
    "tabular": (
        *(
            Cell(algo, env, 0, settings={"gamma": gamma})
            for algo in ("policy_iteration", "value_iteration")
            for env in ("Gridworld-v0", "FrozenLake-v1", "CliffWalking-v1", "Taxi-v4")
            for gamma in (0.5, 0.9, 0.95, 0.99)
        ),
        *(
            Cell(algo, env, 100, settings=settings, cut=SHORT_PREDICTION)
            for algo, settings in PREDICTIONS
            for env in ("RandomWalk-v0", "Gridworld-v0")
        ),
        Cell("td_prediction", "RandomWalk-v0", 100, cut=SHORT_PREDICTION),  # a published figure
        *(
            Cell(algo, env, 30, settings=settings, cut={"seeds": 10, **SHORT_Q}, target=target)
            for algo, settings in (("q_learning", {}), ("sarsa", {}), ("sarsa", {"expected": True}))
            for env, target in (
                ("Gridworld-v0", None),
                ("FrozenLake-v1", None),
                ("CliffWalking-v1", None),
                ("Taxi-v4", Target(7.73)),
                ("CartPole-v1", None),
            )
        ),
    ),
    # Published verdicts that changed since, decided anew on fresh seeds.
    "revised": tuple(
        Cell(algo, env, len(FRESH), source, cut=SHORT, first_seed=FRESH[0])
        for algo, env in dict.fromkeys((r.algo, r.env) for r in REVISED)
        for source in ("manyseeds", "sb3")
    ),
    # Whether PPO is PPO and DQN is DQN, whoever wrote it; SBX and rejax need `make jax-env`.
    "interchange": tuple(
        Cell(algo, env, 30, library, settings, cut=SHORT)
        for (algo, env), settings in COMMON.items()
        for library in LIBRARIES
    ),
    # Policy gradients: how advantages are estimated, and GRPO beside PPO at one budget.
    # With as many seeds as equivalence takes (stats.EQUIVALENCE_SEEDS).
    "policy-gradient": (
        *(
            Cell("a2c", env, 30, settings=settings, cut=SHORT)
            for settings in A2C_ADVANTAGES
            for env in ABLATED
        ),
        *(
            Cell("grpo", env, 30, settings=settings, cut=SHORT)
            for settings in ADVANTAGES[1:]
            for env in ABLATED
        ),
        *(Cell("grpo", "CartPole-v1", 30, settings=s, cut=SHORT) for s in LARGE_MINIBATCHES),
        *(
            Cell("ppo", env, 30, settings={"total_timesteps": budget}, cut=SHORT)
            for env, budget in BUDGETS.items()
        ),
    ),
    # What papers claim of critic-free control, some minutes of one core.
    "claims": (
        *(
            Cell("grpo", env, 30, settings=settings, cut=SHORT)
            for pair in SUPERVISION
            for settings in pair
            for env in ABLATED
        ),
        *(
            Cell("grpo", env, 30, settings={**x, **estimator}, cut=SHORT)
            for estimator in ({}, OUTCOME)
            for env in ABLATED
            for x in VARIED
        ),
        *(Cell("grpo", env, 30, settings={"std": "none"}, cut=SHORT) for env in ABLATED),
    ),
    # Why a training fails: one cause at a time taken away, some minutes of one core.
    "failures": (
        *(
            Cell("ppo", "MountainCar-v0", 30, settings={**BEFORE_GRPO, **x}, cut=SHORT)
            for x in ({}, UNTRAINED_CRITIC)
        ),
        *(Cell("reinforce", "Pendulum-v1", 30, settings=x, cut=SHORT) for x in MORE_STEPS),
        *(
            Cell("reinforce", "Pendulum-v1", 30, settings={**x, **BASELINE}, cut=SHORT)
            for x in ({}, *MORE_STEPS)
        ),
        Cell("grpo", "Pendulum-v1", 30, settings=ONE_STEP, cut=SHORT),
        *(Cell("dqn", "CartPole-v1", 30, settings=x, cut=SHORT) for x in STEADIER.values()),
    ),
    # Which part of Rainbow carries it; and quantiles alone beside sb3-contrib's.
    "rainbow": (
        *(
            Cell("rainbow", env, 30, cut=SHORT, target=TARGETS.get(("rainbow", env)))
            for env in QR_DQN
        ),
        *(
            Cell("rainbow", env, 30, settings=settings, cut=SHORT)
            for env in QR_DQN
            for settings in (NO_PARTS, *ALONE.values(), *WITHOUT.values())
        ),
        *(
            Cell("rainbow", env, seeds, source, settings, cut=SHORT)
            for source, seeds in (("manyseeds", 30), ("sb3", LOOKS[0]))
            for env, settings in QR_DQN.items()
        ),
    ),
    # One or two hyperparameters at a time, about two hours of one core.
    "ablations": ablation_cells(),
    # Language models, about a minute a seed: what is missing of base and SFT is made first.
    "language-models": (
        *(
            language(algo, "addition", 30, settings, source)
            for algo, settings in LIKE_TRL.items()
            for source in ("manyseeds", "trl")
        ),
        *(
            language(algo, task)
            for task, algos in (
                (
                    "addition",
                    ("rlhf_ppo", "rloo", "reinforce_pp", "gspo", "cispo", "dapo", "distill"),
                ),
                ("mixed", ("grpo", "dr_grpo", "dapo")),
                ("countdown", ("grpo", "dapo")),
            )
            for algo in algos
        ),
        *(language("dapo", "addition", 30, {**OWN, **x}) for x in ({}, *DAPO_SWITCHES)),
        *(language("process_grpo", "addition", 5, settings) for settings in GRPO_MODES),
        *(language(*experiment) for experiment in EXPERIMENTS),
    ),
}
