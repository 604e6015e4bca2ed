"""Whether discrete SAC is better than DQN: what is said of runs whose scores are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from manyseeds import stats
from manyseeds.benchmarks.chapters import discrete_sac
from manyseeds.benchmarks.chapters.blocks import Block
from manyseeds.benchmarks.experiments.suite import NO_PARTS
from manyseeds.benchmarks.store.comparison import pairs
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_runs
from tests.benchmarks.conftest import Patch, tables_of
from tests.benchmarks.test_report import plant

ENV = "CartPole-v1"


def section(results: Path) -> list[Block]:
    found = pairs([load_result(run) for run in open_runs(results)])
    return list(discrete_sac.section(found))


def test_it_stands_beside_dqn_with_both_networks(tmp_path: Path) -> None:
    """The run without parts is found among those of Rainbow, whose preset has all."""
    scores = np.linspace(-3, 3, 30)
    plant(tmp_path, "sac_discrete", dict(enumerate(350 + scores)), env=ENV, middle=350)
    assert section(tmp_path) == []
    plant(tmp_path, "dqn", dict(enumerate(250 + scores)), env=ENV, middle=450)
    (text, _) = section(tmp_path)
    assert "by learning speed (AUC) it is worse in 1; by late score it is better in 1." in str(text)
    plant(tmp_path, "rainbow", dict(enumerate(450 + scores)), env=ENV, middle=450)
    plant(tmp_path, "rainbow", dict(enumerate(400 + scores)), env=ENV, middle=450, **NO_PARTS)
    text, table = section(tmp_path)
    assert "In 2 comparisons" in str(text)
    assert "by late score it is better in 1, worse in 1." in str(text)
    rows = tables_of([table])["discrete-sac"]
    assert [row[2] for row in rows] == ["Discrete SAC", "DQN", "DQN, 64-64"]
    assert [row[-1].split(" ")[0] for row in rows] == ["", "better", "worse"]
    assert rows[2][4].startswith("400.0")


def test_verdicts_are_corrected_together(tmp_path: Path, monkeypatch: Patch) -> None:
    """Those by both measures."""
    verdict = stats.Parity("better", stats.Estimate(0.2, 0.1, 0.3, 30), 0.03)
    monkeypatch.setattr(discrete_sac, "parity_of", lambda *_: verdict)
    for algo in ("sac_discrete", "dqn"):
        plant(tmp_path, algo, dict.fromkeys(range(10), 300.0), env=ENV)
    text, _ = section(tmp_path)
    assert "by learning speed (AUC) it is undecided in 1; by late score it is undecided in 1." in (
        str(text)
    )
