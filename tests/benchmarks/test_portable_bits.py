"""The same bits by every build, in any batch, on any threads, and after an interruption."""

from __future__ import annotations

import pytest

from manyseeds import kernels
from manyseeds.benchmarks.measurements import portable_bits
from manyseeds.benchmarks.measurements.portable_bits import (
    RECORDED,
    TIMESTEPS,
    TRAININGS,
    WAYS,
    Digests,
    builds,
    first_difference,
    main,
    stored,
    train,
)
from tests.benchmarks.conftest import Output, Patch

FEW = ("ppo CartPole-v1", "ppo Pendulum-v1", "a2c CartPole-v1", "dqn CartPole-v1")
EXPECTED = stored(TIMESTEPS)


@pytest.mark.skipif(kernels.library() is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    "training",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in TRAININGS],
)
def test_this_machine_finds_the_stored_digests(training: str) -> None:
    found = {RECORDED: train(training, TIMESTEPS, WAYS[RECORDED])}
    assert first_difference(found, EXPECTED[training]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("build", builds(), ids=lambda build: build.name)
def test_every_build_finds_the_stored_digests(build: portable_bits.Build) -> None:
    found = build.train(TIMESTEPS, list(WAYS), FEW)
    assert {name: first_difference(found[name], EXPECTED[name]) for name in FEW} == dict.fromkeys(
        FEW, ""
    )


def digests(weights: str = "ab", curve: str = "ab") -> Digests:
    return {"weights": list(weights), "curve": list(curve)}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"alone": digests("a", "a"), "2 seeds": digests()}, ""),
        ({"alone": digests("a", "b"), "2 seeds": digests("aa")}, "curve of seed 0, alone"),
        ({"alone": digests("a", "a"), "2 seeds": digests("aa")}, "weights of seed 1, 2 seeds"),
    ],
)
def test_the_first_difference(found: dict[str, Digests], said: str) -> None:
    assert first_difference(found, digests()) == said


def test_a_difference_is_named_and_is_a_failure(monkeypatch: Patch, capsys: Output) -> None:
    """That of the second build, in the table."""
    of_builds = iter([digests("aa"), digests("aa"), digests("aa"), digests("ax")])

    def trained(*args: object) -> dict[str, dict[str, Digests]]:
        return {FEW[0]: {way: next(of_builds) for way in ("2 seeds", "32 seeds")}}

    monkeypatch.setattr(portable_bits.Build, "train", trained)
    both = [portable_bits.Build(name, {}) for name in ("gcc", "clang")]
    monkeypatch.setattr(portable_bits, "builds", lambda: both)
    with pytest.raises(SystemExit) as stop:
        main(["--only", FEW[0], "--timesteps", "7"])  # nothing is stored for that
    assert stop.value.code == 1
    output = capsys.readouterr().out
    assert "weights of seed 1, 32 seeds" in output
    assert output.count("equal") == 1
