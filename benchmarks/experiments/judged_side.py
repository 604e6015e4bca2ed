"""One side of a judgement: trains an algorithm's file as it is asked to, a line of JSON at a time.

`judge.py` runs this text by `python -c` with a checkout first on the path, which may be that of an
older commit. So it stands alone, and imports what such a checkout has, too. Requests and answers
are objects of one key on stdin and stdout: `{"load": ...}`, `{"probe": ...}`, `{"train": ...}`,
`{"error": "what went wrong"}`. What the file itself prints goes to stderr.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import math
import os
import random
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyseeds import checkpoint
from manyseeds.cli import from_preset, identity
from manyseeds.digest import code_digest, origin_of
from manyseeds.errors import UsageError, described
from manyseeds.kernels import guard
from manyseeds.process import set_up_process
from manyseeds.runs.configurations import RowRun

EVAL_BUDGET = 0.25  # of the episodes of an evaluation: the differences of seeds are much larger
PROBED = 20  # the part of a training that is tried out: one of so many
PROBED_SEEDS = 10
# Constants of the environments' files that held-out physics vary, each by up to SPREAD.
PHYSICS = {"GRAVITY", "MASS", "MASS_POLE", "MASS_TOTAL", "LENGTH", "CENTRE", "MOMENT"}
SPREAD = 0.1


class Side:
    """An algorithm's module and what it is trained with, by environment."""

    def __init__(self, load: Mapping[str, Any]) -> None:
        """load: `file`, which is run, or `module`, which is imported; `envs`, or those of the
        `usual` ones that have a preset; `timesteps`, 0 for the budget in `budgets` or the preset's;
        `set`, NAME=VALUE."""
        if load["file"]:
            from manyseeds.user_code import run_file

            self.module: Any = run_file(Path(load["file"]))
        else:
            self.module = importlib.import_module(load["module"])
        for name in ("Config", "train", "PRESETS"):
            if not hasattr(self.module, name):
                raise UsageError(f"has no {name}: is no file of an algorithm")
        if not hasattr(self.module.Config, "total_timesteps"):
            raise UsageError("trains no control algorithm, which judge.py is for")
        usual = [env for env in load["usual"] if env in self.module.PRESETS]
        envs = load["envs"] or usual or list(self.module.PRESETS)[:1]
        self.configs = {env: self.configured(env, load) for env in envs}
        self.denied: set[str] = set()
        self.computed: dict[str, tuple[list[str], bool]] = {}  # by kernel: functions, if in C
        self._watch_guards()

    def configured(self, env: str, load: Mapping[str, Any]) -> Any:
        """The Config of an environment."""
        base = from_preset(self.module.Config, self.module.PRESETS, env, quiet=True)
        budget = load["timesteps"] or min(base.total_timesteps, load["budgets"].get(env, math.inf))
        config = dataclasses.replace(base, total_timesteps=budget, eval_budget=EVAL_BUDGET)
        return changed(config, load["set"]) if load["set"] else config

    def loaded(self) -> dict[str, Any]:
        """What the side is."""
        found = {}
        for name, config in self.configs.items():
            env = config.make_env()
            spec = env.spec
            origins = {origin_of(self.module.train), *config.origins()}
            found[name] = {
                "identity": identity(config),
                "digest": code_digest(sorted(origins)),
                "random": spec.random_score,
                "reference": spec.reference_score,
                "digits": spec.digits,
                "varied": bool(PHYSICS & vars(sys.modules[type(env).__module__]).keys()),
            }
        return found

    def _watch_guards(self) -> None:
        """Note what each kernel's guard says, and deny those that the other side has not."""
        decide = guard.Guard._decide

        def watched(own: Any, given: Sequence[Any]) -> bool:
            names = [x if isinstance(x, str) else x.__qualname__ for x in own.roots]
            allowed = own.kernel not in self.denied and decide(own, given)
            before = self.computed.get(own.kernel, (names, True))[1]
            self.computed[own.kernel] = names, allowed and before
            return allowed

        guard.Guard._decide = watched  # type: ignore[method-assign,assignment]

    def deny(self, kernels: Sequence[str]) -> None:
        """Let PyTorch compute what these kernels stand for."""
        self.denied = set(kernels)
        guard.watch.generation += 1

    def probe(self, env: str) -> dict[str, Any]:
        """Train for a moment: whether that works, what C computes, timesteps a second of CPU."""
        config = self.configs[env]
        try:
            config = dataclasses.replace(config, total_timesteps=config.total_timesteps // PROBED)
            seeds = list(range(PROBED_SEEDS))
        except UsageError:  # less than a rollout, say
            seeds = [0]
        run = RowRun([config] * len(seeds), seeds, curves=False)
        began = time.process_time()
        self.train_run(run)
        seconds = max(time.process_time() - began, 1e-9)
        speed = config.total_timesteps * len(seeds) / seconds
        whole = self.configs[env].total_timesteps / speed
        return {"speed": speed, "seconds": whole, "kernels": dict(self.computed)}

    def train(self, env: str, seeds: Sequence[int], physics: int) -> list[dict[str, Any]]:
        """Train seeds as one batch; a row per seed. physics: 0, or which held-out physics."""
        config = self.configs[env]
        varied = vary(config.make_env(), physics) if physics else {}
        began = time.perf_counter(), time.process_time()
        try:
            run = RowRun([config] * len(seeds), seeds)
            policy = self.train_run(run)
            frame = run.scores(policy)
        finally:
            for module, constants in varied.items():
                vars(sys.modules[module]).update(constants)
        spent = time.perf_counter() - began[0], time.process_time() - began[1]
        curve = run.curve()
        greedy = curve[curve["mode"] == "greedy"].sort_values("timestep")
        by_row = [points for _, points in greedy.groupby("seed")]
        weights = weights_of(policy, len(seeds))
        return [
            {
                "seed": int(row["seed"]),
                "auc": finite(row["auc"]),
                "final": finite(row["final"]),
                "diverged": finite(row["diverged"]),
                "weights": own,
                "seconds": spent[0] / len(seeds),
                "cpu_seconds": spent[1] / len(seeds),
                "timesteps": points["timestep"].tolist(),
                "returns": [finite(x) for x in points["return_mean"]],
            }
            for row, points, own in zip(frame.to_dict("records"), by_row, weights, strict=True)
        ]

    def train_run(self, run: RowRun) -> Any:
        with guard.looking_by_iteration():
            return self.module.train(run.config, run)


def changed(config: Any, words: Sequence[str]) -> Any:
    """A Config with other hyperparameters, of NAME=VALUE. Raises UsageError."""
    from manyseeds.benchmarks.experiments.spaces import fixed
    from manyseeds.cli import check_ranges, flag, known, read_words

    args = []
    for word in words:
        name, equals, value = word.partition("=")
        name = known(f"--{name}") if name else ""
        if not (name and equals and value):
            raise UsageError(f"--set {word}: must be NAME=VALUE, as learning_rate=0.001")
        if name in fixed(type(config)):
            raise UsageError(f"--set {name}: is no hyperparameter")
        if isinstance(getattr(config, name, None), bool):
            if value not in ("yes", "no"):
                raise UsageError(f"--set {word}: must be yes or no")
            args.append(flag(name if value == "yes" else f"no_{name}"))
        else:
            args += [flag(name), *value.split(",")]
    found = read_words(type(config), args, config)
    check_ranges(found)
    return found


def vary(env: Any, number: int) -> dict[str, dict[str, Any]]:
    """Scale the physical constants of an environment's file, the same way whoever asks; returns
    those that were there, by module. Raises UsageError where it has none.

    Constants that are computed from others are computed anew. The guard sees that they have
    changed, so that PyTorch plays the environment.
    """
    module = sys.modules[type(env).__module__]
    tree = ast.parse(inspect.getsource(module))
    draw = random.Random(f"{env.spec.id} {number}")
    names = vars(module)
    before: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(target, ast.Name) or not isinstance(names[target.id], float):
            continue
        before[target.id] = names[target.id]
        value = eval(compile(ast.Expression(node.value), "constants", "eval"), names)  # type: ignore[attr-defined]
        plain = isinstance(node.value, ast.Constant)  # type: ignore[attr-defined]
        factor = draw.uniform(1 - SPREAD, 1 + SPREAD)
        names[target.id] = value * factor if plain and target.id in PHYSICS else value
    if not PHYSICS & before.keys():
        raise UsageError(f"{env.spec.id}: has no physical constants that could be varied")
    return {module.__name__: before}


def weights_of(policy: Any, seeds: int) -> list[str | None]:
    """The SHA-256 of each seed's weights; None where a policy, or an old checkout, says none."""
    digests = getattr(checkpoint, "weights_sha256", None)
    if digests is None or not hasattr(policy, "state_dict"):
        return [None] * seeds
    return list(digests(policy.state_dict(), range(seeds)).values())


def finite(value: Any) -> float | None:
    """A number as JSON."""
    return float(value) if math.isfinite(value) else None


def failure(error: BaseException, file: str) -> str:
    """What an error says, and where in the judged file it was raised."""
    if isinstance(error, UsageError):
        return str(error)
    lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines = [error.lineno]
    return described(error) + (f" (line {lines[-1]})" if lines else "")


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    set_up_process(threads=1)
    side: Any = None
    file = ""
    for line in sys.stdin:
        ((kind, request),) = json.loads(line).items()
        answer: Any
        try:
            if kind == "load":
                file = str(Path(request["file"]).resolve()) if request["file"] else ""
                side = Side(request)
                answer = side.loaded()
            elif kind == "probe":
                answer = side.probe(**request)
            elif kind == "deny":
                answer = side.deny(**request)
            else:
                answer = side.train(**request)
        except (Exception, SystemExit) as error:
            answers.write(json.dumps({"error": failure(error, file)}) + "\n")
        else:
            answers.write(json.dumps({kind: answer}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
