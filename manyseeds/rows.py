"""Rows: several configurations trained as one batch, for several seeds each.

A row is one seed's training with hyperparameters of its own. Algorithms are written for S seeds;
where a Config has one value per row in the place of a number, S is the number of rows. S rows.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from manyseeds.cli import AnyConfig, OfRow, field_marks

Row = float | Tensor  # a hyperparameter: of all rows, or [S]


def broadcast(value: Any, x: Tensor) -> Any:
    """A hyperparameter to compute with x `[S, ...]`: a number stays one, `[S]` is `[S, 1, ...]`
    of the type and on the device of x.

    Values of rows are float64 until they meet x, as Python's numbers are: both round alike.
    """
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value.to(x).view(*value.shape, *(1 for _ in range(x.dim() - value.dim())))


def used(value: Tensor | float) -> bool:
    """Whether a hyperparameter is on that 0 switches off; the rows of a batch agree in that."""
    return isinstance(value, Tensor) or value > 0


def varying(config_class: type) -> list[str]:
    """The hyperparameters that may differ between the rows of a batch: they change no shape."""
    return [name for name, marks in field_marks(config_class).items() if OfRow() in marks]


def structure(config: Any) -> tuple[Any, ...]:
    """What the rows of a batch must agree in: all other fields, and which numbers are 0.

    0 often means "without", and what is left out must be left out for all rows.
    """
    own = set(varying(type(config)))
    key: list[Any] = [type(config)]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in own:
            key.append(value)
        elif not isinstance(value, bool):
            key.append(value == 0)
    return tuple(key)


def stack(configs: Sequence[AnyConfig], device: torch.device | str = "cpu") -> AnyConfig:
    """The Config of a batch whose rows have these configurations, one after the other.

    What they agree in stays a number; hyperparameters that differ are `[S]` float64.
    """
    first = configs[0]
    assert len({structure(config) for config in configs}) == 1, "these are not of one batch"
    batch = copy.copy(first)
    for name in varying(type(first)):
        values = [getattr(config, name) for config in configs]
        if any(value != values[0] for value in values):
            rows = torch.tensor(values, dtype=torch.float64, device=device)
            object.__setattr__(batch, name, rows)  # not checked again: each was
    return batch
