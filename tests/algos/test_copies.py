"""What the methods' files have in common is the same word for word; their diff is the lesson.

An algorithm file imports no other one. A function or class that two siblings need is copied, and
held together here: mend all copies at once, or give what differs another name.
"""

from __future__ import annotations

import ast
import difflib
import re
from itertools import combinations
from pathlib import Path

import pytest

from manyseeds.benchmarks.chapters import taxonomy
from manyseeds.benchmarks.experiments import catalog
from manyseeds.digest import ROOT

FILES = {name: ROOT / "algos" / f"{name}.py" for name in catalog.names("algos")}
# Of llm_track, no methods.
SHARED = {"__init__", "tasks", "models", "policies", "sampling"}
SHARED |= {"rollout", "rewards", "evaluation"}
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


# Lines of code, without docstrings and comments, that the diff of two siblings changes: removed and
# added ones.
MOST = 150
# The pairs whose methods differ in more than an update, each with a limit of its own.
MORE = {
    ("td3", "sac"): 170,  # a stochastic policy, its noise and its temperature
    ("sac", "sac_discrete"): 200,  # the critics, and DQN's memory
    ("dqn", "pqn"): 270,  # rollouts in the place of the memory
    ("reinforce", "grpo"): 300,  # groups, minibatches and a reference
    ("dqn", "rainbow"): 340,  # six parts
}
# Those that a reader is told to compare.
COMPARED = re.findall(
    r"diff algos/(\w+)\.py algos/(\w+)\.py", (ROOT / "algos/README.md").read_text()
)


def code_of(file: Path) -> list[str]:
    """The lines of a file that are neither blank, comments nor docstrings, those of fields too."""
    text = file.read_text()
    words = {
        i
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for i in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = enumerate(text.splitlines(), start=1)
    return [x for i, x in lines if i not in words and x.strip() and x.lstrip()[0] != "#"]


def changed(one: str, other: str) -> int:
    """How many lines of code the diff of two algorithms removes and adds."""
    sides = (code_of(FILES[name]) for name in (one, other))
    lines = [*difflib.unified_diff(*sides, n=0)][2:]  # without the names of the files
    return sum(line[0] in "+-" for line in lines)


@pytest.mark.parametrize(("one", "other"), dict.fromkeys(COMPARED))
def test_the_diff_of_siblings_is_short(one: str, other: str) -> None:
    found, most = changed(one, other), MORE.get((one, other), MOST)
    assert found <= most, f"diff algos/{one}.py algos/{other}.py changes {found} lines of code"


def test_longer_diffs_are_those_of_pairs_that_readers_compare() -> None:
    """And longer than those of others: a limit that is needed no more must go."""
    assert set(MORE) < set(COMPARED)
    assert {("a2c", "ppo"), ("ddpg", "td3"), ("td3", "sac")} < set(COMPARED)
    assert all(changed(*pair) > MOST for pair in MORE)


def test_only_code_counts(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text('"""Words,\nmore."""\n\nx = 1  # one\n# a comment\n"""Of x."""\ny = "text"\n')
    assert code_of(file) == ["x = 1  # one", 'y = "text"']


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
