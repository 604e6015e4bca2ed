"""Files that others may have written: opened only if they are what they should be."""

import ast
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save

from manyseeds import untrusted
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)


def safetensors_of(header):
    content = json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content


def parquet(path, **columns):
    pd.DataFrame(columns).to_parquet(path, index=False)


NOT_OPENED = {
    "a link": (lambda path: path.symlink_to("/proc/self/mem"), "is a link"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "is a link"),
    "a folder": (lambda path: path.mkdir(), "not a file"),
    "a pipe": (os.mkfifo, "not a file"),
    "2 TiB that are a hole": (lambda path: sparse(path, 2**41), "more than"),
    "a hole that is small enough": (lambda path: sparse(path, 2**26), "is a sparse file"),
}
JSON = {
    "not UTF-8": b'["\xff"]',
    "not JSON": b"[1,",
    "too deep": b"[" * 33 + b"]" * 33,
    "too deep for the parser": b"[" * 100_000,
    "half a surrogate pair": b'{"\\ud800": 1}',
    "too many values": b"[" + b"0," * 2**22 + b"0]",
    "a number of 5,000 digits": b"9" * 5000,
}
SAFETENSORS = {
    "no header": (b"123", "is no safetensors file"),
    "a header longer than the file": (b"\xff" * 64, "is no safetensors file"),
    "a shape of 10^12": (
        safetensors_of({"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 0]}}),
        "another size than its shape",
    ),
    "a shape below 0": (
        safetensors_of({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}),
        "has no shape",
    ),
    "no object": (safetensors_of([]), "invalid content"),
}


@pytest.mark.parametrize("what", NOT_OPENED)
def test_only_regular_files_of_a_bounded_size_are_opened(tmp_path, what):
    make, reason = NOT_OPENED[what]
    make(tmp_path / "file")
    for read in (untrusted.read_bytes, untrusted.read_json, untrusted.read_parquet):
        with pytest.raises(UsageError, match=reason):
            read(tmp_path / "file")


def test_a_file_whose_blocks_are_not_counted_is_no_hole(tmp_path, monkeypatch):
    """ZFS counts those of a new file some seconds later, other file systems never."""

    class Status:
        st_blocks = 1

        def __init__(self, status):
            self.status = status

        def __getattr__(self, name):
            return getattr(self.status, name)

    content, fstat = os.urandom(2**24 + 1), os.fstat
    (tmp_path / "file").write_bytes(content)
    monkeypatch.setattr(os, "fstat", lambda descriptor: Status(fstat(descriptor)))
    monkeypatch.setattr(os.path, "samestat", lambda one, other: one.st_ino == other.st_ino)
    assert untrusted.read_bytes(tmp_path / "file") == content
    sparse(tmp_path / "file", 2**26)
    with pytest.raises(UsageError, match="is a sparse file"):
        untrusted.read_bytes(tmp_path / "file")


def test_a_file_that_is_not_there_is_told_apart(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "x", tmp_path / "file" / "x"):
        with pytest.raises(FileNotFoundError):
            untrusted.open_checked(path)


def test_a_socket_is_not_opened(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # a path of a socket is short
        server.bind("file")
        with pytest.raises(UsageError, match="not a file"):
            untrusted.read_bytes(Path("file"))


@pytest.mark.parametrize("what", JSON)
def test_malformed_json_is_one_kind_of_error(tmp_path, what):
    (tmp_path / "x.json").write_bytes(JSON[what])
    with pytest.raises(UsageError, match="has invalid content"):
        untrusted.read_json(tmp_path / "x.json")


def test_json_of_any_allowed_depth_is_read(tmp_path):
    (tmp_path / "x.json").write_bytes(b"[" * 32 + b"]" * 32)
    untrusted.read_json(tmp_path / "x.json")


def test_parquet_is_refused_by_its_metadata(tmp_path):
    parquet(tmp_path / "many", x=np.zeros(2**25 + 1, bool))
    parquet(tmp_path / "lists", x=[[1, 2], [3]])
    parquet(tmp_path / "long", x=["a" * 2**20] * 2**9)
    reasons = {"many": "cells", "lists": "lists in a column", "long": "when it is unpacked"}
    for name, reason in reasons.items():
        with pytest.raises(UsageError, match=reason):
            untrusted.read_parquet(tmp_path / name)


def test_parquet_is_read_as_it_was_written(tmp_path):
    frame = pd.DataFrame({"text": ["a", "b", None], "x": [1.0, np.nan, 3.0], "n": [1, 2, 3]})
    frame.to_parquet(tmp_path / "x", index=False)
    pd.testing.assert_frame_equal(untrusted.read_parquet(tmp_path / "x").to_pandas(), frame)
    kept = untrusted.read_parquet(tmp_path / "x", ["text"])
    assert str(kept.schema.field("text").type).startswith("dictionary")


@pytest.mark.parametrize("what", SAFETENSORS)
def test_safetensors_are_refused_by_their_header(tmp_path, what):
    content, reason = SAFETENSORS[what]
    (tmp_path / "x").write_bytes(content)
    for read in (untrusted.read_header, untrusted.read_tensors):
        with pytest.raises(UsageError, match=reason):
            read(tmp_path / "x")


def test_tensors_are_read_with_what_the_file_says_of_itself(tmp_path):
    tensors = {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bool)}
    (tmp_path / "x").write_bytes(save(tensors, {"about": "1"}))
    header, about = untrusted.read_header(tmp_path / "x")
    assert header == {"a": ("F32", (2, 3), (0, 24)), "b": ("BOOL", (4,), (24, 28))}
    found, again = untrusted.read_tensors(tmp_path / "x")
    assert about == again == {"about": "1"}
    assert all(torch.equal(found[name], x) for name, x in tensors.items())
    others = [torch.tensor(5), torch.zeros(0, 3), torch.randn(3).bfloat16(), torch.ones(2).double()]
    (tmp_path / "x").write_bytes(save({f"{i}": x for i, x in enumerate(others)}))
    found, _ = untrusted.read_tensors(tmp_path / "x")
    for i, x in enumerate(others):
        assert torch.equal(found[f"{i}"], x)
        assert found[f"{i}"].dtype == x.dtype


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("model/model.safetensors", True),
        ("config.json", True),
        ("a/b/c.jinja", True),
        ("a/b/c/d", False),
        ("../x", False),
        ("/etc/passwd", False),
        ("a//b", False),
        (".hidden", False),
        ("a\\b", False),
        ("C:x", False),
        ("a\nb", False),
        ("x" * 241, False),
        (7, False),
    ],
)
def test_an_inner_name_leads_out_of_no_folder(name, inner):
    assert untrusted.is_inner_name(name) == inner


