"""Environments: envs."""

from tests.planted_bugs.planting import Bug

BUGS = (
    Bug(
        "an end and a timeout at once: an environment reports one of them",
        "envs/core.py",
        "terminated = self.terminal(next_physics)\n",
        "terminated = self.terminal(next_physics) & (state.elapsed + 1 < self.spec.time_limit)\n",
        "tests/envs/test_envs.py::test_no_transition_crosses_a_reset[Counter]",
    ),
    Bug(
        "advantages across an end: episodes are counted up to the step before",
        "envs/core.py",
        "total_at_end = padded.gather(1, last_end)",
        "total_at_end = padded.gather(1, (last_end - 1).clamp(min=0))",
        "tests/envs/test_envs.py::test_episode_tracker_by_hand",
    ),
    Bug(
        "fake transition at a reset: the first observation is the last one's",
        "envs/core.py",
        "        obs = self.observation(physics)\n        final_obs",
        "        obs = self.observation(next_physics)\n        final_obs",
        "tests/algos/test_ppo.py::test_rollout_keeps_true_successors",
    ),
    Bug(
        "fake transition at a reset: the bridge shows it a step later",
        "envs/gymnasium_bridge.py",
        "                obs[i], _ = instance.env.reset(seed=seed)\n",
        "                instance.env.reset(seed=seed)\n                obs[i] = final_obs[i]\n",
        "tests/envs/test_bridge.py::test_no_transition_crosses_a_reset",
    ),
    Bug(
        "fake transition at a reset: the bridge's successor is the next start",
        "envs/gymnasium_bridge.py",
        "self._observations(final_obs, noise),",
        "self._observations(obs, noise),",
        "tests/envs/test_bridge.py::test_no_transition_crosses_a_reset",
    ),
    Bug(
        "step counter: goes on after a reset",
        "envs/core.py",
        "State(physics, elapsed.masked_fill(done, 0))",
        "State(physics, elapsed)",
        "tests/envs/test_envs.py::test_step_counters_are_right_in_every_environment_over_many_resets",
    ),
    Bug(
        "step counter: shared by all environments",
        "envs/core.py",
        "elapsed = state.elapsed + 1\n",
        "elapsed = state.elapsed.amax().expand_as(state.elapsed) + 1\n",
        "tests/envs/test_envs.py::test_step_counters_are_right_in_every_environment_over_many_resets",
    ),
    Bug(
        "step counter: off by one",
        "envs/core.py",
        "truncated = elapsed >= self.spec.time_limit",
        "truncated = elapsed > self.spec.time_limit",
        "tests/envs/test_classic_control.py::test_truncated_at_exactly_the_time_limit[Pendulum]",
    ),
    Bug(
        "step counter: an end resets all environments of a seed",
        "envs/core.py",
        "        done = terminated | truncated\n        initial",
        "        done = (terminated | truncated).any(-1, keepdim=True).expand_as(terminated)\n"
        "        initial",
        "tests/envs/test_envs.py::test_cartpole_follows_gymnasium_free_running[3-3]",
    ),
    Bug(
        "shared seed: a reset repeats the luck of the transition",
        "envs/core.py",
        "initial = self.initial(noise[..., self.transition_noise :])",
        "initial = self.initial(noise[..., : self.initial_noise])",
        "tests/envs/test_envs.py::test_reset_noise_is_the_last_of_the_step_noise",
    ),
    Bug(
        "shared seed: the bridge resets all environments alike",
        "envs/gymnasium_bridge.py",
        "                obs[i], _ = instance.env.reset(seed=seed)\n",
        "                obs[i], _ = instance.env.reset(seed=0)\n",
        "tests/envs/test_bridge.py::test_no_two_environments_share_a_start",
    ),
    Bug(
        "anchors: CartPole's random score",
        "envs/cartpole.py",
        "random_score=22.1,",
        "random_score=21.1,",
        "tests/envs/test_envs.py::test_what_scores_are_normalised_by[CartPole-v1]",
    ),
    Bug(
        "anchors: Acrobot's reference score",
        "envs/acrobot.py",
        "reference_score=-69.1,",
        "reference_score=-70.1,",
        "tests/envs/test_envs.py::test_what_scores_are_normalised_by[Acrobot-v1]",
    ),
    Bug(
        "anchors: MountainCarContinuous' random score",
        "envs/mountain_car.py",
        "random_score=0.0,",
        "random_score=-33.3,",
        "tests/envs/test_envs.py::test_what_scores_are_normalised_by[MountainCarContinuous-v0]",
    ),
    Bug(
        "anchors: FrozenLake's reference score",
        "envs/frozen_lake.py",
        "(4, True): (0.0139, 0.740)",
        "(4, True): (0.0139, 0.7442)",
        "tests/envs/test_envs.py::test_what_scores_are_normalised_by[FrozenLake-v1]",
    ),
    Bug(
        "anchors: CartPole's threshold",
        "envs/cartpole.py",
        "reward_threshold=475.0,",
        "reward_threshold=500.0,",
        "tests/envs/test_envs.py::test_what_scores_are_normalised_by[CartPole-v1]",
    ),
)
