"""Steps of environments in C (rollout.c): the policies of all seeds and their environments.

S seeds, T steps, N environments per seed, A discrete actions or D components of a continuous
action, O observation size, P floats of an environment's state. Everything is float32 on the CPU.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, policy
from manyseeds.kernels.binding import Struct
from manyseeds.kernels.guard import Guard

SOURCE = Path(__file__).parent / "rollout.c"
PLAYERS = Struct(SOURCE, "players")
RETURNS = Struct(Path(__file__).parent / "values.h", "returns")
ROLLOUT, ONE_STEP, EPISODES, PLAY, MEANS_OF_PLAYED = (
    kernels.kernel(SOURCE, name)
    for name in ("rollout", "one_step", "episodes", "play", "means_of_played")
)


class Returns(NamedTuple):
    """What the outputs of networks stand for: of Z per action, the mean of their distribution.

    Of two networks the outputs of the second are values `[Z]`, which are added to those of the
    first, advantages, less their mean over all actions.
    """

    actions: int
    outputs: int  # Z
    # First and last atom, where the outputs are logits of atoms; None: their mean counts.
    bounds: tuple[Tensor | float, Tensor | float] | None = None

    def key(self) -> tuple[Any, ...]:
        """What tells whether something has changed."""
        bounds = self.bounds or ()
        as_now = [(id(x), x._version) if isinstance(x, Tensor) else x for x in bounds]
        return self.actions, self.outputs, *as_now

    def struct(self, seeds: int) -> ctypes.Structure:
        """The `returns` of values.h."""
        low, high = self.bounds or (0.0, 0.0)
        return RETURNS(
            S=seeds,
            A=self.actions,
            Z=self.outputs,
            categorical=self.bounds is not None,
            v_min=low,
            width=(high - low) / max(self.outputs - 1, 1),
        )


class PolicyKernel(NamedTuple):
    """What acts: the first network of each seed, and what is around it."""

    networks: Any  # a SeedMLP
    stats: Any = None  # RunningStats of observations; None: they are not normalised
    log_std: Tensor | None = None  # [S, 1, 1, D], of continuous actions
    noise_is_action: bool = False  # noise [..., 1] is the action, or negative: the greedy one
    # Actions are tanh of a mean, or of a Gaussian, whose log_std are outputs behind the means, with
    # -1 and 1 at these, [D] each.
    squashed_to: tuple[Tensor, Tensor] | None = None
    explores: bool = False  # squashed actions have noise added, behind that of the Gaussian
    returns: Returns | None = None  # what the outputs stand for; None: logits or action values

    def usable(self, *tensors: Tensor) -> bool:
        """Whether C can act, with states and noise."""
        readable = policy.is_readable(self.log_std, self.networks.outputs[0])
        if self.squashed_to:
            readable = all(x.dtype is torch.float32 and x.dim() == 1 for x in self.squashed_to)
        return readable and kernels.usable(self.networks.weights[0], *tensors)

    def noise_columns(self) -> int:
        """Numbers of noise that an action takes."""
        outputs: int = self.networks.outputs[0]
        if self.squashed_to:
            D = len(self.squashed_to[0])
            return D if self.noise_is_action else D * (self.is_gaussian() + self.explores)
        return 1 if self.noise_is_action else outputs

    def is_gaussian(self) -> bool:
        """Whether squashed actions are of a Gaussian."""
        return self.squashed_to is not None and self.networks.outputs[0] > len(self.squashed_to[0])


class Rollout(NamedTuple):
    """T steps of N environments per seed; [S, T, N, ...]."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor  # the true successor, also at the end of an episode

    @property
    def done(self) -> Tensor:
        """Where episodes end."""
        return self.terminated | self.truncated


