"""Compares a quantity of other code with ours, and names the mistake that explains a difference.

A formula is a function of one of our files with what it is often mistaken for. A mistake is our own
function of another batch (a termination that is not told), or its result changed (a sign): so the
mistakes follow the file, too. Two of them at once are also tried.

Shapes as in our files, without their first dimension, the seed: T steps, N environments, M samples.
"""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

# What may differ, of a number and of the largest one: by float32, and by the small number that is
# added to a divisor.
RELATIVE = ABSOLUTE = 1e-3
TINY = 1e-6  # what may differ where all is 0

Batch = dict[str, Any]  # tensors without a seed axis, and hyperparameters
Function = Callable[..., Any]  # of a batch by name: a tensor, or several by name
Mistake = Callable[[Function, Batch], Any]  # what is computed with it, of our function and a batch
Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class Formula:
    """A quantity, how our file computes it, and what it is mistaken for."""

    compute: Function
    example: Callable[[], Batch]  # on which no two mistakes look alike
    mistakes: Mapping[str, Mistake]
    output: str  # its name, and its shape
    shapes: Mapping[str, str]  # of the batch; empty: a number
    differentiated: Sequence[str] = ()  # a loss is compared with its gradient with respect to these
    optional: Sequence[str] = ()  # what only mistakes need


def check(formula: Formula, name: str, yours: Any, given: Mapping[str, Any]) -> list[str]:
    """Compare numbers, or a function, with the formula; see `manyseeds.probes.check`."""
    if unknown := given.keys() - formula.shapes.keys():
        raise TypeError(f"{name}: no {', '.join(sorted(unknown))}; {signature_text(formula)}")
    batch = {**(formula.example() if callable(yours) else {}), **given}
    if missing := [x for x in formula.shapes if x not in batch and x not in formula.optional]:
        raise TypeError(f"{name}: {', '.join(missing)} missing; {signature_text(formula)}")
    batch = in_shape(batch, name, formula)
    if callable(yours):
        found = outputs_of(named(yours, name, formula), in_single_precision(batch), formula)
    else:
        numbers = yours if isinstance(yours, Mapping) else {formula.output.partition(" ")[0]: yours}
        found = {k: as_tensor(x).detach().double() for k, x in numbers.items()}
    right = outputs_of(formula.compute, batch, formula)
    if strange := found.keys() - right.keys():
        raise TypeError(f"{name}: no {', '.join(sorted(strange))}; it has {', '.join(right)}")
    for key, x in found.items():
        if x.shape != right[key].shape:
            shapes = list(x.shape), list(right[key].shape)
            raise AssertionError(f"{name}: {key} has shape {shapes[0]}, not {shapes[1]}")
    if equal(found, right):
        if found.keys() == right.keys() and not any(formula.shapes[k] for k in given):
            return []  # the example shows all
        return unseen(formula, batch, {k: right[k] for k in found})
    wrong = dict(tried(formula, batch, formula.mistakes.items()))
    raise AssertionError(f"{name}: {explained(found, right, wrong, formula, batch)}")


def signature_text(formula: Formula) -> str:
    """`it is computed from rewards [T, N], ..., gamma`."""
    names = [f"{k} {shape}".strip() for k, shape in formula.shapes.items()]
    return f"it is computed from {', '.join(names)}"


def as_tensor(x: Any) -> Tensor:
    """An array of any library; numbers in float64."""
    tensor = x.cpu() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    return tensor.double() if tensor.is_floating_point() else tensor


def in_shape(batch: Batch, name: str, formula: Formula) -> Batch:
    """The batch as tensors of the example's types; raises TypeError for other shapes."""
    example, sizes, found = formula.example(), dict[str, int](), Batch(batch)
    for k, x in batch.items():
        if not (shape := formula.shapes[k]):
            continue
        tensor = found[k] = as_tensor(x).to(example[k].dtype)
        letters = re.findall(r"\w+", shape)
        if len(letters) == tensor.dim():
            for letter, n in zip(letters, tensor.shape, strict=True):
                sizes.setdefault(letter, int(letter) if letter.isdigit() else n)
        if [sizes.get(letter) for letter in letters] != list(tensor.shape):
            known = ", ".join(f"{k} = {n}" for k, n in sizes.items() if not k.isdigit())
            told = f" with {known}" if known else ""
            raise TypeError(f"{name}: {k} has shape {list(tensor.shape)}, not {shape}{told}")
    return found


