"""Exports a trained run in the format of a model hub: policy, settings, curve and a card.

    python benchmarks/export.py CartPole-v1/ppo/169f4dbf --hub build/ppo
    python benchmarks/export.py CartPole-v1/ppo/169f4dbf --hub build/ppo --upload OWNER/NAME

`load("hub:build/ppo")` of algos/ppo.py gives the policies back, and after an upload
`load("hub:OWNER/NAME")` on any machine. All weights are safetensors; nothing is unpickled.

The folder has policy.safetensors (all seeds of the run that have weights here; of a published run
those of the median and the worst seed), run.json (the record of every part: settings, command,
commit, machine, versions), curve.parquet, and README.md, the card: score with its interval over
seeds and the verdict against stable-baselines3, where its run of the same settings is in the store.
Of a language run it is the median seed's model, as `transformers` reads it, which `--model FOLDER`
(`--reward-model FOLDER`) of llm_track takes, too, and the verdict is against TRL. Nothing but these
files leaves this machine, and no link is followed.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tyro.conf import Positional

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters.blocks import Block, Heading, Items, Text
from manyseeds.benchmarks.chapters.markdown import Writer, escape
from manyseeds.benchmarks.chapters.origins import origins
from manyseeds.benchmarks.store.comparison import SB3
from manyseeds.benchmarks.store.methods import Method, verdict_against
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.policies import median_and_worst, policies_file
from manyseeds.benchmarks.store.results import (
    Result,
    decision,
    decision_text,
    load_result,
)
from manyseeds.benchmarks.store.stored import StoredRun, find_and_open
from manyseeds.checkpoint import read_about, to_bytes
from manyseeds.cli import parse, path_of
from manyseeds.digest import is_path
from manyseeds.errors import UsageError, printable
from manyseeds.record import POLICY, plural, ranges, read_json
from manyseeds.runs.set_aside import code_of
from manyseeds.untrusted import (
    MAX_WEIGHTS,
    SHARED,
    copy_file,
    files_in,
    open_checked,
    read_header,
    read_tensors,
    reading,
)
from manyseeds.worth import unscored_text, worths_of
from manyseeds.writing import parquet_bytes, replace_folder, write_bytes, write_json

NAMED = 5  # files that a line names
BASELINES = {"control": (SB3, "stable-baselines3"), "language": ("trl-", "TRL")}
CLASSES = {  # of `transformers`, by how a model's architecture ends; with the hub's task
    "ForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
}


@dataclass(frozen=True)
class Flags:
    """Flags of an export."""

    run: Positional[str] = ""
    """The run, or a part of it: a folder, or ENV/ALGORITHM/NAME."""
    hub: str = ""
    """Folder to write; it must be empty or not exist yet."""
    upload: str = ""
    """Repository OWNER/NAME on the Hugging Face hub that the folder is then uploaded to."""


# ---- The files ------------------------------------------------------------------------------


def shared_files(folder: Path) -> list[str]:
    """The names of the files in a folder that are shared; says in one line what is left out."""
    names, others = [], []
    for name in sorted(files_in(folder)):
        if SHARED.fullmatch(name):
            names.append(name)
        else:
            others.append(printable(name))
    if others:
        more = f" and {len(others) - NAMED} more" * (len(others) > NAMED)
        print(f"left out: {folder}: {', '.join(others[:NAMED])}{more}")
    return names


def copy_shared(source: Path, target: Path) -> None:
    """Copy the shared files of a folder. Raises UsageError where one is a link or no file."""
    if source.is_symlink():
        raise UsageError(f"{source}: is a link")
    for name in shared_files(source):
        copy_file(source / name, target / name)


def write_control(run: StoredRun, folder: Path) -> list[int]:
    """Write the policies of a control run; their seeds. Raises UsageError where none are here."""
    tensors: list[dict[str, torch.Tensor]] = []
    seeds: list[int] = []
    parts = zip(run.parts, run.configs, strict=True)
    found = [(part / POLICY, config["seeds"]) for part, config in parts]
    found = [(file, its) for file, its in found if os.path.lexists(file)]
    if not found and os.path.lexists(kept := policies_file(run.path)):
        found = [(kept, read_about(kept)["seeds"])]
    for file, its in found:
        new = [i for i, seed in enumerate(its) if seed not in seeds]  # of parts that overlap
        with reading(file):
            tensors.append({name: x[new] for name, x in read_tensors(file)[0].items()})
        seeds += [its[i] for i in new]
    if not tensors:
        raise UsageError(f"{run.path}: has no weights here; train it here first")
    with reading(run.path):  # of two parts, perhaps
        whole = {name: torch.cat([x[name] for x in tensors]) for name in tensors[0]}
    about = {"algo": run.algo, "config": run.config, "seeds": seeds}
    write_bytes(folder / POLICY, to_bytes(whole, about))
    return seeds


def write_language(run: StoredRun, folder: Path) -> list[int]:
    """Copy the model of the median seed of those that have one; its number.

    Raises UsageError where no models are here.
    """
    models, final = {}, {}
    for part, summary in zip(run.parts, run.summaries, strict=True):
        if (part / "model").is_dir():
            ((seed, worth),) = worths_of(summary).items()
            models[seed], final[seed] = part / "model", worth.score
    if not final:
        raise UsageError(f"{run.path}: has no weights here; train it here first")
    seed = median_and_worst(final)[0]
    copy_shared(models[seed], folder)
    files = [*folder.glob("model*.safetensors")]
    if not files:
        raise UsageError(f"{models[seed]}: has no weights that are safetensors")
    for file in files:
        read_header(file)
    return [seed]


def class_of(model: Path) -> tuple[str, str]:
    """The class of `transformers` that reads a model's folder, and its task on the hub."""
    with reading(model):
        (architecture,) = read_json(model / "config.json")["architectures"]
        for suffix, found in CLASSES.items():
            if architecture.endswith(suffix):
                return found
        raise ValueError(f"has a model of the class {architecture}")


