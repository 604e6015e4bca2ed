"""The first page of the report: the outcome in a sentence, a matrix, a figure, and links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from manyseeds import stats
from manyseeds.benchmarks.chapters import discrete_sac, speed
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Cell,
    Claim,
    Code,
    Heading,
    Inline,
    Items,
    Lines,
    Link,
    Outcome,
    Page,
    Strong,
    Table,
    Text,
    joined,
    walk,
)
from manyseeds.benchmarks.chapters.differences import counted
from manyseeds.benchmarks.chapters.environment_pages import all_algorithms, anchor, page_name
from manyseeds.benchmarks.chapters.evidence import outcome
from manyseeds.benchmarks.measurements import throughput
from manyseeds.benchmarks.store.comparison import (
    TABULAR,
    Pair,
    applies,
    at_budget,
    common_budget,
    equal_budget,
    is_due,
    is_stale,
)
from manyseeds.benchmarks.store.names import display, place_of, place_of_env, short
from manyseeds.benchmarks.store.results import Result
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.record import plural
from manyseeds.runs.stale import measurement_is_stale
from manyseeds.stats import Floats
from manyseeds.writing import write_bytes

T = TypeVar("T")
SIGNS = {"equivalent": "=", "better": "▲", "worse": "▼", "ceiling": "≡", "undecided": "?"}
MISSING, STALE, FEW = "missing", "†", "‡"
# What the signs of the matrix say.
KEY = Text(
    "Mean score (0: a random policy, 1: the reference on the environment's page) after the "
    "timesteps below it. Where an algorithm of the column trains for fewer, the score after as "
    "many follows; after a semicolon that at a larger budget of its own. Bold: not shown to score "
    "less than the best of all that train as long (single tests, 95%). The sign is the verdict on "
    f"learning speed against SB3 ({', '.join(f'{sign} {word}' for word, sign in SIGNS.items())}, "
    f"no sign: none). {STALE} stale, {FEW} fewer seeds than the rule asks for, - does not apply, "
    "empty: not run."
)
# How anybody can check the numbers.
AGAIN = (
    Heading("Train them again"),
    Text(
        Code("python benchmarks/verify.py"),
        " trains published seeds of ours again and compares them to the bit, on any CPU and with "
        "any C compiler. It draws ten cells, or takes what is named: ",
        Code("python benchmarks/verify.py ppo/CartPole-v1 --seeds 3"),
        ".",
    ),
)
# The figure's environment is the first of these that there are runs on: on none of them do all
# algorithms end at the same score.
FIGURES = ("Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "CartPole-v1")
# Where the outcome stands in README.md of the project.
BEGIN, END = "<!-- outcome, written by report.py --publish -->", "<!-- end of outcome -->"
SPEED = "<!-- speed, written by report.py --publish -->", "<!-- end of speed -->"  # and its speed


def page(found: Sequence[Pair], results: Path, note: str, pages: Sequence[Page]) -> list[Block]:
    """The page. note: a warning at its top. pages: the others, but for those of environments."""
    path = find_file(results, "throughput.json")
    return [
        *answers(found, note),
        *section_of(path, throughput.STORED, how_fast),
        *what_papers_claim(pages),
        *(AGAIN if found else ()),
        Heading("Pages"),
        page_list(found, pages),
    ]


def answers(found: Sequence[Pair], note: str) -> Iterator[Block]:
    """The outcome, the matrices and the figure."""
    if note:
        yield Text(Strong(note))
    if sentence := outcome(found):
        yield Outcome(sentence)
    deep = [pair for pair in found if pair.algo not in TABULAR]
    tabular = [pair for pair in found if pair.algo in TABULAR]
    for title, name, pairs in (
        ("Which algorithm for which environment", "matrix", deep),
        ("Tabular algorithms", "matrix-tabular", tabular),
    ):
        if pairs:
            yield Heading(title)
            yield matrix(pairs, name)
            if pairs is deep or not deep:
                yield KEY
            if pairs is deep:
                yield from discrete_sac.section(deep)
    shown = [pair for pair in deep if pair.env == shown_environment(deep)]
    if figure := all_algorithms(shown):
        yield figure


def how_fast(stored: speed.Stored) -> list[Block]:
    sentence = speed.summary(stored)
    stale = any(measurement_is_stale(block) for block in stored.values())
    older = " Some of it was measured with older code." if stale else ""
    return [Heading("How fast"), Text(sentence, older)] if sentence else []


def what_papers_claim(pages: Sequence[Page]) -> Iterator[Block]:
    """How many of the claims that pages test hold, with links to them; nothing without any."""
    words: list[str] = []
    links: list[Link] = []
    for page in pages:
        claims = [block for block in walk(page.blocks) if isinstance(block, Claim)]
        papers = [claim for claim in claims if claim.source and not claim.source.startswith(OURS)]
        if papers:
            words += [claim.verdict for claim in papers]
            links.append(Link(page.title, page=page.file))
    if not words:
        return
    yield Heading("What papers claim")
    yield Outcome(
        (
            f"Of {plural(len(words), 'claim')} of papers, {counted(words)}: ",
            joined(links),
            ".",
        )
    )


def page_list(found: Sequence[Pair], pages: Sequence[Page]) -> Items:
    """Links to all pages."""
    items: list[Inline] = [(Link(x.title, page=x.file), f": {x.about}") for x in pages]
    if envs := dict.fromkeys(pair.env for pair in found):
        links = joined(Link(env, page=page_name(env)) for env in envs)
        what = "Environments, with curves, scores and the origin of each run: "
        items.insert(0, (what, links))
    return Items(items)


# ---- README.md of the project ---------------------------------------------------------------


def excerpt(blocks: Sequence[Block]) -> list[Block]:
    """The outcome, the first matrix and its key, of the blocks of the page."""
    outcomes = [Text(block.text) for block in blocks if isinstance(block, Outcome)]
    matrices = [replace(block, name="") for block in blocks if isinstance(block, Table)]
    return [*outcomes, *matrices[:1], *(block for block in blocks if block is KEY)]


def update_readme(path: Path, text: str, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Put a text between marks, those of the outcome, in a README.md that has them."""
    if not path.is_file():
        return
    old = path.read_text()
    before, begin, rest = old.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if begin and end and (new := f"{before}{begin}\n{text}\n{end}{after}") != old:
        write_bytes(path, new.encode())


