"""A mistake in any command: one line on stderr, status 2, and nothing left behind.

What each refusal says is tested where the flags are.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.processes import Script

MISTAKES = (
    *("ppo.py --seed 3", "ppo.py --seeds 1.5", "ppo.py --env ''", "ppo.py --env nowhere:Env-v0"),
    *("ppo.py --results /proc/x", "ppo.py --device cuda", "ppo.py --help=x", "ppo.py CartPole-v1"),
    *(
        "a2c.py --td-steps 3",
        "trpo.py --rescale-actions",
        "ppo.py --env-kwargs x",
        "dqn.py --env Pendulum-v1",
    ),
    *("reinforce.py --episodes 1", "grpo.py --clip-range-high 0.1", "q_learning.py --gamma x"),
    *("sarsa.py --learning-rate 2", "monte_carlo.py --episodes 3", "value_iteration.py --seeds 3"),
    *("td_prediction.py --trace-decay 2", "policy_iteration.py --goal 99 99"),
)
LANGUAGE = (
    *("grpo.py --model /no/such", "grpo.py --max-new-tokens 99999", "dapo.py --clip-range -1"),
    *("dr_grpo.py --prompts 0", "dpo.py --preferences /no/such.jsonl", "rlhf_ppo.py --gamma 2"),
    *("sft.py --batch-size 0", "reward_model.py --temperature 0"),
)
MEASURING = (
    *("sweep.py --suite none", "sweep.py --only", "sweep.py --publish --results x"),
    *("report.py --results /no/such", "report.py x", "website.py --out /", "website.py --out ''"),
    *("compare.py", "compare.py /no/such", "watch.py /no/such", "watch.py x --check --fps 30"),
    *("throughput.py --algos none", "throughput.py --core 999", "critic_cost.py --repeats 0"),
    *("verify.py no-such-cell", "verify.py --seeds 0", "verify.py --results /no/such"),
    *("same_bits.py", "same_bits.py no-such-commit", "same_bits.py HEAD --workers 0"),
    *("sb3_baseline.py --algo none", "sb3_baseline.py --clip-range 0", "gpu_check.py --only"),
    *("search.py --quiet", "search.py --quiet --vary gamma=0.9 --publish --results x"),
    *("trl_baseline.py --algo none", "trl_speed.py --algo none", "llm_critic_cost.py -x"),
)
# A sample of 170 that a campaign tried. GIVEN is a folder with the files of `given`.
SAMPLE = (
    *(
        "algos/ppo.py --init GIVEN/qa.jsonl",
        "algos/ppo.py --init hub:GIVEN",
        "algos/a2c.py --env :Id",
    ),
    *("algos/ppo.py --results GIVEN/loop/x", "algos/dqn.py --track wandb --track none"),
    *("algos/sarsa.py --env Pendulum-v1", "algos/policy_iteration.py --walls 1 2 3"),
    *("llm_track/grpo.py --task GIVEN/half.jsonl", "llm_track/grpo.py --task GIVEN/qa.jsonl"),
    *("llm_track/dapo.py --dtype float16", "llm_track/dr_grpo.py --lora-rank 65"),
    *("llm_track/rlhf_ppo.py --reward-model GIVEN/loop", "llm_track/sft.py --drop-long-rows"),
    *("llm_track/dpo.py --preferences GIVEN/half.jsonl", "llm_track/generate.py --prompts 0"),
    *("llm_track/generate.py --out GIVEN/qa.jsonl", "benchmarks/merge.py GIVEN/qa.jsonl"),
    *("benchmarks/compare.py GIVEN/qa.jsonl GIVEN/loop", "benchmarks/export.py GIVEN --hub x"),
    *("benchmarks/watch.py GIVEN --fps 0", "benchmarks/website.py --out GIVEN/qa.jsonl"),
    *("benchmarks/sweep.py --watch --list", "benchmarks/llm_pipeline.py --work GIVEN/qa.jsonl"),
    *("benchmarks/search.py --vary gamma=0.9 gamma=0.99", "benchmarks/scores.py --env module:"),
    *("benchmarks/trl_baseline.py --algo rlhf_ppo", "benchmarks/throughput.py --seeds 0"),
)
COMMANDS = [f"algos/{words}" for words in MISTAKES]
COMMANDS += [f"llm_track/{words}" for words in LANGUAGE]
COMMANDS += [f"benchmarks/{words}" for words in MEASURING]
COMMANDS += SAMPLE


@pytest.fixture
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with questions that have answers, half a row, and a link to itself."""
    folder = tmp_path_factory.mktemp("given")
    rows = [{"prompt": f"q{k}", "answer": k} for k in range(40)]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "half.jsonl").write_text('{"prompt": "q", "chosen": "x"}\n')
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.mark.slow
def test_a_mistake_is_one_line_of_every_command(
    tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (words.replace("GIVEN", str(given)) for words in COMMANDS):
        script = Script(*shlex.split(command)).run()
        said = script.stderr.splitlines()
        assert (script.poll(), script.stdout, len(said)) == (2, "", 1), (command, script.stderr)
        assert said[0].startswith("error: "), command
    assert not list(tmp_path.iterdir())
    assert len(list(given.iterdir())) == 3
