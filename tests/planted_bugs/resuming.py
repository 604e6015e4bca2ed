"""Runs that go on after an interruption, and those that start from stored weights."""

from tests.planted_bugs.planting import Bug

TESTS = "tests/foundation/test_resumable.py"
INIT = "tests/foundation/test_init.py"
GOES_ON = f"{TESTS}::test_an_interrupted_training_goes_on_as_if_nothing_had_happened"
KEPT = f"{TESTS}::test_what_belongs_to_another_training_is_a_line_and_kept"

# What a restored training needs: its algorithm, a text of that file, the text without it, the case.
LEFT_OUT = (
    ("random streams", "ppo", "episodes, streams), 0", "episodes), 0", "ppo, box"),
    ("tracker of episodes", "a2c", "optimizer, episodes, streams)", "optimizer, streams)", "a2c"),
    ("replay memory", "dqn", "optimizer, replay, episodes", "optimizer, episodes", "dqn"),
    ("target network", "dqn", "changing = net, target, ", "changing = net, ", "dqn"),
    ("optimizer of the critic", "reinforce", "critic_optimizer, streams)", "streams)", "reinforce"),
    ("reference policy", "grpo", "actor, reference, optimizer, s", "actor, optimizer, s", "grpo"),
)
# What a checkpoint belongs to, as runs/checkpoints.py says it.
BELONGS = (
    ("kernels", "was computed by other kernels"),
    ("code", "is of other code"),
    ("torch", "was computed by another version of PyTorch"),
)

