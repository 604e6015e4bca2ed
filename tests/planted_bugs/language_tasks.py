"""Tasks and evaluations of language models."""

from tests.planted_bugs.planting import Bug

BUGS = (
    Bug(
        "language: KL: evaluations measure the other one",
        "llm_track/evaluation.py",
        "((own - reference) * samples.mask).sum()",
        "((reference - own) * samples.mask).sum()",
        "tests/llm_track/test_evaluation.py::test_the_kl_is_measured_on_the_policy_s_samples",
    ),
    Bug(
        "language: answers: read by int()",
        "llm_track/tasks.py",
        "    else:\n        return None\n    return -value",
        "    else:\n        return Fraction(int(text)) if '_' in text else None\n    return -value",
        "tests/llm_track/test_tasks.py::test_what_is_no_number[1_0]",
    ),
    Bug(
        "language: answers: digits are looked for",
        "llm_track/tasks.py",
        "AMOUNT.fullmatch(text)",
        "AMOUNT.match(text)",
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
        "language: half precision: KL of two computations",
        "llm_track/evaluation.py",
        "        if self.policy.computes_in_half:",
        "        if False:",
        "tests/llm_track/test_evaluation.py::test_the_kl_to_itself_is_0_in_half_precision",
    ),
    Bug(
        "language: held out: with its mirror in training",
        "llm_track/tasks.py",
        'sorted(re.findall("[0-9]+", prompt))',
        're.findall("[0-9]+", prompt)',
        "tests/llm_track/test_tasks.py::test_the_order_of_numbers_does_not_matter_for_what_is_held_out",
    ),
    Bug(
        "language: steps: what is taken back still counts",
        "llm_track/tasks.py",
        "                remaining = remaining[:-1]",
        "                pass",
        "tests/llm_track/test_tasks.py"
        "::test_what_is_taken_back_is_no_step[7+5=11;wait;7+5=12;4+8+1=13;-steps2-corrections2]",
    ),
    Bug(
        "language: demonstrations: those of the task instead of the given ones",
        "llm_track/sft.py",
        'tasks.next_problems(source, N, step * N, run, "demonstrations", rng)',
        'tasks.next_problems(task, N, step * N, run, "demonstrations", rng)',
        "tests/llm_track/test_runs.py::test_sft_learns_from_given_demonstrations_and_nothing_else",
    ),
    Bug(
        "generate: rows lack what the prompt opens",
        "llm_track/generate.py",
        "completion = task.opening + x.text",
        "completion = x.text",
        "tests/llm_track/test_generate.py::test_a_template_that_opens_the_thinking",
    ),
    Bug(
        "generate: graded without what the prompt opens",
        "llm_track/generate.py",
        "task = sampling.with_opening(tasks.make(config.task, config.grader), tokenizer)",
        "task = tasks.make(config.task)",
        "tests/llm_track/test_generate.py::test_a_template_that_opens_the_thinking",
    ),
)
