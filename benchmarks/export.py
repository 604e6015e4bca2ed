"""Exports a trained run in the format of a model hub: policy, settings, curve and a card.

    python benchmarks/export.py CartPole-v1/ppo/169f4dbf --hub build/ppo
    python benchmarks/export.py CartPole-v1/ppo/169f4dbf --hub build/ppo --upload OWNER/NAME

`load("hub:build/ppo")` of algos/ppo.py gives the policies back, and after an upload
`load("hub:OWNER/NAME")` on any machine. All weights are safetensors; nothing is unpickled.

The folder has policy.safetensors (all seeds of the run that have weights here; of a published run
those of the median and the worst seed), run.json (the record of every part: settings, command,
commit, machine, versions), curve.parquet, and README.md, the card: score with its interval over
seeds and the verdict against stable-baselines3, where its run of the same settings is in the store.
Of a language run it is the seed in the middle, as a model of `transformers`, which
`llm_track/*.py --model FOLDER` takes, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tyro.conf import Positional

from benchmarks.chapters.comparison import SB3
from benchmarks.chapters.names import display
from benchmarks.chapters.results import (
    code,
    commit_of,
    decision,
    decision_text,
    escape,
    load_result,
    origins_text,
)
from benchmarks.chapters.stored import StoredRun, find_and_open, reading
from benchmarks.policies import median_and_worst, policies_file
from manyseeds import stats
from manyseeds.checkpoint import read_about, to_bytes
from manyseeds.cli import exit_with, parse, path_of
from manyseeds.errors import UsageError, printable
from manyseeds.record import POLICY, parquet_bytes, plural, ranges, write_bytes, write_json

TASKS = {"control": "reinforcement-learning", "language": "text-generation"}


@dataclass(frozen=True)
class Flags:
    """Flags of an export."""

    run: Positional[str] = ""
    """The run, or a part of it: a folder, or ENV/ALGORITHM/NAME."""
    hub: str = ""
    """Folder that is written; it must not exist, or be empty."""
    upload: str = ""
    """Repository OWNER/NAME on the Hugging Face hub that the folder is then uploaded to."""


# ---- The files ------------------------------------------------------------------------------


def write_control(run: StoredRun, folder: Path) -> list[int]:
    """Write the policies of a control run; their seeds. Raises UsageError where none are here."""
    tensors: list[dict[str, torch.Tensor]] = []
    seeds: list[int] = []
    parts = zip(run.parts, run.configs, strict=True)
    found = [(part / POLICY, config["seeds"]) for part, config in parts]
    found = [(file, its) for file, its in found if file.exists()]
    if not found and (kept := policies_file(run.path)).exists():
        found = [(kept, read_about(kept)["seeds"])]
    for file, its in found:
        with reading(file):
            loaded = safetensors.torch.load_file(file)
        new = [i for i, seed in enumerate(its) if seed not in seeds]  # of parts that overlap
        tensors.append({name: x[new] for name, x in loaded.items()})
        seeds += [its[i] for i in new]
    if not tensors:
        raise UsageError(f"{run.path}: has no weights here; train it here first")
    whole = {name: torch.cat([x[name] for x in tensors]) for name in tensors[0]}
    about = {"algo": run.algo, "config": run.config, "seeds": seeds}
    write_bytes(folder / POLICY, to_bytes(whole, about))
    return seeds


def write_language(run: StoredRun, folder: Path) -> list[int]:
    """Copy the model of the seed in the middle of those that have one; its number."""
    final = {}
    for part, summary in zip(run.parts, run.summaries, strict=True):
        if (part / "model").is_dir():
            final[summary["seeds"][0]] = summary["final"][summary["headline"]]
    if not final:
        raise UsageError(f"{run.path}: has no weights here; train it here first")
    seed = median_and_worst(final)[0]
    (part,) = [p for p, x in zip(run.parts, run.summaries, strict=True) if x["seeds"] == [seed]]
    if any(path.suffix in (".bin", ".pt", ".pkl") for path in (part / "model").rglob("*")):
        raise UsageError(f"{part}: has weights that are no safetensors")
    shutil.copytree(part / "model", folder, dirs_exist_ok=True)
    return [seed]


# ---- The card -------------------------------------------------------------------------------


def verdict_of(run: StoredRun) -> str:
    """The verdict of a control run against stable-baselines3's with the same settings."""
    path = run.path.parent.parent / f"{SB3}{run.algo}" / run.path.name
    for text in (str(path), "/".join(path.parts[-3:])):
        try:
            theirs, ours = load_result(find_and_open(text)), load_result(run)
        except UsageError:
            continue
        if theirs.config == ours.config:
            verdict = decision_text(decision(ours, theirs, "final"), ours.spec)
            return f"{verdict} (difference of normalised mean scores, ours minus SB3's)"
    return "none: the store has no run of stable-baselines3 with these settings"


