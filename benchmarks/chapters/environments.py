"""The page of our environments beside Gymnasium's: what `watch.py --check` has measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyseeds import envs
from manyseeds.benchmarks.chapters.blocks import Block, Code, Outcome, Table, Text, joined
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.measurements.native import COLUMNS, STORED, Checked
from manyseeds.benchmarks.store.results import versions_text
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.record import hash_of, plural


def page(results: Path) -> Sequence[Block]:
    """The page; nothing without check.json."""
    return section_of(find_file(results, "tables/check.json"), STORED, comparison)


def comparison(stored: dict[str, Any]) -> list[Block]:
    """The runs of check.json on environments that are ours."""
    rows = [Checked.of(row) for row in stored["rows"] if row["env"] in envs.NATIVE]
    agree = sum(row.verdict == "agrees" for row in rows)
    episodes = stored["episodes"]
    return [
        Outcome(
            f"The mean returns of {agree} of {plural(len(rows), 'run')} agree between our "
            "environments and Gymnasium's."
        ),
        Table("native-against-gymnasium", COLUMNS, [row.cells() for row in rows]),
        Text(
            f"The greedy policies of n seeds play {plural(episodes, 'episode')} each in our native "
            f"environment and {plural(episodes, 'other episode')} in Gymnasium's. The intervals of "
            "the means are over seeds; that of the difference (native minus Gymnasium) is over "
            "episodes, because both sides have the same policies. The verdict is that a row agrees "
            "where that interval contains 0. Correct environments differ by chance in one row of "
            "twenty; the width of an interval bounds the difference that a row may have missed."
        ),
        *trained_by(rows),
        command_text(stored, versions_text(stored)),
    ]


def trained_by(rows: Sequence[Checked]) -> list[Text]:
    """The commands that train the policies of rows, where these are of plain commands: they are not
    published."""
    plain = [
        Code(f"python algos/{x.algo}.py --env {x.env} --seeds {len(x.seeds)}")
        for x in rows
        if x.run == hash_of(catalog.plain_settings("algos", x.algo, x.env))
        and x.seeds == [*range(len(x.seeds))]
    ]
    about = (
        "The policies of all seeds are not published. The command below takes them from "
        "results/local, where these commands train them: "
    )
    return [Text(about, joined(plain), ".")] if plain else []
