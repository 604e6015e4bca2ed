"""What benchmarks/throughput.py times, algorithms and settings, and the tables of the results."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.chapters.results import command_text, escape, versions_text
from benchmarks.chapters.stored import ORIGIN

OURS = "manyseeds"
ROW = {
    "system": str,
    "seeds": int,
    "repeats": int,
    **dict.fromkeys(("timesteps_per_s", "ratio", "ratio_low", "ratio_high"), float),
    **dict.fromkeys(("warm_up_s", "fresh_s", "memory_mib"), float),
}
STORED = {str: {**ORIGIN, "machine": {"cpu": str, "gpu?": str}, "rows": [ROW]}}  # throughput.json


@dataclass(frozen=True)
class Subject:
    """An algorithm with the settings and batch sizes that are timed."""

    title: str
    settings: dict[str, Any]
    env: str = "CartPole-v1"
    seeds: tuple[int, ...] = (1, 10, 32)
    seeds_on_cuda: tuple[int, ...] = (10, 1024, 8192)
    peers: tuple[str, ...] = ("sb3",)  # "rejax" too where its settings can be made the same


TABLES: dict[str, Any] = {"seeds": (1, 10, 100, 1000), "seeds_on_cuda": (), "peers": ()}
SUBJECTS = {
    "ppo": Subject("PPO", {"total_timesteps": 102_400}, peers=("sb3", "rejax")),
    "a2c": Subject("A2C", {"total_timesteps": 40_000}),
    "trpo": Subject(
        "TRPO",
        {"num_steps": 512, "minibatch_size": 512, "critic_epochs": 20}
        | {"cg_damping": 1e-3, "gae_lambda": 0.98, "total_timesteps": 20_480},
    ),
    "dqn": Subject(
        "DQN",
        {"total_timesteps": 20_000, "learning_starts": 1_000}
        | {"loss": "huber", "max_grad_norm": 10.0},
        peers=("sb3", "rejax"),
    ),
    "q_learning": Subject("Q-learning", {"total_timesteps": 20_000}, "FrozenLake-v1", **TABLES),
    "sarsa": Subject("SARSA", {"total_timesteps": 20_000}, "FrozenLake-v1", **TABLES),
}


def summarize(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of one algorithm: medians over repeats, and the median of the ratios within each repeat.

    The ratios are to the repeat's first measurement: SB3, or where it has no such algorithm the
    smallest batch of ours.
    """
    reference: dict[int, float] = {}
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for m in measurements:
        reference.setdefault(m["repeat"], m["timesteps_per_s"])
        groups.setdefault((m["system"], m["seeds"]), []).append(m)
    rows = []
    for (system, seeds), group in groups.items():
        ratios = [m["timesteps_per_s"] / reference[m["repeat"]] for m in group]
        rows.append(
            {
                "system": system,
                "seeds": seeds,
                "repeats": len(group),
                "timesteps_per_s": median(m["timesteps_per_s"] for m in group),
                "ratio": median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "warm_up_s": median(m["warm_up_s"] for m in group),
                "fresh_s": median(m["fresh_s"] for m in group),
                "memory_mib": median(m["memory"] for m in group) / 2**20,
            }
        )
    return rows


def markdown(stored: dict[str, dict[str, Any]], device: str) -> str:
    """The tables, one for each algorithm of throughput.json."""
    place = "one thread on one core" if device == "cpu" else "on one GPU, SB3 on one core"
    lines = [
        "Timesteps per second of all seeds together, training and logging, evaluation off; "
        f"{place}. Medians of n interleaved repeats; the ratio is computed within each repeat, "
        "with its range over repeats in brackets. SB3 trains one seed at a time: S seeds run at "
        "the same timesteps/s and take S times the wall time of one. Warm-up: seconds of "
        "compilation or capture before that speed is reached. Fresh process: seconds from the "
        "start of the process to the end of one training, imports and warm-up included. Memory: "
        "peak memory of the process, on a GPU that of the device.",
    ]
    for algo in (algo for algo in SUBJECTS if algo in stored):
        block, subject = stored[algo], SUBJECTS[algo]
        machine = block["machine"]
        reference = "times SB3" if "sb3" in subject.peers else "times one seed"
        columns = ["system", "seeds", "timesteps/s", reference, "warm-up, s", "fresh process, s"]
        columns += ["memory, MiB", "n"]
        lines += [
            "",
            f"### {subject.title} on {subject.env}",
            "",
            f"| {' | '.join(columns)} |",
            "|---|---:|---:|---|---:|---:|---:|---:|",
        ]
        for r in block["rows"]:
            ratio = f"{r['ratio']:.1f} [{r['ratio_low']:.1f}, {r['ratio_high']:.1f}]"
            warm_up = f"{r['warm_up_s']:.0f}"
            if r["system"] in ("sb3", OURS) and device == "cpu":
                warm_up = "none"
            lines.append(
                f"| {escape(r['system'])} | {r['seeds']:,} | {r['timesteps_per_s']:,.0f} "
                f"| {ratio} | {warm_up} | {r['fresh_s']:.1f} | {r['memory_mib']:,.0f} "
                f"| {r['repeats']} |"
            )
        note = f"{subject.settings['total_timesteps']:,} timesteps per seed"
        if algo == "dqn" and any(r["system"] == "rejax" for r in block["rows"]):
            note += "; rejax's DQN has ten environments, so it also updates every 10 timesteps"
        on = escape(machine.get("gpu", machine["cpu"]))
        lines += ["", f"{note}; {on}. {command_text(block, versions_text(block))}"]
    return "\n".join(lines) + "\n"