def card(run: StoredRun, seeds: Sequence[int]) -> str:
    """README.md: metadata as the hub reads it, then what a person wants to know.

    seeds: those whose weights are there.
    """
    from huggingface_hub import EvalResult, ModelCardData

    name = f"{display(run.algo)} on {printable(run.env)}"
    if run.kind == "control":
        result = load_result(run)
        measure, score = "mean_reward", stats.estimate(result.final)
        shown, digits, verdict = "greedy return at the end, IQM", result.digits, verdict_of(run)
        load = f'from algos.{run.algo} import load\n\npolicy = load("hub:FOLDER")  # or OWNER/NAME'
    else:
        measure = run.summaries[0]["headline"]
        score = stats.estimate([x["final"][measure] for x in run.summaries], "mean")
        shown, digits, verdict = f"{measure} at the end, mean", 3, ""
        load = "from transformers import AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM"
        load += '.from_pretrained("FOLDER")  # or OWNER/NAME'
    data = ModelCardData(
        model_name=name,
        library_name="manyseeds" if run.kind == "control" else "transformers",
        pipeline_tag=TASKS[run.kind],
        tags=["manyseeds", run.algo, printable(run.env)],
        eval_results=[
            EvalResult(
                task_type=TASKS[run.kind],
                dataset_type=printable(run.env),
                dataset_name=printable(run.env),
                metric_type=measure,
                metric_name=f"{shown} over {plural(score.n, 'seed')} [95% interval]",
                metric_value=score.text(digits),
            )
        ],
    )
    first = run.configs[0]
    lines = [
        f"---\n{data.to_yaml()}\n---\n",
        f"# {escape(name)}\n",
        f"Trained by manyseeds. Weights of seeds {ranges(seeds)} of {ranges(run.seeds)}.\n",
        f"- Score: {score.text(digits)} ({shown} over {plural(score.n, 'seed')}, 95% interval)",
        *([f"- Against stable-baselines3: {escape(verdict)}"] if verdict else []),
        f"- Command: {code(first['command'])}",
        f"- Code: {escape(commit_of(first))}\n",
        f"```python\n{load}\n```\n",
        f"## Provenance\n\n{origins_text(run.configs)}",
    ]
    return "\n".join(lines)


# ---- The command ----------------------------------------------------------------------------


def export(run: StoredRun, folder: Path) -> None:
    """Write the folder of a run, whole or not at all. Raises UsageError."""
    if run.kind not in TASKS:
        raise UsageError(f"{run.path}: is a {run.kind} run; only policies are exported")
    if run.algo.startswith(SB3):
        raise UsageError(f"{run.path}: is a baseline's; its weights are not stored")
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"--hub {folder}: exists; name a folder that is new or empty")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    beside = folder.absolute().with_name(f".{folder.name}.{os.getpid()}")
    beside.mkdir()
    try:
        write = write_control if run.kind == "control" else write_language
        seeds = write(run, beside)
        write_json(beside / "run.json", run.configs)
        names = ("seed", "timestep" if run.kind == "control" else "samples")
        write_bytes(beside / "curve.parquet", parquet_bytes(run.table("curve.parquet", names)))
        write_bytes(beside / "README.md", card(run, seeds).encode(errors="replace"))
        os.rename(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def upload(folder: Path, repository: str) -> str:
    """Upload a folder to the hub; where it is then. Raises UsageError."""
    import huggingface_hub

    try:
        api: Any = huggingface_hub.HfApi()
        api.create_repo(repository, exist_ok=True)
        return str(api.upload_folder(folder_path=folder, repo_id=repository))
    except Exception as error:  # of the name, the token, the network, the hub
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(f"--upload {repository}: {reason}; {folder} is written") from None


def main(args: Sequence[str] | None = None) -> None:
    """Export a run and, with --upload, upload it."""
    flags = parse(Flags, {}, __doc__, args)
    try:
        if not flags.run:
            raise UsageError("RUN: name the folder of a run")
        if not flags.hub:
            raise UsageError("--hub: name the folder to write")
        if flags.upload and flags.upload.count("/") != 1:
            raise UsageError(f"--upload {flags.upload}: must be OWNER/NAME")
        folder = path_of(flags.hub, "--hub")
        export(find_and_open(flags.run), folder)
        print(f"written: {folder}")
        if flags.upload:
            print(f"uploaded: {upload(folder, flags.upload)}")
    except UsageError as error:
        exit_with(error)
    except OSError as error:
        exit_with(UsageError(f"--hub {flags.hub}: {error.strerror or error}"))


if __name__ == "__main__":
    main()
