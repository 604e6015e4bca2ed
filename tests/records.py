"""Records of parts that no training has made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyseeds.record import SCHEMA


def config_of(seeds: Sequence[int], env: str = "E", **changes: Any) -> dict[str, Any]:
    """config.json of a part of a control run with some seeds; changes: of its hyperparameters."""
    return {
        "schema": SCHEMA,
        "kind": "control",
        "algo": "ppo",
        "env": env,
        "seeds": list(seeds),
        "config": {"env": env, **changes},
        "execution": {"device": "cpu", "threads": 1},
        "command": "python algos/ppo.py",
        "code": {"digest": "a", "commit": "b", "origins": []},
        "machine": {"cpu": "CPU", "cores": 2, "system": "Linux x86_64"},
        "versions": {"python": "3.11"},
    }
