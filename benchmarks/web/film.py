"""Films of trained policies: one greedy episode after another, with step, return and seed drawn in.

Gymnasium's own environment is played and drawn, from `reset(seed=0)`, `reset(seed=1)`, ... A board
of ours that Gymnasium does not have (Gridworld-v0) is played as it is trained, and drawn here.

Frames are left out where there would be more than a film can time or a page should load; the first
and the last of every episode stay.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from manyseeds import envs
from manyseeds.arguments import read_kwargs
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.policies import median_and_worst
from manyseeds.benchmarks.store.trained import Trained
from manyseeds.cli import ControlConfig
from manyseeds.digest import installing
from manyseeds.envs.gymnasium_bridge import as_ours, cannot_be_made, registered_id
from manyseeds.errors import UsageError
from manyseeds.record import plural
from manyseeds.seeds import SeedStreams

MAX_FRAMES = 300
MAX_SIDE = 400  # pixels
MIN_WIDTH = 320  # pixels, that the captions fit
MIN_DELAY = 2  # 1/100 s: what is shorter, browsers show at a tenth of a second
LAST_DELAY = 100  # 1/100 s: time to see how an episode ended
LINE = 18  # pixels of a line of the caption
CELL = 48  # pixels of a cell of a board
# Colours of a board.
PAPER, INK, GREY = "#ffffff", "#1a1a1a", "#c4c4c4"
MARKS = {"G": "#2a9d5c", "T": "#d1495b", "H": "#d1495b", "C": "#d1495b", "#": "#4a4a4a"}


# ---- What is played -------------------------------------------------------------------------


class Scene(ABC):
    """One environment that can be played and drawn."""

    fps: float  # steps per second

    @abstractmethod
    def reset(self, start: int) -> Tensor:
        """Begin the episode of a number; returns the observation, `[1, 1, ...]`."""

    @abstractmethod
    def step(self, action: np.ndarray) -> tuple[Tensor, float, bool]:
        """The next observation, the reward, and whether the episode has ended."""

    @abstractmethod
    def picture(self) -> Image.Image:
        """The environment as it is now."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Free what the renderer holds."""


class GymnasiumScene(Scene):
    """Gymnasium's own environment."""

    def __init__(self, config: ControlConfig, spec: envs.EnvSpec) -> None:
        # Nothing is ever shown in a window or heard, so nothing needs a display.
        for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
            os.environ.setdefault(name, "dummy")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions, precision of bounds
            kwargs = {**read_kwargs(config.env_kwargs), "max_episode_steps": spec.time_limit}
            made: gym.Env[Any, Any] = gym.make(
                registered_id(config.env),
                **{**kwargs, "render_mode": "rgb_array"},
                disable_env_checker=True,
            )
        self.env = as_ours(made, spec, config.rescale_actions)
        if "rgb_array" not in self.env.metadata.get("render_modes", ()):
            raise UsageError(f"--env {config.env}: draws no pictures (no render mode rgb_array)")
        self.fps = self.env.metadata.get("render_fps") or 30

    def reset(self, start: int) -> Tensor:
        return self._batch(self.env.reset(seed=start)[0])

    def step(self, action: np.ndarray) -> tuple[Tensor, float, bool]:
        space = self.env.action_space
        if isinstance(space, Box):  # MountainCarContinuous charges for more than it does
            action = np.clip(np.nan_to_num(action), space.low, space.high).astype(space.dtype)
        else:
            assert isinstance(space, Discrete)
            action = action + space.start
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return self._batch(obs), float(reward), terminated or truncated

    def picture(self) -> Image.Image:
        return Image.fromarray(np.asarray(self.env.render()))

    def close(self) -> None:
        self.env.close()

    def _batch(self, obs: Any) -> Tensor:
        space = self.env.observation_space
        if isinstance(space, Discrete):
            return torch.tensor([[int(obs - space.start)]])
        return torch.as_tensor(obs, dtype=torch.float32)[None, None]


