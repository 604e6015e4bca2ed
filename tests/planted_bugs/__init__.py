"""Plants known bugs, one at a time, in a copy of the project, and shows the test that turns red.

    python -m tests.planted_bugs                    # all of them
    python -m tests.planted_bugs n-step traces      # those whose name contains a word
    python -m tests.planted_bugs "step counter"     # those of one trap

A bug that no test notices is a missing test: the exit status is then 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    """One edit that breaks the project, and the fast test that must notice."""

    name: str
    file: str
    right: str  # stands in the file exactly once
    wrong: str
    test: str  # file::function, perhaps with [parameters]


# Traps that implementations of control fall into again and again. Names of bugs begin with theirs.
TRAPS = (
    "timeout as an end",
    "bootstrap from the wrong state",
    "an end and a timeout at once",
    "advantages across an end",
    "fake transition at a reset",
    "step counter",
    "replay",
    "spread of advantages",
    "ratio before an update",
    "entropy sign",
    "target interval",
    "shared seed",
    "noise drawn inside",
    "no number",
    "epsilon",
    # Those of language models.
    "language: temperature",
    "language: token mask",
    "language: positions",
    "language: shifted log-probabilities",
    "language: token mean",
    "language: spread of a group",
    "language: equal rewards",
    "language: steps of the thinking",
    "language: ratio",
    "language: KL",
    "language: cut off",
    "language: refills",
    "language: reward model",
    "language: values of tokens",
    "language: preferences",
    "language: entropy",
    "language: answers",
    "language: held-out prompts",
    "language: evaluation",
    "language: no gradient",
    "language: dropout",
    "language: cache",
    "language: reference",
    "language: half precision",
)

BUGS = (
    Bug(
        "planning: no terminal mask",
        "algos/value_iteration.py",
        "return (r + gamma * P @ V).masked_fill(ends, 0.0)",
        "return r + gamma * P @ V",
        "tests/algos/test_planning.py::test_a_sweep_by_hand",
    ),
    Bug(
        "planning: evaluation without the terminal mask",
        "algos/policy_iteration.py",
        "r_pi = (policy.T * r).sum(0).masked_fill(ends, 0.0)",
        "r_pi = (policy.T * r).sum(0)",
        "tests/algos/test_planning.py::test_evaluation_is_that_of_the_policy",
    ),
    Bug(
        "planning: max over the wrong axis",
        "algos/value_iteration.py",
        "best = q.amax(0)\n",
        "best = q.amax()\n",
        "tests/algos/test_planning.py::test_greedy_takes_the_first_of_the_best_also_after_rounding",
    ),
    Bug(
        "planning: ties change the policy forever",
        "algos/policy_iteration.py",
        "better = q.amax(0) > V + accuracy",
        "better = q.amax(0) >= V",
        "tests/algos/test_planning.py::test_improvement_never_makes_a_policy_worse",
    ),
    Bug(
        "q-learning: no terminal mask",
        "algos/q_learning.py",
        "return rewards + gamma * next_values * ~terminated - lookup(table, obs, actions)",
        "return rewards + gamma * next_values - lookup(table, obs, actions)",
        "tests/algos/test_q_learning.py::test_td_error_by_hand",
    ),
    Bug(
        "q-learning: max over the wrong axis",
        "algos/q_learning.py",
        "return rows(table, obs).amax(-1)",
        "return rows(table, obs).amax(0)[..., 0].expand(obs.shape)",
        "tests/algos/test_q_learning.py::test_training_equals_a_plain_loop",
    ),
    Bug(
        "q-learning: epsilon not annealed",
        "algos/q_learning.py",
        "actions = policy.act(obs, action_noise, epsilon)",
        "actions = policy.act(obs, action_noise, config.exploration_initial_eps)",
        "tests/algos/test_q_learning.py::test_epsilon_falls_while_training",
    ),
    Bug(
        "sarsa: no terminal mask",
        "algos/sarsa.py",
        "return rewards + gamma * next_values * ~terminated - lookup(table, obs, actions)",
        "return rewards + gamma * next_values - lookup(table, obs, actions)",
        "tests/algos/test_sarsa.py::test_updates_by_hand",
    ),
    Bug(
        "sarsa: the next action is not the one taken",
        "algos/sarsa.py",
        "actions = torch.where(done, first_actions, next_actions)",
        "actions = first_actions",
        "tests/algos/test_sarsa.py::test_training_equals_a_plain_loop",
    ),
    Bug(
        "sarsa: an expectation without exploration",
        "algos/sarsa.py",
        "return epsilon * values.mean(-1) + (1 - epsilon) * values.amax(-1)",
        "return values.amax(-1)",
        "tests/algos/test_sarsa.py::test_the_expectation_is_the_mean_over_what_the_behaviour_does",
    ),
    Bug(
        "td: no terminal mask",
        "algos/td_prediction.py",
        "nothing_follows = episode.terminated.unsqueeze(1) & (left <= n)",
        "nothing_follows = torch.zeros_like(left, dtype=torch.bool)",
        "tests/algos/test_prediction.py::test_n_step_equals_the_slow_loop",
    ),
    Bug(
        "td: n-step off by one",
        "algos/td_prediction.py",
        "later = states[:, (torch.arange(L) + min(n, L)).clamp(max=L)]",
        "later = states[:, (torch.arange(L) + min(n, L) + 1).clamp(max=L)]",
        "tests/algos/test_prediction.py::test_n_step_equals_the_slow_loop",
    ),
    Bug(
        "td: a reward too many in n-step",
        "algos/td_prediction.py",
        "    for i in range(n):\n",
        "    for i in range(min(n + 1, L)):\n",
        "tests/algos/test_prediction.py::test_n_step_equals_the_slow_loop",
    ),
    Bug(
        "td: traces without decay",
        "algos/td_prediction.py",
        "traces *= gamma * trace_decay",
        "traces *= gamma",
        "tests/algos/test_prediction.py::test_traces_equal_the_slow_loop",
    ),
    Bug(
        "monte carlo: a later visit counts as the first",
        "algos/monte_carlo.py",
        't.where(alive, L), "amin")',
        't.where(alive, -1), "amax", include_self=False)',
        "tests/algos/test_prediction.py::test_first_visits_by_hand",
    ),
    Bug(
        "monte carlo: the return without discount",
        "algos/monte_carlo.py",
        "G = torch.where(runs, reward + gamma * G, G)",
        "G = torch.where(runs, reward + G, G)",
        "tests/algos/test_prediction.py::test_returns_by_hand",
    ),
    # ---- The traps of control code, in the order of TRAPS ----
    Bug(
        "timeout as an end: ppo's GAE does not bootstrap",
        "algos/ppo.py",
        "deltas = rewards + gamma * next_values * ~terminated - values",
        "deltas = rewards + gamma * next_values * ~(terminated | truncated) - values",
        "tests/algos/test_ppo.py::test_gae_by_hand",
    ),
    Bug(
        "timeout as an end: ppo calls it a termination",
        "algos/ppo.py",
        "        rollout.terminated,\n        rollout.truncated,\n",
        "        rollout.terminated | rollout.truncated,\n        rollout.truncated,\n",
        "tests/algos/test_ppo.py::test_a_time_limit_is_not_an_end",
    ),
    Bug(
        "timeout as an end: a2c calls it a termination",
        "algos/a2c.py",
        "(rollout.terminated, rollout.truncated)\n",
        "(rollout.terminated | rollout.truncated, rollout.truncated)\n",
        "tests/algos/test_a2c.py::test_a_time_limit_is_not_an_end[gae]",
    ),
    Bug(
        "timeout as an end: a2c's return of the rest is 0",
        "algos/a2c.py",
        "torch.where(truncated[:, t], next_values[:, t], following)",
        "torch.where(truncated[:, t], 0.0, following)",
        "tests/algos/test_a2c.py::test_advantages_by_hand",
    ),
    Bug(
        "timeout as an end: trpo calls it a termination",
        "algos/trpo.py",
        "        rollout.terminated,\n        rollout.truncated,\n",
        "        rollout.terminated | rollout.truncated,\n        rollout.truncated,\n",
        "tests/algos/test_trpo.py::test_a_time_limit_is_not_an_end",
    ),
    Bug(
        "timeout as an end: dqn stores a termination",
        "algos/dqn.py",
        "steps.append((obs, actions, step.reward, step.terminated, step.final_obs))",
        "done = step.terminated | step.truncated\n"
        "        steps.append((obs, actions, step.reward, done, step.final_obs))",
        "tests/algos/test_dqn.py::test_a_time_limit_is_not_an_end[False-10.0]",
    ),
    Bug(
        "timeout as an end: q-learning calls it a termination",
        "algos/q_learning.py",
        "step.terminated, config.gamma\n",
        "step.terminated | step.truncated, config.gamma\n",
        "tests/algos/test_q_learning.py::test_a_time_limit_is_no_end[False]",
    ),
    Bug(
        "timeout as an end: sarsa calls it a termination",
        "algos/sarsa.py",
        "step.terminated, config.gamma\n",
        "step.terminated | step.truncated, config.gamma\n",
        "tests/algos/test_sarsa.py::test_a_time_limit_is_no_end",
    ),
    Bug(
        "timeout as an end: td bootstraps no episode's end",
        "algos/td_prediction.py",
        "episode.terminated.unsqueeze(1) & (left <= n)",
        "left <= n",
        "tests/algos/test_prediction.py::test_the_time_limit_is_not_an_end",
    ),
    Bug(
        "bootstrap from the wrong state: q-learning reads the next start",
        "algos/q_learning.py",
        "greedy_value(policy.q, step.final_obs)",
        "greedy_value(policy.q, step.obs)",
        "tests/algos/test_q_learning.py::test_training_equals_a_plain_loop",
    ),
    Bug(
        "bootstrap from the wrong state: ppo's rollout keeps the next start",
        "algos/ppo.py",
        "steps.append((obs, actions, step.reward, *ends, step.final_obs))",
        "steps.append((obs, actions, step.reward, *ends, step.obs))",
        "tests/algos/test_ppo.py::test_rollout_keeps_true_successors",
    ),
    Bug(
        "bootstrap from the wrong state: ppo reads V(s_t)",
        "algos/ppo.py",
        "agent.value(rollout.next_obs.flatten(1, 2)).view(S, T, N)",
        "agent.value(obs).view(S, T, N)",
        "tests/algos/test_traps.py::test_advantages_read_the_values_of_the_true_successors[ppo]",
    ),
    Bug(
        "bootstrap from the wrong state: a2c reads V(s_t)",
        "algos/a2c.py",
        "agent.value(rollout.next_obs.flatten(1, 2))",
        "agent.value(rollout.obs.flatten(1, 2))",
        "tests/algos/test_a2c.py::test_the_loss_reads_the_values_of_the_true_successors",
    ),
    Bug(
        "bootstrap from the wrong state: trpo's rollout keeps the next start",
        "algos/trpo.py",
        "steps.append((obs, actions, step.reward, *ends, step.final_obs))",
        "steps.append((obs, actions, step.reward, *ends, step.obs))",
        "tests/algos/test_traps.py::test_advantages_read_the_values_of_the_true_successors[trpo]",
    ),
    Bug(
        "bootstrap from the wrong state: trpo reads V(reset)",
        "algos/trpo.py",
        "agent.value(rollout.next_obs.flatten(1, 2)).view(S, T, N)",
        "agent.value(rollout.obs.roll(-1, 1).flatten(1, 2)).view(S, T, N)",
        "tests/algos/test_traps.py::test_advantages_read_the_values_of_the_true_successors[trpo]",
    ),
    Bug(
        "an end and a timeout at once: ppo bootstraps",
        "algos/ppo.py",
        "deltas = rewards + gamma * next_values * ~terminated - values",
        "deltas = rewards + gamma * next_values * (~terminated | truncated) - values",
        "tests/algos/test_ppo.py::test_gae_by_hand",
    ),
    Bug(
        "an end and a timeout at once: a2c's n steps bootstrap",
        "algos/a2c.py",
        "one_step = rewards + gamma * next_values * ~terminated",
        "one_step = rewards + gamma * next_values * (~terminated | truncated)",
        "tests/algos/test_a2c.py::test_n_step_equals_its_definition[1-0.3]",
    ),
    Bug(
        "an end and a timeout at once: a2c's Monte Carlo bootstraps",
        "algos/a2c.py",
        "following) * ~terminated[:, t]",
        "following * ~terminated[:, t])",
        "tests/algos/test_a2c.py::test_monte_carlo_equals_its_definition[0.3]",
    ),
    Bug(
        "an end and a timeout at once: dqn stores no termination",
        "algos/dqn.py",
        "step.reward, step.terminated, step.final_obs))",
        "step.reward, step.terminated & ~step.truncated, step.final_obs))",
        "tests/algos/test_dqn.py::test_memory_holds_true_successors",
    ),
    Bug(
        "an end and a timeout at once: an environment reports one of them",
        "envs/core.py",
        "terminated = self.terminal(next_physics)\n",
        "terminated = self.terminal(next_physics) & (state.elapsed + 1 < self.spec.time_limit)\n",
        "tests/envs/test_envs.py::test_no_transition_crosses_a_reset[Counter]",
    ),
    Bug(
        "advantages across an end: ppo cuts terminations only",
        "algos/ppo.py",
        "(~(terminated | truncated)).to(deltas.dtype)",
        "(~terminated).to(deltas.dtype)",
        "tests/algos/test_ppo.py::test_gae_by_hand",
    ),
    Bug(
        "advantages across an end: ppo's mask is off by one",
        "algos/ppo.py",
        "deltas[:, t] + decay[:, t] * advantage",
        "deltas[:, t] + decay[:, t - 1] * advantage",
        "tests/algos/test_ppo.py::test_gae_by_hand",
    ),
    Bug(
        "advantages across an end: the mask of a2c's n steps is off by one",
        "algos/a2c.py",
        "goes_on = ~(terminated | truncated)[:, :-1]",
        "goes_on = ~(terminated | truncated)[:, 1:]",
        "tests/algos/test_a2c.py::test_advantages_by_hand",
    ),
    Bug(
        "advantages across an end: a2c's Monte Carlo goes on after a timeout",
        "algos/a2c.py",
        "torch.where(truncated[:, t], next_values[:, t], following)",
        "following",
        "tests/algos/test_a2c.py::test_advantages_by_hand",
    ),
    Bug(
        "advantages across an end: the scale of rewards sums up over it",
        "manyseeds/layers.py",
        "self.open_return.copy_(total.masked_fill(end, 0.0))",
        "self.open_return.copy_(total)",
        "tests/foundation/test_layers.py::test_discounted_returns_run_over_rollouts_and_stop_at_ends",
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
        "replay: dqn stores the next start at an end",
        "algos/dqn.py",
        "step.reward, step.terminated, step.final_obs))",
        "step.reward, step.terminated, step.obs))",
        "tests/algos/test_dqn.py::test_memory_holds_true_successors",
    ),
    Bug(
        "replay: the successor is read from the next row, over the wrap-around too",
        "algos/dqn.py",
        "return Transitions(obs, actions.long(), rewards, terminated.bool(), next_obs)",
        "after = self.rows.roll(-1, 1).view(-1, width).index_select(0, index.flatten())\n"
        "        next_obs = after.view(*noise.shape, width)[..., : self.obs_size]\n"
        "        return Transitions(obs, actions.long(), rewards, terminated.bool(), next_obs)",
        "tests/algos/test_dqn.py::test_replay_over_wrap_around[3]",
    ),
    Bug(
        "replay: a block that does not fit is piled up at the end",
        "algos/dqn.py",
        "(self.added + torch.arange(count, device=rows.device)) % capacity",
        "(self.added % capacity + torch.arange(count, device=rows.device)).clamp(max=capacity - 1)",
        "tests/algos/test_dqn.py::test_replay_over_wrap_around[3]",
    ),
    Bug(
        "replay: samples beyond what it holds",
        "algos/dqn.py",
        "index = (noise * self.size).long().minimum(self.size - 1)",
        "index = (noise * capacity).long()",
        "tests/algos/test_dqn.py::test_replay_never_reads_beyond_what_it_holds",
    ),
    Bug(
        "replay: all seeds sample one memory",
        "algos/dqn.py",
        "first = torch.arange(S, device=noise.device) * capacity",
        "first = torch.arange(S, device=noise.device) * 0",
        "tests/algos/test_dqn.py::test_replay_over_wrap_around[1]",
    ),
    Bug(
        "spread of advantages: ppo divides one sample by its deviation",
        "algos/ppo.py",
        "if advantages.shape[-1] == 1:",
        "if advantages.shape[-1] == 0:",
        "tests/algos/test_ppo.py::test_normalize",
    ),
    Bug(
        "spread of advantages: ppo divides equal ones by 0",
        "algos/ppo.py",
        "(advantages.std(-1, keepdim=True) + 1e-8)",
        "advantages.std(-1, keepdim=True)",
        "tests/algos/test_ppo.py::test_normalize",
    ),
    Bug(
        "spread of advantages: reinforce divides one sample by its deviation",
        "algos/reinforce.py",
        "(mask.sum(-1, keepdim=True) - 1).clamp(1)",
        "(mask.sum(-1, keepdim=True) - 1)",
        "tests/algos/test_reinforce.py::test_normalize",
    ),
    Bug(
        "spread of advantages: trpo takes a step that is no number",
        "algos/trpo.py",
        "(kl <= target_kl) & (new_objective > objective)",
        "~(kl > target_kl) & ~(new_objective <= objective)",
        "tests/algos/test_trpo.py::test_a_flat_objective_moves_nothing",
    ),
    Bug(
        "spread of advantages: grpo makes rounding noise full-sized",
        "algos/grpo.py",
        ".masked_fill(~peers | (high <= low), 0.0)",
        ".masked_fill(~peers, 0.0)",
        "tests/algos/test_grpo.py::test_ties_are_exactly_0",
    ),
    Bug(
        "spread of advantages: grpo divides the only peer by its deviation",
        "algos/grpo.py",
        "/ (count - 1).clamp(min=1)\n",
        "/ (count - 1)\n",
        "tests/algos/test_grpo.py::test_one_peer_and_none",
    ),
    Bug(
        "spread of advantages: grpo learns from groups that tell nothing",
        "algos/grpo.py",
        "return batch, (alive & informative).flatten(1), metrics",
        "return batch, alive.flatten(1), metrics",
        "tests/algos/test_grpo.py::test_groups_that_tell_nothing_are_left_out",
    ),
    Bug(
        "spread of advantages: grpo takes a step with nothing to learn from",
        "algos/grpo.py",
        "takes_step = active & (valid & (minibatch.advantages != 0)).any(-1)",
        "takes_step = active & valid.any(-1)",
        "tests/algos/test_grpo.py::test_moments_stay_after_learning_has_stopped",
    ),
    Bug(
        "ratio before an update: ppo's old log-probabilities are other samples'",
        "algos/ppo.py",
        "for field in batch))  # [S, M, ...]\n",
        "for field in batch))\n"
        "        minibatch = minibatch._replace(logprobs=batch.logprobs[:, : config.minibatch])\n",
        "tests/algos/test_ppo.py::test_without_a_learning_rate_every_ratio_stays_1",
    ),
    Bug(
        "ratio before an update: ppo's statistics have moved on",
        "algos/ppo.py",
        "    batch = prepare(agent, rollout, config)\n    schedule",
        "    if agent.obs_stats is not None:\n"
        "        agent.obs_stats.update(rollout.obs.flatten(1, 2))\n"
        "    batch = prepare(agent, rollout, config)\n    schedule",
        "tests/algos/test_traps.py::test_the_update_begins_at_the_policy_that_acted[ppo]",
    ),
    Bug(
        "ratio before an update: ppo's loss sees the clipped action",
        "algos/ppo.py",
        "actions = rollout.actions.flatten(1, 2)\n",
        "actions = rollout.actions.flatten(1, 2).clamp(-2, 2)\n",
        "tests/algos/test_ppo.py::"
        "test_the_environment_gets_the_clipped_action_and_the_loss_the_sampled_one",
    ),
    Bug(
        "ratio before an update: a2c's statistics have moved on",
        "algos/a2c.py",
        "    batch = prepare(agent, rollout)\n",
        "    if agent.obs_stats is not None:\n"
        "        agent.obs_stats.update(rollout.obs.flatten(1, 2))\n"
        "    batch = prepare(agent, rollout)\n",
        "tests/algos/test_traps.py::test_the_update_begins_at_the_policy_that_acted[a2c]",
    ),
    Bug(
        "ratio before an update: grpo's statistics have moved on",
        "algos/grpo.py",
        "    batch, mask, metrics = prepare(",
        "    if actor.obs_stats is not None:\n"
        "        steps = episodes.obs.flatten(1, 2), episodes.alive.flatten(1)\n"
        "        actor.obs_stats.update(*steps)\n"
        "    batch, mask, metrics = prepare(",
        "tests/algos/test_traps.py::test_the_update_begins_at_the_policy_that_acted[grpo]",
    ),
    Bug(
        "ratio before an update: grpo's is to the reference",
        "algos/grpo.py",
        "log_ratio = logprobs - batch.logprobs",
        "log_ratio = logprobs - batch.reference",
        "tests/algos/test_traps.py::test_the_update_begins_at_the_policy_that_acted[grpo]",
    ),
    Bug(
        "entropy sign: ppo",
        "algos/ppo.py",
        "- config.entropy_coef * entropy.mean(-1)",
        "+ config.entropy_coef * entropy.mean(-1)",
        "tests/algos/test_ppo.py::test_entropy_bonus_raises_entropy",
    ),
    Bug(
        "entropy sign: a2c",
        "algos/a2c.py",
        "- config.entropy_coef * entropy.mean(-1)",
        "+ config.entropy_coef * entropy.mean(-1)",
        "tests/algos/test_a2c.py::test_entropy_bonus_raises_entropy",
    ),
    Bug(
        "entropy sign: grpo",
        "algos/grpo.py",
        "total = pg_loss - config.entropy_coef",
        "total = pg_loss + config.entropy_coef",
        "tests/algos/test_grpo.py::test_the_entropy_bonus_raises_the_entropy_and_the_penalty_pulls_back",
    ),
    Bug(
        "entropy sign: reinforce",
        "algos/reinforce.py",
        "total = pg_loss - config.entropy_coef",
        "total = pg_loss + config.entropy_coef",
        "tests/algos/test_reinforce.py::test_entropy_bonus_raises_the_entropy",
    ),
    Bug(
        "target interval: dqn counts steps of the vector",
        "algos/dqn.py",
        "interval = max(config.target_update_interval // N, 1) * N",
        "interval = config.target_update_interval * N",
        "tests/algos/test_dqn.py::test_rhythm_of_updates",
    ),
    Bug(
        "target interval: dqn counts updates",
        "algos/dqn.py",
        "syncs = timestep // interval - before // interval",
        "syncs = int(timestep // config.block % interval == 0)",
        "tests/algos/test_dqn.py::test_rhythm_of_updates",
    ),
    Bug(
        "target interval: dqn is late",
        "algos/dqn.py",
        "syncs = timestep // interval - before // interval",
        "syncs = (timestep - 1) // interval - max(before - 1, 0) // interval",
        "tests/algos/test_dqn.py::test_rhythm_of_updates",
    ),
    Bug(
        "shared seed: all seeds have one stream",
        "manyseeds/seeds.py",
        "np.random.SeedSequence(seed, spawn_key=key)",
        "np.random.SeedSequence(0, spawn_key=key)",
        "tests/algos/test_seed_axis.py::test_a_stream_depends_on_seed_purpose_and_position_only",
    ),
    Bug(
        "shared seed: initialisation and training have one stream",
        "manyseeds/seeds.py",
        "key = (PURPOSES[purpose],)",
        "key = (0,)",
        "tests/algos/test_seed_axis.py::test_a_stream_depends_on_seed_purpose_and_position_only",
    ),
    Bug(
        "shared seed: ppo's environments begin alike",
        "algos/ppo.py",
        "env.reset(streams.uniform(N, env.initial_noise))",
        "env.reset(streams.uniform(1, env.initial_noise).expand(-1, N, -1))",
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[ppo]",
    ),
    Bug(
        "shared seed: a2c's environments move alike",
        "algos/a2c.py",
        "streams.uniform(T, N, env.noise_size)",
        "streams.uniform(T, 1, env.noise_size).expand(-1, -1, N, -1)",
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[a2c]",
    ),
    Bug(
        "shared seed: dqn explores alike in all environments",
        "algos/dqn.py",
        "net.draw(streams, F, N),",
        "net.draw(streams, F, 1).expand(-1, -1, N, -1),",
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[dqn]",
    ),
    Bug(
        "shared seed: trpo's policies act alike in every rollout",
        "algos/trpo.py",
        "            agent.draw(streams, T, N),\n",
        '            agent.draw(run.streams("train"), T, N),\n',
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[trpo]",
    ),
    Bug(
        "shared seed: reinforce's episodes begin alike",
        "algos/reinforce.py",
        "            streams.uniform(N, env.initial_noise),\n",
        "            streams.uniform(1, env.initial_noise).expand(-1, N, -1),\n",
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[reinforce]",
    ),
    Bug(
        "shared seed: grpo's peers act alike",
        "algos/grpo.py",
        "            actor.draw(streams, L, N),\n",
        "            actor.draw(streams, L, K).repeat_interleave(G, dim=2),\n",
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[grpo]",
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
        "noise drawn inside: ppo's actions",
        "algos/ppo.py",
        "actions = agent.act(obs, u)\n",
        "actions = agent.act(obs, torch.randn_like(u))\n",
        "tests/foundation/test_program.py::test_replaying_the_captured_iteration_is_the_eager_training[ppo]",
    ),
    Bug(
        "noise drawn inside: trpo's shuffling",
        "algos/trpo.py",
        "for order in shuffle.argsort(-1)",
        "for order in torch.rand_like(shuffle).argsort(-1)",
        "tests/foundation/test_program.py::test_replaying_the_captured_iteration_is_the_eager_training[trpo]",
    ),
    Bug(
        "noise drawn inside: dqn's minibatches",
        "algos/dqn.py",
        "index = (noise * self.size)",
        "index = (torch.rand_like(noise) * self.size)",
        "tests/foundation/test_program.py::test_replaying_the_captured_iteration_is_the_eager_training[dqn]",
    ),
    Bug(
        "noise drawn inside: grpo's minibatches",
        "algos/grpo.py",
        "order = shuffle.masked_fill(",
        "order = torch.rand_like(shuffle).masked_fill(",
        "tests/algos/test_grpo.py::test_minibatches_of_a_seed_do_not_depend_on_the_others",
    ),
    Bug(
        "no number: tanh overflows",
        "manyseeds/layers.py",
        "y = torch.sigmoid_(x * 2).mul_(2).sub_(1)",
        "y = ((2 * x).exp() - 1) / ((2 * x).exp() + 1)",
        "tests/algos/test_traps.py::test_tanh_far_out",
    ),
    Bug(
        "no number: the logarithm of a probability that is 0",
        "manyseeds/distributions.py",
        "logprobs = self.logits.log_softmax(-1)",
        "logprobs = self.logits.softmax(-1).log()",
        "tests/algos/test_ppo.py::test_categorical_is_torchs",
    ),
    Bug(
        "no number: the same in trpo's KL",
        "algos/trpo.py",
        "old_logprobs, logprobs = old.logits.log_softmax(-1), new.logits.log_softmax(-1)",
        "old_logprobs, logprobs = (x.logits.softmax(-1).log() for x in (old, new))",
        "tests/algos/test_trpo.py::test_kl_is_torchs[categorical]",
    ),
    Bug(
        "no number: ppo's deviation is never small",
        "manyseeds/distributions.py",
        "z = (actions - self.mean) * (-self.log_std).exp()",
        "z = (actions - self.mean) / (self.log_std.exp() + 1e-6)",
        "tests/algos/test_ppo.py::test_gaussian_stays_finite_far_out",
    ),
    Bug(
        "epsilon: one step ahead",
        "algos/dqn.py",
        "min(timestep / horizon, 1.0)",
        "min((timestep + 1) / horizon, 1.0)",
        "tests/algos/test_dqn.py::test_epsilon_schedule",
    ),
    Bug(
        "epsilon: falls beyond the end",
        "algos/dqn.py",
        "min(timestep / horizon, 1.0)",
        "timestep / horizon",
        "tests/algos/test_dqn.py::test_epsilon_schedule",
    ),
    Bug(
        "epsilon: one random action too many",
        "algos/dqn.py",
        "if timestep < config.learning_starts:",
        "if timestep <= config.learning_starts:",
        "tests/algos/test_dqn.py::test_epsilon_schedule",
    ),
    Bug(
        "epsilon: the round's last one in all its steps",
        "algos/dqn.py",
        "epsilon_at(before + f * N, config)",
        "epsilon_at(timestep, config)",
        "tests/algos/test_dqn.py::test_epsilon_falls_while_training",
    ),
    Bug(
        "epsilon: counts steps of the vector",
        "algos/dqn.py",
        "epsilon_at(before + f * N, config)",
        "epsilon_at(before + f, config)",
        "tests/algos/test_dqn.py::test_epsilon_falls_while_training",
    ),
    # ---- The traps of language models, in the order of TRAPS ----
    Bug(
        "language: temperature: missing in training",
        "llm_track/sampling.py",
        "logits = output.logits[:, :-1].float() / temperature",
        "logits = output.logits[:, :-1].float()",
        "tests/llm_track/test_grpo.py::test_an_update_equals_a_slow_loop[qwen2-grpo-settings0]",
    ),
    Bug(
        "language: temperature: missing in sampling",
        "llm_track/sampling.py",
        "logp = (logits.float() / temperature).log_softmax(-1)",
        "logp = logits.float().log_softmax(-1)",
        "tests/llm_track/test_sampling.py::test_sampling_and_teacher_forcing_agree[llama-0.6]",
    ),
    Bug(
        "language: temperature: missing in grpo's update",
        "llm_track/grpo.py",
        "        logprobs = sampling.logprobs(policy, part, config.temperature)",
        "        logprobs = sampling.logprobs(policy, part)",
        "tests/llm_track/test_grpo.py::test_an_update_equals_a_slow_loop[qwen2-grpo-settings0]",
    ),
    Bug(
        "language: temperature: missing in dapo's update",
        "llm_track/dapo.py",
        "        logprobs = sampling.logprobs(policy, part, config.temperature)",
        "        logprobs = sampling.logprobs(policy, part)",
        "tests/llm_track/test_grpo.py::test_an_update_equals_a_slow_loop[qwen2-dapo-settings2]",
    ),
    Bug(
        "language: token mask: without the end of sequence",
        "llm_track/sampling.py",
        "< lengths.unsqueeze(1)",
        "< (lengths - ended.long()).unsqueeze(1)",
        "tests/llm_track/test_sampling.py::test_a_completion_stops_at_its_end",
    ),
    Bug(
        "language: token mask: goes on after the end of sequence",
        "llm_track/sampling.py",
        "    return logp * samples.mask\n",
        "    return logp\n",
        "tests/llm_track/test_sampling.py::test_logprobs_do_not_see_padding[llama-0-7-0]",
    ),
    Bug(
        "language: token mask: the cache sees the padding",
        "llm_track/sampling.py",
        "            attention_mask=mask,\n",
        "            attention_mask=torch.ones_like(mask),\n",
        "tests/llm_track/test_sampling.py::test_sampling_and_teacher_forcing_agree[llama-0.6]",
    ),
    Bug(
        "language: positions: count the padding",
        "llm_track/sampling.py",
        "return (mask.long().cumsum(1) - 1).clamp(min=0)",
        "return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)",
        "tests/llm_track/test_sampling.py::test_logprobs_do_not_see_padding[gpt2-9-0-0]",
    ),
    Bug(
        "language: positions: of the next token",
        "llm_track/sampling.py",
        "inputs, places = token, places[:, -1:] + 1",
        "inputs, places = token, places[:, -1:] + 2",
        "tests/llm_track/test_sampling.py::test_sampling_and_teacher_forcing_agree[gpt2-1.0]",
    ),
    Bug(
        "language: shifted log-probabilities: by one",
        "llm_track/sampling.py",
        "logits = output.logits[:, :-1].float()",
        "logits = output.logits[:, 1:].float()",
        "tests/llm_track/test_sampling.py::test_sampling_and_teacher_forcing_agree[llama-1.0]",
    ),
    Bug(
        "language: token mean: grpo's of a micro-batch",
        "llm_track/grpo.py",
        "weights = token_weights(part.mask, len(rows))",
        "weights = token_weights(part.mask, len(part))",
        "tests/llm_track/test_grpo.py::test_neither_micro_batches_nor_padding_matter[qwen2-grpo-settings0]",
    ),
    Bug(
        "language: token mean: dapo's of a micro-batch",
        "llm_track/dapo.py",
        "token_weights(part.learned, counts[0], counts[1], config.token_level)",
        "token_weights(part.learned, counts[0], part.learned.sum(), config.token_level)",
        "tests/llm_track/test_grpo.py::test_neither_micro_batches_nor_padding_matter[qwen2-dapo-settings2]",
    ),
    Bug(
        "language: token mean: grpo's over all tokens",
        "llm_track/grpo.py",
        "return mask / mask.sum(1, keepdim=True) / samples",
        "return mask / mask.sum()",
        "tests/llm_track/test_grpo.py::test_a_loss_by_hand",
    ),
    Bug(
        "language: token mean: dapo's over each completion",
        "llm_track/dapo.py",
        "    if token_level:\n",
        "    if not token_level:\n",
        "tests/llm_track/test_grpo.py::test_a_loss_by_hand",
    ),
    Bug(
        "language: token mean: dr_grpo's constant is the batch's longest",
        "llm_track/dr_grpo.py",
        "token_weights(part.mask, len(rows), longest)",
        "token_weights(part.mask, len(rows), part.mask.shape[1])",
        "tests/llm_track/test_grpo.py::test_neither_micro_batches_nor_padding_matter[qwen2-dr_grpo-settings1]",
    ),
    Bug(
        "language: token mean: dpo's instead of the sum",
        "llm_track/dpo.py",
        "logprobs = sampling.logprobs(policy, both).sum(1)",
        "logprobs = sampling.logprobs(policy, both).mean(1)",
        "tests/llm_track/test_dpo.py::test_a_step_equals_a_slow_loop",
    ),
    Bug(
        "language: spread of a group: the population's",
        "llm_track/grpo.py",
        "rewards.std(1, keepdim=True)",
        "rewards.std(1, keepdim=True, correction=0)",
        "tests/llm_track/test_grpo.py::test_advantages_of_a_group_by_hand",
    ),
    Bug(
        "language: spread of a group: of all groups",
        "llm_track/dapo.py",
        "rewards.std(1, keepdim=True)",
        "rewards.std()",
        "tests/llm_track/test_grpo.py::test_advantages_of_a_group_by_hand",
    ),
    Bug(
        "language: spread of a group: dr_grpo divides",
        "llm_track/dr_grpo.py",
        "rewards - rewards.mean(1, keepdim=True), 0.0)",
        "(rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True), 0.0)",
        "tests/llm_track/test_grpo.py::test_advantages_without_a_division_by_hand",
    ),
    Bug(
        "language: equal rewards: rounding errors are advantages",
        "llm_track/grpo.py",
        "torch.where(varied, (rewards - mean) / (std + EPS), 0.0)",
        "(rewards - mean) / (std + EPS)",
        "tests/llm_track/test_grpo.py::test_equal_rewards_say_nothing_at_all",
    ),
    Bug(
        "language: equal rewards: the same under process supervision",
        "llm_track/grpo.py",
        "        if every.max() == every.min():\n            continue\n",
        "",
        "tests/llm_track/test_grpo.py::test_steps_of_a_group_that_are_all_alike_say_nothing",
    ),
    Bug(
        "language: steps of the thinking: count after their end",
        "llm_track/grpo.py",
        "advantages[i, : end + 1] += r",
        "advantages[i, end:] += r",
        "tests/llm_track/test_grpo.py::test_process_advantages_by_hand",
    ),
    Bug(
        "language: steps of the thinking: end a token early",
        "llm_track/grpo.py",
        "advantages[i, : end + 1] += r",
        "advantages[i, :end] += r",
        "tests/llm_track/test_grpo.py::test_process_advantages_by_hand",
    ),
    Bug(
        "language: steps of the thinking: a token for each character",
        "llm_track/grpo.py",
        "    return found\n\n\ndef step_advantages(",
        "    return [end - 1 for end in ends]\n\n\ndef step_advantages(",
        "tests/llm_track/test_grpo.py::test_step_advantages_are_those_of_the_steps",
    ),
    Bug(
        "language: ratio: dapo clips alike in both directions",
        "llm_track/dapo.py",
        "ratio.clamp(1 - low, 1 + high)",
        "ratio.clamp(1 - low, 1 + low)",
        "tests/llm_track/test_grpo.py::test_a_loss_by_hand",
    ),
    Bug(
        "language: ratio: the clip is no bound from below",
        "llm_track/grpo.py",
        "return torch.min(ratio * advantages, ",
        "return torch.max(ratio * advantages, ",
        "tests/llm_track/test_grpo.py::test_a_loss_by_hand",
    ),
    Bug(
        "language: ratio: upside down",
        "llm_track/dr_grpo.py",
        "ratio = (logprobs - old_logprobs).exp()",
        "ratio = (old_logprobs - logprobs).exp()",
        "tests/llm_track/test_grpo.py::test_at_ratio_1_the_gradient_is_that_of_reinforce",
    ),
    Bug(
        "language: KL: k3 with its arguments swapped",
        "llm_track/grpo.py",
        "difference = reference - logprobs",
        "difference = logprobs - reference",
        "tests/llm_track/test_grpo.py::test_k3_has_the_mean_of_the_exact_kl",
    ),
    Bug(
        "language: KL: away from the reference",
        "llm_track/grpo.py",
        "objective - config.kl_coef * k3(",
        "objective + config.kl_coef * k3(",
        "tests/llm_track/test_grpo.py::test_a_loss_by_hand",
    ),
    Bug(
        "language: KL: evaluations measure the other one",
        "llm_track/evaluation.py",
        "((own - reference) * samples.mask).sum()",
        "((reference - own) * samples.mask).sum()",
        "tests/llm_track/test_grpo.py::test_the_kl_of_evaluations_is_unbiased",
    ),
    Bug(
        "language: KL: rlhf_ppo rewards it",
        "llm_track/rlhf_ppo.py",
        "penalties = -kl_coef *",
        "penalties = kl_coef *",
        "tests/llm_track/test_rlhf.py::test_token_rewards_by_hand",
    ),
    Bug(
        "language: cut off: dapo learns from it",
        "llm_track/dapo.py",
        "learned = learned & samples.ended.unsqueeze(1)",
        "learned = learned.clone()",
        "tests/llm_track/test_grpo.py::test_completions_that_are_cut_off_are_left_out",
    ),
    Bug(
        "language: cut off: it is in the denominator",
        "llm_track/dapo.py",
        "learned.any(1).sum(), learned.sum()]",
        "learned.any(1).sum(), batch.mask[mine].sum()]",
        "tests/llm_track/test_grpo.py::test_an_update_equals_a_slow_loop[qwen2-dapo-settings2]",
    ),
    Bug(
        "language: cut off: it counts as ended",
        "llm_track/sampling.py",
        "ended = torch.zeros(B, dtype",
        "ended = torch.ones(B, dtype",
        "tests/llm_track/test_sampling.py::test_what_is_cut_off_has_not_ended",
    ),
    Bug(
        "language: cut off: given completions always end",
        "llm_track/sampling.py",
        "[len(row) <= max_new_tokens for row in rows]",
        "[True for row in rows]",
        "tests/llm_track/test_sampling.py::test_given_completions_may_be_cut",
    ),
    Bug(
        "language: cut off: the punishment begins a cache early",
        "llm_track/dapo.py",
        "((longest - cache - lengths) / cache)",
        "((longest - 2 * cache - lengths) / cache)",
        "tests/llm_track/test_grpo.py::test_overlong_punishment_by_hand",
    ),
    Bug(
        "language: refills: do not count",
        "llm_track/dapo.py",
        "run.log(run.samples + drawn,",
        "run.log(run.samples + config.prompts * config.group_size,",
        "tests/llm_track/test_grpo.py::test_every_sample_drawn_counts",
    ),
    Bug(
        "language: refills: the same prompts again",
        "llm_track/dapo.py",
        'run.rng("prompts", step, draw)',
        'run.rng("prompts", step)',
        "tests/llm_track/test_grpo.py::test_draws_go_on_until_there_are_enough_mixed_groups",
    ),
    Bug(
        "language: refills: all that are mixed are taken",
        "llm_track/dapo.py",
        "learned & (places < K)",
        "learned & (places >= 0)",
        "tests/llm_track/test_grpo.py::test_draws_go_on_until_there_are_enough_mixed_groups",
    ),
    Bug(
        "language: refills: groups that are solved stay",
        "llm_track/dapo.py",
        "(share > 0) & (share < 1)",
        "share > 0",
        "tests/llm_track/test_grpo.py::test_draws_go_on_until_there_are_enough_mixed_groups",
    ),
    Bug(
        "language: refills: go on after the samples are spent",
        "llm_track/dapo.py",
        " or spent or len(drawn)",
        " or len(drawn)",
        "tests/llm_track/test_grpo.py::test_draws_stop_when_the_samples_are_spent",
    ),
    Bug(
        "language: reward model: read after the padding",
        "llm_track/sampling.py",
        "return completion.gather(1, samples.lengths.unsqueeze(1) - 1).squeeze(1)",
        "return completion[:, -1]",
        "tests/llm_track/test_grpo.py::test_a_reward_model_is_added_to_the_rules_or_takes_their_place",
    ),
    Bug(
        "language: reward model: read before the last token",
        "llm_track/sampling.py",
        "samples.lengths.unsqueeze(1) - 1)",
        "(samples.lengths.unsqueeze(1) - 2).clamp(min=0))",
        "tests/llm_track/test_grpo.py::test_a_reward_model_is_added_to_the_rules_or_takes_their_place",
    ),
    Bug(
        "language: reward model: prefers what was rejected",
        "llm_track/grpo.py",
        "logsigmoid(chosen - rejected)",
        "logsigmoid(rejected - chosen)",
        "tests/llm_track/test_grpo.py::test_bradley_terry_by_hand",
    ),
    Bug(
        "language: reward model: is not refreshed with old pairs",
        "llm_track/grpo.py",
        "old_pairs, pairs = old_pairs + pairs, []",
        "old_pairs, pairs = pairs, pairs",
        "tests/llm_track/test_grpo.py::test_the_reward_model_goes_on_learning_from_the_policy",
    ),
    Bug(
        "language: values of tokens: not shifted",
        "llm_track/rlhf_ppo.py",
        "[:, -T - 1 : -1] * samples.mask",
        "[:, -T:] * samples.mask",
        "tests/llm_track/test_rlhf.py::test_the_value_of_a_state_does_not_know_the_token_to_come",
    ),
    Bug(
        "language: values of tokens: the score at the last column",
        "llm_track/rlhf_ppo.py",
        "last = mask.sum(1, keepdim=True) - 1",
        "last = torch.full_like(mask[:, :1].long(), mask.shape[1] - 1)",
        "tests/llm_track/test_rlhf.py::test_token_rewards_by_hand",
    ),
    Bug(
        "language: values of tokens: whitened with the padding",
        "llm_track/rlhf_ppo.py",
        "mean, variance = moments(advantages, mask, processes)",
        "mean, variance = moments(advantages, torch.ones_like(mask), processes)",
        "tests/llm_track/test_rlhf.py::test_whitening_sees_the_tokens_only",
    ),
    Bug(
        "language: values of tokens: bootstrap from the padding",
        "llm_track/rlhf_ppo.py",
        "    rewards, values = rewards * mask, values * mask\n",
        "",
        "tests/llm_track/test_rlhf.py::test_gae_equals_its_definition",
    ),
    Bug(
        "language: preferences: dpo's sign",
        "llm_track/dpo.py",
        "logsigmoid(chosen - rejected)",
        "logsigmoid(rejected - chosen)",
        "tests/llm_track/test_dpo.py::test_the_loss_by_hand",
    ),
    Bug(
        "language: preferences: dpo without the reference",
        "llm_track/dpo.py",
        "return beta * (logprobs - reference)",
        "return beta * logprobs",
        "tests/llm_track/test_dpo.py::test_the_loss_by_hand",
    ),
    Bug(
        "language: preferences: the mean of a process's share",
        "llm_track/dpo.py",
        "loss = preference_loss(chosen, rejected).sum() / config.batch_size",
        "loss = preference_loss(chosen, rejected).mean()",
        "tests/llm_track/test_dpo.py::test_micro_batches_change_nothing",
    ),
    Bug(
        "language: entropy: that of the sampled token",
        "llm_track/sampling.py",
        "entropy[rows, t] = -(p * logp.clamp(min=-1e4)).sum(-1)",
        "entropy[rows, t] = -logp.gather(1, token)[:, 0]",
        "tests/llm_track/test_sampling.py::test_sampling_and_teacher_forcing_agree[llama-1.0]",
    ),
    Bug(
        "language: answers: read by int()",
        "llm_track/tasks.py",
        "if plain else None",
        "if plain else (Decimal(int(text)) if '_' in text else None)",
        "tests/llm_track/test_tasks.py::test_what_is_no_number[1_0]",
    ),
    Bug(
        "language: answers: digits are looked for",
        "llm_track/tasks.py",
        're.fullmatch(r"(-?)\\$?([0-9]{1,3}',
        're.match(r"(-?)\\$?([0-9]{1,3}',
        "tests/llm_track/test_tasks.py::test_what_is_no_number",
    ),
    Bug(
        "language: answers: powers are arithmetic",
        "llm_track/tasks.py",
        "    ast.Mult: lambda a, b: a * b,\n",
        "    ast.Mult: lambda a, b: a * b,\n    ast.Pow: lambda a, b: a**b,\n",
        "tests/llm_track/test_tasks.py::test_what_is_no_arithmetic",
    ),
    Bug(
        "language: answers: the last of several counts",
        "llm_track/tasks.py",
        "if completion.count(ANSWER) != 1 or completion.count(END_ANSWER) != 1:",
        "if not completion.count(ANSWER) or not completion.count(END_ANSWER):",
        "tests/llm_track/test_tasks.py::test_answer_of",
    ),
    Bug(
        "language: held-out prompts: are trained on",
        "llm_track/tasks.py",
        ".prompt) != test:",
        ".prompt) < test:",
        "tests/llm_track/test_tasks.py::test_held_out_prompts_are_never_trained_on",
    ),
    Bug(
        "language: evaluation: other random numbers each time",
        "llm_track/evaluation.py",
        "rng = np.random.default_rng(SEED)",
        "rng = np.random.default_rng()",
        "tests/llm_track/test_evaluation.py::test_the_evaluator_repeats_itself",
    ),
    Bug(
        "language: evaluation: random numbers of the seed",
        "llm_track/evaluation.py",
        "rng = np.random.default_rng(SEED)",
        "rng = np.random.default_rng(self.config.first_seed)",
        "tests/llm_track/test_evaluation.py::test_two_models_meet_the_same_luck",
    ),
    Bug(
        "language: evaluation: pass@k is biased",
        "llm_track/evaluation.py",
        "[1 - math.comb(n - c, k) / math.comb(n, k) for c in counts]",
        "[1 - (1 - c / n) ** k for c in counts]",
        "tests/llm_track/test_evaluation.py::test_pass_at_k_is_the_share_of_subsets_with_a_right_one",
    ),
    Bug(
        "language: evaluation: greedy samples",
        "llm_track/sampling.py",
        "        if greedy:\n",
        "        if greedy and False:\n",
        "tests/llm_track/test_sampling.py::test_greedy_takes_the_likeliest",
    ),
    Bug(
        "language: no gradient: grpo steps all the same",
        "llm_track/grpo.py",
        "    if grad_norm > 0:\n        optimizer.step()\n",
        "    optimizer.step()\n",
        "tests/llm_track/test_grpo.py::test_without_a_gradient_nothing_moves",
    ),
    Bug(
        "language: no gradient: dapo steps all the same",
        "llm_track/dapo.py",
        "    if grad_norm > 0:\n        optimizer.step()\n",
        "    optimizer.step()\n",
        "tests/llm_track/test_grpo.py::test_without_a_gradient_nothing_moves",
    ),
    Bug(
        "language: dropout: left on",
        "llm_track/models.py",
        "            module.p = 0.0\n",
        "            pass\n",
        "tests/llm_track/test_sampling.py::test_dropout_is_off",
    ),
    Bug(
        "language: dropout: left on in attention",
        "llm_track/models.py",
        "                setattr(module, name, 0.0)",
        "                pass",
        "tests/llm_track/test_sampling.py::test_attention_dropout_is_off",
    ),
    Bug(
        "language: cache: none where activations are checkpointed",
        "llm_track/sampling.py",
        "    model.eval()\n",
        "",
        "tests/llm_track/test_grpo.py::test_checkpointing_activations_changes_nothing",
    ),
    Bug(
        "language: cache: other rows than the ids",
        "llm_track/sampling.py",
        "            cache.batch_select_indices(kept)\n",
        "            cache.batch_select_indices(torch.arange(len(kept)))\n",
        "tests/llm_track/test_sampling.py::test_a_row_does_not_depend_on_the_others[llama]",
    ),
    Bug(
        "language: reference: is the policy",
        "llm_track/models.py",
        "copy.deepcopy(policy).requires_grad_(False)",
        "policy",
        "tests/llm_track/test_grpo.py::test_the_reference_is_the_model_before_all_updates",
    ),
    Bug(
        "language: reference: has the adapters",
        "llm_track/models.py",
        "self.model.disable_adapter() if self.adapters else contextlib.nullcontext()",
        "contextlib.nullcontext()",
        "tests/llm_track/test_grpo.py::test_the_reference_is_the_model_before_all_updates",
    ),
    Bug(
        "language: reference: refreshed at the end, too",
        "llm_track/grpo.py",
        "< done // share < config.iterations:",
        "< done // share:",
        "tests/llm_track/test_grpo.py::test_the_reference_is_refreshed_between_the_parts",
    ),
    Bug(
        "language: reference: evaluations measure to the refreshed one",
        "llm_track/grpo.py",
        "TaskEvaluator(policy, tokenizer, task, config, start)",
        "TaskEvaluator(policy, tokenizer, task, config, reference)",
        "tests/llm_track/test_grpo.py::test_the_reference_is_refreshed_between_the_parts",
    ),
    Bug(
        "language: half precision: log-probabilities of the generation",
        "llm_track/grpo.py",
        "    if policy.computes_in_half:\n",
        "    if False:\n",
        "tests/llm_track/test_grpo.py::test_in_half_precision",
    ),
    Bug(
        "language: half precision: weights rounded for every token",
        "llm_track/sampling.py",
        "@torch.no_grad()  # in inference",
        "@torch.inference_mode()  # in inference",
        "tests/llm_track/test_sampling.py::test_weights_are_rounded_once_for_all_tokens",
    ),
    Bug(
        "language: half precision: scores, too",
        "llm_track/sampling.py",
        "    return model.score(hidden.float()).squeeze(-1)",
        "    return model.score(hidden.float()).squeeze(-1).bfloat16().float()",
        "tests/llm_track/test_sampling.py::test_scalars_are_not_rounded",
    ),
    Bug(
        "language: half precision: KL of two computations",
        "llm_track/evaluation.py",
        "        if self.policy.computes_in_half:",
        "        if False:",
        "tests/llm_track/test_evaluation.py::test_the_kl_to_itself_is_0_in_half_precision",
    ),
    Bug(
        "language: random numbers: SFT has RL's prompts",
        "llm_track/sft.py",
        'run.rng("demonstrations", step)',
        'run.rng("prompts", step)',
        "tests/llm_track/test_runs.py::test_rl_does_not_begin_with_what_was_learned_before",
    ),
    Bug(
        "language: held out: with its mirror in training",
        "llm_track/tasks.py",
        'sorted(re.findall("[0-9]+", prompt))',
        're.findall("[0-9]+", prompt)',
        "tests/llm_track/test_tasks.py::test_the_order_of_numbers_does_not_matter_for_what_is_held_out",
    ),
    Bug(
        "language: draws: without a limit",
        "llm_track/dapo.py",
        " or len(drawn) == config.max_draws:",
        ":",
        "tests/llm_track/test_grpo.py::test_draws_stop_at_their_limit",
    ),
    Bug(
        "language: checkpoint: of others",
        "manyseeds/runs/language.py",
        '        if state.get("of") != self._origin():',
        "        if False:",
        "tests/llm_track/test_runs.py::test_a_checkpoint_of_other_settings_is_not_used",
    ),
    Bug(
        "language: checkpoint: the curve ends with it",
        "manyseeds/runs/language.py",
        'self._due(int(self._rows[-1]["samples"]))',
        "self.config.evaluations",
        "tests/llm_track/test_runs.py::test_other_evaluations_after_an_interruption",
    ),
    # ---- What only one algorithm can get wrong ----
    Bug(
        "a2c: the gradient goes through the advantage",
        "algos/a2c.py",
        "estimate_advantages(batch, values.detach(), config)",
        "estimate_advantages(batch, values, config)",
        "tests/algos/test_a2c.py::test_updates_are_sb3s[discrete-adam]",
    ),
    Bug(
        "a2c: a step too many in n steps",
        "algos/a2c.py",
        "for _ in range(td_steps - 1):",
        "for _ in range(td_steps):",
        "tests/algos/test_a2c.py::test_advantages_by_hand",
    ),
    Bug(
        "a2c: the values learn the advantages",
        "algos/a2c.py",
        "returns = advantages + values.detach()",
        "returns = advantages",
        "tests/algos/test_probes.py::test_a_value[a2c]",
    ),
    Bug(
        "trpo: the old log_std moves along with the new one",
        "algos/trpo.py",
        "type(policy)(*(field.detach().clone() for field in policy))",
        "type(policy)(*(field.detach() for field in policy))",
        "tests/algos/test_trpo.py::test_every_accepted_step_keeps_the_constraint_and_improves[box]",
    ),
    Bug(
        "trpo: no constraint",
        "algos/trpo.py",
        "(found.fraction == 0) & (kl <= target_kl) &",
        "(found.fraction == 0) &",
        "tests/algos/test_trpo.py::test_line_search_takes_the_first_that_fits_per_seed",
    ),
    Bug(
        "trpo: no improvement is asked for",
        "algos/trpo.py",
        "(kl <= target_kl) & (new_objective > objective)",
        "(kl <= target_kl)",
        "tests/algos/test_trpo.py::test_line_search_takes_the_first_that_fits_per_seed",
    ),
    Bug(
        "trpo: a refused step is not taken back",
        "algos/trpo.py",
        "    theta.copy_(found.theta)\n",
        "",
        "tests/algos/test_trpo.py::test_every_accepted_step_keeps_the_constraint_and_improves[discrete]",
    ),
    Bug(
        "trpo: conjugate gradients go on after convergence",
        "algos/trpo.py",
        "x = torch.where(active, x + length * direction, x)",
        "x = x + length * direction",
        "tests/algos/test_trpo.py::test_a_converged_seed_stands_still",
    ),
    Bug(
        "trpo: half of the squared length",
        "algos/trpo.py",
        "step = (2 * config.target_kl / curvature)",
        "step = (config.target_kl / curvature)",
        "tests/algos/test_trpo.py::test_the_step_is_that_of_a_dense_fisher_solve[discrete]",
    ),
    Bug(
        "trpo: no damping",
        "algos/trpo.py",
        "return flat(h_v, vector) + damping * vector",
        "return flat(h_v, vector)",
        "tests/algos/test_trpo.py::test_fisher_vector_product_is_the_dense_hessian_of_kl[discrete]",
    ),
    Bug(
        "trpo: the values learn other samples' returns",
        "algos/trpo.py",
        "(values - batch.returns[seeds, indices])",
        "(values - batch.returns[:, : config.minibatch])",
        "tests/algos/test_probes.py::test_a_value_of_the_observation[trpo]",
    ),
    Bug(
        "dqn: greedy is the worst",
        "algos/dqn.py",
        "greedy = self(obs).argmax(-1)",
        "greedy = self(obs).argmin(-1)",
        "tests/algos/test_probes.py::test_a_policy[dqn]",
    ),
    Bug(
        "ppo: other samples' actions",
        "algos/ppo.py",
        "for field in batch))  # [S, M, ...]\n",
        "for field in batch))\n"
        "        minibatch = minibatch._replace(actions=batch.actions[:, : config.minibatch])\n",
        "tests/algos/test_probes.py::test_a_policy_of_the_observation[ppo]",
    ),
    Bug(
        "reinforce: the return-to-go is off by one",
        "algos/reinforce.py",
        "        following = reward + gamma * following\n        returns.append(following)\n",
        "        returns.append(following)\n        following = reward + gamma * following\n",
        "tests/algos/test_reinforce.py::test_returns_and_order_of_a_batch",
    ),
    Bug(
        "reinforce: no discount",
        "algos/reinforce.py",
        "returns_to_go(episodes.rewards, config.gamma)",
        "returns_to_go(episodes.rewards, 1.0)",
        "tests/algos/test_probes.py::test_a_discounted_value[reinforce, baseline]",
    ),
    Bug(
        "reinforce: the total return of another step",
        "algos/reinforce.py",
        "weights[:, : config.episodes].repeat(1, ",
        "weights[:, config.episodes : 2 * config.episodes].repeat(1, ",
        "tests/algos/test_reinforce.py::test_weights_equal_slow_loops[total_return-False]",
    ),
    Bug(
        "reinforce: the total return of another episode",
        "algos/reinforce.py",
        "weights[:, : config.episodes].repeat(1, weights.shape[1] // config.episodes)",
        "weights[:, : config.episodes].repeat_interleave(weights.shape[1] // config.episodes, 1)",
        "tests/algos/test_reinforce.py::test_weights_equal_slow_loops[total_return-False]",
    ),
    Bug(
        "reinforce: rewards after the end",
        "algos/reinforce.py",
        "*(x.masked_fill(ended.view(*ended.shape, *[1] * (x.ndim - 3)), 0) for x in padded)",
        "*padded",
        "tests/algos/test_reinforce.py::test_returns_and_order_of_a_batch",
    ),
    Bug(
        "reinforce: the last step is lost",
        "algos/reinforce.py",
        "        steps.append((obs, actions, step.reward, alive))\n"
        "        alive = alive & ~(step.terminated | step.truncated)\n",
        "        alive = alive & ~(step.terminated | step.truncated)\n"
        "        steps.append((obs, actions, step.reward, alive))\n",
        "tests/algos/test_probes.py::test_a_discounted_value[reinforce, baseline]",
    ),
    Bug(
        "reinforce: the baseline has seen the episodes",
        "algos/reinforce.py",
        "    metrics = policy_gradient(",
        "    if critic is not None and critic_optimizer is not None:\n"
        "        fit(critic, critic_optimizer, batch, inputs.draws, active, inputs.critic_lr)\n"
        "    metrics = policy_gradient(",
        "tests/algos/test_reinforce.py::test_the_critic_has_not_seen_the_episodes_that_it_weights",
    ),
    Bug(
        "grpo: peers that have ended count",
        "algos/grpo.py",
        'peers = alive if config.peers == "alive" else torch.ones_like(alive)',
        "peers = torch.ones_like(alive)",
        "tests/algos/test_grpo.py::test_advantages_equal_slow_loops[0.9-return_to_go-alive-group]",
    ),
    Bug(
        "grpo: steps after an end have advantages",
        "algos/grpo.py",
        "    advantages = advantages * alive\n",
        "",
        "tests/algos/test_grpo.py::test_advantages_equal_slow_loops[0.9-return_to_go-all-group]",
    ),
    Bug(
        "grpo: steps after an end are in the loss",
        "algos/grpo.py",
        "return batch, (alive & informative).flatten(1), metrics",
        "return batch, informative.expand_as(alive).flatten(1), metrics",
        "tests/algos/test_grpo.py::test_groups_that_tell_nothing_are_left_out",
    ),
    Bug(
        "grpo: the loss is a mean over what does not count, too",
        "algos/grpo.py",
        "return x.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)",
        "return x.masked_fill(~mask, 0.0).mean(-1)",
        "tests/algos/test_grpo.py::test_the_first_gradient_is_the_policy_gradient[discrete]",
    ),
    Bug(
        "grpo: steps after an end count against the budget",
        "algos/grpo.py",
        "return timesteps + alive.sum(-1), metrics",
        "return timesteps + alive.shape[-1] * inputs.active, metrics",
        "tests/algos/test_grpo.py::test_every_step_taken_counts_and_a_finished_seed_stands_still",
    ),
    Bug(
        "grpo: a group of different starts",
        "algos/grpo.py",
        ".repeat_interleave(G, dim=1)",
        ".repeat(1, G, 1)",
        "tests/algos/test_grpo.py::test_a_group_begins_in_one_state_and_goes_on_apart[CartPole-v1-auto]",
    ),
    Bug(
        "grpo: the penalty of the other divergence",
        "algos/grpo.py",
        "log_ratio = reference - logprobs",
        "log_ratio = logprobs - reference",
        "tests/algos/test_grpo.py::test_k3_has_the_mean_of_the_exact_divergence_and_is_never_negative",
    ),
    Bug(
        "grpo: clips alike in both directions",
        "algos/grpo.py",
        "clipped = ratio.clamp(1 - config.clip_range, 1 + high)",
        "clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)",
        "tests/algos/test_grpo.py::test_policy_loss_by_hand",
    ),
)


def plant(bug: Bug, copy: Path) -> None:
    """Edit the copy; raises ValueError where the right text is not there exactly once."""
    path = copy / bug.file
    text = path.read_text()
    if text.count(bug.right) != 1:
        raise ValueError(f"{bug.name}: {bug.file} has the text {text.count(bug.right)} times")
    path.write_text(text.replace(bug.right, bug.wrong))


# Every line names a test. It runs in a fork of a process that has imported what is slow to import
# and not ours, which takes a fraction of a second where a process of its own takes several.
SERVER = """
import os, signal, sys
import gymnasium, hypothesis, numpy, pandas, pytest, scipy.stats, torch
try:
    from transformers import GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM
