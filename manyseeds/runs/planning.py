"""Records one planning run: every sweep, a figure, and the final table.

A planning run is `runs/<env>/<algo>/<name>/plan/`. Besides `config.json`, `summary.json` and
`DONE.json`, which every run has, it contains `sweeps.json`, from which all sweeps can be replayed:

    schema    that of the store
    algo, env, gamma
    layout    panels: {title: [[state, ...], ...]}, the state index in each row and column, -1 where
              there is none; actions: the sign of each action; marks: {state: letter}
    ends      the states in which an episode is over
    sweeps    one object for each, in value iteration also for V = 0 before the first, "sweep 0":
              iteration (of policy iteration; 0 where there is none),
              residual (the Bellman residual max |T V - V|),
              values [X] (six significant digits; summary.json has those of the end in full),
              actions [X] (the greedy action for these values)
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from manyseeds import checkpoint, plots, stats
from manyseeds.cli import AnyConfig, EnvConfig, Execution, Positive, Preset, Range, UsageError
from manyseeds.record import PLAN, POLICY, SCHEMA, RunFolder, read_json, read_part
from manyseeds.runs.base import BaseRun, carry_out, complete, print_table
from manyseeds.runs.set_aside import Code
from manyseeds.untrusted import reading

MAX_FRAMES = 60  # of a GIF
TIED = 1e-12  # what the algorithms' greedy actions take for rounding


@dataclass(frozen=True, kw_only=True)
class PlanningConfig(EnvConfig):
    """Flags that every planning algorithm has."""

    env: str = "Gridworld-v0"
    """Environment id."""
    gamma: Annotated[float, Range(0, 0.999)] = 0.9
    """Discount factor per step."""
    tolerance: Positive = 1e-10
    """Stop within this distance of the optimal values, relative for values above 1. Smaller values
    count as 0, so with a small gamma a distant goal may not be found."""
    gif: Annotated[bool, Execution()] = False
    """Also write a GIF of values and actions, one frame per sweep or iteration."""

    def check(self) -> None:
        if self.device == "cuda":
            raise UsageError("--device cuda: plans are made on the CPU")
        if self.track != "none":
            raise UsageError("--track: planning logs no metrics; sweeps.json has every sweep")


@dataclass(frozen=True)
class Sweep:
    """The state of a plan after one sweep."""

    iteration: int
    residual: float
    values: list[float]  # [X]
    actions: list[int]  # [X]


class PlanningRun(BaseRun):
    """Records one planning: what `solve(config, plan)` reports to. There are no seeds."""

    kind = "planning"
    decides = ("__init__", "record", "measures", "replay")
    local = (POLICY, "plan.png", "plan.gif")
    config: PlanningConfig

    def __init__(
        self, config: PlanningConfig, directory: Path | None = None, algo: str = ""
    ) -> None:
        super().__init__(config, [], directory, algo)
        self.env = config.make_env()
        self.sweeps: list[Sweep] = []

    def record(self, values: Tensor, actions: Tensor, residual: float, iteration: int = 0) -> None:
        """Keep values [X], greedy actions [X] and the Bellman residual of a sweep."""
        self.sweeps.append(Sweep(iteration, residual, values.tolist(), actions.tolist()))

    def measures(self, result: Tensor) -> dict[str, float]:
        """The value of the start in `result` [X], and the last sweep's policy's score."""
        env = self.env
        policy = one_hot(torch.tensor(self.sweeps[-1].actions), env.spec.num_actions)
        return {
            "start_value": math.fsum(result * env.start),
            "score": env.policy_score(policy.unsqueeze(0)).item(),
        }

    def finish(self, result: Tensor) -> dict[str, Any]:
        """Score the greedy policy for the optimal values [X], and write the run; its summary."""
        self.pause()
        last = self.sweeps[-1]
        summary = {
            **self.head(),
            "sweeps": len(self.sweeps) - (last.iteration == 0),  # sweep 0 is V = 0
            "iterations": last.iteration,
            "residual": last.residual,
            **self.measures(result),
            "values": last.values,
            "actions": last.actions,
            "weights_sha256": checkpoint.weights_sha256({"V": result.unsqueeze(0)}, [0]),
            "learn_seconds": self._learned,
        }
        if self.directory is not None:
            files = {
                "sweeps.json": self.replay().encode(),
                POLICY: checkpoint.to_bytes({"V": result}),
            }
            self.write(files, lambda folder: draw(folder, "plan.png"), summary)
        return summary

    def replay(self) -> str:
        """The content of sweeps.json, a line per sweep."""
        head = {
            "schema": SCHEMA,
            "algo": self.algo,
            "env": self.config.env,
            "gamma": self.config.gamma,
            "layout": asdict(self.env.layout),
            "ends": self.env.ends.nonzero()[:, 0].tolist(),
        }
        sweeps = [
            {**asdict(sweep), "values": [float(f"{x:.6g}") for x in sweep.values]}
            for sweep in self.sweeps
        ]
        lines = ",\n".join(json.dumps(sweep, separators=(",", ":")) for sweep in sweeps)
        return json.dumps(head, ensure_ascii=False)[:-1] + f',\n"sweeps": [\n{lines}\n]}}\n'


@dataclass(frozen=True)
class Replay:
    """What sweeps.json holds."""

    algo: str
    env: str
    gamma: float
    layout: SimpleNamespace
    ends: NDArray[np.bool_]  # [X]
    sweeps: list[Sweep]

    @classmethod
    def of(cls, part: Path) -> Replay:
        """Read the record of a finished planning run."""
        content = read_json(part / "sweeps.json")
        sweeps = [Sweep(**row) for row in content["sweeps"]]
        ends = np.zeros(len(sweeps[0].values), dtype=bool)
        ends[content["ends"]] = True
        layout = content["layout"]
        layout["marks"] = {int(state): mark for state, mark in layout["marks"].items()}
        names = {name: content[name] for name in ("algo", "env", "gamma")}
        return cls(**names, layout=SimpleNamespace(**layout), ends=ends, sweeps=sweeps)

    @property
    def steps(self) -> list[int]:
        """The sweeps worth a picture: all, or of each iteration the last."""
        following = [sweep.iteration for sweep in self.sweeps[1:]] + [-1]
        return [
            k
            for k, (sweep, after) in enumerate(zip(self.sweeps, following, strict=True))
            if sweep.iteration == 0 or sweep.iteration != after
        ]

    def board(self, k: int) -> plots.Board:
        """The picture of sweep k."""
        sweep = self.sweeps[k]
        name = f"iteration {sweep.iteration}" if sweep.iteration else f"sweep {k}"
        title = f"{self.algo} on {self.env}, gamma {self.gamma:g}: {name}"
        values, actions = np.array(sweep.values), np.array(sweep.actions)
        return plots.Board(title, values, actions, self.ends)


def draw(part: Path, name: str) -> None:
    """Draw a planning run into its folder: plan.png, the end, or plan.gif, all of it."""
    replay = Replay.of(part)
    steps = replay.steps
    if name.endswith(".png"):
        shown = steps[-1:]
    elif len(steps) <= MAX_FRAMES:
        shown = steps
    else:  # most happens in the first sweeps
        places = np.geomspace(1, len(steps), MAX_FRAMES).round().astype(int) - 1
        shown = [steps[k] for k in sorted(set(places))]
    plots.boards([replay.board(k) for k in shown], replay.layout, part / name)


@failing_in_one_line()
def main(
    config: AnyConfig, solve: Callable[[AnyConfig, PlanningRun], Tensor], presets: dict[str, Preset]
) -> None:
    """Plan, unless that is finished, and print the table of the run."""
    assert isinstance(config, PlanningConfig)
    algo = Path(inspect.getfile(solve)).stem
    folder = RunFolder.of(config, algo)
    part = folder.path / PLAN
    code = Code(config, [solve], PlanningRun.kind_origins())

    def missing() -> list[int]:
        return [] if code.finished(part) else [0]

    def plan(_: Sequence[int]) -> None:
        carry_out(config, solve, PlanningRun(config, part, algo))

    complete(folder, code, [0], missing, plan, "The plan is finished")
    with reading(folder.path):
        if config.gif and not (part / "plan.gif").exists():
            draw(part, "plan.gif")
        print_result(folder, config, presets.get(config.env))


def print_result(folder: RunFolder, config: PlanningConfig, preset: Preset | None) -> None:
    """The table at the end of a planning."""
    from rich.table import Table

    part = folder.path / PLAN
    summary, spec = read_part(part)[1], config.make_env().spec
    table = Table(show_header=False, title=f"{folder.algo} on {config.env}, gamma {config.gamma:g}")
    if summary["iterations"]:
        table.add_row("iterations", f"{summary['iterations']:,}")
    table.add_row("sweeps", f"{summary['sweeps']:,}")
    table.add_row("Bellman residual", f"{summary['residual']:.1e}")
    table.add_row("value of the start", f"{summary['start_value']:.6g}")
    if abs(summary["start_value"]) < max(config.tolerance, TIED):
        table.add_row("", "too near to 0 to tell which action is best")
    how = f"exact, at most {spec.time_limit} steps"
    if spec.reference_score is not None:
        how += f"; reference {spec.reference_score:g}"
    table.add_row(
        "undiscounted return", f"{stats.number_text(summary['score'], spec.digits)} ({how})"
    )
    if preset is None:
        table.add_row("preset", f"none for {config.env}: the defaults")
    table.add_row("time", f"{summary['learn_seconds']:.2f} s")
    print_table(table, folder, [part])
