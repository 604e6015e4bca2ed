"""DQN."""

from tests.planted_bugs.planting import Bug

BUGS = (
    Bug(
        "timeout as an end: dqn stores a termination",
        "algos/dqn.py",
        "steps.rewards, steps.terminated, steps.next_obs)",
        "steps.rewards, steps.terminated | steps.truncated, steps.next_obs)",
        "tests/algos/test_probes.py::test_a_time_limit_is_not_an_end[dqn]",
    ),
    Bug(
        "an end and a timeout at once: dqn stores no termination",
        "algos/dqn.py",
        "steps.rewards, steps.terminated, steps.next_obs)",
        "steps.rewards, steps.terminated & ~steps.truncated, steps.next_obs)",
        "tests/algos/test_dqn.py::test_memory_holds_true_successors",
    ),
    Bug(
        "replay: dqn stores the next start at an end",
        "algos/dqn.py",
        "steps.terminated, steps.next_obs)",
        "steps.terminated, torch.cat((steps.obs[:, 1:], obs.unsqueeze(1)), dim=1))",
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
        "target interval: dqn counts steps of the vector",
        "algos/dqn.py",
        "interval = max(config.target_update_interval // N, 1) * N",
        "interval = config.target_update_interval * N",
        "tests/algos/test_dqn.py::test_rhythm_of_updates",
    ),
    Bug(
        "target interval: dqn counts updates",
        "algos/dqn.py",
        "            timestep // interval - before // interval,\n",
        "            int(timestep // config.block % interval == 0),\n",
        "tests/algos/test_dqn.py::test_rhythm_of_updates",
    ),
    Bug(
        "target interval: dqn is late",
        "algos/dqn.py",
        "            timestep // interval - before // interval,\n",
        "            (timestep - 1) // interval - max(before - 1, 0) // interval,\n",
        "tests/algos/test_dqn.py::test_rhythm_of_updates",
    ),
    Bug(
        "shared seed: dqn explores alike in all environments",
        "algos/dqn.py",
        "net.draw(streams, F, N, epsilon=epsilon),",
        "net.draw(streams, F, 1, epsilon=epsilon).expand(-1, -1, N, -1),",
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[dqn]",
    ),
    Bug(
        "noise drawn inside: dqn's minibatches",
        "algos/dqn.py",
        "index = (noise * self.size)",
        "index = (torch.rand_like(noise) * self.size)",
        "tests/foundation/test_capture.py::test_replaying_the_captured_iteration_is_the_eager_training[dqn]",
    ),
    Bug(
        "epsilon: one step ahead",
        "algos/dqn.py",
        "(timesteps / horizon).nan",
        "((timesteps + 1) / horizon).nan",
        "tests/algos/test_dqn.py::test_epsilon_schedule",
    ),
    Bug(
        "epsilon: falls beyond the end",
        "algos/dqn.py",
        ".nan_to_num(1.0).clamp(max=1)",
        ".nan_to_num(1.0)",
        "tests/algos/test_dqn.py::test_epsilon_schedule",
    ),
    Bug(
        "epsilon: one random action too many",
        "algos/dqn.py",
        "timesteps < config.learning_starts",
        "timesteps <= config.learning_starts",
        "tests/algos/test_dqn.py::test_epsilon_schedule",
    ),
    Bug(
        "epsilon: the round's last one in all its steps",
        "algos/dqn.py",
        "epsilon_at(steps, config)",
        "epsilon_at(steps[:, -1:], config)",
        "tests/algos/test_dqn.py::test_epsilon_falls_while_training",
    ),
    Bug(
        "epsilon: counts steps of the vector",
        "algos/dqn.py",
        "torch.arange(before, timestep, N, dtype=torch.float64)",
        "torch.arange(before, before + F, dtype=torch.float64)",
        "tests/algos/test_dqn.py::test_epsilon_falls_while_training",
    ),
    Bug(
        "epsilon: the last one from the beginning",
        "algos/dqn.py",
        "self.final_eps if epsilon is None else epsilon",
        "self.final_eps",
        "tests/algos/test_dqn.py::test_epsilon_greedy_frequencies",
    ),
    Bug(
        "dqn: greedy is the worst",
        "algos/dqn.py",
        "greedy = self(obs).argmax(-1)",
        "greedy = self(obs).argmin(-1)",
        "tests/algos/test_probes.py::test_a_policy[dqn]",
    ),
    Bug(
        "target interval: dqn's target is updated after the gradient steps",
        "algos/dqn.py",
        "        if syncs:\n            update_target(target, net, syncs, config.tau)\n",
        "        if draws.shape[1]:\n"
        "            update(net, target, optimizer, replay, draws, config)\n"
        "        if syncs:\n            update_target(target, net, syncs, config.tau)\n",
        "tests/algos/test_dqn.py::test_rhythm_of_updates",
    ),
)
