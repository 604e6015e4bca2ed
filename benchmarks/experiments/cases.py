"""Short trainings as data: together they enter every branch of the code that decides a bit.

`python benchmarks/same_bits.py OLD` trains each of them with two versions of the code. A case is a
command that a person could type; it takes seconds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from manyseeds.benchmarks.experiments import catalog
from manyseeds.llm_track.tasks import GENERATED

BASELINES = {
    "benchmarks/sb3_baseline.py": "sb3",
    "benchmarks/trl_baseline.py": "trl",
    "benchmarks/sbx_baseline.py": "sbx",
    "benchmarks/rejax_baseline.py": "rejax",
}


class Trains(NamedTuple):
    """Runs that share their code."""

    source: str  # who trains them
    algo: str
    subject: str  # `task_kind` or `environment_kind`


def task_kind(task: str) -> str:
    """A task is `generated`, or it is `read` from a file or a data set."""
    return "generated" if task in GENERATED else "read"


def environment_kind(source: str, scaled: bool) -> str:
    """What a run of control learns from. scaled: from rewards that our own code scales."""
    return "scaled rewards" if scaled and source == "manyseeds" else "environment"


@dataclass(frozen=True)
class Case:
    """One short training.

    Flags may hold `{NAME}`: the path of one of `FILES`, or of what the case with that label has
    trained.
    """

    script: str  # relative to the checkout
    subject: str  # environment or task
    flags: str = ""  # what sets it apart from other cases of its script
    budget: str = ""  # flags that make it short; `flags` win over them
    algo: str = ""  # of a baseline

    @property
    def method(self) -> str:
        """The algorithm whose Config it uses."""
        return self.algo or PurePosixPath(self.script).stem

    @property
    def label(self) -> str:
        """Unique; what a person reads and `--only` looks into."""
        stem = PurePosixPath(self.script).stem
        who = f"{BASELINES[self.script]}-{self.algo}" if self.algo else stem
        return f"{who} {self.subject} {self.flags}".strip()

    @property
    def name(self) -> str:
        """The name of its run, the same in every version of the code."""
        return re.sub(r"[^A-Za-z0-9_.]+", "-", self.label).strip("-")

    @property
    def is_language(self) -> bool:
        """Whether it trains a language model."""
        return self.script.startswith("llm_track/") or BASELINES.get(self.script) == "trl"

    @property
    def trains(self) -> Trains:
        """What its runs are stored as."""
        source = BASELINES.get(self.script, "manyseeds")
        if self.is_language:
            return Trains(source, self.method, task_kind(self.subject))
        preset = catalog.plain_settings("algos", self.method, self.subject)
        scaled = "--normalize-reward" in self.options or preset.get("normalize_reward", False)
        scaled = scaled and "--no-normalize-reward" not in self.options
        return Trains(source, self.method, environment_kind(source, scaled))

    @property
    def placeholders(self) -> list[str]:
        """Names of files and labels of other cases that it refers to."""
        return re.findall(r"\{(.+?)\}", f"{self.subject} {self.flags}")

    @property
    def needs(self) -> list[str]:
        """The optional packages without which it cannot run."""
        theirs = BASELINES.get(self.script, "sb3")
        return [theirs] * (theirs != "sb3") + ["peft"] * ("--lora-rank" in self.flags)

    @property
    def options(self) -> dict[str, list[str]]:
        """All its flags with their values, as a person would type them in this order."""
        options = {"--algo": [self.algo]} if self.algo else {}
        options["--task" if self.is_language else "--env"] = [self.subject]
        return options | _parsed(self.budget) | _parsed(self.flags) | {"--quiet": []}


def command_line(options: Mapping[str, Sequence[str]], places: Mapping[str, str]) -> list[str]:
    """Options as the words after a script; places: the paths that stand for placeholders."""
    words = [word for name, values in options.items() for word in (name, *values)]
    return [re.sub(r"\{(.+?)\}", lambda found: places[found[1]], word) for word in words]


def _parsed(flags: str) -> dict[str, list[str]]:
    """`--a 1 2 --b` -> {"--a": ["1", "2"], "--b": []}; a placeholder is one word."""
    found: dict[str, list[str]] = {}
    for word in shlex.split(re.sub(r"\{.+?\}", lambda x: shlex.quote(x[0]), flags)):
        if word.startswith("--"):
            found[word] = values = []
        else:
            values.append(word)
    return found


def _cases(script: str, budget: str, *rows: str, algo: str = "") -> list[Case]:
    """Cases of one script; a row is a subject and what sets the case apart."""
    cases = []
    for row in rows:
        subject, _, flags = row.partition(" ")
        cases.append(Case(script, subject, flags, budget, algo))
    return cases


def select(cases: Sequence[Case], words: Sequence[str]) -> list[Case]:
    """The cases with one of some words in their labels, and those that they refer to, in order."""
    chosen = {case for case in cases if any(word.lower() in case.label.lower() for word in words)}
    labels = {name for case in chosen for name in case.placeholders}
    while more := {case for case in cases if case.label in labels} - chosen:
        chosen |= more
        labels |= {name for case in more for name in case.placeholders}
    return [case for case in cases if case in chosen]


# ---- Algorithms ----------------------------------------------------------------------------


def algorithm_cases(algo: str) -> list[Case]:
    """The cases of an algorithm, as its facts say."""
    told = catalog.facts(algo).cases
    return _cases(f"algos/{algo}.py", told["budget"], *told["runs"])


ALGORITHMS = tuple(case for algo in catalog.names("algos") for case in algorithm_cases(algo))

# ---- Language models -----------------------------------------------------------------------

# Nearly all the time goes into evaluations on 256 held-out prompts; `sums.jsonl` has one.
SAMPLES = "--total-samples 64 --prompts 4 --group-size 4 --evaluations 1"
STEPS = f"{SAMPLES} --minibatches 2"
# Other tasks begin with this one: to make tiny models of their own takes a minute each.
TINY = "grpo addition --epochs 2"
SCORES = "reward_model addition --seeds 2"
OTHER = f"--model {{{TINY}}}"
SCORED = f"--reward-model {{{SCORES}}} --no-rules"
SUMS = f"{{sums.jsonl}} {OTHER} --max-new-tokens 32"
PAIRS = "--preferences {pairs.jsonl} --total-samples 32"
LANGUAGE = (
    *_cases(
        "llm_track/grpo.py",
        STEPS,
        "addition --epochs 2",
        "addition --kl-in reward --scale batch --entropy-coef 0.01",
    ),
    *_cases(
        "llm_track/process_grpo.py",
        STEPS,
        "addition --lora-rank 4 --micro-batch-size 3",
        f"mixed {OTHER} --kl-coef 0.1",
    ),
    *_cases(
        "llm_track/reward_model.py",
        SAMPLES,
        "addition --seeds 2",
        f"addition {PAIRS} {OTHER}",
    ),
    *_cases(
        "llm_track/process_grpo.py",
        STEPS,
        f"addition {SCORED} --supervision outcome --iterations 2",
        f"addition {SCORED} --supervision outcome --iterations 2 --renewed reference",
        f"addition {SCORED} --supervision outcome --iterations 2 --renewed reward_model",
    ),
    *_cases("llm_track/grpo.py", STEPS, "addition --scale none --kl-estimator corrected"),
    *_cases(
        "llm_track/rloo.py",
        STEPS,
        "addition",
        "addition --learn-from right --initial-per-seed",
        "addition --learn-from wrong",
        f"{SUMS} --kl-coef 0 --gradient-checkpointing",  # as a model of others is trained
    ),
    *_cases(
        "llm_track/reinforce_pp.py",
        STEPS,
        "addition",
        "addition --baseline group --kl-in loss --kl-estimator k2",
    ),
    *_cases("llm_track/gspo.py", STEPS, "addition"),
    *_cases("llm_track/cispo.py", STEPS, "addition --epochs 2"),
    *_cases("llm_track/distill.py", STEPS, f"addition --teacher {{{TINY}}}"),
    *_cases(
        "llm_track/rlhf_ppo.py",
        STEPS,
        "addition",
        f"{SUMS} {SCORED} --clip-value-range 0 --first-seed 3",
    ),
    *_cases(
        "llm_track/dr_grpo.py",
        STEPS,
        "addition --epochs 2",
        f"countdown {OTHER} {SCORED} --temperature 1.2",
    ),
    *_cases(
        "llm_track/dapo.py",
        STEPS,
        "addition",
        f"{SUMS} {SCORED} --no-dynamic-sampling --no-token-level --no-overlong-filtering "
        "--overlong-cache 0 --dtype bfloat16",
    ),
    *_cases(
        "llm_track/dpo.py",
        "--total-samples 256 --batch-size 8 --epochs 2 --evaluations 1",
        "addition --dtype float32",
        f"{SUMS} {PAIRS} --lora-rank 4",
    ),
    *_cases(
        "llm_track/sft.py",
        "--total-samples 64 --batch-size 16 --evaluations 1",
        "addition",
        f"countdown {OTHER} --gradient-checkpointing",
        SUMS,
        "addition --lr-schedule cosine --warmup 0.5",
    ),
)

# ---- Baselines -----------------------------------------------------------------------------

SB3, TRL, SBX, REJAX = BASELINES
ROLLOUT = "--seeds 1 --num-envs 2 --num-steps 64 --minibatch-size 64 --total-timesteps 384"
LIBRARIES = (
    *_cases(
        SB3,
        "--seeds 1 --num-envs 4 --num-steps 8 --total-timesteps 160",
        "CartPole-v1",
        "Acrobot-v1 --anneal-lr",
        algo="a2c",
    ),
    *_cases(
        SB3,
        "--seeds 1 --total-timesteps 384 --train-freq 64 --learning-starts 100 "
        "--gradient-steps 8 --batch-size 32 --buffer-size 250",
        "CartPole-v1",
        algo="dqn",
    ),
    *_cases(SB3, f"{ROLLOUT} --epochs 2", "Pendulum-v1", "CartPole-v1", "Acrobot-v1", algo="ppo"),
    *_cases(
        SB3,
        "--seeds 1 --total-timesteps 384 --train-freq 64 --learning-starts 100 "
        "--gradient-steps 8 --batch-size 32 --buffer-size 250 --distribution quantile --atoms 10 "
        "--no-double --no-dueling --n-steps 1 --no-prioritized --no-noisy",
        "CartPole-v1",
        algo="rainbow",
    ),
    *(
        case
        for algo in ("sac", "td3", "ddpg")
        for case in _cases(
            SB3,
            "--seeds 1 --total-timesteps 128 --learning-starts 100 --batch-size 32 --hidden 64 64",
            "Pendulum-v1",
            algo=algo,
        )
    ),
    *_cases(SB3, f"{ROLLOUT} --critic-epochs 2", "CartPole-v1", "Acrobot-v1", algo="trpo"),
    *_cases(
        TRL, "--total-samples 64 --batch-size 16 --evaluations 1", "addition", SUMS, algo="sft"
    ),
    *_cases(TRL, SAMPLES, "addition", algo="reward_model"),
    *_cases(
        TRL,
        "--batch-size 8 --epochs 1 --evaluations 1",
        "addition --total-samples 64",
        f"{SUMS} {PAIRS}",
        algo="dpo",
    ),
    *_cases(TRL, STEPS, "addition", algo="grpo"),
    *_cases(TRL, STEPS, "addition --epochs 2", algo="dr_grpo"),
    *_cases(TRL, STEPS, "addition --no-dynamic-sampling --overlong-cache 0", algo="dapo"),
)
# They run with the Python of .venv-jax.
PEER_PPO = f"{ROLLOUT} --epochs 2 --no-anneal-lr --no-anneal-clip"
PEER_DQN = (
    "--seeds 1 --total-timesteps 1280 --train-freq 64 --learning-starts 128 --gradient-steps 8 "
    "--batch-size 32 --buffer-size 256"
)
PEERS = (
    *_cases(SBX, PEER_PPO, "CartPole-v1", "Acrobot-v1", algo="ppo"),
    *_cases(SBX, PEER_DQN, "CartPole-v1", algo="dqn"),
    *_cases(REJAX, f"{PEER_PPO} --total-timesteps 2560", "CartPole-v1", "Acrobot-v1", algo="ppo"),
    *_cases(REJAX, PEER_DQN, "CartPole-v1", algo="dqn"),
    *_cases(
        REJAX,
        "--seeds 1 --num-envs 2 --num-steps 64 --total-timesteps 2560 --no-anneal-lr "
        "--reward-scale 1",
        "CartPole-v1",
        algo="pqn",
    ),
)

CASES = (*ALGORITHMS, *LANGUAGE, *LIBRARIES, *PEERS)

# ---- What cases read -----------------------------------------------------------------------

FILES = {
    "pairs.jsonl": """\
{"prompt": "47+85=", "chosen": "<think>7+5=12;4+8+1=13;</think><answer>132</answer>", \
"rejected": "<think>7+5=12;4+8=12;</think><answer>122</answer>"}
{"prompt": "31+6=", "chosen": "<think>1+6=7;3=3;</think><answer>37</answer>", \
"rejected": "<answer>37</answer>"}
{"prompt": "12+34=", "ranked": ["<think>2+4=6;1+3=4;</think><answer>46</answer>", \
"<think></think><answer>46</answer>", "46"]}
{"prompt": "5+5=", "chosen": "<think>5+5=10;</think><answer>10</answer>", "rejected": "55"}
""",
    "sums.jsonl": """\
{"prompt": "1+2", "answer": 3, "completion": "<think>1+2=3;</think><answer>3</answer>"}
{"prompt": "2+2", "answer": 4, "completion": "<think>2+2=4;</think><answer>4</answer>"}
{"prompt": "7+5", "answer": "12", "completion": "<think>7+5=12;</think><answer>12</answer>"}
{"prompt": "8+1", "answer": "9", "completion": "<think>8+1=9;</think><answer>9</answer>"}
""",
}
