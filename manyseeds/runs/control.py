"""Records one training run of a control algorithm: metrics, evaluations, the final table.

A part contains, besides the files of every part:

    curve.parquet     source, algo, env, then a row per seed and evaluation: timestep, learn_s,
                      return_mean, return_std, length_mean, episodes, mode (greedy, sampled; train
                      for the training's own episodes)
    episodes.parquet  a row per episode of these evaluations: seed, timestep, mode, episodes as in
                      the curve, episode (its number, from 0 on), return. Episodes of one number
                      have the same start in all seeds and algorithms. Exact evaluations have none.
    metrics.parquet   seed, timestep, and a column per logged metric
    summary.json      final scores; "weights_sha256": that of each seed's weights

Runs from before 2026-11-26 have neither episodes.parquet nor weights_sha256, and those of other
libraries no weights_sha256.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import copy
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from manyseeds import checkpoint, kernels, stats
from manyseeds.cli import (
    AnyConfig,
    ControlConfig,
    PositiveInt,
    Preset,
    UsageError,
    published_score,
    requested_seeds,
)
from manyseeds.digest import boundary
from manyseeds.evaluate import (
    CURVE_EPISODES,
    FINAL_EPISODES,
    POINTS,
    Evaluation,
    Policy,
    evaluate,
    share,
)
from manyseeds.kernels.guard import watch
from manyseeds.predict import add_predict
from manyseeds.progress import Progress
from manyseeds.record import POLICY, RunFolder, finite_numbers, plural, ranges, read_part
from manyseeds.runs.base import (
    complete_seeds,
    estimate_json,
    parts_with,
    print_table,
    trained_on,
)
from manyseeds.runs.resumable import ResumableRun, Ts
from manyseeds.untrusted import reading
from manyseeds.worth import (
    FLOOR,
    counted,
    failure_score,
    floor_of,
    measured_scores,
    worth_of,
    worths_of,
)
from manyseeds.writing import parquet_bytes

if TYPE_CHECKING:
    import pandas as pd


AnyPolicy = TypeVar("AnyPolicy", bound=Any)
FEW = 0.1  # share of actions inside their bounds, or of the range that they reach
METRIC_WINDOWS = 200  # a metric is averaged over 1/200 of the training


class Window(NamedTuple):
    """Means of metrics over a piece of the training, for the seeds that come to its end now."""

    timesteps: np.ndarray  # [S]
    learning: np.ndarray  # [S] bool, which seeds those are
    learn_s: float
    metrics: dict[str, np.ndarray]  # each [S], NaN for the others


class Snapshot(NamedTuple):
    """The policies of the seeds when each passed one point of the training; not all have yet."""

    policy: Any
    timesteps: np.ndarray  # [S]
    passed: np.ndarray  # [S] bool
    counts: np.ndarray  # [S] bool, false for a seed that passed the next point, too, at once


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(ControlConfig):
    """Flags of algorithms that learn from rollouts of all seeds, of the same length."""

    num_envs: PositiveInt
    """N, environments per seed."""
    num_steps: PositiveInt
    """T, steps per environment in a rollout."""

    @property
    def batch_size(self) -> int:
        """B, samples of one seed's rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch(self) -> int:
        """Samples per gradient step; SB3 too takes the rollout where it is smaller."""
        return min(getattr(self, "minibatch_size", self.batch_size), self.batch_size)

    def check(self) -> None:
        size = self.batch_size
        if size < 2:
            raise UsageError("--num-steps 1: one environment needs at least 2 steps")
        if size % self.minibatch:
            raise UsageError(
                f"--minibatch-size {self.minibatch}: must divide num_envs * num_steps = {size}"
            )
        if self.total_timesteps < size:
            raise UsageError(
                f"--total-timesteps {self.total_timesteps}: must be at least one rollout, "
                f"num_envs * num_steps = {size}"
            )


