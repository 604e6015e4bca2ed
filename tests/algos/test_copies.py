"""What the methods' files have in common is the same word for word; their diff is the lesson.

An algorithm file imports no other one. A function or class that two siblings need is copied, and
held together here: mend all copies at once, or give what differs another name.
"""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path

import pytest

from manyseeds.benchmarks.chapters import taxonomy
from manyseeds.benchmarks.experiments import catalog
from manyseeds.digest import ROOT

FILES = {name: ROOT / "algos" / f"{name}.py" for name in catalog.names("algos")}
# Of llm_track, no methods.
SHARED = {"__init__", "tasks", "models", "policies", "sampling"}
SHARED |= {"rollout", "evaluation"}
FILES |= {
    f"llm_{p.stem}": p for p in sorted((ROOT / "llm_track").glob("*.py")) if p.stem not in SHARED
}
# Siblings: names mean the same within a family only, which presets/NAME.toml says.
FACTS = {name: catalog.facts(name) for name in catalog.names("algos")}
FAMILIES = {"language": {name for name in FILES if name.startswith("llm_")}}
for name, about in FACTS.items():
    FAMILIES.setdefault(about.family, set()).add(name)
WAYS_OUT = "copy it, rename one of them, or say in presets/NAME.toml that versions differ"
# What makes an algorithm the one it is: every file has its own.
OWN = {"Config", "train", "solve", "update", "backpropagate", "metrics_of", "token_weights"}
OWN |= {"policy_loss", "value_loss", "loss"}
# Versions besides the one that all other files have, each with its files and its reason.
VERSIONS: dict[str, dict[str, set[str]]] = {
    "surrogate": {"clipped weights": {"llm_cispo"}},
    "ratio_of": {"a completion's": {"llm_rloo"}, "a completion's mean": {"llm_gspo"}},
    "group_advantages": {
        "several scales": {"llm_grpo"},
        "no division": {"llm_dr_grpo"},
        "leave-one-out": {"llm_rloo"},
    },
}
# What a file has from one of another family.
BORROWED = {("sac_discrete", "Transitions"): "dqn", ("sac_discrete", "Replay"): "dqn"}
for file, about in FACTS.items():
    for name, reason in about.versions.items():
        VERSIONS.setdefault(name, {}).setdefault(reason, set()).add(file)


def definitions(file: Path) -> dict[str, str]:
    """The source of every function and class of a file, decorators included."""
    text = file.read_text()
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


SOURCES = {name: definitions(file) for name, file in FILES.items()}
COPIED = {
    (family, name): files
    for family, members in FAMILIES.items()
    for name in sorted({name for file in members & set(FILES) for name in SOURCES[file]} - OWN)
    if len(files := [file for file in sorted(members & set(FILES)) if name in SOURCES[file]]) > 1
}


def versions(name: str, files: list[str]) -> list[list[str]]:
    """The files of each version of a name, the common one first."""
    special = list(VERSIONS.get(name, {}).values())
    common = set(files).difference(*special)
    return [sorted(group & set(files)) for group in (common, *special) if group & set(files)]


@pytest.mark.parametrize(("family", "name"), COPIED)
def test_copies_are_the_same_word_for_word(family: str, name: str) -> None:
    for files in versions(name, COPIED[family, name]):
        for other in files[1:]:
            message = f"{name} of {files[0]}.py and {other}.py; {WAYS_OUT}"
            assert SOURCES[files[0]][name] == SOURCES[other][name], message


@pytest.mark.parametrize(("file", "name"), BORROWED)
def test_copies_from_another_family_are_the_same_word_for_word(file: str, name: str) -> None:
    other = BORROWED[file, name]
    message = f"{name} of {other}.py and {file}.py"
    assert SOURCES[file][name] == SOURCES[other][name], message


@pytest.mark.parametrize("name", VERSIONS)
def test_versions_do_differ(name: str) -> None:
    """A version that is none any more must go."""
    for family in FAMILIES:
        files = [file for file in sorted(FAMILIES[family]) if name in SOURCES[file]]
        for one, other in combinations(versions(name, files), 2):
            words = f"{one[0]}.py and {other[0]}.py"
            assert SOURCES[one[0]][name] != SOURCES[other[0]][name], words


def test_every_algorithm_has_a_place_in_the_tree() -> None:
    tree = str(taxonomy.filled(taxonomy.TREE))
    missing = [name for name in FACTS if f"'algos/{name}.py'" not in tree]
    assert not missing, "its branch in algos/presets/NAME.toml is none of chapters/taxonomy.py"


def test_there_is_something_to_compare() -> None:
    """A comparison that finds nothing would pass whatever the files say."""
    shared = {"returns_to_go", "prepare", "gae", "normalize"}
    assert shared <= {name for family, name in COPIED if family == "policies"}
    assert {"a2c", "ppo"} <= set(COPIED["policies", "gae"])
    assert COPIED["policies", "ActorCritic"][:2] == ["a2c", "ppo"]
    assert {"critic_loss", "update_target"} <= {name for family, name in COPIED if family == "soft"}
    methods = {"llm_dapo", "llm_dr_grpo", "llm_grpo", "llm_rloo", "llm_gspo", "llm_cispo"}
    assert methods < set(COPIED["language", "ratio_of"])
