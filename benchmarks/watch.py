"""Shows a trained policy in Gymnasium's own environment: as a GIF, or as a check of ours.

    python benchmarks/watch.py results/runs/CartPole-v1/ppo/169f4dbf
    python benchmarks/watch.py --check results/runs/CartPole-v1/ppo/169f4dbf [RUN ...]

A RUN is the folder of a run or one of its parts `seeds-000-009`, with weights on this machine. Of a
published run, the GIF can show the median and the worst seed (results/policies).
The module of an environment `module:Name-v0` is imported only if `--env module:Name-v0` says so.

**The GIF** is drawn by Gymnasium's renderer: the greedy policy of the median seed by final return,
or of `--seed`, in episodes that begin with `reset(seed=0)`, `reset(seed=1)`, ... It runs at the
environment's speed. Frames are left out where there would be more than a GIF can time or a page
should load; the first and the last of every episode stay.

**The check** plays the same greedy policies on our native environment and on Gymnasium's own, E
episodes of each of the S seeds on each side. Nothing is re-injected and no start is shared, so it
sees whatever tests of the dynamics might not: observations, actions, rewards, episode ends.

- All E S episodes of a side are independent: every seed has start states and luck of its own.
  (`manyseeds.evaluate` gives all seeds the same ones. That is right for comparing algorithms, but
  here their error would be common to all seeds, and no interval over seeds would show it.)
- The policies are the same on both sides, so their spread is no error of the difference. Episode e
  here minus episode e there is one observation of it; they are resampled within each seed, which is
  the stratified bootstrap of `stats.estimate` with the seeds as tasks.
- The verdict is "agrees" where the 95% interval of the difference of means holds 0, else "differs".
  Right environments "differ" by chance in one row of twenty; more `--episodes` tell. How large a
  difference could have been missed is the width of the interval.
- A seed that diverged in training has no policy, and is left out.
"""

from __future__ import annotations

import io
import math
import os
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor
from tyro.conf import Positional

import envs
from benchmarks import catalog
from benchmarks.chapters.environments import HEADER, Checked, markdown
from benchmarks.chapters.results import print_table
from benchmarks.chapters.stored import BROKEN, file_name, find_and_open, find_file, reading
from benchmarks.measure import origin
from benchmarks.policies import Finals, final_scores, median_and_worst, policies_name
from envs.gymnasium_bridge import cannot_be_made, registered_id
from manyseeds import stats
from manyseeds.checkpoint import read_policy
from manyseeds.cli import ControlConfig, exit_with, given_runs, identity, parse, path_of
from manyseeds.digest import origin_of
from manyseeds.errors import UsageError
from manyseeds.evaluate import CHUNK, FINAL_EPISODES, Policy
from manyseeds.process import set_up_process
from manyseeds.record import POLICY, plural, ranges, write_bytes, write_json
from manyseeds.seeds import SeedStreams
from manyseeds.stats import Estimate, Floats

MAX_FRAMES = 300
MAX_SIDE = 400  # pixels
MIN_DELAY = 2  # 1/100 s: what is shorter, browsers show at a tenth of a second
LAST_DELAY = 100  # 1/100 s: time to see how an episode ended
MIN_EPISODES = 20  # per seed and side: a bootstrap of fewer is far too sure of itself
RESAMPLES = 2000


# ---- Trained policies -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trained:
    """The policies of one part; what is per seed has the order of `seeds`."""

    part: Path  # or the file of published policies
    run: Path
    algo: str
    config: ControlConfig
    seeds: list[int]
    final: Finals  # greedy returns at the end of the training, of all seeds of the run
    diverged: set[int]
    policy: Policy
    train: Callable[..., Any]  # where the code that made the policy begins

    @cached_property
    def env(self) -> envs.Env:
        """What the policy was trained in, or the native version of it where there is one."""
        env: envs.Env = replace(self.config, backend="auto").make_env()
        return env

    @property
    def results(self) -> Path:
        return self.run.parents[3]

    def act(self, obs: Tensor) -> Tensor:
        """Greedy actions `[S, N, ...]` for Gymnasium's observations `[S, N, ...]`."""
        if isinstance(self.env, envs.Discretize):
            obs = self.env.observation(obs)  # what is binned is the state, as Gymnasium shows it
        return self.act_natively(obs)

    def act_natively(self, obs: Tensor) -> Tensor:
        """Greedy actions `[S, N, ...]` for observations of our native environment."""
        try:
            return self.policy.act(obs)
        except (*BROKEN, RuntimeError) as error:  # a table of another size
            raise UsageError(f"{self.part}: its weights do not fit its environment") from error


