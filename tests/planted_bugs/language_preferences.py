"""Language models trained on demonstrations and preferences: SFT, RLHF with PPO and DPO."""

from tests.planted_bugs.planting import Bug

CLIPPING = (
    "tests/llm_track/test_runs.py"
    "::test_gradients_are_clipped_to_a_norm_of_1_and_give_no_step_if_0_or_not_finite"
)

BUGS = (
    *(
        Bug(
            f"language: gradient norm: {name}'s may be 10",
            f"llm_track/{name}.py",
            "MAX_GRAD_NORM = 1.0",
            "MAX_GRAD_NORM = 10.0",
            f"{CLIPPING}[{name}]",
        )
        for name in ("sft", "grpo", "rlhf_ppo")
    ),
    Bug(
        "language: token mean: dpo's instead of the sum",
        "llm_track/dpo.py",
        "logprobs = sampling.logprobs(policy, both).sum(1)",
        "logprobs = sampling.logprobs(policy, both).mean(1)",
        "tests/llm_track/test_dpo.py::test_a_step_equals_a_slow_loop",
    ),
    Bug(
        "language: temperature: dpo's reference has that of the pairs",
        "llm_track/dpo.py",
        "reference.logprobs(both, 1.0, len(both))",
        "reference.logprobs(both, config.temperature, len(both))",
        "tests/llm_track/test_dpo.py::test_a_step_equals_a_slow_loop[qwen2-1.0]",
    ),
    Bug(
        "language: values of tokens: the explained variance is upside down",
        "llm_track/rlhf_ppo.py",
        "1 - left / all_of_it",
        "1 - all_of_it / left",
        "tests/llm_track/test_rlhf.py::test_what_prepare_makes[qwen2]",
    ),
    Bug(
        "language: random numbers: the same for every block of dpo's pairs",
        "llm_track/dpo.py",
        "run.uniforms(block, PROMPTS, G, T)",
        "run.uniforms(0, PROMPTS, G, T)",
        "tests/llm_track/test_runs.py::test_a_data_set_is_passed_through_without_replacement[dpo]",
    ),
    Bug(
        "language: clip: rlhf_ppo logs the side that does not act",
        "llm_track/rlhf_ppo.py",
        "below & (part.advantages < 0)",
        "below & (part.advantages > 0)",
        "tests/llm_track/test_rlhf.py::test_ppo_micro_batches_do_not_matter[qwen2]",
    ),
    Bug(
        "language: KL: rlhf_ppo logs that to the old policy",
        "llm_track/rlhf_ppo.py",
        "k3(logprobs, part.reference),",
        "k3(logprobs, part.logprobs),",
        "tests/llm_track/test_rlhf.py::test_ppo_micro_batches_do_not_matter[qwen2]",
    ),
    Bug(
        "language: preferences: the reward model logs its margin as its accuracy",
        "llm_track/reward_model.py",
        "terms = losses.detach(), ranked_right(margins), margins",
        "terms = losses.detach(), margins, ranked_right(margins)",
        "tests/llm_track/test_rlhf.py::test_reward_model_micro_batches_do_not_matter[qwen2]",
    ),
    Bug(
        "language: temperature: missing in the reward model's pairs",
        "llm_track/reward_model.py",
        "uniforms, config.temperature, size=size",
        "uniforms, 1.0, size=size",
        "tests/llm_track/test_rlhf.py::test_pairs_by_rules_are_right_against_wrong",
    ),
    Bug(
        "language: KL: rlhf_ppo rewards it",
        "llm_track/rlhf_ppo.py",
        "penalties = -kl_coef *",
        "penalties = kl_coef *",
        "tests/llm_track/test_rlhf.py::test_what_prepare_makes[qwen2]",
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
        "tests/llm_track/test_rlhf.py::test_what_prepare_makes[qwen2]",
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
        "tests/llm_track/test_dpo.py::test_a_step_equals_a_slow_loop[qwen2-1.0]",
    ),
    Bug(
        "language: preferences: dpo without the reference",
        "llm_track/dpo.py",
        "return beta * (logprobs - reference)",
        "return beta * logprobs",
        "tests/llm_track/test_dpo.py::test_a_step_equals_a_slow_loop[qwen2-1.0]",
    ),
    Bug(
        "language: preferences: the mean of a process's share",
        "llm_track/dpo.py",
        "loss = preference_loss(chosen, rejected).sum() / config.batch_size",
        "loss = preference_loss(chosen, rejected).mean()",
        "tests/llm_track/test_dpo.py::test_neither_micro_batches_nor_company_matter",
    ),
    Bug(
        "language: random numbers: SFT has RL's prompts",
        "llm_track/sft.py",
        'run.rng("demonstrations", step)',
        'run.rng("prompts", step)',
        "tests/llm_track/test_runs.py::test_rl_does_not_begin_with_what_was_learned_before",
    ),
    Bug(
        "language: temperature: missing in rlhf_ppo's reference",
        "llm_track/rlhf_ppo.py",
        "reference.logprobs(samples, config.temperature, size)",
        "reference.logprobs(samples, 1.0, size)",
        "tests/llm_track/test_grpo.py"
        "::test_the_reference_is_taken_at_the_temperature_of_sampling[rlhf_ppo]",
    ),
    Bug(
        "language: epochs: rlhf_ppo's have one order",
        "llm_track/rlhf_ppo.py",
        "shuffle.permutation(B)",
        'run.rng("minibatches", step).permutation(B)',
        "tests/llm_track/test_grpo.py::test_every_epoch_has_an_order_of_its_own[rlhf_ppo]",
    ),
    Bug(
        "language: critic: learns at the policy's learning rate, and the other way round",
        "llm_track/rlhf_ppo.py",
        "rates = config.learning_rate, config.critic_learning_rate\n",
        "rates = config.critic_learning_rate, config.learning_rate\n",
        "tests/llm_track/test_rlhf.py::test_each_learns_at_its_own_learning_rate",
    ),
    Bug(
        "language: critic: no step where the policy has no gradient",
        "llm_track/rlhf_ppo.py",
        "        if 0 < norms[-1] < math.inf:\n",
        "        if norms[0] > 0:\n",
        f"{CLIPPING}[rlhf_ppo]",
    ),
)
