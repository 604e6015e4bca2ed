"""The foundation: manyseeds."""

from tests.planted_bugs.planting import Bug

BUGS = (
    Bug(
        "advantages across an end: the scale of rewards sums up over it",
        "manyseeds/layers.py",
        "self.open_return.copy_(total.masked_fill(end, 0.0))",
        "self.open_return.copy_(total)",
        "tests/foundation/test_layers.py::test_discounted_returns_run_over_rollouts_and_stop_at_ends",
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
        "no number: ppo's deviation is never small",
        "manyseeds/distributions.py",
        "z = (actions - self.mean) * (-self.log_std).exp()",
        "z = (actions - self.mean) / (self.log_std.exp() + 1e-6)",
        "tests/algos/test_ppo.py::test_gaussian_stays_finite_far_out",
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
    Bug(
        "intervals: basic instead of percentile",
        "manyseeds/stats.py",
        'method="percentile"',
        'method="basic"',
        "tests/foundation/test_stats.py::test_a_lopsided_interval_by_hand",
    ),
    Bug(
        "threshold: to reach it is not enough",
        "manyseeds/stats.py",
        "np.atleast_2d(curves) >= threshold",
        "np.atleast_2d(curves) > threshold",
        "tests/foundation/test_stats.py::test_timesteps_to_threshold_by_hand",
    ),
    Bug(
        "threshold: at it a seed has failed, says the summary",
        "manyseeds/runs/control.py",
        "if x < bar]",
        "if x <= bar]",
        "tests/foundation/test_evaluate.py::test_a_score_at_the_threshold_is_no_failure",
    ),
    Bug(
        "threshold: at it a seed has failed, says the table",
        "manyseeds/runs/control.py",
        "if x < bar}",
        "if x <= bar}",
        "tests/foundation/test_evaluate.py::test_a_score_at_the_threshold_is_no_failure",
    ),
    Bug(
        "threshold: at it a seed has failed, says the report",
        "benchmarks/chapters/results.py",
        "if score < bar or seed in self.diverged",
        "if score <= bar or seed in self.diverged",
        "tests/benchmarks/test_results.py::test_a_score_at_the_threshold_is_no_failure",
    ),
)