# ---- The matrix -----------------------------------------------------------------------------


def matrix(pairs: Sequence[Pair], name: str) -> Table:
    """Algorithms by environments: score, verdict and budget; the leaders in bold."""
    columns = (Link(env, page=page_name(env)) for env in environments_of(pairs))
    rows = [(Strong(display(algo)), *cells) for algo, cells in grid(pairs, cell).items()]
    return Table(name, ("", *columns), rows)


def environments_of(pairs: Sequence[Pair]) -> list[str]:
    """In their order."""
    return sorted({pair.env for pair in pairs}, key=place_of_env)


def grid(
    pairs: Sequence[Pair], write: Callable[[Pair | None, str, str, Standing], T]
) -> dict[str, list[T]]:
    """Of each algorithm what is written of it and each environment: from its pair there, both
    names, and how the algorithms stand there."""
    by_cell = {(pair.algo, pair.env): pair for pair in pairs}
    envs = environments_of(pairs)
    at = {env: standing([pair for pair in pairs if pair.env == env]) for env in envs}
    return {
        algo: [write(by_cell.get((algo, env)), algo, env, at[env]) for env in envs]
        for algo in sorted({pair.algo for pair in pairs}, key=place_of)
    }


def shown_environment(pairs: Sequence[Pair]) -> str:
    """The environment of the figure; empty without runs of ours."""
    there = dict.fromkeys(pair.env for pair in pairs if pair.ours)
    return next((env for env in (*FIGURES, *there) if env in there), "")