def load_trained(
    path: str, trusted_env: str | None = None, published: bool = False
) -> list[Trained]:
    """The parts of RUN whose weights are on this machine.

    published: and, last, its published policies, if there are some.
    trusted_env: the id `module:Name-v0`, of all that import a module, that may be made; None where
    only our own environments are wanted.
    Raises UsageError in one line: no such folder, nothing finished, another kind of run, a
    baseline, an environment that imports a module, no weights (with the command that trains them),
    weights of another version of the algorithm's file.
    """
    run = find_and_open(path)
    algo, env_id = run.configs[0]["algo"], run.configs[0].get("env", "")
    if run.kind != "control":
        raise UsageError(f"{path}: is a {run.kind} run, which has no policy that plays episodes")
    if algo not in catalog.names("algos"):
        raise UsageError(
            f"{path}: {algo} is not an algorithm of algos/, and only those store weights"
        )
    if env_id in envs.NATIVE and env_id not in gym.registry:
        raise UsageError(
            f"{path}: Gymnasium has no {env_id}, so there is no renderer for a GIF and nothing to "
            "check against; curve.png in a part's folder shows its returns"
        )
    if env_id not in envs.NATIVE and trusted_env is None:
        raise UsageError(f"{path}: {env_id} has no native version to be checked")
    if env_id not in envs.NATIVE and ":" in env_id and trusted_env != env_id:
        raise UsageError(
            f"{path}: to show it would import the module of {env_id}; if you trust that module, "
            f"add --env {shlex.quote(env_id)}"
        )
    if trusted_env and trusted_env != env_id:
        raise UsageError(f"--env {trusted_env}: {path} is on {env_id}")
    command = run.configs[0]["command"]
    there = [part for part in run.parts if (part / POLICY).exists()]
    if published:
        file = find_file(run.path.parents[3], policies_name(run.path))
        there += [file] if file.exists() else []
    if not there:
        raise UsageError(f"{path}: no weights on this machine; to train it: {command}")

    module = catalog.module("algos", algo)
    with reading(run.path):
        final = final_scores(run)
        diverged = {int(seed) for summary in run.summaries for seed in summary["diverged"]}
    found = []
    for part in there:
        try:
            config, seeds, _ = read_policy(part, module.Config, trusted_env or "")
            policy = module.load(part, trusted_env or "")
        except (*BROKEN, RuntimeError, SafetensorError) as error:  # another field, another shape
            raise UsageError(
                f"{part}: its weights do not fit today's algos/{algo}.py; remove that "
                f"{'file' if part.is_file() else 'folder'} and train it again: {command}"
            ) from error
        if part.is_file() and (identity(config) != run.config or not set(seeds) <= {*run.seeds}):
            raise UsageError(f"{part}: is of another run than {run.path}")
        found.append(
            Trained(
                part=part,
                run=run.path,
                algo=algo,
                config=config,
                seeds=seeds,
                final=final,
                diverged=diverged,
                policy=policy,
                train=module.train,
            )
        )
    return found


# ---- The GIF --------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A picture of an episode."""

    step: int  # steps of the episode before it
    last: bool  # of its episode
    image: Image.Image