class BoardScene(Scene):
    """An environment of ours whose states lie on a board."""

    fps = 4

    def __init__(self, env: envs.TabularEnv) -> None:
        self.env = env
        self._at = 0

    def reset(self, start: int) -> Tensor:
        self._streams = SeedStreams([start], "start-states")
        self._state, obs = self.env.reset(self._streams.uniform(1, self.env.initial_noise))
        self._at = int(obs)
        return obs

    def step(self, action: np.ndarray) -> tuple[Tensor, float, bool]:
        noise = self._streams.uniform(1, self.env.noise_size)
        taken = self.env.step(self._state, torch.as_tensor(action).reshape(1, 1), noise)
        self._state, self._at = taken.state, int(taken.final_obs)
        return taken.obs, float(taken.reward), bool(taken.terminated | taken.truncated)

    def picture(self) -> Image.Image:
        """The panel of the board that the state lies on; the agent is a disc."""
        layout = self.env.layout
        panels = [np.array(states) for states in layout.panels.values()]
        board = next((panel for panel in panels if (panel == self._at).any()), panels[0])
        side = min(CELL, MAX_SIDE // max(board.shape))
        image = Image.new("RGB", (side * board.shape[1] + 1, side * board.shape[0] + 1), PAPER)
        draw = ImageDraw.Draw(image)
        for (row, column), state in np.ndenumerate(board):
            x, y = column * side, row * side
            mark = layout.marks.get(int(state), "")
            draw.rectangle((x, y, x + side, y + side), MARKS.get(mark, PAPER), GREY)
            if mark and mark != "#":
                ink = PAPER if mark in MARKS else INK
                centre = (x + side / 2, y + side / 2)
                draw.text(centre, mark, ink, ImageFont.load_default(side / 2), anchor="mm")
            if state == self._at:
                gap = side / 5
                corners = (x + gap, y + gap, x + side - gap, y + side - gap)
                draw.ellipse(corners, "#1f6fb2", PAPER, 2)
        return image


def scene_of(trained: Trained) -> Scene:
    """Where a policy is played. Raises UsageError for what cannot be made or drawn."""
    env_id = trained.config.env
    if env_id in envs.NATIVE and env_id not in gym.registry:
        if isinstance(trained.env, envs.TabularEnv):
            return BoardScene(trained.env)
        raise UsageError(
            f"{trained.run}: Gymnasium has no {env_id}, so there is no renderer for a film; "
            "curve.png in a part's folder shows its returns"
        )
    try:
        return GymnasiumScene(trained.config, trained.env.spec)
    except (ImportError, gym.error.Error) as error:
        raise not_drawn(env_id, error) from error


def not_drawn(env_id: str, error: Exception) -> UsageError:
    """What a user can do where an environment is not made or drawn."""
    if getattr(error.__cause__, "name", "") == "pygame":
        return UsageError(f"needs pygame: {installing('watch')}")
    return cannot_be_made(env_id, error)


# ---- The film -------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A picture of an episode."""

    step: int  # steps of the episode before it
    last: bool  # of its episode
    image: Image.Image


class Reel:
    """The frames of a film. Whenever there are more than MAX_FRAMES, every second one goes.

    fps: steps of the environment per second. title: the first line of the caption. stage: the
    second line begins with it.
    """

    def __init__(self, fps: float, title: str) -> None:
        self.fps, self.title, self.stage = fps, title, ""
        self.stride = math.ceil(fps * MIN_DELAY / 100)  # steps from a frame to the next
        self.frames: list[Frame] = []

    def add(self, step: int, last: bool, total: float, scene: Scene) -> None:
        """Draw the environment after a step of an episode, where that frame is wanted.

        total: the return so far.
        """
        if not self._wants(step, last):
            return
        image = scene.picture()
        image.thumbnail((MAX_SIDE, MAX_SIDE))
        said = f"{self.stage}step {step}, return {total:.1f}"
        self.frames.append(Frame(step, last, captioned(image, (self.title, said))))
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
        side = max(max(frame.image.size) for frame in some)
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


def captioned(image: Image.Image, lines: tuple[str, ...]) -> Image.Image:
    """A picture above lines of text."""
    width = max(image.width, MIN_WIDTH)
    whole = Image.new("RGB", (width, image.height + LINE * len(lines) + 4), PAPER)
    whole.paste(image, ((width - image.width) // 2, 0))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(13)
    for i, line in enumerate(lines):
        draw.text((6, image.height + 2 + LINE * i), line, INK, font)
    return whole


def play(scene: Scene, trained: Trained, seed: int, start: int, reel: Reel) -> tuple[float, int]:
    """One episode of a seed's greedy policy; its return and its steps."""
    row, S = trained.seeds.index(seed), len(trained.seeds)
    act = trained.act_natively if isinstance(scene, BoardScene) else trained.act
    obs = scene.reset(start)
    step, total, ended = 0, 0.0, False
    reel.add(step, ended, total, scene)
    while not ended:
        with torch.inference_mode():  # all S policies act, because they are one module
            action = act(obs.expand(S, *obs.shape[1:]))[row, 0].numpy()
        obs, reward, ended = scene.step(action)
        step, total = step + 1, total + reward
        reel.add(step, ended, total, scene)
    return total, step


def title_of(trained: Trained, seed: int) -> str:
    """Who is seen: algorithm, environment, seed, and whether it is the median or the worst."""
    named = dict(zip(median_and_worst(trained.final), ("median", "worst"), strict=False))
    rank = f" ({named[seed]})" if seed in named else ""
    return f"{display(trained.algo)} on {trained.config.env}, seed {seed}{rank}"


class Film(NamedTuple):
    """A film, and what is to be said of it."""

    gif: bytes
    episodes: list[str]  # a line each
    size: str


def film(
    trained: Trained,
    seed: int,
    episodes: int = 1,
    fps: float | None = None,
    learning: Callable[[], Mapping[int, Trained]] | None = None,
) -> Film:
    """A film of a seed's first episodes.

    fps: steps per second (None: the environment's). learning: finds the policies to show in place
    of the trained one, by timesteps; called once it is known that there is something to draw.
    """
    said = []
    stages = {"": trained}
    scene = scene_of(trained)
    try:
        reel = Reel(fps or scene.fps, title_of(trained, seed))
        if learning:
            scene.reset(0)
            scene.picture()
            stages = {f"after {t:,} timesteps: ": policy for t, policy in learning().items()}
        for (reel.stage, policy), start in product(stages.items(), range(episodes)):
            total, steps = play(scene, policy, seed, start, reel)
            result = f"return {total:.1f}, {plural(steps, 'step')}"
            said.append(f"{reel.stage}seed {seed}, reset(seed={start}): {result}")
    except (ImportError, gym.error.Error) as error:
        raise not_drawn(trained.config.env, error) from error
    finally:
        scene.close()
    gif = reel.gif()
    return Film(gif, said, f"{len(reel.frames)} frames, {len(gif) / 1e6:.1f} MB")
