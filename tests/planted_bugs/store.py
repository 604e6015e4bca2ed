"""The store: packed parts, checksums, locks on names, stamps."""

from tests.planted_bugs.planting import Bug

PACKED, RECORD = "manyseeds/packed.py", "manyseeds/record.py"
TESTS = "tests/foundation/test_packed.py"
KILLED = f"{TESTS}::test_an_interrupted_packing_loses_nothing"
READ = f"{TESTS}::test_packed_parts_are_read_as_from_their_folders"
ONE_BIT = f"{TESTS}::test_one_bit_of_a_packed_file_is_seen"
PROVED = f"{TESTS}::test_a_run_whose_code_was_proved_equal_says_so_in_one_line"
LEFT_OUT = f"{TESTS}::test_a_malformed_runs_json_is_left_out"
PACKED_STALE = (
    "tests/foundation/test_set_aside.py::test_packed_runs_of_other_code_are_not_trained_anew"
)
STAMP = "tests/benchmarks/test_same_bits.py::test_only_what_was_fresh_is_stamped"
LOCK = (
    "tests/foundation/test_record.py"
    "::test_a_name_is_held_until_the_last_process_of_its_settings_has_left"
)

BUGS = (
    Bug(
        "store: only the first process of a run holds its name",
        RECORD,
        "                os.pwrite(self.file, settings, 0)\n"
        "            fcntl.lockf(self.file, fcntl.LOCK_SH, 1, self.INSIDE)\n",
        "                os.pwrite(self.file, settings, 0)\n"
        "                fcntl.lockf(self.file, fcntl.LOCK_SH, 1, self.INSIDE)\n",
        LOCK,
    ),
    Bug(
        "store: the first process that leaves removes the lock of the others",
        RECORD,
        "            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else has",
        "            #",
        LOCK,
    ),
    Bug(
        "store: a packing that is killed leaves tables of which runs.json knows nothing",
        PACKED,
        '    if old["parts"]:  # meanwhile',
        "    if not old:  # meanwhile",
        KILLED,
    ),
    Bug(
        "store: while parts are packed, columns of new ones are read into old ones",
        PACKED,
        "there = {k: line if k in parts else line_of(k, True) for k, line in old",
        "there = {k: line for k, line in old",
        KILLED,
    ),
    Bug(
        "store: runs.json is written before the tables",
        PACKED,
        "    yield from contents.items()\n",
        "    yield RUNS, _dumped(new)\n    yield from contents.items()\n",
        KILLED,
    ),
    Bug(
        "store: a part that is not finished is packed",
        RECORD,
        "for part in run.parts() if part.is_dir()]",
        "for part in run.path.iterdir() if part.is_dir()]",
        f"{TESTS}::test_a_folder_counts_before_what_is_packed",
    ),
    Bug(
        "store: what a packing that was killed did not remove stays for ever",
        RECORD,
        "            for part in finished:\n",
        "            for part in parts:\n",
        KILLED,
    ),
    Bug(
        "store: weights go with what is packed",
        RECORD,
        "(name for name, x in sums.items() if packed.holds(part / name, x))",
        "sums",
        f"{TESTS}::test_weights_stay_and_further_parts_are_added",
    ),
    Bug(
        "store: the rows of packed parts are not checked",
        PACKED,
        "        return _sha256(table, _version(table)) in read(",
        "        return table.exists()  # (",
        f"{ONE_BIT}[curve.parquet]",
    ),
    Bug(
        "store: the lines of packed parts are not checked",
        PACKED,
        "            return hashlib.sha256(_text(line[file.name])).hexdigest() == digest\n",
        "            return file.name in line\n",
        f"{ONE_BIT}[runs.json]",
    ),
    Bug(
        "store: a checksum is remembered though the file has changed",
        PACKED,
        "    return status.st_ino, status.st_size, status.st_mtime_ns\n",
        "    return (status.st_dev,)\n",
        f"{ONE_BIT}[metrics.parquet]",
    ),
    Bug(
        "store: a part is read with the columns of all",
        PACKED,
        "line.get(COLUMNS, {}).get(file.name) or ",
        "",
        READ,
    ),
    Bug(
        "store: a file that is not written by json is packed as if it were",
        PACKED,
        "    return content if _text(content) == text.encode() else text\n",
        "    return content\n",
        READ,
    ),
    Bug(
        "store: code that was proved equal counts for parts of other code",
        PACKED,
        'content["code"] |= proved.get(content["code"]["digest"], {})\n',
        'content["code"] |= next(iter(proved.values()), {})\n',
        PROVED,
    ),
    Bug(
        "store: a stamp takes the place of the former ones of its run",
        PACKED,
        "proved = {run: dict(known) for",
        "proved = {run: {} for",
        PROVED,
    ),
    Bug(
        "store: packing forgets which code was proved equal",
        PACKED,
        "    yield RUNS, _dumped(new)\n",
        '    yield RUNS, _dumped({**new, "proved": {}})\n',
        PROVED,
    ),
    Bug(
        "store: a copy of a packed part forgets which code was proved equal",
        PACKED,
        '    files["config.json"] = _text(read_json(part / "config.json"))\n',
        "",
        PROVED,
    ),
    Bug(
        "store: a name in somebody's runs.json leads out of the store",
        PACKED,
        'r"[^./][^/]*/(seeds',
        'r".*/(seeds',
        f"{LEFT_OUT}[up]",
    ),
    Bug(
        "store: a file in somebody's runs.json is written anywhere",
        PACKED,
        """        for name in files.keys() - {COLUMNS}:
            _check_name(name, r"[^./][^/]*\\.json")
""",
        "",
        f"{LEFT_OUT}[file-root]",
    ),
    Bug(
        "store: what is not sealed is copied",
        PACKED,
        "(DONE, *line[DONE]",
        "(*line, *line[DONE]",
        f"{TESTS}::test_what_cannot_be_read_is_not_copied[short]",
    ),
    Bug(
        "store: a packing gives a damaged table a new checksum",
        PACKED,
        "            if given is None and not is_whole(folder / name):\n",
        "            if given is None and not is_packed(folder / key):\n",
        f"{TESTS}::test_a_table_that_is_damaged_gets_no_new_checksum[False]",
    ),
    Bug(
        "store: a copy gives a damaged table a new checksum",
        RECORD,
        "            if not is_finished(source):\n",
        "            if not there:\n",
        f"{TESTS}::test_a_table_that_is_damaged_gets_no_new_checksum[False]",
    ),
    Bug(
        "store: a pipe or device is hashed as a table",
        PACKED,
        "    check_size(path)\n    with path.open",
        "    with path.open",
        f"{TESTS}::test_a_pipe_or_device_is_not_read[curve.parquet]",
    ),
    Bug(
        "store: a name in somebody's runs.json steers a terminal",
        PACKED,
        "name.isprintable() and ",
        "",
        f"{LEFT_OUT}[escape]",
    ),
    Bug(
        "store: a name in somebody's runs.json is longer than that of a folder",
        PACKED,
        "    if long or not (",
        "    if not (",
        f"{LEFT_OUT}[long]",
    ),
    Bug(
        "store: what would be read otherwise is packed",
        PACKED,
        "if start == stop or not there.to_pandas().equals(part.to_pandas()):",
        "if start == stop:",
        f"{TESTS}::test_what_would_be_read_otherwise_is_not_packed[none]",
    ),
    Bug(
        "store: the weights of a packed part are removed",
        "manyseeds/runs/base.py",
        " and not is_finished(part):  # packed",
        ":",
        PACKED_STALE,
    ),
    Bug(
        "store: seeds of a packed part of other code are there twice",
        "manyseeds/runs/set_aside.py",
        "        if is_packed(part):\n",
        "        if False:\n",
        PACKED_STALE,
    ),
    Bug(
        "store: a malformed runs.json ends a merge",
        "benchmarks/merge.py",
        "            except UsageError as error:\n                report(",
        "            except RecursionError as error:\n                report(",
        "tests/benchmarks/test_merge.py"
        "::test_what_is_malformed_is_named_once_and_the_others_merged",
    ),
    Bug(
        "store: a small file that declares many rows is read",
        PACKED,
        "    if about.num_rows * about.num_columns > MAX_CELLS:\n",
        "    if about.num_rows > MAX_CELLS:\n",
        f"{TESTS}::test_a_malformed_table_is_refused[large]",
    ),
    Bug(
        "store: a table in a part's folder is not bounded",
        RECORD,
        "    packed.check_table(path)\n",
        "",
        f"{TESTS}::test_a_malformed_table_is_refused[large]",
    ),
    Bug(
        "store: a file of any size is read",
        PACKED,
        "    if path.stat().st_size > MAX_BYTES:\n",
        "    if path.stat().st_size < 0:\n",
        f"{TESTS}::test_a_file_that_is_too_large_is_not_read",
    ),
    Bug(
        "store: a packed run takes other settings under its name",
        RECORD,
        '{part.name for part in self.path.glob("seeds-*")} | {*packed.parts_of(self.path)}',
        '{part.name for part in self.path.glob("seeds-*")}',
        f"{TESTS}::test_a_packed_run_keeps_its_name",
    ),
    Bug(
        "store: a seal may be lost in a power cut",
        RECORD,
        "    write_json(part / DONE, content)\n    _sync(part)\n",
        "    write_json(part / DONE, content)\n",
        "tests/foundation/test_record.py::test_content_reaches_the_disk_before_its_name",
    ),
    Bug(
        "store: infinity is written as JSON",
        RECORD,
        "x if math.isfinite(x) else None",
        "None if math.isnan(x) else x",
        "tests/foundation/test_record.py::test_numbers_of_things",
    ),
    Bug(
        "store: a digest depends on how files are called",
        "manyseeds/digest.py",
        "key=lambda place: (place.name, read(place, root)[0])",
        "key=lambda place: place.name",
        "tests/foundation/test_digest.py::test_names_of_files_do_not_count",
    ),
    Bug(
        "store: a user's own PRESETS do not count",
        "manyseeds/digest.py",
        "        if PRESETS in chain and not foreign:\n",
        "        if PRESETS in chain:\n",
        "tests/foundation/test_digest.py::test_a_file_of_any_form_is_read",
    ),
    Bug(
        "store: what was stale at the commit is stamped",
        "benchmarks/same_bits.py",
        "        if trained_as(part) in equal and result_of(part) in fresh\n",
        "        if trained_as(part) in equal\n",
        STAMP,
    ),
    Bug(
        "store: runs of algorithms that were not compared are stamped",
        "benchmarks/same_bits.py",
        "        if trained_as(part) in equal and result_of(part) in fresh\n",
        "        if result_of(part) in fresh\n",
        STAMP,
    ),
)
