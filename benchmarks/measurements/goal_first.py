"""Whether GRPO learns on MountainCar from a policy that reaches the goal.

    python benchmarks/goal_first.py

GRPO's episodes there all return -200, so that no action is better than its peers. If that is why it
does not learn, it learns where its first policy reaches the goal now and then: that of a PPO which
was stopped early. GRPO begins with PPO's policy and its statistics of observations, and trains with
its preset, and with advantages that are not divided by the deviation of the group (--std none); as
a control it also begins, likewise normalised, with its own initial policy. The seeds are not those
on which all that was tried, from 0 on. Writes goal_first.json, which report.py shows. With
`--results results` it is published. Two minutes.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from manyseeds.algos import grpo, ppo
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.cli import PositiveInt, ScriptConfig, from_preset, parse
from manyseeds.evaluate import FINAL_EPISODES, evaluate
from manyseeds.process import set_up_process
from manyseeds.runs.control import Run
from manyseeds.untrusted import ORIGIN

ENV = "MountainCar-v0"
FIRST_SEED = 100
PPO_STOPPED = "PPO, stopped"
# Settings of GRPO, and whether PPO came before it.
STAGES: dict[str, tuple[dict[str, Any], bool]] = {
    "then GRPO": ({}, True),
    "then GRPO, not divided": ({"std": "none"}, True),
    "GRPO alone": ({}, False),
    "GRPO alone, not divided": ({"std": "none"}, False),
}
STORED: dict[str, Any] = {  # goal_first.json
    **ORIGIN,
    "seeds": int,
    "timesteps": int,
    "returns": {str: {str: [float]}},  # greedy and sampled, by stage
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """GRPO after PPO."""

    seeds: PositiveInt = 30
    """S, seeds of every training."""
    timesteps: PositiveInt = 50_000
    """Timesteps after which PPO is stopped."""


class After(Run):
    """A training of GRPO that begins with the policies of PPO."""

    def __init__(self, config: grpo.Config, seeds: Sequence[int], agent: ppo.ActorCritic) -> None:
        super().__init__(config, seeds)
        self.agent = agent

    @torch.no_grad()
    def begin_with(self, policy: Any) -> Any:
        mine, theirs = policy.network.parameter_lists(), self.agent.networks.parameter_lists()
        for own, others in zip(mine, theirs, strict=True):
            for x, other in zip(own, others, strict=True):
                x.copy_(other[:, :1])  # the policy's; the second network is the value's
        policy.obs_stats.load_state_dict(self.agent.obs_stats.state_dict())  # type: ignore[union-attr]
        return policy


def returns_of(policy: Any, config: Any, seeds: Sequence[int]) -> dict[str, list[float]]:
    """The final returns of S policies, greedy and sampled, [S] each."""
    env = config.make_env()
    found = {
        mode: evaluate(env, policy, seeds, FINAL_EPISODES, greedy=mode == "greedy")
        for mode in ("greedy", "sampled")
    }
    return {mode: evaluation.return_mean.tolist() for mode, evaluation in found.items()}


def measure(S: int, timesteps: int) -> dict[str, dict[str, list[float]]]:
    """The returns of PPO's policies, and of GRPO's after them and alone, by stage."""
    seeds, settings = range(FIRST_SEED, FIRST_SEED + S), {"seeds": S, "quiet": True}
    first = from_preset(ppo.Config, ppo.PRESETS, ENV, total_timesteps=timesteps, **settings)
    agent = ppo.train(first, Run(first, seeds))
    returns = {PPO_STOPPED: returns_of(agent, first, seeds)}
    for stage, (own, after) in STAGES.items():
        config = from_preset(grpo.Config, grpo.PRESETS, ENV, normalize_obs=True, **settings, **own)
        run = After(config, seeds, agent) if after else Run(config, seeds)
        returns[stage] = returns_of(grpo.train(config, run), config, seeds)
    return returns


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    trained = (f"manyseeds.algos.{algo}:train" for algo in ("grpo", "ppo"))
    begun = origin(["manyseeds.benchmarks.measurements.goal_first:measure", *trained])
    returns = measure(config.seeds, config.timesteps)
    for stage, by_mode in returns.items():
        means = (f"{mode} {sum(x) / len(x):.1f}" for mode, x in by_mode.items())
        print(f"{stage:23}  mean return {', '.join(means)}")
    about = {"seeds": config.seeds, "timesteps": config.timesteps}
    write_measured(Path(config.results) / "goal_first.json", {**begun, **about, "returns": returns})


if __name__ == "__main__":
    main()
