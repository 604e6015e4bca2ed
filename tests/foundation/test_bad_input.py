"""A hundred mistakes over all commands: one line on stderr, status 2, and nothing left behind.

python -m tests.foundation.test_bad_input        # what each says, as a table
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from manyseeds.digest import ROOT

MISTAKES = [
    *(f"algos/ppo.py {words}" for words in (
        "--seed 3", "--seeds", "--seeds 0", "--seeds x", "--seeds 1.5", "--seeds 3 --seeds 4",
        "--env NoSuch-v1", "--env CartPole-v9", "--env ''", "--env FrozenLake-v1",
        "--env nowhere:Env-v0", "--gamma 2", "--gamma nan", "--hidden 0", "--hidden a",
        "--minibatch-size 7", "--total-timesteps 10", "--shared-trunk", "--device gpu",
        "--device cuda", "--threads 0", "--name ../x", "--name seeds-1", "--results ''",
        "--results /proc/x", "--eval-budget 0", "--eval-budget 2",
        "CartPole-v1", "--learning-rate -1", "--first-seed -1", "--first-seed 3e9", "--quiet=1",
        "--log-std-init 99", "--backend gym", "--help=x", "--clip_rang 1", "--anneal-lr no",
        "--anneal-lr=False", "--lr 1e-3",
    )),
    *(f"algos/{words}" for words in (
        "a2c.py --td-steps 3", "a2c.py --advantage n_step --n-steps 99", "a2c.py --optimizer sgd",
        "trpo.py --critic-updates 3", "trpo.py --target-kl 0", "trpo.py --env FrozenLake-v1",
        "dqn.py --env Pendulum-v1", "dqn.py --loss mae", "dqn.py --buffer-size 1",
        "reinforce.py --normalize", "reinforce.py --episodes 1", "reinforce.py --weight v",
        "grpo.py --group-size 1", "grpo.py --clip-range-high 0.1", "grpo.py --std mean",
        "q_learning.py --env Pendulum-v1", "q_learning.py --initial-value inf",
        "sarsa.py --lambda 1", "sarsa.py --learning-rate 2",
        "monte_carlo.py --episodes 3", "monte_carlo.py --total-episodes 0",
        "td_prediction.py --trace-decay 2", "td_prediction.py --device cuda",
        "policy_iteration.py --goal 99 99", "policy_iteration.py --goal 1",
        "policy_iteration.py --env CartPole-v1", "value_iteration.py --walls 1",
        "value_iteration.py --gamma 1.1", "value_iteration.py --seeds 3",
    )),
    *(f"llm_track/{words}" for words in (
        "grpo.py --task nothing", "grpo.py --task ''", "grpo.py --model ''",
        "grpo.py --model /no/such", "grpo.py --minibatches 0", "grpo.py --group-size 1",
        "dapo.py --overlong-cache 999", "dapo.py --clip-range -1", "dr_grpo.py --prompts 0",
        "dpo.py --beta 0", "dpo.py --preferences /no/such.jsonl", "rlhf_ppo.py --gamma 2",
        "sft.py --batch-size 0",
        "reward_model.py --temperature 0", "reward_model.py --eval-budget -1",
        "grpo.py --max-new-tokens 99999", "grpo.py --env CartPole-v1",
    )),
    *(f"benchmarks/{words}" for words in (
        "sweep.py --suite none", "sweep.py --only nobody", "sweep.py --only",
        "sweep.py --workers 0",
        "sweep.py --publish --results x", "report.py --results /no/such", "report.py x",
        "website.py --results /no/such", "website.py --out /", "website.py x",
        "website.py --out ''",
        "compare.py", "compare.py /no/such", "compare.py --out", "watch.py", "watch.py /no/such",
        "watch.py x --seed a", "watch.py x --fps 1", "watch.py x --check --fps 30",
        "throughput.py --algos none", "throughput.py --algos",
        "throughput.py --core 999", "throughput.py --repeats 0",
        "same_bits.py", "same_bits.py HEAD --workers 0", "same_bits.py no-such-commit",
        "same_bits.py HEAD --only",
        "sb3_baseline.py --algo none", "sb3_baseline.py --algo", "sb3_baseline.py --clip-range 0",
        "sb3_baseline.py --workers 0", "critic_cost.py --repeats 0", "gpu_check.py --only",
        *(f"search.py --quiet {vary}" for vary in (
            "", "--vary lr=1", "--vary seeds=1,2", "--vary env=a", "--vary device=cpu",
            "--vary total_timesteps=1,2", "--vary gamma", "--vary gamma=", "--vary gamma=0.9,x",
            "--vary gamma=0.9,0.9", "--vary gamma=0.9,2", "--vary gamma=0.9 gamma=0.8",
            "--vary learning_rate=log:0:1:8", "--vary learning_rate=log:1:0.1:8",
            "--vary learning_rate=log:1:1:8", "--vary learning_rate=exp:0.1:1:8",
            "--vary learning_rate=log:0.1:1:1", "--vary learning_rate=log:0.1:1",
            "--vary gamma=0.9 --sampler random", "--vary gamma=0.9 --first-seed 999",
            "--vary gamma=0.9 --cut 0", "--vary gamma=0.9 --publish --results x",
            "--algo td_prediction --vary gamma=0.9", "--algo a2c --vary td_steps=1,2",
        )),
        "trl_baseline.py --algo none", "trl_speed.py --algo none", "llm_critic_cost.py -x",
    )),
]  # fmt: skip

# Everything slow is imported once, and so is what a script imports; every command runs in a fork.
RUN = """
import os, runpy, shlex, sys
import gymnasium, jinja2, pandas, rich.progress, scipy.stats, torch, transformers, tyro
import stable_baselines3
imported = set()
for line in sys.stdin:
    script, *sys.argv[1:] = shlex.split(line)
    sys.argv[0] = os.path.join(ROOT, script)
    sys.path[0] = os.path.dirname(sys.argv[0])
    if script not in imported:
        imported.add(script)
        runpy.run_path(sys.argv[0], run_name="imported")
    child = os.fork()
    if child == 0:
        for name in ("out", "err"):
            file = os.open(os.path.join(SAID, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1 + (name == "err"))
        status = 1
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}\\n(a traceback)", file=sys.stderr)
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def answers(folder: Path) -> list[tuple[str, int, str, str]]:
    """Of each command: itself, its status, stdout and stderr; they work in an empty folder."""
    (folder / "work").mkdir()
    (folder / "said").mkdir()
    head = f"ROOT, SAID = {str(ROOT)!r}, {str(folder / 'said')!r}\n"
    found = []
    with subprocess.Popen(
        [sys.executable, "-c", head + RUN],
        cwd=folder / "work",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        for command in MISTAKES:
            print(command, file=process.stdin, flush=True)
            status = int(process.stdout.readline())
            out, err = ((folder / "said" / name).read_text() for name in ("out", "err"))
            found.append((command, status, out, err))
    return found


@pytest.mark.slow
def test_a_mistake_is_one_line_of_every_command(tmp_path: Path) -> None:
    assert len(MISTAKES) >= 100
    for command, status, out, err in answers(tmp_path):
        said = err.splitlines()
        if command.startswith("llm_track"):  # the model is looked at when the training begins
            said, out = said[-1:], ""
        assert (status, out, len(said)) == (2, "", 1), (command, status, out, err)
        assert said[0].startswith("error: "), (command, err)
        assert "a traceback" not in err
    assert not list((tmp_path / "work").iterdir())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print("| command | status | says |\n|---|---:|---|")
        for command, status, out, err in answers(Path(name)):
            says = " / ".join(shlex.join([x])[:160] for x in (out + err).splitlines()[:3])
            print(f"| `{command}` | {status} | {says} |")
