"""A stored policy acts as the trained one did."""

from __future__ import annotations

import hashlib
import importlib
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from manyseeds.algos import ppo
from manyseeds.checkpoint import to_bytes, weights_sha256
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
    ids=lambda x: x if isinstance(x, str) else "normalized" if x else "plain",
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


def test_a_digest_of_weights_is_of_each_seeds_own_bytes() -> None:
    """Alone and in a batch, in any order of names; what a NaN carries does not count."""
    bits = torch.tensor([[0x40000000, 0x40400000], [0x3F800000, 0x7FC00001]])  # 2, 3; 1, NaN
    w, n = bits.int().view(torch.float32), torch.tensor([5, 7])
    found = weights_sha256({"w": w, "n": n}, [4, 6])
    content = b"n torch.int64 []\n" + struct.pack("<q", 7)
    content += b"w torch.float32 [2]\n" + struct.pack("<2f", 1, math.nan)
    assert found["6"] == hashlib.sha256(content).hexdigest()
    assert weights_sha256({"n": n[:1], "w": w[:1]}, [4]) == {"4": found["4"]}
    changed = [{"w": -w, "n": n}, {"w": w, "m": n}, {"w": w, "n": n.int()}, {"w": w + 2**-22}]
    assert all(weights_sha256(x, [4, 6])["4"] != found["4"] for x in changed)


# ---- Files of others ------------------------------------------------------------------------

ABOUT = {"algo": "ppo", "config": {"env": "CartPole-v1", "hidden": [16, 16]}, "seeds": [0, 1]}
SAID: dict[str, tuple[Any, str]] = {  # of two seeds' weights, and what is refused
    "a wide layer": ({"config": {**ABOUT["config"], "hidden": [60_000, 60_000]}}, "more weights"),
    "a layer": ({"config": {**ABOUT["config"], "hidden": [10**9]}}, "more weights"),
    "many seeds": ({"seeds": list(range(10**6))}, "is not of 1000000 seeds"),
    "seeds below 0": ({"seeds": [-1, 0]}, "0 or above"),
    "seeds twice": ({"seeds": [1, 1]}, "must be different"),
    "seeds that are none": ({"seeds": "01"}, "seeds must be a list"),
    "no config": ({"config": []}, "config must be an object"),
    "a text": ({"config": {**ABOUT["config"], "hidden": "x"}}, "hidden must be a list"),
    "another type": ({"config": {**ABOUT["config"], "num_envs": "x"}}, "has invalid content"),
    "a negative layer": ({"config": {**ABOUT["config"], "hidden": [-16, -16]}}, "--hidden"),
    "nothing": ({"algo": "ppo", "config": {}}, "does not fit manyseeds.algos.ppo"),
}


@pytest.mark.parametrize("what", SAID)
def test_sizes_are_compared_before_a_module_is_made(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a file says, `load` raises UsageError alone."""
    changes, reason = SAID[what]
    weights = {"networks.w0": torch.zeros(2, 1, 16, 16)}
    (tmp_path / "x.safetensors").write_bytes(to_bytes(weights, {**ABOUT, **changes}))
    if "weights" in reason or "seeds" in reason:
        monkeypatch.setattr(ppo, "ActorCritic", None)
    with pytest.raises(UsageError, match=reason):
        ppo.load(tmp_path / "x.safetensors")


def test_weights_of_other_tensors_are_refused(tmp_path: Path) -> None:
    for tensors in ({}, {"x": torch.zeros(2)}, {"x": torch.zeros(())}, {"x": torch.zeros(2, 999)}):
        (tmp_path / "x.safetensors").write_bytes(to_bytes(tensors, ABOUT))
        with pytest.raises(UsageError, match=r"x\.safetensors: (has|does)"):
            ppo.load(tmp_path / "x.safetensors")
