"""What language models wrote to the same prompts through training, right and wrong."""

from __future__ import annotations

from typing import Any

from manyseeds.benchmarks.store.methods import Method
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.stored import left_out
from manyseeds.benchmarks.store.whole import Store
from manyseeds.errors import printable
from manyseeds.record import exists


def of(store: Store) -> list[dict[str, Any]]:
    """The transcripts of every method and seed, in the order of the report's tables; those of
    reward models are rankings, and left out."""
    found = []
    for method in store.methods:
        seeds = [seed_json(method, i) for i in range(len(method.parts))]
        if method.headline == "pass@1" and any(seed["steps"] for seed in seeds):
            found.append({"task": printable(method.task), "name": name_of(method), "seeds": seeds})
    return found


def name_of(method: Method) -> str:
    """`GRPO`, or with the settings that are not the script's own: `GRPO, epochs 4 (not 1)`."""
    return printable(", ".join(filter(None, (display(method.algo), method.changed))))


def seed_json(method: Method, index: int) -> dict[str, Any]:
    """The prompts of a seed, and at each step what was written to them; without steps where there
    is no file or a broken one."""
    steps: dict[int, dict[str, dict[str, Any]]] = {}
    path = method.parts[index] / "transcripts.json"
    if method.headline == "pass@1" and exists(path):
        with left_out(path):
            for x in method.transcripts(index):
                said = {"text": x["completion"], "right": x["right"]}
                steps.setdefault(x["samples"], {})[x["prompt"]] = said
    prompts = list(dict.fromkeys(prompt for step in steps.values() for prompt in step))
    return {
        "seed": method.configs[index]["seeds"][0],
        "prompts": prompts,
        "steps": [
            {"samples": samples, "said": [step.get(prompt) for prompt in prompts]}
            for samples, step in sorted(steps.items())
        ],
    }
