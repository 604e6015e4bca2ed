"""Records the training of one seed of a language model (of all seeds: language_seeds.py).

A part `runs/<task>/<algo>/<name>/seeds-003-003/` contains, besides the files of every part:

    curve.parquet       source, algo, task, seed, samples, learn_s, and a column per measure
    metrics.parquet     seed, samples, learn_s, and a column per logged metric, a row per update
    transcripts.json    a few completions before, during and after the training
    summary.json        "kind": "language"; the measures before the first step and after the last,
                        with more samples than the curve's; samples, seconds
    model/              the trained model as `save_pretrained` writes it (not committed)

Everything random in a step is drawn from the seed, a purpose and the number of the step: a training
that goes on from a checkpoint draws what it would have.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from manyseeds import stats
from manyseeds.cli import (
    Added,
    Execution,
    Fraction,
    NonNegativeInt,
    PositiveInt,
    Preset,
    Range,
    ResumableConfig,
    Seeds,
    check_ranges,
    identity,
    requested_seeds,
)
from manyseeds.digest import boundary, code_digest
from manyseeds.errors import UsageError
from manyseeds.progress import Progress
from manyseeds.record import RunFolder, finite_numbers, part_name, plural, read_parquet, read_part
from manyseeds.runs.base import (
    BaseRun,
    complete,
    parts_with,
    print_table,
    trained_on,
)
from manyseeds.runs.checkpoints import CHECKPOINT, Checkpoint
from manyseeds.runs.parallel import Processes
from manyseeds.runs.set_aside import Code, installed
from manyseeds.worth import SHARE_OF_FAILURE, final_values, worths_of
from manyseeds.writing import parquet_bytes

if TYPE_CHECKING:
    import pandas as pd

# SFT and reward model have prompts of their own: what is trained from them should not begin with
# what they have seen.
PURPOSES = {
    name: k
    for k, name in enumerate(
        ("demonstrations", "samples", "minibatches", "init", "prompts", "pairs", "pair samples")
    )
}


# Logged or measured, these are numbers unless a training has diverged. A loss is that before its
# step: that the last step has diverged, only the entropy of the evaluation after it shows.
FINITE = ("reward", "loss", "entropy")

# A checkpoint has at most so many bytes: of the records, and times those of the parameters.
ROOM, COPIES = 2**30, 16


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(ResumableConfig):
    """Flags that every script of the LLM track has."""

    task: str = "addition"
    """A task with a preset, gsm8k, a file, or a hub name. A file is JSONL, with a prompt and an
    answer in each row, or FILE.py:Class, a task of your own (llm_track/tasks.py)."""
    grader: Annotated[Literal["rules", "math-verify"], Added("rules")] = "rules"
    """How to compare answers to a data set. rules: as numbers or texts. math-verify: also as
    mathematical expressions, with that package."""
    answer: Annotated[str, Added("tags")] = "tags"
    """How to read answers: tags, boxed, last, FILE.py:function. tags: between the answer tags.
    boxed: the last \\boxed{...}. last: the last number. A function of your own takes a completion
    and returns text or None."""
    instruction: Annotated[str | None, Added(None)] = None
    """Instruction for the model. It replaces the one that data sets get ('': none)."""
    drop_long_rows: Annotated[bool, Added(False)] = False
    """Leave out rows of a data set that are too long. Otherwise they are refused. Too long are a
    prompt for the model's context, and a completion to learn from for --max-new-tokens."""
    model: str = "tiny"
    """tiny, one of its base models, a folder, or a hub name. Base models are tiny-base, ...: see
    llm_track/models.py. tiny is tiny-base after a run of sft.py."""
    seeds: Annotated[Seeds, Execution()] = 1
    """Number of seeds S. Those of a small Llama are trained as one batch, those of any other model
    one after another."""
    first_seed: Annotated[NonNegativeInt, Execution()] = 0
    """The seeds are first_seed, first_seed + 1, ..."""
    total_samples: PositiveInt = 51_200
    """Budget in samples. Samples are completions, including discarded ones."""
    max_new_tokens: NonNegativeInt = 0
    """Longest completion, in tokens (0: the task's)."""
    initial_per_seed: Annotated[bool, Added(False)] = False
    """Give each seed an initial model of its own, made with that seed."""
    lora_rank: NonNegativeInt = 0
    """Train low-rank adapters of this rank (0: all weights)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of computations. auto is bfloat16 on a GPU that supports it; weights stay
    float32."""
    warmup: Annotated[Fraction, Added(0.0)] = 0.0
    """Fraction of training used for learning rate warm-up. It is linear, starting from 0."""
    lr_schedule: Annotated[Literal["constant", "linear", "cosine"], Added("constant")] = "constant"
    """Learning rate schedule. linear, cosine: annealed to 0 after the warm-up."""
    evaluations: Annotated[PositiveInt, Execution()] = 10
    """Number of evaluations, not counting the one before training."""
    eval_prompts: Annotated[PositiveInt, Added(128)] = 128
    """Maximum held-out prompts per evaluation during training. The evaluations before and
    after it use 256. Of a data set they use more the longer the training is."""
    eval_samples: Annotated[PositiveInt, Added(4)] = 4
    """Samples per prompt of each evaluation during training. N samples give pass@N and cons@N, and
    if N is larger than 4, also pass@4 and cons@4. The evaluations before and after training use
    16."""
    eval_budget: Annotated[float, Range(0, 1, open_low=True), Added(1.0)] = 1.0
    """Fraction of the full evaluation to run. At least one prompt. Below 1 scores are noisier, and
    the run gets another name."""
    micro_batch_size: Annotated[PositiveInt, Execution()] = 64
    """Samples per forward and backward pass. Changes memory and speed, not the result. Sampling
    has its own batch size. A small Llama takes all at once."""
    sampling_batch_size: Annotated[NonNegativeInt, Execution()] = 0
    """Completions generated in parallel (0: all of a step). Changes memory and speed, and results
    only by rounding. With 0, evaluations generate 512. Steps of a small Llama generate all."""
    gradient_checkpointing: Annotated[bool, Execution()] = False
    """Save memory by recomputing activations."""

    def __post_init__(self) -> None:
        check_ranges(self)
        requested_seeds(self)
        for name in ("task", "model"):
            if not getattr(self, name):
                raise UsageError(f"--{name} '': must name a {name}")
        self.check()

    def trains_together(self) -> bool:
        """Whether all seeds are trained as one batch."""
        return False

    def check(self) -> None:
        """Conditions between fields; raises UsageError."""

    def check_request(self) -> None:
        """What this machine, the data and the model must have; raises UsageError."""