class Reel:
    """The frames of a GIF. Whenever there are more than MAX_FRAMES, every second one goes.

    fps: steps of the environment per second.
    """

    def __init__(self, fps: float) -> None:
        self.fps = fps
        self.stride = math.ceil(fps * MIN_DELAY / 100)  # steps from a frame to the next
        self.frames: list[Frame] = []

    def add(self, step: int, last: bool, env: gym.Env[Any, Any]) -> None:
        """Draw the environment after a step of an episode, where that frame is wanted."""
        if not self._wants(step, last):
            return
        image = Image.fromarray(np.asarray(env.render()))
        image.thumbnail((MAX_SIDE, MAX_SIDE))
        self.frames.append(Frame(step, last, image))
        if len(self.frames) > MAX_FRAMES:
            self.stride *= 2
            self.frames = [f for f in self.frames if self._wants(f.step, f.last)]

    def _wants(self, step: int, last: bool) -> bool:
        return last or step % self.stride == 0

    def delays(self) -> list[int]:
        """How long each frame is shown, in 1/100 s. Rounding never adds up over an episode."""
        delays = []
        for frame, following in zip(self.frames, [*self.frames[1:], None], strict=True):
            if frame.last or following is None:
                delays.append(LAST_DELAY)
                continue
            begins, ends = (round(100 * f.step / self.fps) for f in (frame, following))
            delays.append(max(ends - begins, MIN_DELAY))
        return delays

    def gif(self) -> bytes:
        """The whole GIF, which repeats forever. One palette serves all frames."""
        some = self.frames[:: math.ceil(len(self.frames) / 8)]
        side = max(max(f.image.size) for f in some)
        sample = Image.new("RGB", (side, side * len(some)))
        for i, frame in enumerate(some):
            sample.paste(frame.image.resize((side, side), Image.Resampling.NEAREST), (0, i * side))
        palette = sample.quantize(256, Image.Quantize.FASTOCTREE)
        first, *rest = (
            f.image.quantize(palette=palette, dither=Image.Dither.NONE) for f in self.frames
        )
        buffer = io.BytesIO()
        milliseconds = [10 * delay for delay in self.delays()]
        first.save(buffer, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
        return buffer.getvalue()


def median_seed(parts: Sequence[Trained]) -> int:
    """The median of the run by final return, or of the seeds that have weights."""
    final = parts[0].final
    there = {seed: final.get(seed) for part in parts for seed in part.seeds}
    wanted = median_and_worst(final)[0]
    return wanted if wanted in there else median_and_worst(there)[0]


def rendered(env_id: str, time_limit: int) -> gym.Env[Any, Any]:
    """Gymnasium's own environment, drawing into arrays."""
    # Nothing is ever shown in a window or heard, so nothing needs a display.
    for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(name, "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions, precision of bounds
        env = gym.make(
            registered_id(env_id),
            render_mode="rgb_array",
            max_episode_steps=time_limit,
            disable_env_checker=True,
        )
    if "rgb_array" not in env.metadata.get("render_modes", ()):
        raise UsageError(f"--env {env_id}: draws no pictures (no render mode rgb_array)")
    return env


def play(env: gym.Env[Any, Any], trained: Trained, seed: int, start: int, reel: Reel) -> None:
    """One episode of a seed's greedy policy from `reset(seed=start)`; prints its return."""
    row, S = trained.seeds.index(seed), len(trained.seeds)
    observations, actions = env.observation_space, env.action_space
    obs, _ = env.reset(seed=start)
    reel.add(0, False, env)
    step, total, ended = 0, 0.0, False
    while not ended:
        if isinstance(observations, Discrete):
            batch = torch.tensor([[int(obs - observations.start)]])
        else:
            batch = torch.as_tensor(obs, dtype=torch.float32)[None, None]
        with torch.inference_mode():  # all S policies act, because they are one module
            chosen = trained.act(batch.expand(S, *batch.shape[1:]))[row, 0].numpy()
        if isinstance(actions, Box):  # MountainCarContinuous charges for more than it does
            action = np.clip(np.nan_to_num(chosen), actions.low, actions.high).astype(actions.dtype)
        else:
            assert isinstance(actions, Discrete)
            action = chosen + actions.start
        obs, reward, terminated, truncated, _ = env.step(action)
        step, total, ended = step + 1, total + float(reward), terminated or truncated
        reel.add(step, ended, env)
    print(f"seed {seed}, reset(seed={start}): return {total:.1f}, {plural(step, 'step')}")


def watch(
    path: str,
    out: Path | None,
    seed: int | None,
    episodes: int,
    fps: float | None,
    trusted_env: str = "",
) -> None:
    """Write the GIF of a run, by default RESULTS/watch/ENV-ALGORITHM.gif."""
    parts = load_trained(path, trusted_env, published=True)
    if seed is None:
        seed = median_seed(parts)
    trained = next((part for part in parts if seed in part.seeds), None)
    if trained is None:
        there = ranges(s for part in parts for s in part.seeds)
        raise UsageError(f"--seed {seed}: {path} has weights of the seeds {there}")
    env_id = trained.config.env
    try:
        env = rendered(env_id, trained.env.spec.time_limit)
        reel = Reel(fps or env.metadata.get("render_fps") or 30)
        for start in range(episodes):
            play(env, trained, seed, start, reel)
        env.close()
    except (ImportError, gym.error.Error) as error:
        if getattr(error.__cause__, "name", "") == "pygame":
            raise UsageError("needs pygame: pip install -e '.[watch]'") from error
        raise cannot_be_made(env_id, error) from error
    content = reel.gif()
    if out is None:
        out = trained.results / "watch" / (file_name(f"{env_id}-{trained.algo}") + ".gif")
        out.parent.mkdir(exist_ok=True)
    write_bytes(out, content)
    print(f"gif: {out} ({len(reel.frames)} frames, {len(content) / 1e6:.1f} MB)")


# ---- The check ------------------------------------------------------------------------------


@torch.inference_mode()
def episode_returns(
    env: envs.Env, act: Callable[[Tensor], Tensor], seeds: Sequence[int], episodes: int
) -> Floats:
    """Returns of greedy episodes, `[S, E]`; every seed has start states and luck of its own."""
    S, E = len(seeds), episodes
    streams = SeedStreams(seeds, "start-states")
    state, obs = env.reset(streams.uniform(E, env.initial_noise))
    alive = torch.ones(S, E, dtype=torch.bool)
    returns = torch.zeros(S, E, dtype=torch.float64)
    for t in range(env.spec.time_limit):
        if t % CHUNK == 0:
            if not alive.any():
                break
            noise = streams.uniform(CHUNK, E, env.noise_size)
        step = env.step(state, act(obs), noise[:, t % CHUNK])
        state, obs = step.state, step.obs
        returns += step.reward * alive
        alive &= ~(step.terminated | step.truncated)
    # As in manyseeds.evaluate: a non-finite return counts as a random policy's.
    failure_score = env.spec.random_score
    assert failure_score is not None, "every native environment has one; nan_to_num(None) is 0"
    return returns.nan_to_num(*[failure_score] * 3).numpy()


def difference_of_means(native: Floats, gymnasium: Floats) -> Estimate:
    """Mean of native minus mean of Gymnasium, with its 95% interval over episodes.

    Returns `[S, E]` each, all episodes independent.
    """
    return stats.estimate(list(native - gymnasium), "mean", resamples=RESAMPLES)


def check(path: str, parts: Sequence[Trained], episodes: int) -> Checked:
    """Play the policies of a run on both sides. Raises UsageError where every seed diverged."""
    native = parts[0].env
    gymnasium = envs.make(native.spec.id, backend="gymnasium")
    returns: dict[int, tuple[Floats, Floats]] = {}  # by seed, [E] each
    for part in parts:
        ours = episode_returns(native, part.act_natively, part.seeds, episodes)
        theirs = episode_returns(gymnasium, part.act, part.seeds, episodes)
        for seed, here, there in zip(part.seeds, ours, theirs, strict=True):
            if seed not in part.diverged:
                returns.setdefault(seed, (here, there))
    if not returns:
        raise UsageError(f"{path}: every seed diverged")
    ours, theirs = (np.stack(side) for side in zip(*returns.values(), strict=True))
    return Checked(
        env=native.spec.id,
        algo=parts[0].algo,
        run=parts[0].run.name,
        seeds=list(returns),
        native=ours.mean(1),
        gymnasium=theirs.mean(1),
        difference=difference_of_means(ours, theirs),
    )


def check_all(paths: Sequence[str], episodes: int) -> None:
    """Check runs of one results folder; print the table and write it into RESULTS/tables."""
    runs = [load_trained(path) for path in paths]  # all of them, before the first is played
    first = [parts[0] for parts in runs]
    folders = [Path(path).resolve() for path in paths]
    for path, folder, part in zip(paths, folders, first, strict=True):
        if folders.count(folder) > 1:
            raise UsageError(f"{path}: given twice")
        if part.results != first[0].results:
            raise UsageError(f"{path}: must lie in {first[0].results}, as {paths[0]} does")
    rows = [check(path, parts, episodes) for path, parts in zip(paths, runs, strict=True)]
    title = (
        f"Native environments against Gymnasium's, {plural(episodes, 'episode')} per seed and side"
    )
    print_table(title, HEADER, [row.cells() for row in rows])

    origins = {origin_of(x) for part in first for x in (part.train, *part.env.origins())}
    stored = {
        **origin(sorted({*origins, "benchmarks.watch:check"})),
        "episodes": episodes,
        "rows": [row.json() for row in rows],
    }
    tables = first[0].results / "tables"
    tables.mkdir(exist_ok=True)
    write_json(tables / "check.json", stored)
    write_bytes(tables / "check.md", markdown(stored).encode())
    print(f"table: {tables / 'check.md'}")


# ---- The command ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Flags:
    runs: Positional[tuple[str, ...]] = ()
    """Folder of a run or of one of its parts; with --check of several."""
    check: bool = False
    """Play on both sides, write the table."""
    seed: int | None = None
    """Which seed to show (default: the median; of equal ones the first)."""
    out: str = ""
    """Default: RESULTS/watch/ENV-ALGORITHM.gif."""
    env: str = ""
    """The run's module:Name-v0. Says that its module may be imported."""
    fps: float | None = None
    """Steps per second (default: the environment's)."""
    episodes: int | None = None
    """Episodes (default: 1; with --check 100 per seed and side)."""


def main(args: Sequence[str] | None = None) -> None:
    """Draw a GIF of a run, or check its environment."""
    given = parse(Flags, {}, __doc__, args)
    try:
        runs = given_runs(given.runs)
        least = MIN_EPISODES if given.check else 1
        if given.episodes is not None and given.episodes < least:
            raise UsageError(f"--episodes {given.episodes}: must be at least {least}")
        set_up_process(threads=1)
        if given.check:
            for name in ("seed", "out", "fps", "env"):
                if getattr(given, name) not in (None, ""):
                    raise UsageError(f"--{name}: is for the GIF, not for --check")
            check_all(runs, given.episodes or FINAL_EPISODES)
            return
        if len(runs) > 1:
            raise UsageError(f"{runs[1]}: one GIF shows one run")
        if given.fps is not None and not 2 <= given.fps <= 1000:
            raise UsageError(f"--fps {given.fps:g}: must be from 2 to 1000")
        out = path_of(given.out, "--out") if given.out else None
        if out is not None:
            if out.suffix != ".gif":
                raise UsageError(f"--out {out}: must end in .gif")
            if not out.absolute().parent.is_dir():
                raise UsageError(f"--out {out}: {out.parent} is not a folder")
        watch(runs[0], out, given.seed, given.episodes or 1, given.fps, given.env)
    except UsageError as error:
        exit_with(error)
    except OSError as error:  # not writable, a folder of that name
        exit_with(UsageError(str(error)))


if __name__ == "__main__":
    main()
