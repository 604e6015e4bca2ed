"""TRL's SFT, reward-model, DPO and GRPO trainers with our hyperparameters and evaluation.

    python benchmarks/trl_baseline.py --algo grpo --task addition --seeds 5

The flags are those of the method's own file, and so are the presets: the same Config decides both
sides, and the same hyperparameters give the run the same name. TRL begins with the same model,
learns from the same prompts (dpo, reward_model: pairs) in the same order, takes as many gradient
steps on as many samples, and is evaluated as ours is, at the same numbers of samples.

It gets its fastest settings for one process without vLLM: no gradient checkpointing, float32 on
the CPU, its fused AdamW, micro-batches as large as `--micro-batch-size` allows, one log entry for
a step of ours, no progress bar, nothing saved, nothing reported. Two of its defaults are changed
because they mean something else: GRPO's KL is the paper's (use_bias_correction_kl is off), and a
loss that is NaN is logged as such (logging_nan_inf_filter is off).

What stays TRL's own, in GRPO and its siblings:
 1. TRL samples with torch's global generator, seeded with the run's seed.
 2. A rollout is shuffled once and divided into the same minibatches in each pass over it; ours is
    shuffled anew for each pass.
 3. pi_old's log-probabilities are computed anew after sampling, where a rollout is for more than
    one gradient step; ours are those of the sampling.
 4. A gradient of exactly 0 still makes a step of Adam.
 5. In a group of equal rewards advantages may be rounding noise divided by 1e-4; ours are 0.
 6. DAPO: a minibatch's sum over tokens is divided by the mean number of tokens of the rollout's
    minibatches; ours by its own number. Dynamic sampling does not exist.
And elsewhere:
 7. DPO: a completion that was cut off is ended all the same; ours is not.
 8. Reward model: every step has the same number of pairs, the mean of ours; ours takes those that
    its prompts give.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import contextlib
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from manyseeds.benchmarks.measurements.measure import SeedsLearningOnly, measured
from manyseeds.cli import exit_with, from_identity, parse_both, read_algo
from manyseeds.digest import installing
from manyseeds.errors import UsageError
from manyseeds.llm_track import (
    dapo,
    dpo,
    dr_grpo,
    grpo,
    models,
    reward_model,
    sampling,
    sft,
    tasks,
)
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import HubModel
from manyseeds.process import resolve_device, set_up_process
from manyseeds.record import RunFolder
from manyseeds.runs.base import carry_out
from manyseeds.runs.language import (
    Evaluator,
    LanguageConfig,
    LanguageRun,
    complete_seeds,
    print_result,
)
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.set_aside import Code

Reader = Callable[[Sequence[int]], str]  # the text of a completion's tokens
PACKAGES = ("trl", "accelerate")
# What TRL logs, by the names that our own scripts log the same quantity under.
LOGGED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    # GRPO
    "kl": "kl",
    "reward": "reward",
    "rewards/accuracy/mean": "accuracy",
    "rewards/format/mean": "format",
    "completions/mean_length": "length",
    # DPO
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "logps/chosen": "logprob_chosen",
    "logps/rejected": "logprob_rejected",
    # reward model
    "accuracy": "accuracy",
    "margin": "margin",
}


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What this script has besides the flags of the method."""

    algo: str = "grpo"
    """Method: sft, reward_model, dpo, grpo, dr_grpo or dapo."""


def library() -> Any:
    """The package trl; UsageError where it is not installed."""
    try:
        import trl
    except ImportError:
        raise UsageError(f"benchmarks/trl_baseline.py: needs trl; {installing('trl')}") from None
    return trl


# ---- How a Config is translated ------------------------------------------------------------


def common_arguments(config: Any) -> dict[str, Any]:
    """Arguments that all of TRL's configs share, but for folder, seed and batches."""
    refuse(config, warmup=0.0, lr_schedule=type(config).lr_schedule)
    device = resolve_device(config.device)
    return {
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_schedule,  # of DPO linear: to 0, as llm_track/dpo.py
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "use_cpu": device.type == "cpu",
        "bf16": models.half_precision(config, device),
        "gradient_checkpointing": config.gradient_checkpointing,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": device.type != "cpu",
    }


def batches(batch: int, steps: int, most: int) -> dict[str, Any]:
    """Arguments for gradient steps on `batch` rows each, in micro-batches of at most `most`."""
    micro = max(n for n in range(1, min(batch, most) + 1) if batch % n == 0)
    return {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": batch // micro,
        "max_steps": steps,
        "logging_steps": 1,
    }