def test_nothing_is_written_to_what_a_folder_of_a_store_leads_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "elsewhere")  # by the person whose store it is
    (tmp_path / "store/runs").mkdir()
    untrusted.check_within(tmp_path / "store/runs/E/ppo/x", tmp_path / "store")
    (tmp_path / "store/runs/E").symlink_to(tmp_path)
    for name in ("runs/E", "runs/E/ppo/x"):
        with pytest.raises(UsageError, match=r"runs/E: is a link"):
            untrusted.check_within(tmp_path / "store" / name, tmp_path / "store")


def test_folders_are_listed_without_their_links(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x.json").touch()
    (tmp_path / "link").symlink_to("/", target_is_directory=True)
    assert list(untrusted.files_in(tmp_path)) == ["link", "model/x.json"]
    monkeypatch.setattr(untrusted, "MAX_FILES", 1)
    with pytest.raises(UsageError, match="more than 1 files"):
        list(untrusted.files_in(tmp_path))


def test_nothing_is_written_through_a_link_or_a_second_name(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "log"
    victim.write_bytes(b"precious")
    os.mkfifo(tmp_path / "pipe")
    for plant in (path.symlink_to, path.hardlink_to):
        plant(victim)
        for append in (False, True):
            with pytest.raises(UsageError, match=r"link"):
                untrusted.open_to_write(path, append)
        path.unlink()
    with pytest.raises(UsageError, match="not a file"):
        untrusted.open_to_write(tmp_path / "pipe", append=True)
    assert victim.read_bytes() == b"precious"
    for append in (False, True, True, False):
        with untrusted.open_to_write(path, append) as file:
            file.write(b"ab")
        assert path.read_bytes()[-2:] == b"ab"
    assert path.read_bytes() == b"ab"


def test_texts_of_a_record_are_bounded():
    shape = {"command": str, "config": {str: object}}
    untrusted.check({"command": "a" * 2**14, "config": {"a": [1]}}, shape, "")
    for command, config in (
        ("a" * (2**14 + 1), {}),
        ("a", {"a": "a" * 2**14}),
        ("", {"a" * 241: 1}),
    ):
        with pytest.raises(ValueError, match=r"command must|config must|too long"):
            untrusted.check({"command": command, "config": config}, shape, "")


# ---- The one door -------------------------------------------------------------------------------

WAYS = {"copytree", "copyfile", "copy2", "load_file", "open", "ParquetFile", "read_bytes"}
WAYS |= {"read_metadata", "read_parquet", "read_table", "read_text", "safe_open"}
DOORS = {"packed", "record", "untrusted"}  # modules whose functions of these names may be called
ALLOWED = {  # by file: the functions that open something else than what is in a store
    "manyseeds/cli.py": {"read_presets"},  # the project's own data
    "manyseeds/command.py": {"flush"},  # /dev/null
    "manyseeds/digest.py": {"contents", "text_at"},  # sources, those of others bounded
    "manyseeds/kernels/__init__.py": {"key_of", "is_whole", "sha256_of", "cpu"},  # sources, /proc
    "manyseeds/kernels/binding.py": {"__init__"},  # sources
    "manyseeds/kernels/guard.py": {"known", "bytecode_of"},  # the project's own data, Python's
    "manyseeds/kernels/prebuilt.py": {"digest_of", "loaded"},  # sources, what a wheel has
    "manyseeds/plots.py": {"_gif_bytes"},  # memory
    "manyseeds/record.py": {"_cpu_name"},  # /proc
    "manyseeds/runs/base.py": {"carry_out"},  # a method of runs
    "manyseeds/runs/control.py": {"open"},  # a method of runs
    "manyseeds/runs/language.py": {"_open"},  # a method of runs
    "manyseeds/untrusted.py": {"open_checked", "open_to_write", "copy_file", "parse_parquet"},
    "manyseeds/usage.py": {"show_help"},  # /dev/null
    "manyseeds/writing.py": {"write_bytes", "sync"},  # a new name; what was just written
    "benchmarks/experiments/catalog.py": {"names", "facts"},  # the project's own data
    "benchmarks/__main__.py": {"commands", "module_behind"},  # the project's own files
    "benchmarks/chapters/front_page.py": {"update_readme"},  # README.md of the checkout
    "benchmarks/measurements/judge_session.py": {"read_edits", "judged"},  # likewise
    "benchmarks/measurements/known_kernels.py": {"main"},  # the project's own data
    "benchmarks/launchers/node.py": {"version", "pack", "unpack"},  # sources; archives in memory
    "benchmarks/merge.py": {"merge_run", "finished"},  # a method of parts
    "benchmarks/measurements/portable_bits.py": {"prepared"},  # a method of runs
    "benchmarks/measurements/same_bits.py": {
        "run",
        "__init__",
        "last_line",
    },  # logs in a folder of its own
    "manyseeds/runs/language_seeds.py": {"open", "of_checkpoint"},  # methods of runs
    "benchmarks/search.py": {"main"},  # a method of studies
    "benchmarks/measurements/store_scale.py": {"measured"},  # a folder of its own
    "benchmarks/web/code.py": {"page"},  # the project's own files
    "benchmarks/web/docs.py": {"document", "repository"},  # likewise
    "benchmarks/website.py": {"fill"},  # the project's own pages
}


def openings(tree: ast.AST, function: str = "") -> Iterator[str]:
    """The functions of a module that open files in one of WAYS."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            called, name = node.func, ""
            if isinstance(called, ast.Name) and called.id in {"copytree", "load_file", "open"}:
                name = called.id
            elif isinstance(called, ast.Attribute) and called.attr in WAYS:
                door = isinstance(called.value, ast.Name) and called.value.id in DOORS
                name = "" if door else called.attr
            if name:
                yield function
        inner = node.name if isinstance(node, ast.FunctionDef) else function
        yield from openings(node, inner)


def test_what_others_may_have_written_is_opened_by_one_module_alone():
    found = {}
    for room in ("manyseeds", "benchmarks", "llm_track", "envs", "algos"):
        for file in (ROOT / room).rglob("*.py"):
            if functions := set(openings(ast.parse(file.read_text()))):
                found[file.relative_to(ROOT).as_posix()] = functions
    assert found == ALLOWED
