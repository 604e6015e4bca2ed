"""Checks of other people's reinforcement-learning code, for their own tests.

    from manyseeds.probes import check, example, learns_like

    def test_advantages():
        check("ppo.advantages", my_gae)

    def test_learning():
        learns_like("ppo", "CartPole-v1", returns, timesteps=timesteps, hyperparameters={...})

`check` compares a function, or numbers, with the functions of our files and names the mistake that
explains a difference. `learns_like` compares finished learning curves with those of trainings here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from manyseeds import room
from manyseeds.probes import actor_critic, compare, dqn, grpo, language, sac
from manyseeds.probes.curves import learns_like

NAME = room(__name__)
FORMULAS = {
    **actor_critic.FORMULAS,
    **dqn.FORMULAS,
    **sac.FORMULAS,
    **grpo.FORMULAS,
    **language.FORMULAS,
}

__all__ = ["FORMULAS", "check", "example", "learns_like"]


def formula_of(name: str) -> compare.Formula:
    """The formula with a name; raises ValueError."""
    if name not in FORMULAS:
        raise ValueError(f"{name}: no formula has this name; there are {', '.join(FORMULAS)}")
    return FORMULAS[name]


def check(name: str, yours: Any, /, **batch: Any) -> list[str]:
    """Compare what other code computes with what ours computes of the same batch.

    name: what is compared, such as `ppo.advantages`: a key of `FORMULAS`.

    yours: a function, which gets those of the batch that its arguments name, as float32 tensors and
    numbers; or the numbers themselves, as an array of any library. A quantity that consists of
    several is a dictionary of them. Of a loss that a function returns as a tensor, the gradients
    with respect to log-probabilities, values and the like are compared, too; with numbers they are
    entries of a dictionary: `{"loss": ..., "logprobs.grad": ...}`.

    batch: what it is computed from, by name and without a seed axis; an error lists names and
    shapes. For a function it may be left out, or any part of it: then it is `example(name)`. For
    numbers it is needed.

    Returns the mistakes that these numbers could not have shown, by a batch of your own that lacks
    something, or of a loss without gradients. Raises
    AssertionError with the most probable mistake where a number differs by more than 0.1% of itself
    and of the largest; TypeError for a batch that lacks something or has another shape.
    """
    return compare.check(formula_of(name), name, yours, batch)


def example(name: str) -> dict[str, Any]:
    """The batch on which `check` tries a function: NumPy arrays (float32, int64, bool) and numbers.

    No two of the known mistakes give the same numbers on it. Raises ValueError for another name.
    """
    batch = compare.in_single_precision(formula_of(name).example())
    return {k: x.numpy() if isinstance(x, Tensor) else x for k, x in batch.items()}
