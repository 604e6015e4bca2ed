"""GRPO of control."""

from tests.planted_bugs.planting import Bug

BUGS = (
    Bug(
        "spread of advantages: grpo makes rounding noise full-sized",
        "algos/grpo.py",
        ".masked_fill(~peers | equal, 0.0)",
        ".masked_fill(~peers, 0.0)",
        "tests/algos/test_grpo.py::test_ties_are_exactly_0",
    ),
    Bug(
        "spread of advantages: grpo tells equal returns apart by their last bits",
        "algos/grpo.py",
        "equal = high - low <= EQUAL * torch.maximum(high.abs(), low.abs())",
        "equal = high <= low",
        "tests/algos/test_grpo.py::test_equal_returns_added_up_in_another_order_are_ties",
    ),
    Bug(
        "spread of advantages: grpo divides the only peer by its deviation",
        "algos/grpo.py",
        "/ (count - 1).clamp(min=1)\n",
        "/ (count - 1)\n",
        "tests/algos/test_grpo.py::test_compare_equals_a_slow_loop",
    ),
    Bug(
        "spread of advantages: grpo learns from groups that tell nothing",
        "algos/grpo.py",
        "return batch, (alive & informative).flatten(1), metrics",
        "return batch, alive.flatten(1), metrics",
        "tests/algos/test_grpo.py::test_uninformative_groups_are_left_out",
    ),
    Bug(
        "spread of advantages: grpo takes a step with nothing to learn from",
        "algos/grpo.py",
        "takes_step = active & (valid & (minibatch.advantages != 0)).any(-1)",
        "takes_step = active & valid.any(-1)",
        "tests/algos/test_grpo.py::test_moments_stay_after_learning_has_stopped",
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
        "entropy sign: grpo",
        "algos/grpo.py",
        "total = pg_loss - broadcast",
        "total = pg_loss + broadcast",
        "tests/algos/test_grpo.py::test_the_first_gradient_is_the_policy_gradient[more terms]",
    ),
    Bug(
        "shared seed: grpo's peers act alike",
        "algos/grpo.py",
        "actor.draw(streams, L, N)",
        "actor.draw(streams, L, K).repeat_interleave(G, dim=2)",
        "tests/algos/test_traps.py::test_no_two_environments_share_their_luck[grpo]",
    ),
    Bug(
        "noise drawn inside: grpo's minibatches",
        "algos/grpo.py",
        "order = shuffle.masked_fill(",
        "order = torch.rand_like(shuffle).masked_fill(",
        "tests/algos/test_grpo.py::test_every_sample_is_in_one_minibatch",
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
        "tests/algos/test_grpo.py::test_uninformative_groups_are_left_out",
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
        "timesteps = timesteps + alive.sum(-1)",
        "timesteps = timesteps + alive.shape[-1] * active",
        "tests/algos/test_traps.py::test_every_step_taken_counts_and_a_finished_seed_is_frozen[grpo]",
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
        "broadcast(1 + above, ratio)",
        "broadcast(1 + config.clip_range, ratio)",
        "tests/algos/test_grpo.py::test_policy_loss_by_hand",
    ),
    Bug(
        "epochs: grpo's have one order",
        "algos/grpo.py",
        "streams.uniform(config.epochs, L * N)",
        "streams.uniform(1, L * N).expand(-1, config.epochs, -1)",
        "tests/algos/test_traps.py::test_every_epoch_visits_all_samples_in_an_order_of_its_own[grpo]",
    ),
)