BUGS = (
    *(
        Bug(f"resuming: {what} left out", f"algos/{algo}.py", right, wrong, f"{GOES_ON}[{case}]")
        for what, algo, right, wrong, case in LEFT_OUT
    ),
    *(
        Bug(
            f"resuming: a checkpoint that {why} is used",
            "manyseeds/runs/checkpoints.py",
            f'    "{of}": "{why}",\n',
            "",
            f"{KEPT}[{of}]",
        )
        for of, why in BELONGS
    ),
    Bug(
        "resuming: the optimizer's moments are left out",
        "manyseeds/optim.py",
        'left_out = ("grads", "_grad_views", "stepper")',
        'left_out = ("grads", "_grad_views", "stepper", "mean", "square")',
        f"{GOES_ON}[ppo]",
    ),
    Bug(
        "resuming: open returns of scaled rewards are left out",
        "manyseeds/snapshot.py",
        "**x._buffers, **x._modules}",
        "**{k: y for k, y in x._buffers.items() if k in x.state_dict()}, **x._modules}",
        f"{GOES_ON}[ppo]",
    ),
    Bug(
        "resuming: the next action of SARSA is left out",
        "algos/sarsa.py",
        "state, obs, actions = run.restore((policy, streams, episodes), 0, state, obs, actions)",
        "state, obs, _ = run.restore((policy, streams, episodes), 0, state, obs, actions)",
        f"{GOES_ON}[sarsa]",
    ),
    Bug(
        "resuming: policies that wait for an evaluation are left out",
        "manyseeds/runs/control.py",
        "            policy.load_state_dict(tensors)\n",
        "",
        f"{TESTS}::test_policies_that_wait_for_other_seeds_are_kept",
    ),
    Bug(
        "resuming: evaluated points are forgotten",
        "manyseeds/runs/control.py",
        '*("_rows", "_points", "_snapshots"),',
        '*("_rows", "_snapshots"),',
        f"{GOES_ON}[ppo]",
    ),
    Bug(
        "resuming: windows are forgotten",
        "manyseeds/runs/control.py",
        '*("diverged", "windows", "_pending",',
        '*("diverged", "_pending",',
        f"{GOES_ON}[q_learning]",
    ),
    Bug(
        "resuming: metrics of no window yet are forgotten",
        "manyseeds/runs/control.py",
        '"windows", "_pending", "_timesteps",',
        '"windows", "_timesteps",',
        f"{TESTS}::test_control_runs_keep_what_they_gather",
    ),
    Bug(
        "resuming: a prediction is measured twice",
        "manyseeds/runs/prediction.py",
        "if episode not in self.points[len(self._values) :]:",
        "if episode not in self.points:",
        f"{GOES_ON}[monte_carlo]",
    ),
    Bug(
        "resuming: memory gets another layout",
        "manyseeds/snapshot.py",
        "key=lambda dim: -strides[dim]",
        "key=lambda dim: dim",
        f"{TESTS}::test_values_come_back_with_the_layout_of_their_memory",
    ),
    Bug(
        "resuming: weights get other memory",
        "manyseeds/snapshot.py",
        "        if self.in_place and isinstance(live, Tensor):\n",
        "        if False:\n",
        f"{TESTS}::test_an_object_gets_its_state_back_in_place",
    ),
    Bug(
        "resuming: seconds begin anew",
        "manyseeds/runs/resumable.py",
        "self._learned, self._began = learned, self._began - seconds",
        "self._learned, self._began = 0.0, self._began",
        f"{TESTS}::test_seconds_go_on_from_where_they_were",
    ),
    Bug(
        "resuming: damage is not noticed",
        "manyseeds/snapshot.py",
        "if not torch.equal(digest, digest_of(tensors)):",
        "if False:",
        f"{TESTS}::test_what_is_damaged_is_a_line_and_a_fresh_start[a byte]",
    ),
    Bug(
        "resuming: a link is followed",
        "manyseeds/snapshot.py",
        "stat.S_ISREG(os.lstat(path).st_mode)",
        "stat.S_ISREG(os.stat(path).st_mode)",
        f"{TESTS}::test_what_is_damaged_is_a_line_and_a_fresh_start[a link]",
    ),
    Bug(
        "resuming: a checkpoint is lost by a look",
        "manyseeds/runs/checkpoints.py",
        "            os.replace(self.path, self.path.with_name(error.name))\n",
        "            self.path.unlink()\n",
        f"{KEPT}[code]",
    ),
    Bug(
        "resuming: a checkpoint that is kept is not found again",
        "manyseeds/runs/checkpoints.py",
        "                os.replace(kept, self.path)\n",
        "                pass\n",
        f"{KEPT}[code]",
    ),
    Bug(
        "resuming: a checkpoint that is kept goes as another training begins",
        "manyseeds/runs/base.py",
        "            clear(self.directory, keep=ALL)\n            self.directory.mkdir",
        "            clear(self.directory, keep=CHECKPOINT)\n            self.directory.mkdir",
        f"{KEPT}[code]",
    ),
    Bug(
        "resuming: a checkpoint that is kept outlives its run",
        "manyseeds/runs/checkpoints.py",
        "    for path in part.glob(ALL):\n",
        "    for path in part.glob(CHECKPOINT):\n",
        f"{KEPT}[code]",
    ),
    Bug(
        "resuming: fewer seeds lose the checkpoint of more",
        "manyseeds/runs/base.py",
        "if finished.isdisjoint(range(first, last + 1)):",
        "if False:",
        f"{TESTS}::test_a_checkpoint_whose_seeds_are_not_all_asked_for_is_kept_until_some_are_finished",
    ),
    Bug(
        "resuming: other seeds go on",
        "manyseeds/runs/checkpoints.py",
        '    "seeds": "is of other seeds",\n',
        "",
        f"{TESTS}::test_one_of_other_seeds_is_not_gone_on_from",
    ),
    Bug(
        "resuming: seeds of a checkpoint are trained twice",
        "manyseeds/runs/base.py",
        "if len(own) < last - first + 1:",
        "if False:",
        f"{TESTS}::test_a_checkpoint_whose_seeds_are_not_all_asked_for_is_kept_until_some_are_finished",
    ),
    Bug(
        "resuming: a checkpoint outlives its run",
        "manyseeds/runs/base.py",
        "        remove_all(self.directory)\n",
        "",
        f"{GOES_ON}[dqn]",
    ),
    Bug(
        "resuming: a process killed at its end leaves a checkpoint",
        "manyseeds/runs/base.py",
        "            if (part / DONE).exists():  # by",
        "            if False:  # by",
        f"{TESTS}::test_what_a_process_that_was_killed_at_its_end_has_left_is_removed",
    ),
    Bug(
        "resuming: writing takes all the time",
        "manyseeds/runs/checkpoints.py",
        "max(self.interval, (ended - began) / WRITING)",
        "self.interval",
        f"{TESTS}::test_writing_takes_two_percent_of_the_time_at_most",
    ),
    Bug(
        "resuming: signals stay with a run that has ended",
        "manyseeds/runs/resumable.py",
        "            signal.signal(number, handler)\n",
        "            pass\n",
        f"{TESTS}::test_a_signal_lets_the_iteration_end_and_is_one_line",
    ),
    Bug(
        "resuming: SIGTERM after Ctrl-C ends at once",
        "manyseeds/runs/resumable.py",
        "        if number == signal.SIGINT:\n            if self._asked == signal.SIGINT:",
        "        if True:\n            if self._asked == signal.SIGINT:",
        f"{TESTS}::test_a_launcher_that_ends_its_commands_after_ctrl_c_costs_no_checkpoint",
    ),
    Bug(
        "resuming: an interrupt at the end is forgotten",
        "manyseeds/runs/base.py",
        "        run.heed()\n",
        "",
        f"{TESTS}::test_an_interrupt_after_the_last_look_is_heeded",
    ),
    Bug(
        "resuming: environments of others are stored",
        "manyseeds/runs/control.py",
        "return bool(self.config.make_env().native)",
        "return True",
        f"{TESTS}::test_what_is_not_stored_is_interrupted_at_once",
    ),
    Bug(
        "resuming: a full disk ends a training",
        "manyseeds/runs/checkpoints.py",
        "        except OSError as error:",
        "        except ZeroDivisionError as error:",
        f"{TESTS}::test_a_full_disk_costs_the_checkpoint_and_not_the_training",
    ),
    Bug(
        "init: seeds start from others' weights",
        "manyseeds/checkpoint.py",
        "return [known.index(seed) for seed in seeds]",
        "return list(range(len(seeds)))",
        f"{INIT}::test_what_was_trained_goes_into_every_network",
    ),
    Bug(
        "init: the target network starts at random",
        "algos/dqn.py",
        'target = run.begin_with(QNetwork(env.spec, config, run.streams("init"))).to',
        'target = QNetwork(env.spec, config, run.streams("init")).to',
        f"{INIT}::test_what_was_trained_goes_into_every_network",
    ),
    Bug(
        "init: other weights have the same name",
        "manyseeds/cli.py",
        "if self.init:",
        "if False:",
        f"{INIT}::test_other_weights_are_another_run",
    ),
    Bug(
        "init: weights of a copy are refused",
        "manyseeds/checkpoint.py",
        "        if not all(type(seed) is int for seed in known):",
        '        if stored["algo"] not in ("ppo", "a2c"):',
        f"{INIT}::test_files_of_policies_exports_and_other_algorithms_serve_too",
    ),
    Bug(
        "init: another algorithm's weights are loaded",
        "manyseeds/checkpoint.py",
        'if where.endswith(".algos") and stored["algo"] != name:',
        "if False:",
        "tests/benchmarks/test_export.py::test_loading_mistakes",
    ),
    Bug(
        "init: a weight that is not there stays random",
        "manyseeds/checkpoint.py",
        "for name in dict.fromkeys((*like, *found)):",
        "for name in found:",
        f"{INIT}::test_mistakes_are_one_line",
    ),
    Bug(
        "init: stored weights are not used",
        "manyseeds/runs/control.py",
        "            policy.load_state_dict(checkpoint.start_from(*given))",
        "            checkpoint.start_from(*given)",
        f"{INIT}::test_a_training_starts_as_the_stored_one_has_ended[a2c]",
    ),
    Bug(
        "init: a stored file chooses what is imported",
        "manyseeds/checkpoint.py",
        "        _, stored = stored_policy(init)\n",
        "        _, stored = stored_policy(init)\n"
        '        __import__(stored["config"]["env"].partition(":")[0])\n',
        f"{INIT}::test_the_environment_may_be_another_one_that_fits",
    ),
    Bug(
        "language: checkpoint: damage ends the command",
        "manyseeds/runs/checkpoints.py",
        "        except UnusableError as error:",
        "        except ZeroDivisionError as error:",
        "tests/llm_track/test_runs.py::test_a_damaged_checkpoint_is_a_line_and_a_fresh_start",
    ),
)
