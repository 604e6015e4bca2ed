"""A stored policy acts as the trained one did."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from manyseeds.errors import UsageError
from manyseeds.record import RunFolder
from manyseeds.runs.control import Run, main
from manyseeds.seeds import SeedStreams
from tests.algos.test_seed_axis import BUDGETS

# With statistics of observations, and deviations of continuous actions.
NORMALIZED = {"env": "Pendulum-v1", "normalize_obs": True}


@pytest.mark.usefixtures("few_evaluations")
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        *((algo, {}) for algo in BUDGETS),
        *((algo, NORMALIZED) for algo in ("ppo", "a2c", "trpo", "grpo", "reinforce")),
    ],
)
def test_a_stored_policy_acts_as_the_trained_one(
    algo: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    settings = {"env": "CartPole-v1", "results": str(tmp_path), **BUDGETS[algo], **settings}
    config = module.Config(seeds=3, quiet=True, **settings)
    main(config, module.train, module.PRESETS)
    trained = module.train(config, Run(config))  # training again gives the same bits
    (part,) = RunFolder.of(config, algo).parts()
    loaded = module.load(str(part))
    torch.testing.assert_close(trained.state_dict(), loaded.state_dict(), rtol=0, atol=0)
    spec = config.make_env().spec
    states = spec.num_states
    obs = torch.randint(0, states, (3, 64)) if states else torch.randn(3, 64, spec.obs_size)
    assert torch.equal(trained.act(obs), loaded.act(obs))
    noise = loaded.draw(SeedStreams([0, 1, 2], "evaluate"), 64)
    assert torch.equal(trained.act(obs, noise), loaded.act(obs, noise))

    (part / "policy.safetensors").unlink()
    with pytest.raises(UsageError, match="not a finished part"):
        module.load(str(part))
