"""What scores.py measures is what the specs say, and what can be worked out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from manyseeds import envs
from manyseeds.benchmarks.measurements import scores
from manyseeds.errors import UsageError
from manyseeds.record import read_json
from manyseeds.seeds import SeedStreams
from manyseeds.worth import measured_scores
from tests.benchmarks.conftest import Output, Refusal


def printed(capsys: Output, tmp_path: Path, *words: str) -> str:
    scores.main([*words, "--results", str(tmp_path)])
    return capsys.readouterr().out


def test_scores_from_tables_are_exact(capsys: Output, tmp_path: Path) -> None:
    said = printed(capsys, tmp_path, "--env", "CliffWalking-v1")
    assert "random_score=-2079.1160,  # exact" in said
    assert "reference_score=-13.0000,  # the best of any policy, exact" in said
    stored = read_json(tmp_path / "scores" / "CliffWalking-v1.json")
    assert stored["best"] == stored["reference"] == -13
    assert stored["random"]["n"] == 0
    assert stored["code"]["origins"] == [
        "manyseeds.envs.cliff_walking:CliffWalking",
        "manyseeds.envs.cliff_walking:ENVS[CliffWalking-v1]",
    ]


def test_scores_of_other_arguments_have_a_file_of_their_own(capsys: Output, tmp_path: Path) -> None:
    words = ["--env", "CartPole-v1", "--env-kwargs", "max_episode_steps=3", "--episodes", "20"]
    assert "random policy on CartPole-v1: 3.0000" in printed(capsys, tmp_path, *words)
    stored = read_json(tmp_path / "scores" / "CartPole-v1--max_episode_steps--3.json")
    assert stored["env_kwargs"] == ["max_episode_steps=3"]


def test_played_scores_agree_with_exact_ones() -> None:
    """FrozenLake's optimum under the time limit is as the tests of the environment have it."""
    env = envs.FrozenLake(4)
    exact = scores.random_score(env, 2).value
    played = scores.random_returns(env, SeedStreams([0], "evaluate"), 20_000)
    error = played.std().item() / 20_000**0.5
    assert abs(played.mean().item() - exact) < 4 * error
    assert scores.best_score(env) == pytest.approx(0.7442, abs=5e-5)
    assert env.spec.reference_score is not None
    assert scores.best_score(env) > env.spec.reference_score


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
def test_a_played_score_has_an_interval_over_episodes(backend: str) -> None:
    make: Any = envs.make
    env = make("CartPole-v1", backend=backend)
    found = scores.random_score(env, 205)
    assert found.n == 205
    assert 15 < found.low < found.value < found.high < 30
    assert found == scores.random_score(make("CartPole-v1", backend=backend), 205)


def test_random_actions_fill_their_range() -> None:
    noise = torch.tensor([[[0.0], [0.5], [1 - 2**-24]]])
    assert scores.random_actions(envs.CartPole.spec, noise).tolist() == [[0, 1, 1]]
    low_to_high = scores.random_actions(envs.Pendulum.spec, noise)[0, :, 0]
    torch.testing.assert_close(low_to_high, torch.tensor([-2.0, 0.0, 2.0]))
    env, infinite = envs.Pendulum(), (-float("inf"),)
    env.spec = envs.EnvSpec("Free-v0", 5, action_low=infinite, action_high=(1.0,), obs_size=3)
    with pytest.raises(UsageError, match="no bounds"):
        scores.random_score(env, 2)


def test_a_reference_is_stated_for_verdicts(
    capsys: Output, tmp_path: Path, refusal: Refusal
) -> None:
    """For an environment that does not state its own; CartPole with arguments is another one."""
    words = ["--env", "CartPole-v1", "--env-kwargs", "sutton_barto_reward=true", "--episodes", "20"]
    printed(capsys, tmp_path, *words)
    assert measured_scores(tmp_path, "CartPole-v1", ["sutton_barto_reward=true"]) == (-1, None)
    printed(capsys, tmp_path, *words, "--reference", "0")
    assert measured_scores(tmp_path, "CartPole-v1", ["sutton_barto_reward=true"]) == (-1, 0)
    assert measured_scores(tmp_path, "CartPole-v1") is None
    with pytest.raises(SystemExit):
        printed(capsys, tmp_path, *words, "--reference", "-1")
    assert "error: --reference -1: is the random policy's score\n" in capsys.readouterr().err
    nan = refusal(scores.main, *words, "--reference", "nan", "--results", tmp_path)
    assert "--reference nan: must be a finite number" in nan
    stated = refusal(scores.main, "--reference", "5", "--results", tmp_path)
    assert "--reference 5: CartPole-v1 states its own, 500" in stated