@dataclass(frozen=True)
class Standing:
    """The algorithms of an environment after the same number of timesteps.

    budget: the common one. equal: as many as all of them train for, `budget` or fewer. best: the
    best score after `equal`. leaders: that are not shown to score less then. longer: the same after
    `budget`, of those that train for as many.
    """

    budget: int
    equal: int
    best: str = ""
    leaders: frozenset[str] = frozenset()
    longer: frozenset[str] = frozenset()


def standing(pairs: Sequence[Pair]) -> Standing:
    """Of an environment. A run of which a seed has no score never leads."""
    budget = common_budget(pairs)
    equal = equal_budget([pair.ours for pair in pairs if pair.ours], budget)
    runs = {pair.algo: r for pair in pairs if (r := pair.ours) and not r.unscored}
    if not runs:
        return Standing(budget, equal)
    longer = {algo: r for algo, r in runs.items() if r.timesteps_requested >= budget}
    best, leaders = leaders_at(runs, equal)
    return Standing(budget, equal, score(runs[best], equal), leaders, leaders_at(longer, budget)[1])


def leaders_at(runs: Mapping[str, Result], budget: int) -> tuple[str, frozenset[str]]:
    """The best of some runs after a number of timesteps, and all that are not shown to score less;
    no difference is shown where its 95% interval contains 0."""
    scores = {algo: at_budget(result, budget) for algo, result in runs.items()}
    best = max(scores, key=lambda algo: float(scores[algo].mean()), default="")
    less = {algo for algo, x in scores.items() if algo != best and is_less(x, scores[best])}
    return best, frozenset(scores) - less


def is_less(a: Floats, b: Floats) -> bool:
    """Whether the mean of a is shown to be less than that of b."""
    return min(len(a), len(b)) > 1 and stats.parity(a, b, 0, 1).difference.high < 0


def score(result: Result, budget: int) -> str:
    """The mean normalised score after a number of timesteps, or the score itself where its scale
    is unknown."""
    spec, mean = result.spec, float(at_budget(result, budget).mean())
    if spec.random_score is None or spec.reference_score is None:
        return f"{result.number(mean)} (raw)"
    return f"{float(stats.normalise(mean, spec.random_score, spec.reference_score)):z.2f}"


def budget_text(result: Result, at: Standing, leads: bool = False) -> Inline:
    """`100k, 0.54 at 50k; 0.99 at 1M`: the budget that the score is at, the equal one where an
    algorithm of the environment has less, and an algorithm's own where it is larger. leads: whether
    the score at the equal budget is in bold."""
    own = result.timesteps_requested
    first = min(own, at.budget)
    texts: list[Inline] = [short(first)]
    if at.equal < first:
        equal = score(result, at.equal)
        texts += [", ", Strong(equal) if leads else equal, f" at {short(at.equal)}"]
    if own > at.budget:
        texts.append(f"; {score(result, own)} at {short(own)}")
    return tuple(texts)


def cell(pair: Pair | None, algo: str, env: str, at: Standing) -> Cell:
    """`**0.99** = ‡` and `100k, 0.54 at 50k; 1.00 at 1M` in two lines, linked to the row of the
    environment's page."""
    if pair is None:
        if not applies(algo, env):
            return "-"
        return MISSING if is_due(algo, env) else ""
    if pair.ours is None:
        return Link(MISSING, page=page_name(env), anchor=anchor(algo))
    linked: Inline = Link(score(pair.ours, at.budget), page=page_name(env), anchor=anchor(algo))
    leads = algo in at.leaders
    if algo in at.longer or (leads and pair.ours.timesteps_requested < at.budget):
        linked = Strong(linked)
    verdict = pair.verdict("auc")
    marks = [SIGNS[verdict.parity.word]] if verdict else []
    marks += [STALE] * any(map(is_stale, pair.headline))
    marks += [FEW] * any(len(r.seeds) < pair.requested_seeds(r) for r in pair.headline)
    return Lines(joined((linked, *marks), " "), budget_text(pair.ours, at, leads))