def records(run: StoredRun) -> list[dict[str, Any]]:
    """The record of every part, for run.json; of files outside the checkout the name alone."""
    found = []
    for config in run.configs:
        origins = [Path(x).name if is_path(x) else x for x in code_of(config)["origins"]]
        found.append({**config, "code": {**code_of(config), "origins": origins}})
    return found


# ---- The card -------------------------------------------------------------------------------


def verdict_of(run: StoredRun) -> str:
    """The verdict against the baseline's run with the same settings, where one is stored."""
    prefix, library = BASELINES[run.kind]
    path = run.path.parent.parent / f"{prefix}{run.algo}" / run.path.name
    for text in (str(path), "/".join(path.parts[-3:])):
        try:
            theirs = find_and_open(text)
            if run.kind == "control":
                verdict = verdict_on_return(load_result(run), load_result(theirs))
            else:
                verdict, _ = verdict_against(Method(run), Method(theirs))
        except UsageError:
            continue
        if verdict:
            measure = "normalised mean AUC" if run.kind == "control" else "means"
            return f"{verdict} (difference of {measure}, ours minus {library}'s)"
    return f"none: the store has no run of {library} with these settings"


def verdict_on_return(ours: Result, theirs: Result) -> str:
    """The verdict on learning speed, empty where the settings differ."""
    if theirs.config != ours.config:
        return ""
    return decision_text(decision(ours, theirs, "auc"), ours.spec)


def conventions(run: StoredRun) -> list[str]:
    """What `load()`'s policy sees and does otherwise than the environment; of ours, what it sees:
    no other one is made."""
    texts = []
    if run.config.get("rescale_actions"):
        texts.append("Its actions are from -1 to 1, which `predict` scales to the bounds.")
    known = envs.NATIVE.get(run.env)
    if "hidden" in run.config and known and (states := known().spec.num_states):
        size = "" if run.config.get("env_kwargs") else f" of length {states}"
        texts.append(f"It sees a state index as a one-hot vector{size}.")
    return texts


