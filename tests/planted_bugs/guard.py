"""What keeps a kernel from standing for functions that were changed."""

from tests.planted_bugs.planting import Bug

GUARD = "manyseeds/kernels/guard.py"
TESTS = "tests/foundation/test_guard.py"
ANEW = f"{TESTS}::test_what_is_bound_anew_counts"
SUBCLASSES = f"{TESTS}::test_subclasses_are_asked_for_what_they_override"
MIDDLE = f"{TESTS}::test_a_change_in_the_middle_of_a_training_counts"
ENVIRONMENT = f"{TESTS}::test_an_environment_is_asked"
BUGS = (
    Bug(
        "guard: every version is known",
        GUARD,
        "walk.found.keys() <= version for version",
        "len(version) > 0 for version",
        "tests/algos/test_edits.py::test_an_edit_of_an_algorithm_counts",
    ),
    Bug(
        "guard: one definition that is known is enough",
        GUARD,
        "walk.found.keys() <= version for version",
        "walk.found.keys() & version for version",
        "tests/algos/test_edits.py::test_an_edit_of_an_algorithm_counts",
    ),
    Bug(
        "guard: verdicts stand for ever",
        GUARD,
        "self.generation += 1",
        "self.generation += 0",
        ANEW,
    ),
    Bug(
        "guard: nobody looks outside of a training",
        GUARD,
        "        if not watch.by_iteration:\n            watch.look()\n",
        "",
        ANEW,
    ),
    Bug(
        "guard: nobody looks within a training",
        "manyseeds/runs/control.py",
        "        watch.look_by_iteration()  # whether code has changed that kernels stand for\n",
        "",
        MIDDLE,
    ),
    Bug(
        "guard: what an object has itself is not seen",
        GUARD,
        "            if is_own(owner, name):\n",
        "            if False:\n",
        f"{ANEW}[an object's method]",
    ),
    Bug(
        "guard: a verdict on an object outlives its attributes",
        GUARD,
        "            self._objects[key] = weakref.ref(thing), state_of(thing)\n",
        "            pass\n",
        ANEW,
    ),
    Bug(
        "guard: an object that is called is not followed",
        GUARD,
        'rest or ["__call__"] * is_called',
        "rest",
        "tests/algos/test_edits.py::test_an_edit_of_an_algorithm_counts",
    ),
    Bug(
        "guard: what wraps a function is ignored",
        GUARD,
        "                or not is_ours(value.__code__.co_filename)\n",
        "                or True\n",
        f"{ANEW}[a wrapped function]",
    ),
    Bug(
        "guard: the text of a function is taken for its code",
        GUARD,
        "    if code not in codes.get(name, ()):\n        return None\n",
        "",
        f"{ANEW}[its code in its place]",
    ),
    Bug(
        "guard: defaults are not watched",
        GUARD,
        'operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")',
        'operator.attrgetter("__code__")',
        f"{ANEW}[its defaults]",
    ),
    Bug(
        "guard: defaults count only by their text",
        GUARD,
        "{self._text(defaults)} ",
        "",
        f"{ANEW}[a keyword's default]",
    ),
    Bug(
        "guard: tables are not watched",
        GUARD,
        "            if contents_of(container) != values:\n",
        "            if False:\n",
        f"{ANEW}[a table's entry]",
    ),
    Bug(
        "guard: a name that hides a built-in one is not seen",
        GUARD,
        "        absent = frozenset(watched.difference(there))\n",
        "        absent: frozenset[str] = frozenset()\n",
        f"{ANEW}[a built-in name]",
    ),
    Bug(
        "guard: what a name means does not count",
        GUARD,
        '{self._text(defaults)} {meanings}"',
        '{self._text(defaults)}"',
        f"{ANEW}[another of ours]",
    ),
    Bug(
        "guard: a library's function in the place of ours is not seen",
        GUARD,
        "                if not own or callable(inner):\n",
        "                if False:\n",
        f"{ANEW}[an object's method by a library's]",
    ),
    Bug(
        "guard: a library's function in the place of a class's method is not seen",
        GUARD,
        "            elif name in methods:  # something else has taken its place\n",
        "            elif False:\n",
        f"{ANEW}[a distribution's method by a library's]",
    ),
    Bug(
        "guard: hooks are not seen",
        GUARD,
        "            if hooks_of(value):\n",
        "            if False:\n",
        f"{ANEW}[a hook]",
    ),
    Bug(
        "guard: super() is not followed",
        GUARD,
        "                self._through_super(function, owner, rest)\n",
        "                pass\n",
        f"{TESTS}::test_what_super_leads_to_counts",
    ),
    Bug(
        "guard: a method that a subclass gets later is not seen",
        GUARD,
        "self._watch(cls, vars(cls), name, *ANSWERING)\n                if name",
        "if name",
        SUBCLASSES,
    ),
    Bug(
        "guard: constants are not compared",
        GUARD,
        "            if name:\n                self.add(name, text)\n",
        "",
        ENVIRONMENT,
    ),
    Bug(
        "guard: environments are not asked",
        "envs/kernels.py",
        " or not GUARDS[type(env)].allows(env)",
        "",
        ENVIRONMENT,
    ),
    Bug(
        "guard: the C code of environments is not compared",
        GUARD,
        "        if self.c_of:\n",
        "        if False:\n",
        f"{TESTS}::test_an_edit_of_the_c_code_of_an_environment_counts",
    ),
    Bug(
        "guard: policies are not asked",
        "envs/rollout.py",
        " and PLAYING.allows(policy)",
        "",
        "tests/algos/test_edits.py::test_an_edit_of_an_algorithm_counts",
    ),
    Bug(
        "guard: constants of an environment are kept from before",
        "envs/cartpole.py",
        "def constants(",
        "@__import__('functools').cache\ndef constants(",
        "tests/algos/test_edits.py::test_a_constant_that_is_bound_anew_counts",
    ),
    Bug(
        "guard: the line does not say what was changed",
        GUARD,
        "    inner = [x for x in changed if x.name not in users] or list(changed)\n",
        "    inner = [changed[-1]]\n",
        ANEW,
    ),
)