class Evaluator(Protocol):
    """Measures a model while it learns; what `SeedsRun.evaluate_if_due` is given."""

    headline: str  # the measure of the progress bar and the figure

    def __call__(
        self, final: bool, seeds: Sequence[int] = (0,)
    ) -> list[tuple[dict[str, float], list[dict[str, Any]]]]:
        """The measures and a few transcripts of some seeds of the batch, counted from its first;
        final: with more samples."""

    def save(self, folder: Path, seed: int = 0) -> None:
        """Write the model of a seed of the batch."""


class LanguageRun(BaseRun):
    """Records the training of one seed, for a `SeedsRun`: what `train(config, run)` reports to."""

    kind = "language"
    decides = (
        *("__init__", "rng", "uniforms", "log", "evaluates", "record", "store", "curve"),
        *("metrics", "records", "take_up", Processes),
    )
    local = ("curve.png", "model")
    weights = "model"
    config: Any

    @classmethod
    def kind_origins(cls) -> list[str]:
        """Also what records a batch of them."""
        batch = ("rngs", "uniforms", "log", "evaluate_if_due", "save_if_due", "restore", "finish")
        names = (f"manyseeds.runs.language_seeds:SeedsRun.{name}" for name in batch)
        return [*super().kind_origins(), *names]

    def __init__(
        self,
        config: LanguageConfig,
        seeds: Sequence[int] | None = None,
        directory: Path | None = None,
        algo: str = "",
        source: str = "manyseeds",
        processes: Processes | None = None,
        batch: int = 1,
    ) -> None:
        """batch: how many seeds are trained together; each is given its share of the time."""
        seeds = [config.first_seed] if seeds is None else seeds
        super().__init__(config, seeds, directory, algo, source)  # type: ignore[arg-type]
        (self.seed,), self.batch = self.seeds, batch
        self.processes = processes or Processes(self.device)
        self.device = self.processes.device
        self.samples = 0
        self.diverged: int | None = None  # samples at which one of FINITE was not
        self._initial: dict[str, float] = {}  # measures before the first step
        self._rows: list[dict[str, float]] = []
        self._metrics: list[dict[str, float]] = []
        self._transcripts: list[dict[str, Any]] = []
        self._before = 0.0  # total seconds of a training that was interrupted
        self._point = -1
        self._opened = False
        self._open_with: tuple[Any, ...] = ()
        self._evaluator: Any = None  # an Evaluator, once it has been evaluated
        silent = config.quiet or not self.processes.main or batch > 1
        self._progress = Progress(
            config.total_samples,
            1,
            silent,
            live=directory is not None and not silent,
            unit="samples",
            measure="pass@1 (or what the method measures) on held-out prompts",
        )

    @property
    @boundary
    def learn_s(self) -> float:
        """Seconds of learning so far, evaluation excluded."""
        return self._learned + (time.perf_counter() - self._resumed) / self.batch

    @property
    @boundary
    def total_s(self) -> float:
        """Seconds since the beginning."""
        return (time.perf_counter() - self._began) / self.batch

    def open(self, definitions: Sequence[Any], packages: Sequence[str] = ()) -> None:
        """Remember what to put into config.json; it is written once the training can begin.

        Until then a user's mistake may come to light (an unknown model): nothing is to be left.
        """
        self._open_with = (definitions, (*packages, "transformers"))
        if self.directory is not None:
            path = self.directory / CHECKPOINT
            self.checkpoint = Checkpoint(path, self.config.checkpoint_interval)

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """The random numbers for one purpose, of one step (or one part of a step)."""
        key = (PURPOSES[purpose], *index)
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key))
        )

    def uniforms(self, step: int, *shape: int, part: int = 0, purpose: str = "samples") -> Tensor:
        """Uniforms in [0, 1) for the sampling of one step (or a part of it), float32."""
        block = self.rng(purpose, step, part).random(shape, dtype=np.float32)
        return torch.from_numpy(block).to(self.device)

    def log(self, samples: int, metrics: Mapping[str, float | Tensor]) -> None:
        """Record the metrics of an update that ended at a number of samples."""
        self.samples = samples
        values = {name: float(x) for name, x in metrics.items()}
        self._note_divergence(values)
        self._metrics.append({"samples": samples, "learn_s": self.learn_s, **values})
        self._progress.update(samples, self.learn_s)
        self._track_row("train", self._metrics[-1])

    def _note_divergence(self, values: Mapping[str, float]) -> None:
        """Remember when the first loss, reward or entropy was NaN or infinite, and say so."""
        wrong = [name for name in FINITE if not math.isfinite(values.get(name, 0.0))]
        if self.diverged is not None or not wrong:
            return
        self.diverged = self.samples
        rewarded = getattr(self.config, "reward_model", "")
        hint = f"; see --reward-model {rewarded}" if rewarded and "reward" in wrong else ""
        if self.processes.main:
            what = f"its {wrong[0]} is {values[wrong[0]]}"
            print(
                f"note: seed {self.seed} diverged at {self.samples:,} samples: {what}{hint}",
                file=sys.stderr,
            )

    def evaluates(self, samples: int, evaluator: Evaluator) -> bool:
        """Whether an evaluation is due, after a number of samples."""
        if not self._opened:
            self._open()
        self.samples, self._evaluator = samples, evaluator
        return self._due(samples) > self._point

    def evaluated(self) -> None:
        """No evaluation is due now; for every process."""
        self._point = self._due(self.samples)

    @property
    def evaluator(self) -> Evaluator:
        """What it was evaluated by."""
        assert self._evaluator is not None, "train must call run.evaluate_if_due"
        return self._evaluator  # type: ignore[no-any-return]

    @property
    def begun(self) -> bool:
        """Whether the measures before the first step are known."""
        return bool(self._initial)

    def begin(self, measures: dict[str, float]) -> None:
        """Record the measures before the first step."""
        self._initial = measures

    def _due(self, samples: int) -> int:
        """How many of the curve's points are due at a number of samples."""
        last = self.config.evaluations
        return min(samples * last // self.config.total_samples, last)

    @boundary
    def _open(self) -> None:
        self._opened = True
        if self.directory is not None:
            super().open(*self._open_with)
        self.resume()

    def record(self, measures: dict[str, float], transcripts: list[dict[str, Any]]) -> None:
        """Record a point of the curve."""
        self._note_divergence(measures)
        self._rows.append({"samples": self.samples, "learn_s": self._learned, **measures})
        self._transcripts += [{"samples": self.samples, **x} for x in transcripts]
        headline = measures[self._evaluator.headline]
        self._progress.update(self.samples, self._learned, f"{headline:.3f}")
        self._track_row("evaluation", self._rows[-1])

    @boundary
    def _track_row(self, what: str, row: Mapping[str, float]) -> None:
        """Write a row of the metrics or of the curve for `--track`."""
        names = row.keys() - {"samples", "learn_s"}
        self.track(int(row["samples"]), {f"{what}/{name}": row[name] for name in names})

    @boundary
    def _track_again(self) -> None:
        """Write what a checkpoint holds: the interrupted command's files are gone."""
        for what, rows in (("train", self._metrics), ("evaluation", self._rows)):
            for row in rows:
                self._track_row(what, row)

    # ---- Checkpoints -------------------------------------------------------------------

    def records(self) -> dict[str, Any]:
        """What a checkpoint holds of this seed."""
        return {
            "samples": self.samples,
            "learned": self._learned, "total": self.total_s + self._before,
            "diverged": self.diverged, "initial": self._initial,
            "rows": self._rows,
            "metrics": self._metrics, "transcripts": self._transcripts,
        }  # fmt: skip

    def take_up(self, state: Mapping[str, Any]) -> None:
        """Go on from what `records` gave."""
        self.samples = state["samples"]
        self._initial = state["initial"]
        self._rows, self._metrics = state["rows"], state["metrics"]
        self._point = self._due(int(self._rows[-1]["samples"]))  # perhaps of other --evaluations
        self._transcripts, self.diverged = state["transcripts"], state["diverged"]
        self._before = state["total"]
        self._open()
        self._learned = state["learned"]
        self._track_again()

    @boundary
    def origin(self) -> dict[str, Any]:
        """What a checkpoint belongs to; devices and threads may change."""
        config = identity(self.config)
        return {"config": config, "code": self._digest, "torch": installed("torch")}

    @cached_property
    def _digest(self) -> str:
        return code_digest([*self.origins(self._open_with[0]), *self.kind_origins()])

    # ---- The end -----------------------------------------------------------------------

    def store(self, final: dict[str, float], seed: int = 0) -> dict[str, Any]:
        """With a directory, write and seal the part; seed: which of the batch this is."""
        self.close()
        summary = {
            **self.head(),
            "seeds": self.seeds,
            "headline": self._evaluator.headline,
            "initial": finite_numbers(self._initial),
            "final": finite_numbers(final),
            "samples": self.samples,
            "diverged": self.diverged,
            "learn_seconds": self._learned,
            "total_seconds": self.total_s + self._before,
            "samples_per_second": self.samples / max(self._learned, 1e-9),
        }
        if self.directory is not None:
            self._evaluator.save(self.directory / "model", seed)
            transcripts = json.dumps(self._transcripts, indent=1, ensure_ascii=False) + "\n"
            files = {
                "curve.parquet": parquet_bytes(self.curve()),
                "metrics.parquet": parquet_bytes(self.metrics()),
                "transcripts.json": transcripts.encode(),
            }
            self.write(files, self._draw, summary)
        return summary

    def curve(self) -> pd.DataFrame:
        """All evaluations as tidy rows."""
        import pandas as pd

        frame = pd.DataFrame(self._rows)
        names = {"source": self.source, "algo": self.algo, "task": self.config.task}
        for k, (name, value) in enumerate({**names, "seed": self.seed}.items()):
            frame.insert(k, name, value)
        return frame

    def metrics(self) -> pd.DataFrame:
        """The logged metrics, one row per update."""
        import pandas as pd

        frame = pd.DataFrame(self._metrics)
        frame.insert(0, "seed", self.seed)
        return frame

    def _draw(self, folder: Path) -> None:
        from manyseeds import plots

        curve = self.curve()
        shown = [self._evaluator.headline, "length", "format", "entropy"]
        panels = {
            name: {self.algo: plots.Line(curve["samples"], curve[name])}
            for name in shown
            if name in curve
        }
        plots.lines(panels, folder / "curve.png", xlabel="samples", ylabel="", columns=2)


# ---- The command ---------------------------------------------------------------------------


def complete_seeds(
    folder: RunFolder,
    code: Code,
    train_missing: Callable[[Sequence[int]], object],
    together: bool,
) -> None:
    """Train the seeds that are not finished yet, or whose models are not on this machine.

    together: all of them at once, otherwise one after another.
    """
    seeds = requested_seeds(code.config)

    def missing() -> list[int]:
        return [s for s in seeds if not code.finished(folder.path / part_name([s]))]

    finished = f"Finished already: {plural(len(seeds), 'seed')}"
    complete(folder, code, seeds, missing, train_missing, finished, together)


def print_result(
    folder: RunFolder,
    config: LanguageConfig,
    preset: Preset | None,
    signals: Mapping[int, Sequence[bool]] | None = None,
) -> None:
    """The table at the end of a training, over the seeds that the command asked for.

    signals: of each seed whose steps were all taken just now, whether they had a group of different
    rewards. They are not stored: parts of runs without rules have no such column.
    """
    import pandas as pd
    from rich.table import Table

    requested = requested_seeds(config)
    parts = parts_with(folder, requested)
    summaries = [read_part(part)[1] for part in parts]
    seeds = plural(len(requested), "seed")
    table = Table(show_header=False, title=f"{folder.algo} on {config.task}, {seeds}")
    worths = {seed: worth for s in summaries for seed, worth in worths_of(s).items()}
    diverged = {seed: w.diverged for seed, w in worths.items() if w.diverged is not None}
    for name in summaries[0]["final"]:
        before = [s["initial"].get(name) for s in summaries]
        after = final_values(summaries, name)
        if np.isnan(after).any():
            continue
        found = stats.estimate(after, "mean", resamples=2000, imputed=bool(diverged))
        text = found.full_text(3) if name == summaries[0]["headline"] else found.text(3)
        if all(x is not None for x in before):
            text += f", at the beginning {np.mean(before):z.3f}"
        table.add_row(name, text)
    words = ", ".join(f"seed {seed} at {n:,} samples" for seed, n in diverged.items())
    if diverged:
        words += f"; each counts as {SHARE_OF_FAILURE:g} in shares of successes"
    table.add_row("diverged", words or "none")
    metrics = pd.concat(read_parquet(part / "metrics.parquet") for part in parts)
    steps = [(signals or {}).get(seed, ()) for seed in requested]
    own_data = not config.task.isalpha()  # a file, a hub's, gsm8k: no task that is generated here
    if signal := signal_of(metrics, config, steps if all(steps) else (), own_data):
        table.add_row("signal", signal)
    if preset is None:
        table.add_row("preset", f"none for {config.task}: the defaults")
    learn_s = sum(s["learn_seconds"] for s in summaries)
    speed = sum(s["samples"] for s in summaries) / max(learn_s, 1e-9)
    table.add_row("speed", f"{speed:,.0f} samples/s ({trained_on(parts)})")
    total = sum(s["total_seconds"] for s in summaries)
    table.add_row("time", f"{total:.1f} s, of which {learn_s:.1f} s learning")
    print_table(table, folder, parts)


def signal_of(
    metrics: pd.DataFrame,
    config: Any,
    steps: Sequence[Sequence[bool]] = (),
    own_data: bool = False,
) -> str:
    """The share of groups with right and wrong completions, as a text; '' where nothing is graded.

    metrics: of all updates. Without a single such group the rewards by rules say nothing. steps:
    of each seed, whether its steps have a group of different rewards, which is said without rules.
    own_data: whether the task is one that the models made here do not know.
    """
    if getattr(config, "learn_from", "all") != "all":
        return ""  # RLOO learns from groups that are all right, or all wrong, too
    if not getattr(config, "rules", "pairs" in metrics):
        found = [x for of_seed in steps for x in of_seed]
        return without_rules(found) if found else ""
    if "pairs" in metrics:  # the steps of DPO always have some
        shares, what = metrics["pairs"] > 0, "steps have a pair of a right and a wrong completion"
    elif config.group_size > 1 and "all_failed" in metrics:
        shares = 1 - metrics["all_solved"] - metrics["all_failed"]
        what = "groups have right and wrong completions"
    else:
        shares = metrics["accuracy"].between(0, 1, inclusive="neither")
        what = "steps have right and wrong completions"
    share = float(shares.mean())
    if share > 1e-6:  # sums of float32
        return f"{100 * share:.3g}% of the {what}"
    hint = ""
    nothing_right = "accuracy" not in metrics or metrics["accuracy"].max() == 0
    if nothing_right and (own_data or getattr(config, "answer", "tags") != "tags"):
        hint = "look at completions (transcripts.json), --answer and --instruction, or "
    return f"none of the {what}; {hint}try SFT first, or another --task, --model or --temperature"


def without_rules(found: Sequence[bool]) -> str:
    """The share of steps with a group of different rewards, as a text."""
    what = "steps have a group of different rewards"
    if any(found):
        return f"{100 * np.mean(found):.3g}% of the {what}"
    return (
        f"none of the {what}: there was nothing to learn from; look at completions "
        "(transcripts.json) and at what --reward or --reward-model gives them"
    )