def card(run: StoredRun, seeds: Sequence[int], folder: Path) -> str:
    """README.md: metadata as the hub reads it, then what a person wants to know.

    seeds: those whose weights are in the folder.
    """
    from huggingface_hub import EvalResult, ModelCardData

    env = printable(" ".join((run.env, *run.config.get("env_kwargs", ()))))
    algo, name = printable(run.algo), f"{display(run.algo)} on {env}"
    if run.kind == "control":
        result = load_result(run)
        result = result.only(result.seeds[: result.first_seeds] or result.seeds)  # as verdicts
        measure, score = "mean_reward", result.estimate("final", "mean")
        failed = result.unscored
        shown, digits = "greedy return at the end, mean", result.digits
        library, task = "manyseeds", "reinforcement-learning"
        load = f"from manyseeds.algos.{algo} import load\n\n"
        load += 'policy = load("hub:FOLDER")  # or OWNER/NAME\n'
        load += f"action = policy.predict(obs, seed={seeds[0]})  # obs of Gymnasium's environment"
    else:
        method = Method(run)
        failed, measure = unscored_text(method.worths), method.headline
        score = stats.estimate(method.values(measure), "mean", imputed=bool(failed))
        shown, digits = f"{measure} at the end, mean", 3
        library, (loader, task) = "transformers", class_of(folder)
        load = f"from transformers import {loader}\n\n"
        load += f'model = {loader}.from_pretrained("FOLDER")  # or OWNER/NAME'
    shown += f" over {plural(score.n, 'seed')}"
    has_interval = not score.equal and score.n > 1
    interval = "; ".join(filter(None, ("95% interval" * has_interval, score.caveat)))
    data = ModelCardData(
        model_name=name,
        library_name=library,
        pipeline_tag=task,
        tags=["manyseeds", algo, printable(run.env)],
        eval_results=[
            EvalResult(
                task_type=task,
                dataset_type=printable(run.env),
                dataset_name=env,
                metric_type=measure,
                metric_name=shown + (f" [{interval}]" if interval else ""),
                metric_value=score.short_text(digits),
            )
        ],
    )
    rows = f"seed {seeds[0]}"
    if len(seeds) > 1:
        rows = f"seeds {', '.join(map(str, seeds))} (in this order)"
    about = [
        f"Score: {score.short_text(digits)} ({', '.join(filter(None, (shown, interval)))})",
        *([f"Seeds without a score, which count as failures: {failed}"] if failed else []),
        f"Against {BASELINES[run.kind][1]}: {verdict_of(run)}",
    ]
    trained = Text(f"Trained by manyseeds with seeds {ranges(run.seeds)}. Weights of {rows}.")
    known: list[Block] = [*map(Text, conventions(run)), Heading("Provenance"), origins(run.configs)]
    write = Writer(folder, folder).blocks
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {escape(name)}",
        write([trained, Items(about)]),
        f"```python\n{load}\n```",
        write(known),
    ]
    return "\n\n".join(parts) + "\n"


# ---- The command ----------------------------------------------------------------------------


def is_export_of(run: StoredRun, folder: Path) -> bool:
    """Whether a folder is the export of a run as it is now."""
    try:
        return bool(read_json(folder / "run.json") == records(run))
    except (OSError, UsageError):
        return False


def export(run: StoredRun, folder: Path, again: bool = False) -> None:
    """Write the folder of a run, whole or not at all. Raises UsageError.

    again: leave the run's folder as it is where it is there already.
    """
    if run.kind not in BASELINES:
        raise UsageError(f"{run.path}: is a {run.kind} run; only policies are exported")
    if run.algo.startswith(BASELINES[run.kind][0]):
        raise UsageError(f"{run.path}: is a baseline's; only manyseeds' own are exported")
    if again and is_export_of(run, folder):
        return
    check_new(folder)

    def fill(fresh: Path) -> None:
        write = write_control if run.kind == "control" else write_language
        seeds = write(run, fresh)
        write_json(fresh / "run.json", records(run))
        names = ("seed", "timestep" if run.kind == "control" else "samples")
        write_bytes(fresh / "curve.parquet", parquet_bytes(run.table("curve.parquet", names)))
        write_bytes(fresh / "README.md", card(run, seeds, fresh).encode(errors="replace"))
        check_new(folder)  # still

    replace_folder(folder.resolve(), fill)  # a link to an empty folder stays one


def check_new(folder: Path) -> None:
    """Raise UsageError for a folder to write that exists, unless it is empty."""
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"--hub {folder}: exists; name a folder that is new or empty")


def upload(folder: Path, repository: str) -> str:
    """Upload the shared files of a folder to the hub; where it is then. Raises UsageError."""
    import huggingface_hub

    names = shared_files(folder)
    for name in names:
        open_checked(folder / name, MAX_WEIGHTS).close()
    try:
        api: Any = huggingface_hub.HfApi()
        api.create_repo(repository, exist_ok=True)
        found = api.upload_folder(folder_path=folder, repo_id=repository, allow_patterns=names)
        return str(found)
    except Exception as error:  # of the name, the token, the network, the hub
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(f"--upload {repository}: {reason}; {folder} is written") from None


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Export a run and, with --upload, upload it."""
    flags = parse(Flags, {}, __doc__, args)
    try:
        if not flags.run:
            raise UsageError("RUN: name the folder of a run")
        if not flags.hub:
            raise UsageError("--hub: name the folder to write")
        if flags.upload and not re.fullmatch(r"[\w.-]+/[\w.-]+", flags.upload):
            raise UsageError(f"--upload {flags.upload}: must be OWNER/NAME")
        folder = path_of(flags.hub, "--hub")
        export(find_and_open(flags.run), folder, again=bool(flags.upload))
        print(f"written: {folder}")
        if flags.upload:
            print(f"uploaded: {upload(folder, flags.upload)}")
    except OSError as error:
        raise UsageError(f"--hub {flags.hub}: {error.strerror or error}") from None


if __name__ == "__main__":
    main()
