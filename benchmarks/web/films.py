"""Films of trained policies for the pages of the environments: the median and the worst seed."""

from __future__ import annotations

from pathlib import Path

from manyseeds.benchmarks.chapters.environment_pages import RANKS, ranked_seeds
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store.results import Result
from manyseeds.benchmarks.store.stored import file_name
from manyseeds.benchmarks.store.trained import load_trained
from manyseeds.benchmarks.store.whole import Store, by_environment
from manyseeds.benchmarks.web.film import film
from manyseeds.errors import UsageError
from manyseeds.process import set_up_process
from manyseeds.writing import write_bytes

FOLDER = "films"  # of the site


def name_of(env: str, algo: str, rank: str) -> str:
    """The file of a film in its folder."""
    return f"{file_name(env)}/{file_name(algo)}-{rank}.gif"


def films_of(env: str, algo: str, films: Path) -> dict[str, str]:
    """The films of a run that there are in a folder of films, as a page links them."""
    names = {rank: name_of(env, algo, rank) for rank in RANKS}
    return {rank: f"{FOLDER}/{x}" for rank, x in names.items() if (films / x).is_file()}


def write_films(store: Store, films: Path) -> None:
    """Draw the runs that the pages show, where there are weights of the median or worst seed."""
    set_up_process(threads=1)
    for pairs in by_environment(store.found).values():
        for pair in pairs:
            for result in pair.headline:
                if result.algo in catalog.names("algos"):
                    write_films_of(result, films)


def write_films_of(result: Result, films: Path) -> None:
    """Draw one run; a line for each film, or one that says why there is none."""
    try:
        parts = load_trained(str(result.run.path), trusted_env="")
        for rank, seed in ranked_seeds(result).items():
            trained = next((part for part in parts if seed in part.seeds), None)
            if trained is None:
                print(f"no film: {result.run.path}: has no weights of seed {seed}")
                continue
            name = name_of(result.spec.id, result.algo, rank)
            path = films / name
            path.parent.mkdir(parents=True, exist_ok=True)
            made = film(trained, seed)
            write_bytes(path, made.gif)
            print(f"film: {name} ({made.size}, {made.episodes[0]})", flush=True)
    except UsageError as error:
        print(f"no film: {error}")
