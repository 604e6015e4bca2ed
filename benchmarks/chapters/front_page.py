"""The first page of the report: the outcome in a sentence, a matrix, a figure, and links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from manyseeds import stats
from manyseeds.benchmarks.chapters import speed
from manyseeds.benchmarks.chapters.environment_pages import anchor, figure_names, page_name
from manyseeds.benchmarks.chapters.evidence import WORDS
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.store.comparison import (
    MEASURES,
    TABULAR,
    Pair,
    applies,
    is_due,
    is_stale,
)
from manyseeds.benchmarks.store.names import FIRST_ENVIRONMENTS, display, place_of
from manyseeds.benchmarks.store.results import Rows, escape, link, picture
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.record import plural
from manyseeds.writing import write_bytes

SIGNS = {"equivalent": "=", "better": "▲", "worse": "▼", "saturated": "≡", "undecided": "?"}
MISSING, STALE, FEW = "missing", "†", "‡"
# The figure's environment is the first of these that there are runs on: on none of them do all
# algorithms end at the same score.
FIGURES = ("Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "CartPole-v1")
# Where the outcome stands in README.md of the project.
BEGIN, END = "<!-- outcome, written by report.py --publish -->", "<!-- end of outcome -->"


def page(
    found: Sequence[Pair], results: Path, note: str, links: Sequence[tuple[str, str, str]]
) -> str:
    """The page. note: a warning at its top. links: file, title and content of the other pages."""
    text = f"> **{escape(note)}**\n\n" if note else ""
    if sentence := outcome(found):
        text += f"**{sentence}**\n\n"
    deep = [pair for pair in found if pair.algo not in TABULAR]
    tabular = [pair for pair in found if pair.algo in TABULAR]
    for title, name, pairs in (
        ("Which algorithm for which environment", "matrix", deep),
        ("Tabular algorithms", "matrix-tabular", tabular),
    ):
        if pairs:
            text += f"## {title}\n\n{matrix(pairs, results, name)}\n"
            text += key(pairs) + "\n" if pairs is deep or not deep else ""
    if env := shown_environment(deep):
        figure = results / "plots" / figure_names(env)[0]
        text += picture(f"Learning curves of all algorithms on {env}", figure)
    if line := section_of(find_file(results, "throughput.json"), speed.STORED, speed.summary):
        text += f"## How fast\n\n{line}\n"
    text += "## Pages\n\n"
    if found:
        names = dict.fromkeys(pair.env for pair in found)
        environments = ", ".join(link(env, Path(page_name(env))) for env in names)
        text += f"- Environments, with curves, scores and the origin of each run: {environments}\n"
    return text + "".join(f"- [{title}]({file}): {about}\n" for file, title, about in links)


# ---- The outcome ----------------------------------------------------------------------------


def outcome(found: Sequence[Pair]) -> str:
    """The verdicts against SB3 counted, in a sentence per measure; empty without any."""
    shown = []
    for measure in MEASURES:
        words: list[str] = [v.parity.word for pair in found if (v := pair.verdict(measure))]
        shown.append(", ".join(f"{word} in {words.count(word)}" for word in WORDS))
    k = len([pair for pair in found if pair.verdict("final")])
    if not k:
        return ""
    return (
        f"In {plural(k, 'comparison')} with stable-baselines3 (SB3) at the same settings, the "
        f"final score is {shown[0]}. Learning speed is {shown[1]}."
    )


def excerpt(page: str) -> str:
    """The sentences of outcome, the first matrix and its key from a page, for README.md."""
    paragraphs = page.split("\n\n")
    sentence = next((x.strip("*") for x in paragraphs if x.startswith("**In ")), "")
    matrix = next((x for x in paragraphs if x.startswith("|")), "")
    signs = next((x.strip() for x in paragraphs if x.startswith("Mean final score")), "")
    parts = (sentence, matrix.replace("](environments/", "](results/environments/"), signs)
    return "\n\n".join(filter(None, parts))


def update_readme(path: Path, text: str) -> None:
    """Put a text between the marks of the outcome in a README.md that has them."""
    if not path.is_file():
        return
    old = path.read_text()
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end and (new := f"{before}{begin}\n{text}\n{end}{after}") != old:
        write_bytes(path, new.encode())


# ---- The matrix -----------------------------------------------------------------------------


def matrix(pairs: Sequence[Pair], results: Path, name: str) -> str:
    """Algorithms by environments: score, verdict and budget; the best score in bold."""
    by_cell = {(pair.algo, pair.env): pair for pair in pairs}
    algos = sorted({pair.algo for pair in pairs}, key=place_of)
    columns = sorted({pair.env for pair in pairs}, key=order)
    best = {env: best_score([pair for pair in pairs if pair.env == env]) for env in columns}
    rows: Rows = []
    for algo in algos:
        cells = [cell(by_cell.get((algo, env)), algo, env, best[env]) for env in columns]
        rows.append((f"**{escape(display(algo))}**", *cells))
    header = ("", *(link(env, Path(page_name(env))) for env in columns))
    return table(results, name, header, rows)


def order(env: str) -> tuple[int, str]:
    """A sorting key: in the order of FIRST_ENVIRONMENTS, others behind them by their name."""
    known = FIRST_ENVIRONMENTS
    return (known.index(env) if env in known else len(known), env)


def shown_environment(pairs: Sequence[Pair]) -> str:
    """The environment of the figure; empty without runs of ours."""
    there = dict.fromkeys(pair.env for pair in pairs if pair.ours)
    return next((env for env in (*FIGURES, *there) if env in there), "")


def score(pair: Pair) -> str:
    """The mean normalised final score, or the score itself where its scale is unknown."""
    assert pair.ours
    spec, mean = pair.ours.spec, float(pair.ours.final.mean())
    if spec.random_score is None or spec.reference_score is None:
        return f"{pair.ours.number(mean)} (raw)"
    return f"{float(stats.normalise(mean, spec.random_score, spec.reference_score)):.2f}"


def best_score(pairs: Sequence[Pair]) -> str:
    """The best of several scores, as text: equal texts are equally good. A run of which a seed has
    no score is never the best."""
    means = {float(r.final.mean()): pair for pair in pairs if (r := pair.ours) and not r.unscored}
    return score(means[max(means)]) if means else ""


def is_best(pair: Pair, best: str) -> bool:
    """Whether a pair has the best score of its environment."""
    assert pair.ours
    return score(pair) == best and not pair.ours.unscored


def cell(pair: Pair | None, algo: str, env: str, best: str) -> str:
    """`**0.99** = ‡<br>100k`, linked to the row of the environment's page."""
    where = Path(page_name(env))
    if pair is None or pair.ours is None:
        if pair is None and not applies(algo, env):
            return "-"
        if pair is not None:
            return link(MISSING, where, anchor(algo))
        return MISSING if is_due(algo, env) else ""
    text = score(pair)
    verdict = pair.verdict("final")
    marks = [SIGNS[verdict.parity.word]] if verdict else []
    marks += [STALE] * any(map(is_stale, pair.headline))
    marks += [FEW] * any(len(r.seeds) < pair.requested_seeds(r) for r in pair.headline)
    bold = "**" if is_best(pair, best) else ""
    linked = f"{bold}{link(text, where, anchor(algo))}{bold}"
    return f"{' '.join((linked, *marks))}<br>{short(pair.ours.timesteps_requested)}"


def short(number: int) -> str:
    """`100k`, `1M`, `1.5M`"""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def key(pairs: Sequence[Pair]) -> str:
    """What the signs of the matrix say, one line."""
    signs = ", ".join(f"{sign} {word}" for word, sign in SIGNS.items())
    return (
        "Mean final score (0 is a random policy, 1 the reference, the best in bold), the verdict "
        f"against SB3 ({signs}, no sign: no SB3 run), and timesteps per seed. {STALE} stale, {FEW} "
        "fewer seeds than the rule requires, - does not apply, empty: not run.\n"
    )