def refuse(config: Any, **only: Any) -> None:
    """Raise UsageError for a field without the one value that TRL has a counterpart for."""
    for name, value in only.items():
        given = getattr(config, name, value)
        if given == value:
            continue
        flag = name.replace("_", "-")
        if isinstance(given, bool):
            words, instead = (f"--no-{flag}", f"--{flag}")[:: 1 - 2 * given]
            raise UsageError(f"{words}: TRL has no counterpart; use {instead}")
        raise UsageError(f"--{flag} {given}: TRL has no counterpart; use {value!r}")


@dataclass(frozen=True)
class Prepared:
    """A trainer of TRL before its first step, and how what it trains is measured."""

    trainer: Any
    evaluator: Evaluator
    samples: Callable[[int], int]  # that gradient steps stand for
    model: Any


class Baseline:
    """A trainer of TRL, and how the Config of ours that it follows is translated."""

    module: Any  # of llm_track

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        """Arguments of TRL's config that no data decide; UsageError for what TRL cannot do."""
        raise NotImplementedError

    @classmethod
    def prepare(cls, config: Any, run: SeedsRun, folder: str) -> Prepared:
        """Everything up to the first step. run: of one seed. folder: where TRL may write."""
        raise NotImplementedError


class SFTBaseline(Baseline):
    """trl.SFTTrainer"""

    module = sft

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        if config.demonstrations:
            raise UsageError(
                f"--demonstrations {config.demonstrations}: here TRL learns from the task's own"
            )
        ordered = {"max_length": None, "train_sampling_strategy": "sequential"}
        return common_arguments(config) | ordered

    @classmethod
    def prepare(cls, config: Any, run: SeedsRun, folder: str) -> Prepared:
        trl, N = library(), config.batch_size
        policy, tokenizer = load_model(config, run)
        task = models.task_of(config, policy.config, tokenizer)
        source = sft.source_of(config, task, policy, tokenizer)
        hub = HubModel(policy, tokenizer, config, run.processes)
        evaluator = TaskEvaluator(hub, task, config, hub.frozen())
        steps, one = math.ceil(config.total_samples / N), run.runs[0]
        drawn = (
            tasks.next_problems(
                source, N, k * N, one, "demonstrations", one.rng("demonstrations", k)
            )
            for k in range(steps)
        )
        problems = [p for batch in drawn for p in batch]
        rows = token_rows(tokenizer, config, [(p.prompt, task.shown(p)) for p in problems])
        sizes = batches(N, steps, config.micro_batch_size)
        trainer = trl.SFTTrainer(
            policy,
            trl.SFTConfig(folder, seed=run.seeds[0], **cls.arguments(config), **sizes),
            train_dataset=dataset(
                input_ids=[prompt + completion for prompt, completion in rows],
                labels=[[-100] * len(prompt) + completion for prompt, completion in rows],
            ),
            processing_class=tokenizer,
        )
        return Prepared(trainer, evaluator, lambda step: step * N, policy)


class RewardModelBaseline(Baseline):
    """trl.RewardTrainer"""

    module = reward_model

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        refuse(config, preferences="")  # all pairs of a prompt would have to weigh as one
        ordered = {"max_length": None, "train_sampling_strategy": "sequential"}
        return common_arguments(config) | ordered | {"disable_dropout": True}

    @classmethod
    def prepare(cls, config: Any, run: SeedsRun, folder: str) -> Prepared:
        trl, B = library(), config.prompts * config.group_size
        policy, tokenizer = load_model(config, run)
        task = models.task_of(config, policy.config, tokenizer)
        places = run.device, run.processes
        model = models.load_scalar(config.model, config, *places, "--model", run.seeds[0])
        sampler, scored = (HubModel(x, tokenizer, config, run.processes) for x in (policy, model))
        held_out = reward_model.held_out_pairs(sampler, task, config)
        evaluator = reward_model.PairEvaluator(scored, task, config, held_out)
        run.evaluate_if_due(evaluator)
        steps = math.ceil(config.total_samples / B)
        pairs = [
            pair
            for step in range(steps)
            for pair in reward_model.draw_pairs(sampler, task, config, run, step)[0]
        ]
        run.runs[0].pause()
        if len(pairs) < steps:
            raise UsageError(f"--prompts {config.prompts}: TRL needs at least a pair for each step")
        N = len(pairs) // steps
        sides = [
            token_rows(tokenizer, config, rows)
            for rows in (
                [(p.prompt, p.chosen) for p in pairs],
                [(p.prompt, p.rejected) for p in pairs],
            )
        ]
        sizes = batches(N, steps, config.micro_batch_size)
        trainer = trl.RewardTrainer(
            model,
            trl.RewardConfig(folder, seed=run.seeds[0], **cls.arguments(config), **sizes),
            train_dataset=dataset(
                chosen_ids=[prompt + completion for prompt, completion in sides[0]],
                rejected_ids=[prompt + completion for prompt, completion in sides[1]],
            ),
            processing_class=tokenizer,
        )
        return Prepared(trainer, evaluator, lambda step: step * B, model)


