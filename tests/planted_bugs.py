"""Plants known bugs, one at a time, in a copy of the project, and shows the test that turns red.

    python tests/planted_bugs.py                    # all of them
    python tests/planted_bugs.py n-step traces      # those whose name contains a word

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

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Bug:
    """One edit that breaks the project, and the fast test that must notice."""

    name: str
    file: str
    right: str  # stands in the file exactly once
    wrong: str
    test: str  # file::function, or a file with -k words behind it


BUGS = (
    Bug(
        "planning: no terminal mask",
        "algos/value_iteration.py",
        "return (r + gamma * P @ V).masked_fill(ends, 0.0)",
        "return r + gamma * P @ V",
        "tests/test_planning.py::test_a_sweep_by_hand",
    ),
    Bug(
        "planning: evaluation without the terminal mask",
        "algos/policy_iteration.py",
        "r_pi = (policy.T * r).sum(0).masked_fill(ends, 0.0)",
        "r_pi = (policy.T * r).sum(0)",
        "tests/test_planning.py::test_evaluation_is_that_of_the_policy",
    ),
    Bug(
        "planning: max over the wrong axis",
        "algos/value_iteration.py",
        "best = q.amax(0)\n",
        "best = q.amax()\n",
        "tests/test_planning.py::test_greedy_takes_the_first_of_the_best_also_after_rounding",
    ),
    Bug(
        "planning: ties change the policy forever",
        "algos/policy_iteration.py",
        "better = q.amax(0) > V + accuracy",
        "better = q.amax(0) >= V",
        "tests/test_planning.py::test_improvement_never_makes_a_policy_worse",
    ),
    Bug(
        "q-learning: no terminal mask",
        "algos/q_learning.py",
        "return rewards + gamma * next_values * ~terminated - lookup(table, obs, actions)",
        "return rewards + gamma * next_values - lookup(table, obs, actions)",
        "tests/test_q_learning.py::test_td_error_by_hand",
    ),
    Bug(
        "q-learning: max over the wrong axis",
        "algos/q_learning.py",
        "return rows(table, obs).amax(-1)",
        "return rows(table, obs).amax(0)[..., 0].expand(obs.shape)",
        "tests/test_q_learning.py::test_training_equals_a_plain_loop",
    ),
    Bug(
        "q-learning: epsilon not annealed",
        "algos/q_learning.py",
        "actions = policy.act(obs, action_noise, epsilon)",
        "actions = policy.act(obs, action_noise, config.exploration_initial_eps)",
        "tests/test_q_learning.py::test_epsilon_falls_while_training",
    ),
    Bug(
        "sarsa: no terminal mask",
        "algos/sarsa.py",
        "return rewards + gamma * next_values * ~terminated - lookup(table, obs, actions)",
        "return rewards + gamma * next_values - lookup(table, obs, actions)",
        "tests/test_sarsa.py::test_updates_by_hand",
    ),
    Bug(
        "sarsa: the next action is not the one taken",
        "algos/sarsa.py",
        "actions = torch.where(done, first_actions, next_actions)",
        "actions = first_actions",
        "tests/test_sarsa.py::test_training_equals_a_plain_loop",
    ),
    Bug(
        "sarsa: an expectation without exploration",
        "algos/sarsa.py",
        "return epsilon * values.mean(-1) + (1 - epsilon) * values.amax(-1)",
        "return values.amax(-1)",
        "tests/test_sarsa.py::test_the_expectation_is_the_mean_over_what_the_behaviour_does",
    ),
    Bug(
        "td: no terminal mask",
        "algos/td_prediction.py",
        "nothing_follows = episode.terminated.unsqueeze(1) & (left <= n)",
        "nothing_follows = torch.zeros_like(left, dtype=torch.bool)",
        "tests/test_prediction.py::test_n_step_equals_the_slow_loop",
    ),
    Bug(
        "td: n-step off by one",
        "algos/td_prediction.py",
        "later = states[:, (torch.arange(L) + min(n, L)).clamp(max=L)]",
        "later = states[:, (torch.arange(L) + min(n, L) + 1).clamp(max=L)]",
        "tests/test_prediction.py::test_n_step_equals_the_slow_loop",
    ),
    Bug(
        "td: a reward too many in n-step",
        "algos/td_prediction.py",
        "    for i in range(n):\n",
        "    for i in range(min(n + 1, L)):\n",
        "tests/test_prediction.py::test_n_step_equals_the_slow_loop",
    ),
    Bug(
        "td: traces without decay",
        "algos/td_prediction.py",
        "traces *= gamma * trace_decay",
        "traces *= gamma",
        "tests/test_prediction.py::test_traces_equal_the_slow_loop",
    ),
    Bug(
        "monte carlo: a later visit counts as the first",
        "algos/monte_carlo.py",
        't.where(alive, L), "amin")',
        't.where(alive, -1), "amax", include_self=False)',
        "tests/test_prediction.py::test_first_visits_by_hand",
    ),
    Bug(
        "monte carlo: the return without discount",
        "algos/monte_carlo.py",
        "G = torch.where(runs, reward + gamma * G, G)",
        "G = torch.where(runs, reward + G, G)",
        "tests/test_prediction.py::test_returns_by_hand",
    ),
)


def plant(bug: Bug, copy: Path) -> None:
    """Edit the copy; raises ValueError where the right text is not there exactly once."""
    path = copy / bug.file
    text = path.read_text()
    if text.count(bug.right) != 1:
        raise ValueError(f"{bug.name}: {bug.file} has the text {text.count(bug.right)} times")
    path.write_text(text.replace(bug.right, bug.wrong))


def copy_of_the_project(folder: Path) -> Path:
    """The code and its tests, without results."""
    for name in ("algos", "envs", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def turns_red(bug: Bug, copy: Path) -> bool:
    """Whether the test fails with the bug and passes without it."""

    def passes() -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.test]
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, 1):  # not even collected
            raise RuntimeError(f"{bug.name}: {bug.test}\n{done.stdout}{done.stderr}")
        return done.returncode == 0

    original = (copy / bug.file).read_text()
    green_before = passes()
    try:
        plant(bug, copy)
        return green_before and not passes()
    finally:
        (copy / bug.file).write_text(original)


def main(words: Sequence[str]) -> int:
    chosen = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    if not chosen:
        print(f"error: no bug is named like {' or '.join(words)}", file=sys.stderr)
        return 2
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_the_project(Path(folder))
        for bug in chosen:
            red = turns_red(bug, copy)
            unnoticed += not red
            print(f"{'red' if red else 'UNNOTICED':<10} {bug.name}: {bug.test}", flush=True)
    return int(unnoticed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