def in_single_precision(batch: Batch) -> Batch:
    """A copy, which other code may write to."""
    return {
        k: (x.float() if x.is_floating_point() else x.clone()) if isinstance(x, Tensor) else x
        for k, x in batch.items()
    }


def named(yours: Function, name: str, formula: Formula) -> Function:
    """A function that is given only the arguments that it names."""
    parameters = inspect.signature(yours).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return yours
    wanted = [p.name for p in parameters]
    needed = {p.name for p in parameters if p.default is p.empty}
    if unknown := needed - formula.shapes.keys():
        listed = ", ".join(sorted(unknown))
        raise TypeError(f"{name}: nothing is called {listed}; {signature_text(formula)}")
    return lambda **batch: yours(**{k: x for k, x in batch.items() if k in wanted})


def outputs_of(function: Function, batch: Batch, formula: Formula) -> Outputs:
    """What a function computes, by name, in float64; of a loss the gradients, too."""
    leaves = {k: batch[k].clone().requires_grad_() for k in formula.differentiated}
    found = function(**batch | leaves)
    if isinstance(found, Mapping):
        return {k: as_tensor(x).detach().double() for k, x in found.items()}
    outputs = {formula.output.partition(" ")[0]: as_tensor(found).detach().double()}
    if leaves and isinstance(found, Tensor):
        total = found.sum()
        gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if total.requires_grad:
            gradients = torch.autograd.grad(total, [*leaves.values()], allow_unused=True)
        for (k, x), g in zip(leaves.items(), gradients, strict=True):
            outputs[f"{k}.grad"] = (torch.zeros_like(x) if g is None else g).detach().double()
    return outputs


# ---- Mistakes ------------------------------------------------------------------------------


def tried(formula: Formula, batch: Batch, mistakes: Any) -> Iterator[tuple[str, Outputs]]:
    """The texts of mistakes with what they compute."""
    for text, mistake in mistakes:
        try:
            with warnings.catch_warnings(action="ignore"):
                outputs = outputs_of(made(mistake, formula.compute), batch, formula)
        except Exception:
            # A batch may lack what a mistake needs, or be too small for it, and two may exclude
            # each other. Tests hold that each can be computed of the example.
            continue
        yield text, outputs


def unseen(formula: Formula, batch: Batch, right: Outputs) -> list[str]:
    """The mistakes that give the right outputs, too, but would not at the same hyperparameters on
    the example, with its gradients."""
    settings = {k: x for k, x in batch.items() if not formula.shapes[k]}
    example = formula.example() | settings
    known = outputs_of(formula.compute, example, formula)
    shown = dict(tried(formula, example, formula.mistakes.items()))
    seen = dict(tried(formula, batch, formula.mistakes.items()))
    return [
        text
        for text, x in shown.items()
        if not equal(x, known) and (text not in seen or equal(right, seen[text]))
    ]


def made(mistake: Mistake, function: Function) -> Function:
    """Our function with a mistake."""
    return lambda **batch: mistake(function, batch)


def both(first: Mistake, second: Mistake) -> Mistake:
    return lambda function, batch: first(partial(made(second, function)), batch)


def pairs(mistakes: Mapping[str, Mistake]) -> Iterator[tuple[str, Mistake]]:
    """Two mistakes at once, in both orders: one may hide or undo the other."""
    for (one, first), (other, second) in itertools.permutations(mistakes.items(), 2):
        yield f"{one}; and {other}", both(first, second)


def changed(**changes: Callable[[Batch], Any]) -> Mistake:
    """Our function with some of the batch replaced, each by a function of the batch."""
    return lambda f, b: f(**b | {k: change(b) for k, change in changes.items()})