class DPOBaseline(Baseline):
    """trl.DPOTrainer"""

    module = dpo

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        return common_arguments(config) | {
            "beta": config.beta,
            "loss_type": ["sigmoid"],
            "max_length": None,
            "train_sampling_strategy": "sequential",
            "disable_dropout": True,
        }

    @classmethod
    def prepare(cls, config: Any, run: SeedsRun, folder: str) -> Prepared:
        trl, N = library(), config.batch_size
        policy, tokenizer = load_model(config, run)
        task = models.task_of(config, policy.config, tokenizer)
        given = models.fitting(config, policy.config, tokenizer, config.learned_from())
        hub = HubModel(policy, tokenizer, config, run.processes)
        evaluator = TaskEvaluator(hub, task, config, hub.frozen())
        run.evaluate_if_due(evaluator)
        pairs, axis = given, config.total_samples
        if not given:
            (pairs,) = dpo.make_pairs(hub, task, config, run)
            axis = dpo.generated(config)
        if not pairs:
            raise UsageError(f"--model {config.model}: TRL needs at least a pair")
        one = run.runs[0]
        one.pause()
        steps = -(-axis // (2 * N)) if given else -(-config.epochs * len(pairs) // N)
        rows = [pairs[i] for k in range(steps) for i in dpo.rows_of_step(k, N, len(pairs), one)]
        prompts = [prompt_of(tokenizer, task, pair.prompt) for pair in rows]
        chats = bool(prompts) and not isinstance(prompts[0], str)

        def answer(text: str) -> Any:
            return [{"role": "assistant", "content": text}] if chats else text

        sizes = batches(N, steps, max(config.micro_batch_size // 2, 1))
        trainer = trl.DPOTrainer(
            policy,
            args=trl.DPOConfig(folder, seed=run.seeds[0], **cls.arguments(config), **sizes),
            train_dataset=dataset(
                prompt=prompts,
                chosen=[answer(pair.chosen) for pair in rows],
                rejected=[answer(pair.rejected) for pair in rows],
            ),
            processing_class=tokenizer,
        )

        def samples(step: int) -> int:
            return 2 * N * step if given else axis * step // steps

        return Prepared(trainer, evaluator, samples, policy)


class GRPOBaseline(Baseline):
    """trl.GRPOTrainer with the loss of GRPO"""

    module = grpo
    loss_type = "grpo"
    scale_rewards = "group"  # of a method that has no flag for it
    draw: tuple[int, ...] = ()  # what follows the step in the key of its prompts' random numbers

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        if config.reward:
            raise UsageError(f"--reward {config.reward[0]}: here TRL learns from the rules")
        refuse(config, reward_model="", rules=True, kl_in="loss", entropy_coef=0.0)
        if config.kl_estimator != "corrected":
            refuse(config, kl_estimator="k3")
        B, m = config.prompts * config.group_size, config.minibatches
        if B % m:
            raise UsageError(
                f"--minibatches {m}: TRL needs equal ones; there are {B} samples per step"
            )
        updates = m * config.epochs
        steps = math.ceil(config.total_samples / B) * updates
        sizes = batches(B // m, steps, config.micro_batch_size)
        return {
            **common_arguments(config),
            **sizes,
            "logging_steps": updates,
            "num_generations": config.group_size,
            "steps_per_generation": sizes["gradient_accumulation_steps"] * m,
            "num_iterations": config.epochs,
            "max_completion_length": models.completion_tokens(config),
            "temperature": config.temperature,
            "loss_type": cls.loss_type,
            "scale_rewards": getattr(config, "scale", cls.scale_rewards),
            "epsilon": config.clip_range or math.inf,
            "beta": config.kl_coef,
            "use_bias_correction_kl": config.kl_estimator == "corrected",
            "reward_weights": [1.0, config.format_weight],
            "shuffle_dataset": False,
            "disable_dropout": True,
        }

    @classmethod
    def rewards(
        cls, config: Any, task: tasks.Task, problems: Sequence[tasks.Problem], read: Reader
    ) -> list[Callable[..., list[float]]]:
        """TRL's reward functions; the column `row` says which problem it is."""
        return rules(task, problems, read)

    @classmethod
    def prepare(cls, config: Any, run: SeedsRun, folder: str) -> Prepared:
        trl = library()
        policy, tokenizer = load_model(config, run)
        task = models.task_of(config, policy.config, tokenizer)
        hub = HubModel(policy, tokenizer, config, run.processes)
        evaluator = TaskEvaluator(hub, task, config, hub.frozen())
        settings = cls.arguments(config)
        updates, B = settings["logging_steps"], config.prompts * config.group_size
        problems = problems_of(
            run, task, settings["max_steps"] // updates, config.prompts, *cls.draw
        )
        trainer = trl.GRPOTrainer(
            policy,
            cls.rewards(config, task, problems, reader(policy, tokenizer)),
            trl.GRPOConfig(folder, seed=run.seeds[0], **settings),
            train_dataset=dataset(
                prompt=[prompt_of(tokenizer, task, p.prompt) for p in problems],
                row=list(range(len(problems))),
            ),
            processing_class=tokenizer,
        )
        return Prepared(trainer, evaluator, lambda step: step // updates * B, policy)


class DrGRPOBaseline(GRPOBaseline):
    """trl.GRPOTrainer with the loss of Dr. GRPO"""

    module = dr_grpo
    loss_type = "dr_grpo"
    scale_rewards = "none"


class DAPOBaseline(GRPOBaseline):
    """trl.GRPOTrainer with the loss of DAPO"""

    module = dapo
    loss_type = "dapo"
    draw = (0,)

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        refuse(config, dynamic_sampling=False, token_level=True)
        return super().arguments(config) | {
            "epsilon_high": config.clip_range_high or config.clip_range or math.inf,
            "mask_truncated_completions": config.overlong_filtering,
            "reward_weights": [2.0, config.format_weight, 1.0],
        }

    @classmethod
    def rewards(
        cls, config: Any, task: tasks.Task, problems: Sequence[tasks.Problem], read: Reader
    ) -> list[Callable[..., list[float]]]:
        longest, cache = models.completion_tokens(config), config.overlong_cache

        def penalty(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
            # With twice the accuracy: 1 for a right answer, -1 for a wrong one.
            lengths = torch.tensor([float(len(ids)) for ids in completion_ids])
            punished = dapo.overlong_punishment(lengths, longest, cache) - 1
            return punished.tolist()  # type: ignore[no-any-return]

        return [*rules(task, problems, read), penalty]


BASELINES: dict[str, type[Baseline]] = {
    "sft": SFTBaseline,
    "reward_model": RewardModelBaseline,
    "dpo": DPOBaseline,
    "grpo": GRPOBaseline,
    "dr_grpo": DrGRPOBaseline,
    "dapo": DAPOBaseline,
}


# ---- What it learns from -------------------------------------------------------------------


def problems_of(
    run: SeedsRun, task: tasks.Task, steps: int, n: int, *draw: int
) -> list[tasks.Problem]:
    """The problems that a run of ours with this seed draws, n for a step, in their order."""
    one = run.runs[0]
    return [
        p
        for step in range(steps)
        for p in tasks.next_problems(
            task, n, step * n, one, "prompts", one.rng("prompts", step, *draw)
        )
    ]


def load_model(config: Any, run: SeedsRun) -> tuple[Any, Any]:
    """The model that a seed begins with, and its tokenizer."""
    return models.load_model(config, run.device, run.processes, run.seeds[0])


def prompt_of(tokenizer: Any, task: tasks.Task, prompt: str) -> Any:
    """A prompt such that TRL's tokens of it are those of `sampling.encode_prompts`."""
    if tokenizer.chat_template is None:
        return f"{task.instruction}\n\n{prompt}\n" if task.instruction else prompt
    return sampling.chats(tokenizer, task, [prompt])[0]


def token_rows(
    tokenizer: Any, config: Any, pairs: Sequence[tuple[str, str]]
) -> list[tuple[list[int], list[int]]]:
    """Ids of prompts and of completions, which end as `sampling.from_texts` lets them end."""
    prompts, completions = zip(*pairs, strict=True)
    task, T = tasks.of(config), models.completion_tokens(config)
    samples = sampling.from_texts(tokenizer, task, prompts, completions, T, torch.device("cpu"))
    fields = samples.prompts, samples.prompt_mask, samples.tokens, samples.mask
    return [(p[m].tolist(), t[k].tolist()) for p, m, t, k in zip(*fields, strict=True)]


def dataset(**columns: Sequence[Any]) -> Any:
    """A data set in memory, as TRL takes it."""
    import datasets

    return datasets.Dataset.from_dict(columns)


def reader(policy: Any, tokenizer: Any) -> Reader:
    """How completions are read: as `sampling.decode` does, which leaves out no tag."""
    last = sampling.end_tokens(policy, tokenizer).tolist()

    def text(ids: Sequence[int]) -> str:
        return sampling.text_of(tokenizer, ids[:-1] if ids[-1] in last else ids)

    return text


def rules(
    task: tasks.Task, problems: Sequence[tasks.Problem], read: Reader
) -> list[Callable[..., list[float]]]:
    """Accuracy and format, as `Task.grade` has them; TRL's own texts lack special tokens."""

    def accuracy(
        completion_ids: Sequence[Sequence[int]], row: Sequence[int], **_: Any
    ) -> list[float]:
        graded = zip(row, map(read, completion_ids), strict=True)
        return [task.grade(problems[i], text).accuracy for i, text in graded]

    def format(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return [task.format(text) for text in map(read, completion_ids)]

    return [accuracy, format]


# ---- The training --------------------------------------------------------------------------


def reporter(run: SeedsRun, prepared: Prepared) -> Any:
    """Reports to a run what TRL logs, and lets it evaluate where ours would be evaluated."""
    from transformers import TrainerCallback  # slow: a flag is refused without it

    class Reporter(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            run.evaluate_if_due(prepared.evaluator)
            run.runs[0].resume()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" not in logs:  # the summary at the end
                return
            found = {ours: logs[name] for name, ours in LOGGED.items() if name in logs}
            metrics = {name: torch.tensor([x], dtype=torch.float64) for name, x in found.items()}
            run.log(prepared.samples(state.global_step) - run.samples, metrics)
            run.evaluate_if_due(prepared.evaluator)

    return Reporter()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars, and without warnings of what a later version will rename."""
    import datasets

    shown = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with models.quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if not shown:
            datasets.enable_progress_bars()


def train(baseline: type[Baseline], config: Any, run: SeedsRun) -> Any:
    """Train one seed; returns the model."""
    from transformers import PrinterCallback

    with tempfile.TemporaryDirectory() as folder, quiet():
        prepared = baseline.prepare(config, run, folder)
        prepared.trainer.remove_callback(PrinterCallback)
        prepared.trainer.add_callback(reporter(run, prepared))
        prepared.trainer.train()
    return prepared.model


def train_seed(algo: str, config: LanguageConfig, run: SeedsRun) -> None:
    """Train and store one seed."""
    baseline = BASELINES[algo]
    carry_out(config, partial(train, baseline), run, [train, baseline], PACKAGES)


# ---- A measuring process -------------------------------------------------------------------


def check(algo: str, settings: str) -> dict[str, float]:
    """Raise UsageError where TRL has no counterpart of a Config, whose fields come as JSON."""
    read_algo(["--algo", algo], Flags.algo, BASELINES, "TRL")
    baseline = BASELINES[algo]
    library()
    baseline.arguments(from_identity(baseline.module.Config, json.loads(settings)))
    return {}


def measure(algo: str, settings: str) -> dict[str, float]:
    """Train the first seed without evaluation: what `trl_speed.py` times."""
    baseline = BASELINES[algo]
    config = from_identity(baseline.module.Config, json.loads(settings))
    set_up_process(config.threads)
    run = SeedsLearningOnly(config, [config.first_seed])
    train(baseline, config, run)
    return run.figures()


# ---- The command ---------------------------------------------------------------------------


def read_flags(args: Sequence[str]) -> tuple[Flags, LanguageConfig]:
    """The script's own flags and the method's Config; a mistake is one line and status 2."""
    try:
        baseline = BASELINES[read_algo(args, Flags.algo, BASELINES, "TRL")]
        module = baseline.module
        flags, config = parse_both(Flags, module.Config, module.PRESETS, __doc__, args)
        baseline.arguments(config)  # refuses what TRL cannot do
        library()
        return flags, config
    except UsageError as error:
        exit_with(error)


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Train the seeds that are not finished yet, store them, and print the table of the run."""
    words = sys.argv[1:] if args is None else args
    if measured(words, measure=measure, check=check):
        return
    flags, config = read_flags(words)
    label = f"trl-{flags.algo}"
    config.check_request()
    folder = RunFolder.of(config, label)

    def train_missing(seeds: Sequence[int]) -> None:
        for seed in seeds:
            run = SeedsRun(config, [seed], folder.path, label, source="trl")
            train_seed(flags.algo, config, run)

    code = Code(config, [train, BASELINES[flags.algo]], LanguageRun.kind_origins())
    complete_seeds(folder, code, train_missing, together=False)
    print_result(folder, config, BASELINES[flags.algo].module.PRESETS.get(config.task))


if __name__ == "__main__":
    main()
