"""Records one training of all seeds of a language model, as one batch.

Each seed has a part of its own, as if it had been trained alone: its curve, its metrics, its model,
and its share of the time. One checkpoint, in the part of the first seed, holds all of them; where
only some of these seeds are to go on from it, these and the others have one each.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from manyseeds import kernels, snapshot, user_code
from manyseeds.cli import AnyConfig, Preset
from manyseeds.digest import boundary
from manyseeds.process import resolve_device, set_up_process
from manyseeds.progress import Progress, console
from manyseeds.record import RunFolder, is_finished, part_name, ranges
from manyseeds.runs.base import carry_out
from manyseeds.runs.checkpoints import CHECKPOINT, Checkpoint
from manyseeds.runs.language import (
    COPIES,
    ROOM,
    Evaluator,
    LanguageConfig,
    LanguageRun,
    complete_seeds,
    print_result,
)
from manyseeds.runs.parallel import Processes
from manyseeds.runs.set_aside import Code
from manyseeds.untrusted import read_bytes, reading
from manyseeds.writing import write_bytes

FIRST_STEPS = 10  # after which a training without any signal says so


class Learner(Protocol):
    """A model or an optimizer, whose state has the seed first."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint is to hold."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave."""


class SeedsRun:
    """What `train(config, run)` of the seeds of a language model reports to.

    folder: of the run; None: everything stays in memory.
    """

    def __init__(
        self,
        config: Any,
        seeds: Sequence[int],
        folder: Path | None = None,
        algo: str = "",
        source: str = "manyseeds",
        processes: Processes | None = None,
    ) -> None:
        S = len(seeds)
        self.config, self.seeds, self.folder = config, list(seeds), folder
        self.rows = list(range(S))  # of the hyperparameters of a batch that are [S]
        self.runs = []
        for seed in seeds:
            part = None if folder is None else folder / part_name([seed])
            self.runs.append(LanguageRun(config, [seed], part, algo, source, processes, S))
            processes = self.runs[0].processes
        self.processes, self.device = self.runs[0].processes, self.runs[0].device
        self._without_signal = dict.fromkeys(range(S), 0)  # steps so far of seeds without any
        self._signals: list[list[bool]] = [[] for _ in seeds]  # of each seed's steps
        self._resumed = False  # from a checkpoint, which does not hold them
        self._progress = None
        if S > 1:
            live, text = folder is not None, "pass@1 (or what the method measures), mean over seeds"
            self._progress = Progress(
                config.total_samples, S, config.quiet, live, unit="samples", measure=text
            )

    def open(self, definitions: Sequence[Any], packages: Sequence[str] = ()) -> None:
        """As LanguageRun's."""
        for run in self.runs:
            run.open(definitions, packages)

    # ---- What a step draws ---------------------------------------------------------------

    def rngs(self, purpose: str, *index: int) -> list[np.random.Generator]:
        """The random numbers of each seed for one purpose, of one step (or a part of it)."""
        return [run.rng(purpose, *index) for run in self.runs]

    def uniforms(self, step: int, *shape: int, part: int = 0, purpose: str = "samples") -> Tensor:
        """Uniforms in [0, 1) of each seed for the sampling of one step, `[S, *shape]` float32."""
        return torch.stack([
            run.uniforms(step, *shape, part=part, purpose=purpose) for run in self.runs
        ])  # fmt: skip

    # ---- What it reports -----------------------------------------------------------------

    @property
    def samples(self) -> int:
        """How many each seed has drawn, at least."""
        return min(run.samples for run in self.runs)

    @property
    def unfinished(self) -> list[int]:
        """Which seeds have samples left to draw, counted from the first one."""
        return [s for s, x in enumerate(self.runs) if x.samples < self.config.total_samples]

    def own(self, value: Any) -> Any:
        """A hyperparameter, of all seeds of the batch, for those of this part of it."""
        return value[self.rows] if isinstance(value, Tensor) and value.dim() else value

    def of(self, seeds: Sequence[int]) -> SeedsRun:
        """Some of the seeds, counted from the first one, for what they draw."""
        part = copy.copy(self)
        part.rows = [self.rows[s] for s in seeds]
        part.runs = [self.runs[s] for s in seeds]
        part.seeds = [self.seeds[s] for s in seeds]
        return part

    def log(
        self,
        drawn: int | Tensor,
        metrics: Mapping[str, Tensor],
        seeds: Sequence[int] | None = None,
    ) -> None:
        """Record the metrics [S] of an update that has drawn so many samples, of each seed or [S].

        seeds: which have taken part, counted from the first one (None: all).
        """
        columns = {name: x.tolist() for name, x in metrics.items()}
        counts = drawn.tolist() if isinstance(drawn, Tensor) else [drawn] * len(self.runs)
        for s in range(len(self.runs)) if seeds is None else seeds:
            run = self.runs[s]
            run.log(run.samples + counts[s], {name: x[s] for name, x in columns.items()})
        if self._progress is not None:
            self._progress.update(self.samples, self.runs[0].learn_s * len(self.runs))

    @boundary
    def look_for_signal(self, found: Tensor, note: Callable[[Tensor], str]) -> None:
        """Print a note on seeds whose first steps had no signal, once; none after a checkpoint.

        found: [S], whether this step, which is not logged yet, has one. note: what to say of such
        seeds, given as [S].
        """
        steps = self._without_signal
        for s in self.unfinished:  # others have not taken part
            self._resumed |= self.runs[s].samples > 0 and not self._signals[s]
            self._signals[s].append(bool(found[s]))
            if found[s]:
                steps.pop(s, None)
            elif s in steps:
                steps[s] += 1
        silent = [s for s, count in steps.items() if count == FIRST_STEPS]
        if not silent:
            return
        for s in silent:
            del steps[s]
        word = "seed" if len(silent) == 1 else "seeds"
        few = len(silent) < len(self.seeds)
        who = f"{word} {ranges(self.seeds[s] for s in silent)}: " if few else ""
        if self.processes.main:
            told = note(torch.tensor(silent, device=found.device))
            print(f"note: {who}in the first {FIRST_STEPS} steps {told}", file=sys.stderr)

    def signals(self) -> dict[int, list[bool]]:
        """Whether each step of each seed had a signal; {} where some were before a checkpoint."""
        return {} if self._resumed else dict(zip(self.seeds, self._signals, strict=True))

    def evaluate_if_due(self, evaluator: Evaluator) -> None:
        """Evaluate each seed before its first step, and at the first call at or after each k-th
        part of its samples."""
        begin = not self.runs[0].begun
        due = [s for s, run in enumerate(self.runs) if run.evaluates(run.samples, evaluator)]
        for run in self.runs if begin else ():  # their clocks begin together
            run.resume()
        if not due:
            return
        for run in self.runs:
            run.pause()
        first = [s for s in due if not self.runs[s].begun]
        if first:
            for s, (measures, _) in zip(first, evaluator(True, first), strict=True):
                self.runs[s].begin(measures)
        found = evaluator(False, due)
        for s, (measures, transcripts) in zip(due, found, strict=True):
            self.runs[s].record(measures, transcripts)
        if self._progress is not None:
            mean = np.mean([measures[evaluator.headline] for measures, _ in found])
            seconds = self.runs[0].learn_s * len(self.runs)
            self._progress.update(self.samples, seconds, f"{mean:.3f}")
        for s in due:
            self.runs[s].evaluated()
        for run in self.runs:
            run.resume()

    # ---- Checkpoints ---------------------------------------------------------------------

    @property
    def checkpoint(self) -> Checkpoint:
        """That of all seeds."""
        return self.runs[0].checkpoint

    def save_if_due(self, step: int, *learners: Learner, **extra: Sequence[Any]) -> None:
        """Write a checkpoint if it is time.

        extra: what else of each seed, as JSON, `restore` is to give back.
        """
        if not self.processes.main or not self.checkpoint.due():
            return
        for run in self.runs:
            run.pause()
        tensors = {
            f"{k}.{name}": x for k, one in enumerate(learners) for name, x in one.tensors().items()
        }
        records = [run.records() for run in self.runs]
        state = {"step": step, "seeds": self.seeds, "records": records, "extra": extra}
        self.checkpoint.write(f"sample {self.samples:,}", self._belongs, state, tensors)
        for run in self.runs:
            run.resume()

    def restore(self, *learners: Learner) -> tuple[int, dict[str, list[Any]]]:
        """Go on from a checkpoint of these seeds: the number of the next step, and `extra`.

        (0, {}) where there is none, or only those that belong to something else.
        """
        size = sum(x.nbytes for one in learners for x in one.tensors().values())
        limit = ROOM + COPIES * size
        path = found = None
        if self.processes.main and self.folder is not None:
            found = self.checkpoint.read(self._belongs, limit, self._rows)
            path = found and self.checkpoint.path
        path = self.processes.broadcast(path)
        if path is None:
            return 0, {}
        if found is None:  # only the main process has read it
            content, tensors = snapshot.read(path, limit)
            found = self._rows(content["state"], tensors)
        state, tensors = found
        if not self.config.quiet and self.processes.main:
            console.print(f"going on from {self.checkpoint.at}")
        for k, one in enumerate(learners):
            start = f"{k}."
            own = {x.removeprefix(start): tensors[x] for x in tensors if x.startswith(start)}
            with torch.no_grad():
                one.load(own)
        for run, records in zip(self.runs, state["records"], strict=True):
            run.take_up(records)
        self._without_signal.clear()  # the first steps are over
        return state["step"], state["extra"]

    def _rows(self, state: Any, tensors: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """What a checkpoint holds of these seeds; ValueError where one is missing."""
        rows = [state["seeds"].index(seed) for seed in self.seeds]
        state = {
            "step": state["step"],
            "records": [state["records"][k] for k in rows],
            "extra": {name: [x[k] for k in rows] for name, x in state["extra"].items()},
        }
        return state, {name: x[rows] for name, x in tensors.items()}

    def of_checkpoint(self, definitions: Sequence[Any]) -> list[int]:
        """The seeds of the checkpoint that this training can go on from; without one, none.

        definitions: as for `open`.
        """
        self.open(definitions)
        if not self.checkpoint.belongs(self._belongs):
            return []
        assert self.checkpoint.path is not None
        state = snapshot.read_state(self.checkpoint.path)["state"]
        return [seed for seed in state["seeds"] if isinstance(seed, int)]

    @property
    def _belongs(self) -> dict[str, Any]:
        return {**self.runs[0].origin(), "kernels": kernels.computing()}

    # ---- The end -------------------------------------------------------------------------

    def heed(self) -> None:
        """As BaseRun's."""

    def outlook(self) -> str:
        """As BaseRun's."""
        return self.runs[0].outlook()

    def finish(self, result: Any) -> list[dict[str, Any]]:
        """Evaluate for the last time and, with a folder, write and seal each seed's part; that of
        the first seed, with the checkpoint, is the last."""
        for run in self.runs:
            run.pause()
        seeds = range(len(self.runs))
        final = self.runs[0].evaluator(True, seeds)
        if not self.processes.main:
            return []
        self.close()
        summaries = [self.runs[s].store(final[s][0], s) for s in reversed(seeds)]
        return summaries[::-1]

    def close(self) -> None:
        """As BaseRun's."""
        if self._progress is not None:
            self._progress.close()
        for run in self.runs:
            run.close()

    def discard(self) -> None:
        """As BaseRun's."""
        for run in self.runs:
            run.discard()


def hand_over(path: Path, todo: Sequence[int], seeds_of: Callable[[int], Sequence[int]]) -> None:
    """Where only some seeds of a checkpoint are to be trained now, give the others one as well.

    path: the folder of a run. seeds_of: the seeds of the checkpoint in the part of a seed.
    """
    for checkpoint in sorted(path.glob(f"seeds-*/{CHECKPOINT}")):
        owner = int(checkpoint.parent.name.split("-")[1])
        rest = [s for s in seeds_of(owner) if not is_finished(path / part_name([s]))]
        for some in ([s for s in rest if s in todo], [s for s in rest if s not in todo]):
            if some and owner not in some:
                place = path / part_name(some[:1]) / CHECKPOINT
                if not place.exists():
                    place.parent.mkdir(exist_ok=True)
                    write_bytes(place, read_bytes(checkpoint))


def groups_of(todo: Sequence[int], resumes: Callable[[int], Sequence[int]]) -> list[list[int]]:
    """The batches that seeds are trained in: those of a checkpoint first, then all others.

    resumes: the seeds of the checkpoint in the part of a seed, which is the first that it is for.
    """
    known = {seed: resumes(seed) for seed in todo}
    groups: dict[int, list[int]] = {}
    for seed in sorted(todo):
        owners = [first for first in todo if first <= seed and seed in known[first]]
        groups.setdefault(max(owners, default=-1), []).append(seed)
    left = groups.pop(-1, [])
    return [*groups.values(), *([left] if left else [])]


# ---- The command ---------------------------------------------------------------------------


@failing_in_one_line()
def main(
    config: AnyConfig,
    train: Callable[[AnyConfig, SeedsRun], Any],
    presets: dict[str, Preset],
) -> None:
    """Train the seeds that are not finished yet, store them, and print the table of the run.

    Those of a small Llama are one batch; any other model is trained seed after seed.
    """
    assert isinstance(config, LanguageConfig)
    algo = Path(inspect.getfile(train)).stem
    processes = Processes(resolve_device(config.device))
    with user_code.failing_in_one_line(config.task, "--task"):
        config.check_request()
    folder = RunFolder.of(config, algo)  # a file or a model that it names may not be there
    signals = dict[int, list[bool]]()

    def train_batch(seeds: Sequence[int], path: Path | None) -> None:
        with user_code.failing_in_one_line(config.task, "--task"):
            run = SeedsRun(config, seeds, path, algo, processes=processes)
            carry_out(config, train, run)
            signals.update(run.signals())

    if not processes.main:
        set_up_process(config.threads)
        while (seeds := processes.broadcast()) is not None:
            train_batch(seeds, None)
        return

    def resumes(seed: int) -> list[int]:
        quiet = dataclasses.replace(config, quiet=True)
        return SeedsRun(quiet, [seed], folder.path, algo).of_checkpoint([train])

    def train_missing(todo: Sequence[int]) -> None:
        if together:
            hand_over(folder.path, todo, resumes)
        for seeds in groups_of(todo, resumes) if together else [[seed] for seed in todo]:
            processes.broadcast(seeds)
            train_batch(seeds, folder.path)

    together = config.trains_together()
    code = Code(config, [train], LanguageRun.kind_origins())
    complete_seeds(folder, code, train_missing, together)
    processes.broadcast(None)
    with reading(folder.path):
        print_result(folder, config, presets.get(config.task), signals)