class Run(ResumableRun):
    """Records one training of S seeds: what `train(config, run)` reports to.

    Without a directory everything stays in memory. The clock stops during evaluations.
    """

    kind = "control"
    decides = (
        *("__init__", "log", "evaluate_if_due", "evaluate_finally", "curve", "metrics"),
        *("episodes", "streams", "begin_with"),
    )
    local = (POLICY, "curve.png")
    unit = "timestep"
    gathered = (
        *("diverged", "windows", "_pending", "_before", "_closed", "_since"),
        *("_rows", "_episodes", "_points", "_snapshots", "_evaluated"),
    )
    config: ControlConfig
    _faulty = False  # whether a note has named what is not finite
    # Nothing is due before these timesteps; 0: not known yet.
    _next_window = 0
    _next_point = 0

    def __init__(
        self,
        config: ControlConfig,
        seeds: Sequence[int] | None = None,
        directory: Path | None = None,
        algo: str = "",
        source: str = "manyseeds",
    ) -> None:
        seeds = requested_seeds(config) if seeds is None else seeds
        kernels.available()  # built before the clock runs
        super().__init__(config, seeds, directory, algo, source)
        self.labels = self.seeds  # what results are named by, one for each of S
        self.diverged: dict[int, int] = {}  # label -> timestep at which its loss became NaN
        self.windows: list[Window] = []
        # What no window holds yet: timesteps, one for all seeds or [S], and metrics, each [S].
        self._pending: list[tuple[int | np.ndarray, dict[str, Tensor]]] = []
        self._before = np.zeros(len(self.seeds), dtype=np.int64)  # of the log before those, [S]
        self._closed = self._before.copy()  # of each seed's last window
        self._since = self._before.copy()  # the first in _pending that a seed still needs
        self._rows: list[dict[str, Any]] = []
        # Of each evaluation its mode, timesteps [S], seeds that count [S], returns [S, E].
        self._episodes: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]] = []
        self._points = np.full(len(self.seeds), -1)  # the last that each seed has passed
        self._snapshots: dict[int, Snapshot] = {}  # by point
        self._env: Any = None  # of the last evaluation
        self._evaluated = 0.0  # seconds
        self._progress = Progress(
            config.total_timesteps, len(self.seeds), config.quiet, live=directory is not None
        )

    def begin_with(self, policy: AnyPolicy) -> AnyPolicy:
        """The policy as it was made, or with the weights of `--init`. Raises UsageError."""
        if self.config.init:
            init, ours = self.config.init, self.config.rescale_actions
            start = checkpoint.start_from(init, self.seeds, policy.state_dict())
            theirs = checkpoint.stored_policy(init)[1]["config"].get("rescale_actions", False)
            if theirs != ours:
                raise UsageError(
                    f"--init {init}: its actions have another meaning: rescale_actions is {theirs} "
                    f"there, {ours} here"
                )
            policy.load_state_dict(start)
        return policy

    @property
    def total(self) -> int:
        return self.config.total_timesteps

    @cached_property
    def env(self) -> Any:
        """The environment that is trained in, to be asked what it is."""
        return self.config.make_env()

    def storable(self) -> bool:
        return bool(self.env.native)  # others have objects of their own

    @boundary
    def restore(self, objects: Sequence[Any], *variables: *Ts) -> tuple[*Ts]:
        """As of every run; the policy, which stands first, gets its `predict`."""
        add_predict(objects[0], self.config, self.labels)
        return super().restore(objects, *variables)

    def subject(self) -> dict[str, Any]:
        return {**super().subject(), "time_limit": self.env.spec.time_limit}

    def open(self, definitions: Sequence[Any], packages: Sequence[str] = ()) -> None:
        super().open(definitions, [*packages, *self.env.packages()])

    def records(self) -> dict[str, Any]:
        kept = {k: (x.policy.state_dict(), *x[1:]) for k, x in self._snapshots.items()}
        return super().records() | {"_snapshots": kept}

    def take_up(self, records: dict[str, Any]) -> None:
        super().take_up(records)
        assert self._objects is not None
        self.windows = [Window(*window) for window in self.windows]
        for k, (tensors, *seeds) in self._snapshots.items():
            policy = copy.deepcopy(self._objects[0])
            policy.load_state_dict(tensors)
            self._snapshots[k] = Snapshot(policy, *seeds)

    def track_again(self) -> None:
        for window in self.windows:
            self._track_window(window)
        for row in self._rows:
            own = np.where(np.equal(self.labels, row["seed"]), row["return_mean"], math.nan)
            self.track(row["timestep"], {"evaluation/greedy_return": own})

    def log(self, timestep: int | Tensor, metrics: dict[str, Tensor]) -> None:
        """Record metrics, each `[S]`, of the learning that ended at a timestep (per seed).

        timestep: `[S]` where some seeds are ahead of others; one that does not move on has ended.
        Metrics are kept as they are given (whoever computes them must not write to that memory
        again), and averaged over windows of 1/200 of the training, a seed's own. One whose name
        ends in `loss` marks its seed as diverged when it is not finite.
        """
        watch.look_by_iteration()  # whether code has changed that kernels stand for
        self._say_faults(timestep)
        if isinstance(timestep, int) and timestep < self._next_window:
            self._pending.append((timestep, metrics))
            return
        total, before, timesteps = self.total, self._timesteps, self._per_seed(timestep)
        self._pending.append((timesteps, metrics))
        window, closed = (t * METRIC_WINDOWS // total for t in (timesteps, self._closed))
        closing = ((window > closed) | (timesteps >= total)) & (timesteps > before)
        if closing.any():
            self._close_windows(closing)
        closed = self._closed.min() * METRIC_WINDOWS // total
        self._next_window = min(start_of(closed + 1, METRIC_WINDOWS, total), total)

    def _say_faults(self, timestep: int | Tensor | np.ndarray) -> None:
        """Name the first reward or observation of the run that is not finite."""
        if self._env is None or self._faulty or not (faults := self._env.faults()):
            return
        self._faulty = True
        i, what = min(faults.items())
        where = f"{self.config.env}, seed {self.labels[i]}"
        where += f", timestep {self._per_seed(timestep)[i]}"
        print(f"note: {where}: {what}", file=sys.stderr)

    @property
    def _timesteps(self) -> np.ndarray:
        """Those of the last log, `[S]`."""
        return self._per_seed(self._pending[-1][0]) if self._pending else self._before

    def _per_seed(self, timestep: int | Tensor | np.ndarray) -> np.ndarray:
        """`[S]` int64"""
        if isinstance(timestep, Tensor):
            return timestep.cpu().numpy().astype(np.int64)
        return np.full(len(self.seeds), timestep)

    def _close_windows(self, closing: np.ndarray) -> None:
        """Average the metrics of some seeds, `[S]` bool, over what they logged since they last did.

        Sums run from one log to the next: they round alike, whatever the other seeds have logged,
        and on every machine.
        """
        K, S = len(self._pending), len(self.seeds)
        steps = np.empty((K + 1, S), dtype=np.int64)
        steps[0] = self._before
        for k, (timestep, _) in enumerate(self._pending):
            steps[k + 1] = timestep
        own = closing & (steps[1:] > steps[:-1]) & (np.arange(K)[:, None] >= self._since)  # [K, S]
        names = list(dict.fromkeys(name for _, metrics in self._pending for name in metrics))
        values = self._stacked(names)
        losses = [name for name in names if name.endswith("loss")]
        given = np.array(
            [[name in metrics for name in losses] for _, metrics in self._pending], dtype=bool
        )
        broken = ~np.isfinite(values[:, [names.index(name) for name in losses]])
        for k, _, i in np.argwhere(own[:, None] & broken & given[:, :, None]):
            label, step = self.labels[i], int(steps[k + 1, i])
            self.diverged[label] = min(step, self.diverged.get(label, step))
        counts = own[:, None] & ~np.isnan(values)
        n = counts.sum(0)  # [names, S]
        sums = np.where(counts, values, 0.0).cumsum(0)[-1]
        means = dict(zip(names, np.where(n > 0, sums / n.clip(1), math.nan), strict=True))
        timesteps = steps[-1].copy()
        self._closed[closing] = timesteps[closing]
        self._since[closing | (timesteps >= self.total)] = K
        needed = self._since.min()
        del self._pending[:needed]
        self._before = steps[needed].copy()
        self._since -= needed
        self.windows.append(Window(timesteps, closing, self.learn_s, means))
        self._progress.update(int(timesteps.mean()), self.learn_s)
        self._track_window(self.windows[-1])

    def _stacked(self, names: Sequence[str]) -> np.ndarray:
        """The pending metrics, `[K, names, S]` float64; NaN where one was not logged.

        One copy from the device for all.
        """
        absent = torch.full((len(self.seeds),), math.nan, device=self.device)
        rows = [metrics.get(name, absent) for _, metrics in self._pending for name in names]
        shape = len(self._pending), len(names), len(self.seeds)
        return torch.stack(rows).double().cpu().numpy().reshape(shape)

    def _track_window(self, window: Window) -> None:
        found = {f"train/{name}": value for name, value in window.metrics.items()}
        self.track(window.timesteps, found)

    def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Policy) -> None:
        """Evaluate at step 0 and at the first call at or after each 1/20 of the training.

        timestep: `[S]` where some seeds are ahead of others; each is then evaluated as it was when
        it passed the point, together with the others, once the last has passed it.
        """
        self._env = env
        if isinstance(timestep, int) and timestep < self._next_point:
            return
        timesteps = self._per_seed(timestep)
        passed = np.minimum(timesteps * POINTS // self.total, POINTS)
        for point in range(self._points.min() + 1, passed.max() + 1):
            now = (self._points < point) & (passed >= point)
            if now.any():
                self._pass(point, now, passed == point, timesteps, policy)
        self._points = np.maximum(self._points, passed)
        self._next_point = start_of(self._points.min() + 1, POINTS, self.total)
        for point in [k for k, snapshot in self._snapshots.items() if snapshot.passed.all()]:
            snapshot = self._snapshots.pop(point)
            if snapshot.counts.any():
                self._evaluate(snapshot)

    def _pass(
        self, point: int, now: np.ndarray, last: np.ndarray, timesteps: np.ndarray, policy: Any
    ) -> None:
        """Keep the policies of the seeds that pass a point now."""
        if now.all():
            self._snapshots[point] = Snapshot(policy, timesteps, now, last)
            return
        if point not in self._snapshots:
            nobody = np.zeros_like(now)
            start = np.zeros_like(timesteps)
            self._snapshots[point] = Snapshot(copy.deepcopy(policy), start, nobody, nobody.copy())
        snapshot = self._snapshots[point]
        rows = now.nonzero()[0]
        kept = snapshot.policy.state_dict().values()
        for copied, current in zip(kept, policy.state_dict().values(), strict=True):
            copied[rows] = current[rows]
        snapshot.timesteps[rows] = timesteps[rows]
        snapshot.counts[rows] = last[rows]
        snapshot.passed[rows] = True

    def _evaluate(self, snapshot: Snapshot) -> None:
        self.pause()
        began = self.total_s
        episodes = share(CURVE_EPISODES, self.config.eval_budget)
        result = evaluate(self._env, snapshot.policy, self.seeds, episodes)
        self._evaluated += self.total_s - began
        self._say_faults(snapshot.timesteps)
        self._record(snapshot.timesteps, result, "greedy", snapshot.counts)
        text = iqm_text(result.return_mean, self._env.spec.digits, resamples=2000)
        timestep = int(snapshot.timesteps.mean())
        self._progress.update(timestep, self._learned, text)
        scores = np.where(snapshot.counts, result.return_mean, math.nan)
        self.track(snapshot.timesteps, {"evaluation/greedy_return": scores})
        self.resume()

    def _record(
        self,
        timesteps: np.ndarray,
        result: Evaluation,
        mode: str,
        counts: np.ndarray | None = None,
    ) -> None:
        counts = np.ones(len(self.labels), dtype=bool) if counts is None else counts
        self._episodes.append((mode, timesteps, counts, result.returns.astype(np.float32)))
        for i, label in enumerate(self.labels):
            if not counts[i]:
                continue
            self._rows.append(
                {
                    "seed": label,
                    "timestep": int(timesteps[i]),
                    "learn_s": self._learned,
                    "return_mean": result.return_mean[i],
                    "return_std": result.return_std[i],
                    "length_mean": result.length_mean[i],
                    "episodes": result.episodes,
                    "mode": mode,
                }
            )

    def curve(self) -> pd.DataFrame:
        """All evaluations and training returns as tidy rows, one per seed, timestep and mode."""
        import pandas as pd

        rows = list(self._rows)
        for window in self.windows:
            if "train_return" not in window.metrics:
                continue
            for i, label in enumerate(self.labels):
                if math.isnan(window.metrics["train_return"][i]):
                    continue  # no episode of this seed ended
                rows.append(
                    {
                        "seed": label,
                        "timestep": int(window.timesteps[i]),
                        "learn_s": window.learn_s,
                        "return_mean": window.metrics["train_return"][i],
                        "return_std": math.nan,
                        "length_mean": window.metrics["train_length"][i],
                        "episodes": 0,
                        "mode": "train",
                    }
                )
        frame = pd.DataFrame(rows)
        frame.insert(0, "source", self.source)
        frame.insert(1, "algo", self.algo)
        frame.insert(2, "env", self.config.env)
        return frame

    def episodes(self) -> pd.DataFrame:
        """The return of every episode of the evaluations, float32, as tidy rows."""
        import pandas as pd

        frames = []
        for mode, timesteps, counts, returns in self._episodes:
            S, E = counts.sum(), returns.shape[1]
            frames.append(
                pd.DataFrame(
                    {
                        "seed": np.repeat(np.array(self.labels)[counts], E),
                        "timestep": np.repeat(timesteps[counts], E),
                        "mode": mode,
                        "episodes": E,
                        "episode": np.tile(np.arange(E), S),
                        "return": returns[counts].flatten(),
                    }
                )
            )
        return pd.concat(frames, ignore_index=True)

    def metrics(self) -> pd.DataFrame:
        """The logged metrics, one row per seed and window."""
        import pandas as pd

        frames = [
            pd.DataFrame({"seed": self.labels, "timestep": window.timesteps, **window.metrics})[
                window.learning
            ]
            for window in self.windows
        ]
        return pd.concat(frames, ignore_index=True)

    def finish(self, policy: Policy) -> dict[str, Any]:
        """Evaluate for the last time and, with a directory, write and seal the part.

        Returns the summary that `summary.json` holds.
        """
        assert self._env is not None, "train must call run.evaluate_if_due"
        self.pause()
        self.mark_broken(policy)
        began = self.total_s
        finals = self.evaluate_finally(policy)
        self._evaluated += self.total_s - began
        self._say_faults(self._timesteps)
        self.close()
        summary = self._summary(self._env, finals, self._timesteps)
        if hasattr(policy, "state_dict"):
            weights = policy.state_dict()
            summary["weights_sha256"] = checkpoint.weights_sha256(weights, self.labels)
        if self.directory is not None:
            self._write(summary, policy, reachable_threshold(self._env.spec))
        return summary

    def mark_broken(self, policy: Policy) -> None:
        """Mark seeds whose weights are not finite at the end: their last update broke them.

        The loss of an update is that before its step.
        """
        tensors = policy.state_dict().values() if hasattr(policy, "state_dict") else ()
        finite = np.ones(len(self.seeds), dtype=bool)
        for tensor in tensors:
            finite &= tensor.isfinite().reshape(len(finite), -1).all(1).cpu().numpy()
        for i in (~finite).nonzero()[0]:
            self.diverged.setdefault(self.labels[i], int(self._timesteps[i]))

    def evaluate_finally(self, policy: Policy) -> dict[str, Evaluation]:
        """The evaluations at the end, by mode: greedy and sampled."""
        finals, episodes = {}, share(FINAL_EPISODES, self.config.eval_budget)
        for mode in ("greedy", "sampled"):
            greedy = mode == "greedy"
            finals[mode] = evaluate(self._env, policy, self.seeds, episodes, greedy)
            self._record(self._timesteps, finals[mode], mode)
        return finals

    def _summary(
        self, env: Any, finals: dict[str, Evaluation], timesteps: np.ndarray
    ) -> dict[str, Any]:
        total_s = self.total_s
        threshold = reachable_threshold(env.spec)
        final = {}
        for mode, result in finals.items():
            scores = zip(map(str, self.labels), result.return_mean.tolist(), strict=True)
            final[mode] = {
                "iqm": estimate_json(self._counted(env, result), "iqm"),
                "mean": estimate_json(self._counted(env, result), "mean"),
                "episodes": result.episodes,
                "per_seed": finite_numbers(dict(scores)),
            }
        greedy = self._counted(env, finals["greedy"])
        below = [s for s, x in zip(self.labels, greedy, strict=True) if is_below(x, threshold)]
        return {
            **self.head(),
            "seeds": self.seeds,
            "final": final,
            "threshold": threshold,
            "digits": env.spec.digits,
            "below_threshold": below,
            "diverged": {str(seed): step for seed, step in self.diverged.items()},
            "timesteps_per_seed": round(timesteps.mean()),
            "learn_seconds": self._learned,
            "evaluation_seconds": self._evaluated,
            "total_seconds": total_s,
            "timesteps_per_second": timesteps.sum() / max(self._learned, 1e-9),
        }

    def _counted(self, env: Any, result: Evaluation) -> np.ndarray:
        """The scores of an evaluation, with that of a failure for a diverged seed, `[S]`."""
        found = zip(self.labels, result.return_mean.tolist(), strict=True)
        worths = [worth_of(score, self.diverged.get(label)) for label, score in found]
        return counted(worths, random_score(self.config, env.spec))

    def _write(self, summary: dict[str, Any], policy: Policy, threshold: float | None) -> None:
        from manyseeds import plots

        curve = self.curve()
        title = f"{self.algo} on {self.config.env}"

        def draw(folder: Path) -> None:
            path = folder / "curve.png"
            if np.isfinite(curve["return_mean"][curve["mode"] == "greedy"]).all():
                plots.learning_curves({self.algo: curve}, path, title=title, threshold=threshold)

        files = {
            "curve.parquet": parquet_bytes(curve),
            "episodes.parquet": parquet_bytes(self.episodes()),
            "metrics.parquet": parquet_bytes(self.metrics()),
        }
        if hasattr(policy, "state_dict"):
            files[POLICY] = checkpoint.to_bytes(policy.state_dict())
        self.write(files, draw, summary)


def start_of(part: int, parts: int, total: int) -> int:
    """The first timestep of one of so many parts of a training, which are numbered from 0."""
    return int(-(-part * total // parts))


def reachable_threshold(spec: Any) -> float | None:
    """The reward threshold of an EnvSpec; None above what the best policy scores (Taxi-v4)."""
    bar, best = spec.reward_threshold, spec.reference_score
    return None if bar is not None and best is not None and bar > best else bar


def is_below(score: float, threshold: float | None) -> bool:
    """Whether a seed failed to reach a threshold, where there is one; NaN does not reach it."""
    return threshold is not None and not score >= threshold


def iqm_text(returns: np.ndarray, digits: int | None, resamples: int = 10_000) -> str:
    """The IQM of returns `[S]`: `498.2 [493.1, 500.0]`; `unknown` where one of them is NaN."""
    if np.isnan(returns).any():
        return "unknown"
    return stats.estimate(returns, resamples=resamples).short_text(digits)


def failures_text(seeds: int, kinds: dict[str, set[int]]) -> str:
    """`2 of 10 seeds below 475`, or `2 of 10 seeds: 2 below 475, 1 diverged`.

    kinds: the seeds that failed in each way, `below 475`; the first one is named without any, too.
    """
    text = f"{len(set().union(*kinds.values()))} of {plural(seeds, 'seed')}"
    found = {kind: len(failed) for kind, failed in kinds.items() if failed}
    if len(found) > 1:
        return f"{text}: {', '.join(f'{n} {kind}' for kind, n in found.items())}"
    return f"{text} {next(iter(found or kinds))}"


@failing_in_one_line()
def main(
    config: AnyConfig, train: Callable[[AnyConfig, Run], Any], presets: dict[str, Preset]
) -> None:
    """Train the seeds that are not finished yet, store them, and print the table of the run."""
    assert isinstance(config, ControlConfig)
    env = config.make_env()
    if config.init:
        checkpoint.rows_of(config.init, requested_seeds(config))
    say_notes(config, env)
    folder = complete_seeds(config, train, Run)
    with reading(folder.path):
        print_result(folder, config, presets.get(config.env))


def say_notes(config: ControlConfig, env: Any) -> None:
    """Print what a user has to know before a training; UsageError where none is possible."""
    notes = [*env.notes(), *far_actions(env.spec, getattr(config, "log_std_init", 0.0))]
    if config.device == "cuda" and not env.native:
        notes.append(
            f"{config.env} is stepped on the CPU, with a copy to and from the GPU at each step; "
            "--device cpu may be faster"
        )
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def far_actions(spec: Any, log_std: float) -> list[str]:
    """A note where a policy's first actions, Gaussian around 0, hardly reach into their bounds.

    Most of them are clipped to a bound, or all lie in a small part of the range.
    """
    std = math.exp(log_std)
    for low, high in zip(spec.action_low, spec.action_high, strict=True):
        below, above = (0.5 + math.erf(x / std / math.sqrt(2)) / 2 for x in (low, high))
        reached = (min(high, 3 * std) - max(low, -3 * std)) / (high - low) if high > low else 1
        if high == low or (above - below >= FEW and (reached >= FEW or math.isinf(high - low))):
            continue
        hint = "" if math.isinf(high - low) else "; --rescale-actions scales them"
        return [
            f"{spec.id} has actions from {low:g} to {high:g}, and a policy's first ones are around "
            f"0 with a standard deviation of {std:g}{hint}"
        ]
    return []


def failure_bar(
    config: ControlConfig, spec: Any, threshold: float | None
) -> tuple[float | None, str]:
    """The return below which a seed counts as a failure, in the report too, and what is said of
    such seeds; None and '' where nothing says what a failure is."""
    if threshold is not None:
        return threshold, f"below {threshold:g}"
    floor = floor_of(spec.random_score, spec.reference_score)
    measured = measured_scores(Path(config.results), config.env, config.env_kwargs)
    if floor is None and measured:
        floor = floor_of(*measured)
    return floor, "" if floor is None else f"below {floor:g} (a normalised score of {FLOOR})"


def random_score(config: ControlConfig, spec: Any) -> float | None:
    """The score of a random policy, as an EnvSpec states it or as it was measured."""
    if spec.random_score is not None:
        return float(spec.random_score)
    measured = measured_scores(Path(config.results), config.env, config.env_kwargs)
    return measured.random if measured else None


def print_result(folder: RunFolder, config: ControlConfig, preset: Preset | None) -> None:
    """The table at the end of a training, over the seeds that the command asked for."""
    from rich.table import Table

    requested = requested_seeds(config)
    parts = parts_with(folder, requested)
    summaries = [read_part(part)[1] for part in parts]
    found = {seed: worth for s in summaries for seed, worth in worths_of(s).items()}
    worths = {seed: found[seed] for seed in requested}
    diverged = {seed: w.diverged for seed, w in worths.items() if w.diverged is not None}
    spec = config.make_env().spec
    random = random_score(config, spec) if diverged else None
    greedy = counted([*worths.values()], random)
    threshold, digits = summaries[0]["threshold"], summaries[0]["digits"]
    bar, failed = failure_bar(config, spec, threshold)
    episodes = summaries[0]["final"]["greedy"]["episodes"]
    how = f"{plural(episodes, 'episode')} per seed" if episodes else "exact, from P and R"
    learn_s = sum(s["learn_seconds"] for s in summaries)
    trained = sum(s["timesteps_per_seed"] * len(s["seeds"]) for s in summaries)

    seeds = plural(len(requested), "seed")
    table = Table(show_header=False, title=f"{folder.algo} on {config.env}, {seeds}")
    table.add_row("final greedy return", f"IQM {iqm_text(greedy, digits)} ({how})")
    scores = list(zip(requested, greedy, strict=True))
    below = {s for s, x in scores if is_below(x, bar)}
    unknown = {s for s, w in worths.items() if w.unknown}
    if np.isfinite(greedy).all():
        mean = stats.estimate(greedy, "mean", imputed=bool(diverged))
        worst = stats.number_text(greedy.min(), digits)
        table.add_row("", f"mean {mean.short_text(digits)}, worst {worst}")
        if mean.caveat:
            table.add_row("" if mean.equal else "95% interval", mean.caveat)
    kinds = {} if bar is None else {failed: below}
    kinds |= {"without a finite return": unknown, "diverged": set(diverged)}
    table.add_row("failures", failures_text(len(requested), kinds))
    if diverged:
        first = f"{min(diverged.values()):,}"
        table.add_row("diverged", f"seeds {ranges(diverged)}, the first at timestep {first}")
        if np.isfinite(greedy).all():
            most = stats.number_text(failure_score([*worths.values()], random), digits)
            table.add_row("", f"each counts as a failure, {most} at most")
    if published := published_score(config, preset):
        table.add_row("published", published)
    if preset is None:
        table.add_row("preset", f"none for {config.env}: the defaults")
    speed = f"{trained / learn_s:,.0f} timesteps/s, all seeds together"
    table.add_row("speed", f"{speed} ({trained_on(parts)})")
    total_s = sum(s["total_seconds"] for s in summaries)
    time = f"{total_s:.1f} s, of which {learn_s:.1f} s learning"
    if all("evaluation_seconds" in s for s in summaries):  # not so in older runs
        evaluated = sum(s["evaluation_seconds"] for s in summaries)
        rest = max(0.0, total_s - learn_s - evaluated)
        time += f", {evaluated:.1f} s evaluation, {rest:.1f} s preparation"
    table.add_row("time", time)
    print_table(table, folder, parts)
