"""What `--help` and `--details` print: the flags of a Config by groups, with their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from manyseeds.cli import FROM_FILE, TO_FILE, Preset, RunConfig, flag, hints_of, subject_of
from manyseeds.digest import ROOT, is_installed, room_file, typed

WIDTH = 100  # columns at most, and where the output is no terminal
LINE = 56  # letters of a docstring that fit beside a flag
# Flags of language models that only --details prints, so that --help fits a screen.
RARE = (
    *("drop_long_rows", "sampling_batch_size", "gradient_checkpointing"),
    *("dtype", "kl_estimator", "kl_in", "initial_per_seed"),
)
GROUPS = {
    "network": {"hidden", "log_std_init", "normalize_obs", "lora_rank", "dtype", "model"},
    "evaluation": {"evaluations", "eval_budget", "eval_prompts", "eval_samples"},
}


def is_positional(hint: Any) -> bool:
    """Whether a field is given by its place, not by a flag."""
    return get_args(tyro.conf.Positional[int])[1] in get_args(hint)


def show_help(
    config_class: type,
    settings: Mapping[str, Any],
    presets: Mapping[str, Preset],
    description: str,
    details: bool,
) -> None:
    """Print how a script is used.

    settings: those of the preset. description: the script's docstring. `--help` shows its title
    and commands and, where a flag's docstring is long, its first sentence; details shows all.
    """
    text = description.strip()
    if not details:
        text = "\n\n".join(text.split("\n\n")[:2])
    more = "" if details else "; --details prints the full documentation"
    if is_installed(ROOT):
        text = re.sub(r"python (\w+/\w+\.py)", lambda match: typed(room_file(match[1])), text)
    parts = [f"{usage(config_class)}{more}\n{text}"]
    if presets:
        subject = subject_of(config_class)
        parts.append(f"{flag(subject)} with a preset: {', '.join(presets)}.")
        if preset := presets.get(settings.get(subject, "")):
            parts[-1] += f" Defaults as for {settings[subject]}"
            parts[-1] += f": {preset.source}." if details else "."
    docs, hints = documented(config_class), hints_of(config_class)
    table = Table.grid(padding=(0, 2, 0, 0))
    owner = taken_from(config_class)
    for title, fields in grouped(config_class).items():
        if owner and not details and title in ("algorithm", "network"):
            continue
        if table.row_count:
            table.add_row()
        table.add_row(Text(title, style="bold"))
        for field in fields:
            if field.name in RARE and issubclass(config_class, RunConfig) and not details:
                continue
            default = settings.get(field.name, field.default)
            if default is dataclasses.MISSING:
                default = None  # it is computed; the docstring says how
            words = docs[field.name] if details else shortened(docs[field.name])
            table.add_row(*row(field.name, hints[field.name], default, words))
    width = min(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH
    console = Console(highlight=False, markup=False, width=width)
    with console.capture() as captured:
        console.print(*parts, sep="\n\n", end="\n\n")
        console.print(table, end="")
        if rare := [flag(name) for name in RARE if name in docs and not details]:
            console.print(f"Only in --details: {', '.join(rare)}.")
        if details:
            console.print(f"{FROM_FILE} FILE.toml: take the flags that are not given from a file.")
            console.print(f"{TO_FILE} FILE.toml: write all flags to one.")
        if not details and owner:
            other = typed(room_file(owner))
            console.print(f"The flags of {owner} are also accepted: {other} --help")
    try:
        print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)
    except BrokenPipeError:  # read by `head`, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def taken_from(config_class: type) -> str:
    """The script whose flags another script takes as well (`cli.parse_both`), or ''."""
    first, *others = config_class.__bases__
    return first.__module__.partition(".")[2].replace(".", "/") + ".py" if others else ""


def usage(config_class: type) -> str:
    """The line that says what is typed."""
    hints = hints_of(config_class)
    names = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    places = [name.upper() for name in names if is_positional(hints[name])]
    return " ".join([f"usage: {typed(Path(sys.argv[0]).resolve())}", *places, "[flags]"])


def grouped(config_class: type) -> dict[str, list[dataclasses.Field[Any]]]:
    """The fields by what they are for; those of a script that trains nothing in one group."""
    found: dict[str, list[dataclasses.Field[Any]]] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        title = "flags"
        if issubclass(config_class, RunConfig):
            bases = [base for base in config_class.__mro__ if field.name in own_hints(base)]
            title = "algorithm" if bases[-1].__name__ == "Config" else "run"
            title = next((name for name, of in GROUPS.items() if field.name in of), title)
        found.setdefault(title, []).append(field)
    return found


def row(name: str, hint: Any, default: Any, words: str) -> tuple[Text, Text]:
    """A flag with its kind of value, and what it means with its default."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    kind = get_args(hint)[0] if marks else hint
    if get_origin(kind) is UnionType:  # X | None
        kind = get_args(kind)[0]
    many = get_origin(kind) is tuple
    inner = get_args(kind)[0] if many else kind
    inner = get_args(inner)[0] if get_origin(inner) is Annotated else inner
    if get_origin(inner) is Literal:
        words = f"{words.rstrip('.')}: {', '.join(get_args(inner))}."
        inner = str
    value = {int: "INT", float: "FLOAT"}.get(inner, "TEXT") + (" ..." if many else "")
    left = f"  {flag(name)} {value}"
    if is_positional(hint):
        left = f"  {name.upper()}"
    elif kind is bool:
        left = f"  --[no-]{flag(name)[2:]}"
        default = "yes" if default else "no"
    shown = " ".join(map(str, default)) if many else "" if default is None else str(default)
    return Text(left), Text(words + (f" [{shown}]" if shown else ""))


def shortened(text: str) -> str:
    """A docstring that fits one line, or else its first sentence and what 0 means."""
    if len(text) <= LINE:
        return text
    sentence, _, rest = text.partition(". ")
    zero = re.search(r" \(0: [^)]*\)", rest)
    return sentence.rstrip(".") + (zero[0] if zero else "") + "."


def documented(config_class: type) -> dict[str, str]:
    """The docstrings of a Config's fields, of base classes too, by name."""
    found: dict[str, str] = {}
    for base in config_class.__mro__:
        if not own_hints(base):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, text in pairwise(node.body):  # type: ignore[attr-defined]
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                words = " ".join(ast.literal_eval(text.value).split())
                found.setdefault(field.target.id, words)  # type: ignore[union-attr]
    return found


def own_hints(base: type) -> Mapping[str, Any]:
    """What a class itself annotates."""
    return inspect.get_annotations(base)