# ---- What is said --------------------------------------------------------------------------


def close(x: Tensor, right: Tensor) -> Tensor:
    """Where numbers are equal but for rounding, bool."""
    scale = right.abs().amax() if right.numel() else 0.0
    return (x - right).abs() <= RELATIVE * right.abs() + ABSOLUTE * scale + TINY


def equal(outputs: Outputs, right: Outputs) -> bool:
    """Whether outputs are equal, as far as both have them."""
    return all(bool(close(x, right[k]).all()) for k, x in outputs.items() if k in right)


def matches(found: Outputs, wrong: Outputs) -> bool:
    return found.keys() <= wrong.keys() and equal(found, wrong)


def explained(
    found: Outputs, right: Outputs, wrong: Mapping[str, Outputs], formula: Formula, batch: Batch
) -> str:
    """The mistakes that give these numbers, and where they are off."""
    off = where_off(found, right)
    if any(bool(x.isnan().any()) for x in found.values()):
        return f"NaN. {off}"
    texts = [text for text, outputs in wrong.items() if matches(found, outputs)]
    if not texts and (text := factor(found, right)):
        texts = [text]
    if not texts:
        two = tried(formula, batch, pairs(formula.mistakes))
        texts = [text for text, outputs in two if matches(found, outputs)][:1]
    if texts:
        return f"{', or '.join(texts)}. {off}"
    nearest = min(wrong, key=lambda text: distance(found, wrong[text]), default="")
    text = "no known mistake gives exactly these numbers"
    if nearest and distance(found, wrong[nearest]) < 0.5 * distance(found, right):
        text += f"; the nearest: {nearest}"
    return f"{text}. {off}{only_where(found, right, batch)}"


def factor(found: Outputs, right: Outputs) -> str:
    """Whether all numbers are the right ones times one number. Of a single one any would be, so it
    must be a whole number, or one over it."""
    x, y = (torch.cat([side[k].flatten() for k in found]) for side in (found, right))
    times = float((x @ y) / (y @ y)) if bool(y.any()) else 0.0
    if not times or not bool(close(x, times * y).all()):
        return ""
    if abs(times + 1) < RELATIVE:
        return "the sign is inverted"
    whole = max(abs(times), 1 / abs(times))
    plain = abs(whole - round(whole)) < RELATIVE
    return f"{times:.4g} times as large" if len(y) > 1 or plain else ""


def distance(found: Outputs, other: Outputs) -> float:
    """The relative root mean square difference, of the outputs that are furthest apart."""
    sizes = [
        float((x - other[k]).norm() / other[k].norm().clamp(min=1e-12))
        for k, x in found.items()
        if k in other
    ]
    return max(sizes, default=float("inf"))


def where_off(found: Outputs, right: Outputs) -> str:
    """How many numbers differ, and the one that differs most."""
    parts = []
    for k, x in found.items():
        off = ~close(x, right[k])
        if not off.any():
            continue
        worst = int(torch.where(off, (x - right[k]).abs().nan_to_num(torch.inf), -1.0).argmax())
        place = [int(i) for i in np.unravel_index(worst, x.shape)]
        values = f"{x.flatten()[worst]:z.5g} for {right[k].flatten()[worst]:z.5g}"
        many = f"{int(off.sum())} of {off.numel()} numbers, at {place} " if place else ""
        parts.append(f"{k}: {many}{values}")
    return f"Yours for ours: {'; '.join(parts)}"


def only_where(found: Outputs, right: Outputs, batch: Batch) -> str:
    """The flags without which nothing differs."""
    off = [~close(x, right[k]) for k, x in found.items()]
    flags = {k: x for k, x in batch.items() if isinstance(x, Tensor) and x.dtype == torch.bool}
    words = [
        k
        for k, flag in flags.items()
        if all(x.shape == flag.shape and not (x & ~flag).any() for x in off)
    ]
    return f" (only where {' and '.join(words)})" if words else ""