except ImportError:  # an extra
    pass
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # a bug may keep a training from ending
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", line.strip()])
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Copy:
    """The code and its tests, without results, in an empty folder; and a process to run them in."""

    def __init__(self, folder: Path) -> None:
        for name in ("manyseeds", "envs", "algos", "llm_track", "benchmarks", "tests"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.folder = folder
        self.green: dict[str, bool] = {}
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *args: object) -> None:
        self.server.communicate()  # the end of its input is its end

    def passes(self, test: str) -> bool:
        """Whether the test passes in the copy as it is; RuntimeError if it cannot be run."""
        assert self.server.stdin
        assert self.server.stdout
        print(test, file=self.server.stdin, flush=True)
        status = int(self.server.stdout.readline())
        if status not in (0, 1):  # not even collected, or it took too long
            raise RuntimeError(
                f"{test}: status {status}\n{(self.folder / 'output.txt').read_text()}"
            )
        return status == 0

    def turns_red(self, bug: Bug) -> bool:
        """Whether the test fails with the bug and passes without it."""
        if bug.test not in self.green:
            self.green[bug.test] = self.passes(bug.test)
        original = (self.folder / bug.file).read_text()
        try:
            plant(bug, self.folder)
            return self.green[bug.test] and not self.passes(bug.test)
        finally:
            (self.folder / bug.file).write_text(original)


def main(words: Sequence[str]) -> int:
    chosen = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    if not chosen:
        print(f"error: no bug is named like {' or '.join(words)}", file=sys.stderr)
        return 2
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder, Copy(Path(folder)) as copy:
        for bug in chosen:
            red = copy.turns_red(bug)
            unnoticed += not red
            print(f"{'red' if red else 'UNNOTICED':<10} {bug.name}: {bug.test}", flush=True)
    return int(unnoticed > 0)
