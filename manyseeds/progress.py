"""Progress of a training: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from manyseeds.errors import printable
from manyseeds.record import plural

console = Console(highlight=False, soft_wrap=True)


class Progress:
    """Timesteps, speed, time left, and the latest evaluation with its interval over seeds.

    live: draw a bar where there is a terminal, to be closed by whoever asked for it.
    unit, measure: what is counted, and what an evaluation is, for the line above.
    """

    def __init__(
        self,
        total: int,
        seeds: int,
        quiet: bool,
        live: bool,
        unit: str = "timesteps",
        measure: str = "greedy return (IQM, 95% interval over seeds)",
    ) -> None:
        self.total, self.seeds, self.quiet = total, seeds, quiet
        self.unit = unit.removeprefix("time")
        self.returns = ""
        self._bar: RichProgress | None = None
        if live and console.is_terminal and not quiet:
            columns = (BarColumn(bar_width=10), TextColumn("{task.fields[status]}"))
            self._bar = RichProgress(*columns, console=console, transient=True)
            self._task: Any = self._bar.add_task("", total=total, status="")
            self._bar.start()
        if not quiet:
            console.print(f"{unit} x seeds, {measure}, speed")

    def update(self, timestep: int, learn_s: float, returns: str = "") -> None:
        """Show a timestep (per seed); returns: a new evaluation, as text."""
        self.returns = returns or self.returns
        if not (self._bar or (returns and not self.quiet)):
            return
        speed = timestep * self.seeds / max(learn_s, 1e-9)
        left = learn_s * max(self.total - timestep, 0) / max(timestep, 1)
        # One line of a terminal with 80 columns.
        whole = f"/{self.total:,}" if self.total else ""  # how many is not always known
        status = f"{timestep:,}{whole} x {plural(self.seeds, 'seed')}"
        if self.returns:
            status += f"  {self.returns}"
        if timestep:
            status += f"  {speed:,.0f} {self.unit}/s"
            status += f"  {left:.0f} s left" if self.total else ""
        if self._bar:
            self._bar.update(self._task, completed=timestep, status=status)
        else:
            console.print(status)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()
            self._bar = None


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the terminal, as wide as its content where there is none."""
    width = None if sys.stdout.isatty() else 200
    wide = Console(highlight=False, markup=False, emoji=False, width=width)
    table = Table(title=printable(title), title_justify="left")
    for name in header:
        table.add_column(name, justify="right" if name == "n" else "left")
    for row in rows:
        table.add_row(*map(printable, row))
    wide.print(table)
