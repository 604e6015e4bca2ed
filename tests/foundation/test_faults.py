"""A few of the faults of `python -m tests.faults`, which has a seed of its own each time."""

import pytest

from tests import faults


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_faults_of_fixed_seeds(seed: int) -> None:
    cases = "q_learning,ppo,td_prediction,merge,export,website,report,pack"
    assert faults.main(["--count", "16", "--seed", str(seed), "--only", cases]) == 0
