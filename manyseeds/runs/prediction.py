"""Records one prediction run: the estimated values of a fixed policy and their errors.

S seeds, X states of which C count, and K episode numbers after which values are compared with the
exact ones. A part contains, besides the files of every part:

    curve.parquet   source, algo, env, seed, episode, timestep (of that seed so far), rms_error
    values.parquet  seed, episode, and a float32 column of values per state that counts
    summary.json    "kind": "prediction", the errors after the last episode, and for all states that
                    count their indices ("states") and exact values ("exact")

The error of a seed is the root of the mean squared error over the states that count, unweighted
(Sutton and Barto, 2018, figure 7.2). Over seeds it splits into

    mean squared error = bias^2 + variance,

bias^2 = mean over states of (mean over seeds of V - exact)^2, variance = mean over states of the
variance of V over seeds (divided by S: the split is exact). The mean of S seeds is not yet the
expected value: without any bias, bias^2 comes out as variance / (S - 1) on average.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from manyseeds import checkpoint, stats
from manyseeds.cli import (
    AnyConfig,
    Fraction,
    PositiveInt,
    Preset,
    Seeds,
    SeedsConfig,
    UsageError,
    published_score,
    requested_seeds,
)
from manyseeds.progress import Progress
from manyseeds.record import POLICY, RunFolder, finite_numbers, plural, read_parquet, read_part
from manyseeds.runs.base import (
    complete_seeds,
    estimate_json,
    parts_with,
    print_table,
    trained_on,
)
from manyseeds.runs.resumable import ResumableRun
from manyseeds.stats import Floats
from manyseeds.untrusted import reading
from manyseeds.writing import parquet_bytes

if TYPE_CHECKING:
    import pandas as pd

EARLY = 10  # the first episodes are all measured: Sutton and Barto show their mean error
EVEN_POINTS = 10  # of the rest


@dataclass(frozen=True, kw_only=True)
class PredictionConfig(SeedsConfig):
    """Flags of every algorithm that predicts the values of a fixed policy, the random one."""

    env: str = "RandomWalk-v0"
    """Environment id."""
    seeds: Seeds = 100
    """Number of seeds S. They are trained as one batch."""
    total_episodes: PositiveInt = 100
    """Episodes per seed."""
    gamma: Fraction = 1.0
    """Discount factor per step."""

    def check_env(self, env: Any) -> None:
        super().check_env(env)
        if self.device == "cuda":
            raise UsageError("--device cuda: tables are trained on the CPU")
        stuck = (~can_end(env, random_policy(env))).nonzero()
        if self.gamma == 1 and len(stuck) > 0:
            raise UsageError(
                f"--gamma {self.gamma:g}: on {self.env} the random policy never ends from state "
                f"{stuck[0].item()} on: its value is not defined; take less than 1"
            )


# ---- What is exact -------------------------------------------------------------------------


def random_policy(env: Any) -> Tensor:
    """Every action equally likely, [X, A] float64."""
    X, A = env.spec.num_states, env.spec.num_actions
    return torch.full((X, A), 1 / A, dtype=torch.float64)


def can_follow(env: Any, policy: Tensor) -> Tensor:
    """Whether the policy [X, A] may come from a state to another in one step, [X, X'] bool."""
    return ((policy.T > 0).unsqueeze(-1) & (env.P > 0)).any(0)


def can_end(env: Any, policy: Tensor) -> Tensor:
    """The states from which the policy [X, A] ends the task sooner or later, [X] bool."""
    leads_to = can_follow(env, policy)
    found = env.ends
    while not torch.equal(found, wider := found | (leads_to & found).any(1)):
        found = wider
    return found


def counted_states(env: Any, policy: Tensor) -> Tensor:
    """The states that the policy [X, A] meets and in which the task goes on, [C], ascending."""
    leads_to = can_follow(env, policy)
    leads_to &= ~env.ends.unsqueeze(1)
    found = env.start > 0
    while not torch.equal(found, wider := found | (leads_to & found.unsqueeze(1)).any(0)):
        found = wider
    return (found & ~env.ends).nonzero()[:, 0]


# ---- What is measured ----------------------------------------------------------------------


def points(episodes: int) -> list[int]:
    """The episodes after which values are compared: 0 to 10, then 10 evenly up to the last."""
    even = [-(-k * episodes // EVEN_POINTS) for k in range(EVEN_POINTS + 1)]
    return sorted({*range(min(EARLY, episodes) + 1), *even})


def mean(x: Floats, axis: int) -> Floats:
    """The mean along an axis, whose numbers are added in order: the same bits everywhere."""
    total = sum(np.moveaxis(x, axis, 0))
    return np.asarray(total / x.shape[axis])


def rms_error(values: Floats, exact: Floats) -> Floats:
    """Root of the mean squared error over states, [...], of values [..., C]."""
    with np.errstate(invalid="ignore"):  # a seed that diverged
        return np.asarray(np.sqrt(mean(np.square(values - exact), -1)))


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the seeds of a run have learned, at each of K episodes."""

    seeds: list[int]
    episodes: list[int]  # [K]
    timesteps: np.ndarray  # [S, K] int64, environment steps of each seed so far
    states: list[int]  # [C]
    exact: Floats  # [C]
    values: Floats  # [S, K, C]

    @cached_property
    def errors(self) -> Floats:
        """RMS error of each seed, [S, K]."""
        return rms_error(self.values, self.exact)

    @cached_property
    def early_errors(self) -> Floats:
        """RMS error of each seed, averaged over the first ten episodes (or all), [S]."""
        first = [k for k, episode in enumerate(self.episodes) if 1 <= episode <= EARLY]
        return mean(self.errors[:, first], 1)

    @cached_property
    def bias_squared(self) -> Floats:
        """[K]"""
        with np.errstate(invalid="ignore"):
            return mean(np.square(mean(self.values, 0) - self.exact), -1)

    @cached_property
    def variance(self) -> Floats:
        """[K]"""
        with np.errstate(invalid="ignore"):
            return mean(mean(np.square(self.values - mean(self.values, 0)), 0), -1)

    @property
    def diverged(self) -> dict[int, int]:
        """Seed -> the first of the episodes at which one of its values was not finite."""
        broken = ~np.isfinite(self.errors)
        return {
            seed: self.episodes[row.argmax()]
            for seed, row in zip(self.seeds, broken, strict=True)
            if row.any()
        }

    def curve(self, source: str, algo: str, env: str) -> pd.DataFrame:
        """Tidy rows, one per seed and episode."""
        import pandas as pd

        return pd.DataFrame(
            {
                "source": source,
                "algo": algo,
                "env": env,
                **self._index(),
                "timestep": self.timesteps.flatten(),
                "rms_error": self.errors.flatten(),
            }
        )

    def values_table(self) -> pd.DataFrame:
        """The values, one row per seed and episode."""
        import pandas as pd

        values = self.values.reshape(-1, len(self.states)).astype(np.float32)
        columns = {str(state): values[:, i] for i, state in enumerate(self.states)}
        return pd.DataFrame({**self._index(), **columns})

    def values_parquet(self) -> bytes:
        """The same as a small parquet file."""
        buffer = io.BytesIO()
        # Values hardly repeat: a dictionary of them would cost a third of the file.
        self.values_table().to_parquet(
            buffer, index=False, compression="zstd", use_dictionary=["seed", "episode"]
        )
        return buffer.getvalue()

    def _index(self) -> dict[str, np.ndarray]:
        S, K = len(self.seeds), len(self.episodes)
        return {"seed": np.repeat(self.seeds, K), "episode": np.tile(self.episodes, S)}


def load_predictions(parts: Sequence[Path], seeds: Sequence[int]) -> Predictions:
    """What finished parts of one run hold of the given seeds; a seed in two of them counts once."""
    import pandas as pd

    index = ["seed", "episode"]
    curves = pd.concat([read_parquet(part / "curve.parquet") for part in parts])
    tables = pd.concat([read_parquet(part / "values.parquet") for part in parts])
    curves = curves.drop_duplicates(index).set_index(index).loc[list(seeds)].sort_index()
    tables = tables.drop_duplicates(index).set_index(index).loc[list(seeds)].sort_index()
    summary = read_part(parts[0])[1]
    S = len(seeds)
    return Predictions(
        seeds=sorted(seeds),
        episodes=tables.loc[min(seeds)].index.tolist(),
        timesteps=curves["timestep"].to_numpy().reshape(S, -1),
        states=summary["states"],
        exact=np.array(summary["exact"]),
        values=tables.to_numpy(np.float64).reshape(S, -1, len(summary["states"])),
    )


class PredictionRun(ResumableRun):
    """Records one prediction of S seeds: what `train(config, run)` reports to."""

    kind = "prediction"
    decides = ("__init__", "evaluate_if_due", "predictions", "streams", points)
    local = (POLICY, "curve.png")
    unit = "episode"
    gathered = ("states", "exact", "_values", "_timesteps")
    config: PredictionConfig

    def __init__(
        self,
        config: PredictionConfig,
        seeds: Sequence[int] | None = None,
        directory: Path | None = None,
        algo: str = "",
        source: str = "manyseeds",
    ) -> None:
        seeds = requested_seeds(config) if seeds is None else seeds
        super().__init__(config, seeds, directory, algo, source)
        self.points = points(config.total_episodes)
        self.states = np.empty(0, dtype=np.int64)  # [C]
        self.exact: Floats = np.empty(0)  # [C]
        self._values: list[Floats] = []  # each [S, C]
        self._timesteps: list[np.ndarray] = []  # each [S]
        self._progress = Progress(
            config.total_episodes,
            len(self.seeds),
            config.quiet,
            live=directory is not None,
            unit="episodes",
            measure="RMS error of the values (mean, 95% interval over seeds)",
        )

    @property
    def total(self) -> int:
        return self.config.total_episodes

    def track_again(self) -> None:
        for episode, values in zip(self.points, self._values, strict=False):
            self.track(episode, {"evaluation/rms_error": rms_error(values, self.exact)})

    def evaluate_if_due(
        self, episode: int, env: Any, policy: Tensor, values: Tensor, timesteps: Tensor
    ) -> None:
        """Compare values [S, X] with those of the policy [X, A], where `points` has this episode.

        episode: how many every seed has learned from. timesteps: their steps so far, [S].
        """
        if episode not in self.points[len(self._values) :]:
            return
        self.pause()
        if episode == 0:
            self.states = counted_states(env, policy).numpy()
            exact = env.policy_values(policy.unsqueeze(0), self.config.gamma)[0].numpy()
            self.exact = exact[self.states]
        self._values.append(values.double().numpy()[:, self.states])
        self._timesteps.append(timesteps.numpy().copy())
        errors = rms_error(self._values[-1], self.exact)
        twentieth = self.config.total_episodes / 20
        shown = not self.config.quiet and episode // twentieth > (episode - 1) // twentieth
        text = _text(errors, _digits(self.exact)) if shown else ""
        self._progress.update(episode, self._learned, text)
        self.track(episode, {"evaluation/rms_error": errors})
        self.resume()

    def predictions(self) -> Predictions:
        """Everything that was measured so far."""
        return Predictions(
            seeds=self.seeds,
            episodes=self.points[: len(self._values)],
            timesteps=np.stack(self._timesteps, 1),
            states=self.states.tolist(),
            exact=self.exact,
            values=np.stack(self._values, 1),
        )

    def finish(self, result: Tensor) -> dict[str, Any]:
        """Write and seal the part; returns the summary. result: the values [S, X]."""
        self.pause()
        self.close()
        found = self.predictions()
        summary = self._summary(found)
        summary["weights_sha256"] = checkpoint.weights_sha256({"v": result}, self.seeds)
        if self.directory is not None:
            files = {
                "curve.parquet": parquet_bytes(
                    found.curve(self.source, self.algo, self.config.env)
                ),
                "values.parquet": found.values_parquet(),
                POLICY: checkpoint.to_bytes({"v": result}),
            }
            self.write(files, lambda folder: self._draw(found, folder / "curve.png"), summary)
        return summary

    def _summary(self, found: Predictions) -> dict[str, Any]:
        final = found.errors[:, -1]
        timesteps = int(found.timesteps[:, -1].sum())
        return {
            **self.head(),
            "seeds": self.seeds,
            "episodes": self.config.total_episodes,
            "rms_error": {
                "mean": estimate_json(final, "mean"),
                "per_seed": finite_numbers(
                    dict(zip(map(str, self.seeds), final.tolist(), strict=True))
                ),
            },
            "rms_error_first_episodes": estimate_json(found.early_errors, "mean"),
            **finite_numbers(
                {
                    "bias_squared": float(found.bias_squared[-1]),
                    "variance": float(found.variance[-1]),
                }
            ),
            "diverged": {str(seed): episode for seed, episode in found.diverged.items()},
            "states": found.states,
            "exact": found.exact.tolist(),
            "timesteps": timesteps,
            "learn_seconds": self._learned,
            "total_seconds": self.total_s,
            "timesteps_per_second": timesteps / max(self._learned, 1e-9),
        }

    def _draw(self, found: Predictions, path: Path) -> None:
        from manyseeds import plots

        title = f"{self.algo} on {self.config.env}"
        plots.prediction_errors(
            found.episodes, found.errors, found.bias_squared, found.variance, path, title=title
        )


def _digits(exact: Floats) -> int:
    """Decimals with which an error is worth printing: 4 where the largest value is below 10."""
    return max(0, 5 - len(str(int(np.abs(exact).max()))))


def _text(errors: Floats, digits: int) -> str:
    """`0.1021 [0.0998, 0.1043]`, or how many seeds diverged."""
    broken = int((~np.isfinite(errors)).sum())
    if broken:
        return f"infinite, {broken} of {len(errors)} seeds diverged"
    return stats.estimate(errors, "mean", resamples=2000).text(digits)


# ---- The command ---------------------------------------------------------------------------


@failing_in_one_line()
def main(
    config: AnyConfig,
    train: Callable[[AnyConfig, PredictionRun], Tensor],
    presets: dict[str, Preset],
) -> None:
    """Train the seeds that are not finished yet, store them, and print the table of the run."""
    assert isinstance(config, PredictionConfig)
    folder = complete_seeds(config, train, PredictionRun)
    with reading(folder.path):
        print_result(folder, config, presets.get(config.env))


def print_result(folder: RunFolder, config: PredictionConfig, preset: Preset | None) -> None:
    """The table at the end of a prediction, over the seeds that the command asked for."""
    from rich.table import Table

    requested = requested_seeds(config)
    parts = parts_with(folder, requested)
    found = load_predictions(parts, requested)
    summaries = [read_part(part)[1] for part in parts]
    learn_s = sum(summary["learn_seconds"] for summary in summaries)
    timesteps = sum(summary["timesteps"] for summary in summaries)
    digits = _digits(found.exact)
    bias, std = math.sqrt(found.bias_squared[-1]), math.sqrt(found.variance[-1])
    S = len(requested)
    chance = f"{std / math.sqrt(S - 1):.{digits}f}" if S > 1 else "unknown"

    episodes = plural(config.total_episodes, "episode")
    title = f"{folder.algo} on {config.env}, {plural(S, 'seed')}, {episodes}"
    table = Table(show_header=False, title=title)
    final = _text(found.errors[:, -1], digits)
    table.add_row("RMS error", f"{final} (mean over {plural(len(found.states), 'state')})")
    first = f"over the first {plural(min(EARLY, config.total_episodes), 'episode')}"
    table.add_row("", f"{_text(found.early_errors, digits)} {first}")
    table.add_row("bias", f"{bias:.{digits}f} (by chance alone {chance})")
    table.add_row("standard deviation", f"{std:.{digits}f} over seeds")
    divergence = ", ".join(f"seed {s} at episode {e:,}" for s, e in found.diverged.items())
    table.add_row("diverged", divergence or "none")
    if published := published_score(config, preset):
        table.add_row("published", published)
    if preset is None:
        table.add_row("preset", f"none for {config.env}: the defaults")
    speed = f"{timesteps / learn_s:,.0f} timesteps/s, all seeds together"
    table.add_row("speed", f"{speed} ({trained_on(parts)})")
    total_s = sum(summary["total_seconds"] for summary in summaries)
    table.add_row("time", f"{total_s:.1f} s, of which {learn_s:.1f} s learning")
    print_table(table, folder, parts)