class Episodes(NamedTuple):
    """N episodes per seed, from their starts to their ends; `[S, L, N, ...]`, 0 after the end."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    alive: Tensor  # bool: this step was taken


def acting_in_c(
    env: Any, policy: Any, guard: Guard, *tensors: Tensor
) -> tuple[int, PolicyKernel] | None:
    """The address of an environment's C code and a policy for it, if C can compute their steps.

    guard: keeps C from standing for a policy that was changed. tensors: states and noise.
    """
    address = env.in_c()
    if address and hasattr(policy, "as_kernel") and guard.allows(policy):
        acting = policy.as_kernel()
        if acting.usable(*tensors):
            return address, acting
    return None


def players(environment: int, spec: Any, acting: PolicyKernel, physics: Tensor) -> ctypes.Structure:
    """The `players` of rollout.c; environment: the address of its `environment` in C."""
    as_c = policy.acting(acting.networks, acting.stats, acting.log_std)
    N, P = physics.shape[1:]
    box = spec.action_low, spec.action_high
    ends = acting.squashed_to or (None, None)
    where = [x if x is None else x.data_ptr() for x in ends]
    kinds = acting.noise_is_action, acting.explores
    key = environment, box, spec.obs_size, N, P, *kinds, *where
    key += acting.returns.key() if acting.returns else ()
    kept: dict[Any, ctypes.Structure] = vars(as_c).setdefault("players", {})
    if key not in kept:
        low, high = bounds(spec) if spec.continuous else (None, None)
        built = PLAYERS(
            N=N,
            O=spec.obs_size,
            P=P,
            D=len(spec.action_low),
            columns=acting.noise_columns(),
            noise_is_action=acting.noise_is_action,
            squashed_low=ends[0],
            squashed_high=ends[1],
            gaussian=acting.is_gaussian(),
            explores=acting.explores,
            returns=acting.returns and acting.returns.struct(len(physics)),
            environment=environment,
            policy=as_c,
            low=low,
            high=high,
        )
        built.returns_of = acting.returns  # so that nothing else gets the number of its tensors
        mlp.keep(kept, key, built)
    return kept[key]


def described(
    environment: int,
    spec: Any,
    acting: PolicyKernel,
    physics: Tensor,
    action_noise: Tensor | None,
    env_noise: Tensor,
) -> dict[str, Any]:
    """What C is given of steps with a policy, whatever they are for; noise `[..., N, columns]`."""
    return {
        "S": physics.shape[0],
        "N": physics.shape[1],
        "P": physics.shape[2],
        "columns": acting.noise_columns(),
        "noise": env_noise.shape[-1],
        "time_limit": spec.time_limit,
        "players": players(environment, spec, acting, physics),
        "action_noise": action_noise,
        "env_noise": env_noise,
    }


def empty_steps(spec: Any, like: Tensor, *shape: int) -> Rollout:
    """Memory for steps `[S, T, N]`."""
    new = like.new_empty
    terminated, truncated = new(2, *shape, dtype=torch.bool).unbind()
    obs, next_obs = new(2, *shape, spec.obs_size).unbind()
    return Rollout(obs, empty_actions(spec, *shape), new(shape), terminated, truncated, next_obs)


def empty_actions(spec: Any, *shape: int) -> Tensor:
    """Memory for actions."""
    if spec.continuous:
        return torch.empty(*shape, len(spec.action_low))
    return torch.empty(shape, dtype=torch.int64)


@lru_cache(maxsize=64)
def bounds(spec: Any) -> tuple[Tensor, Tensor]:
    """The bounds of the components of an action, `[D]`."""
    return torch.tensor(spec.action_low), torch.tensor(spec.action_high)


def copies(*tensors: Tensor) -> list[Tensor]:
    """Contiguous ones: reset noise of another layout hands it on to the state."""
    return [x.clone(memory_format=torch.contiguous_format) for x in tensors]


def rollout(
    environment: int,
    spec: Any,
    acting: PolicyKernel,
    physics: Tensor,
    elapsed: Tensor,
    action_noise: Tensor,
    env_noise: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Rollout]:
    """Act for as many steps as there is noise, `[S, T, N, ...]`.

    environment: the address of its `environment` in C; spec: its EnvSpec. physics `[S, N, P]` and
    elapsed `[S, N]` int32 stay as they are. Returns both, and the observations `[S, N, O]`, after
    the steps, and the steps.
    """
    physics, elapsed = copies(physics, elapsed)
    last = physics.new_empty(*elapsed.shape, spec.obs_size)
    steps = empty_steps(spec, physics, *action_noise.shape[:3])
    state = physics, elapsed, last
    ROLLOUT.run(struct(environment, spec, acting, *state, action_noise, env_noise, steps))
    return *state, steps


def struct(
    environment: int,
    spec: Any,
    acting: PolicyKernel,
    physics: Tensor,
    elapsed: Tensor,
    last: Tensor,
    action_noise: Tensor,
    env_noise: Tensor,
    steps: Rollout,
) -> ctypes.Structure:
    """The `rollout` of rollout.c: physics and elapsed are changed, last and the steps filled."""
    given = described(environment, spec, acting, physics, action_noise, env_noise)
    state = {"physics": physics, "elapsed": elapsed, "last": last}
    return ROLLOUT.struct(
        T=action_noise.shape[1], O=spec.obs_size, **given, **state, **steps._asdict()
    )


def step(
    environment: int, spec: Any, physics: Tensor, elapsed: Tensor, actions: Tensor, noise: Tensor
) -> tuple[Tensor, ...]:
    """One step with discrete actions `[S, N]`; noise `[S, N, transition_noise + initial_noise]`.

    environment, spec, physics, elapsed: as of a rollout. Returns what a `Step` holds in its
    order, with physics and elapsed in the place of the state. Raises IndexError for other actions.
    """
    physics, elapsed = copies(physics, elapsed)
    S, N = actions.shape
    obs, final_obs = physics.new_empty(2, S, N, spec.obs_size).unbind()
    rewards, ends = physics.new_empty(S, N), physics.new_empty(2, S, N, dtype=torch.bool).unbind()
    ONE_STEP(
        S=S,
        N=N,
        O=spec.obs_size,
        P=physics.shape[2],
        A=spec.num_actions,
        noise=noise.shape[2],
        time_limit=spec.time_limit,
        environment=environment,
        actions=actions,
        env_noise=noise,
        physics=physics,
        elapsed=elapsed,
        obs=obs,
        rewards=rewards,
        terminated=ends[0],
        truncated=ends[1],
        final_obs=final_obs,
    )
    return physics, elapsed, obs, rewards, *ends, final_obs


def episodes(
    environment: int,
    spec: Any,
    acting: PolicyKernel,
    physics: Tensor,
    elapsed: Tensor,
    action_noise: Tensor | None,
    env_noise: Tensor,
    **progress: Tensor,
) -> tuple[Tensor, Tensor]:
    """Go on with episodes `[S, N]` for as many steps as there is noise of the environment.

    environment, spec, physics, elapsed: as of a rollout; returns the last two after the steps.
    action_noise `[S, T, N, ...]`, None: greedy; env_noise `[T, N, ...]`. progress: `[S, N]`,
    changed in place, alive (bool), which have not ended; returns and lengths (float64), added up.
    """
    physics, elapsed = copies(physics, elapsed)
    given = described(environment, spec, acting, physics, action_noise, env_noise)
    EPISODES(T=len(env_noise), **given, physics=physics, elapsed=elapsed, **progress)
    return physics, elapsed


def play(
    environment: int,
    spec: Any,
    acting: PolicyKernel,
    physics: Tensor,
    action_noise: Tensor,
    env_noise: Tensor,
) -> Episodes:
    """Play episodes from states `[S, N, P]` to their ends, each seed for as long as it takes.

    action_noise, env_noise: `[S, L, N, ...]`, for as many steps as there can be.
    """
    steps_of, new = action_noise.shape[:3], physics.new_zeros
    actions = empty_actions(spec, *steps_of).zero_()
    obs, alive = new(*steps_of, spec.obs_size), new(steps_of, dtype=torch.bool)
    played = Episodes(obs, actions, new(steps_of), alive)
    (physics,) = copies(physics)
    given = described(environment, spec, acting, physics, action_noise, env_noise)
    PLAY(L=steps_of[1], O=spec.obs_size, **given, physics=physics, **played._asdict())
    return played


def means_of(played: Episodes) -> dict[str, Tensor]:
    """What `means_of` of envs/rollout.py says."""
    S, L, N = played.rewards.shape
    means = played.rewards.new_empty(2, S)
    steps = {"rewards": played.rewards, "alive": played.alive}
    MEANS_OF_PLAYED(S=S, L=L, N=N, means=means, **steps)
    return dict(zip(("train_return", "train_length"), means.unbind(), strict=True))
