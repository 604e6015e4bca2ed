"""The groups for the GRPO page: which are chosen, and that their numbers are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from manyseeds.benchmarks.measurements import grpo_group
from manyseeds.benchmarks.measurements.grpo_group import Sampled, chosen, stored_group, train
from manyseeds.llm_track import grpo, models, rlhf_ppo, sampling, tasks
from manyseeds.llm_track.policies import load_policy, load_scalars
from manyseeds.llm_track.rollout import rollout_of
from manyseeds.llm_track.sampling import Samples
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.parallel import Processes
from tests.benchmarks.conftest import Patch
from tests.random_models import make_model

G = 4


def step_of(right: list[int], ended: list[int], change: list[float]) -> Sampled:
    """A step of completions with two tokens, whose log-probabilities change as given."""
    B = len(right)
    problem = tasks.Problem("1+1=", "2")
    samples = Samples(
        prompts=torch.zeros(B, 1, dtype=torch.int64),
        prompt_mask=torch.ones(B, 1, dtype=torch.bool),
        tokens=torch.full((B, 2), 20),
        mask=torch.ones(B, 2, dtype=torch.bool),
        ended=torch.tensor(ended, dtype=torch.bool),
        logprobs=torch.zeros(B, 2),
        entropy=torch.zeros(B, 2),
    )
    current = torch.tensor(change).unsqueeze(1).expand(B, 2)
    graded = [tasks.Graded(problem, "x", float(r), 1.0) for r in right]
    return Sampled(samples, graded, torch.zeros(B, 2), torch.zeros(B, 2), current)


def test_groups_that_are_chosen() -> None:
    """All right, all wrong; mixed ones by cut off, balance, ratios outside the range."""
    right = [1, 1, 1, 1] + [0, 0, 0, 0] + 3 * [1, 0, 0, 1] + [1, 0, 0, 0]
    ended = [1] * 12 + [1, 0, 1, 1] + [1, 0, 1, 1] + [0, 0, 0, 0]
    change = [0.0] * 12 + [0.1] * 4 + [0.0, 0.0, 0.0, -0.3] + [1.0] * 4
    found = chosen(step_of(right, ended, change), G)
    assert found == {"mixed": 4, "all right": 0, "all wrong": 1}
    assert chosen(step_of([1] * 4, [1] * 4, [0.0] * 4), G) == {"all right": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Sampled, Any]:
    """A config, the last of two steps of a random model, and its tokenizer."""
    folder = make_model("tiny", tmp_path_factory.mktemp("model") / "model")
    shared = {"task": "addition", "model": folder, "quiet": True, "max_new_tokens": 8}
    shared |= {"prompts": 3, "group_size": G, "format_weight": 0.0}
    config = grpo.Config(**shared, minibatches=2, epochs=2, learning_rate=0.01)
    step, tokenizer = train(config, rlhf_ppo.Config(**shared), steps=2)
    return config, step, tokenizer


def test_numbers_of_a_step(trained: tuple[Any, Sampled, Any]) -> None:
    """The reference is the model that the training began with; every sample has its numbers."""
    config, step, _ = trained
    device = torch.device("cpu")
    policy, _ = models.load_model(config, device, Processes(device))
    with torch.no_grad():
        reference = sampling.logprobs(policy, step.samples)
    torch.testing.assert_close(step.reference, reference)
    assert len(step.graded) == len(step.samples) == 3 * G
    assert step.values.shape == step.current.shape == step.samples.tokens.shape


def test_what_is_stored(trained: tuple[Any, Sampled, Any]) -> None:
    _, step, tokenizer = trained
    group = stored_group(step, tokenizer, G, G)
    assert group["prompt"] == step.graded[G].problem.prompt
    assert len(group["completions"]) == G
    for i, completion in enumerate(group["completions"], start=G):
        n = int(step.samples.lengths[i])
        ids = tokenizer.convert_tokens_to_ids(completion["tokens"])
        assert ids == step.samples.tokens[i, :n].tolist()
        assert completion["old"] == pytest.approx(step.samples.logprobs[i, :n].tolist(), abs=1e-6)
        assert completion["current"] == pytest.approx(step.current[i, :n].tolist(), abs=1e-6)
        assert completion["ended"] == bool(step.samples.ended[i])


def test_the_critic_learns(trained: tuple[Any, Sampled, Any]) -> None:
    """Its head begins at 0, and so would its values stay."""
    config, _, _ = trained
    run_config = rlhf_ppo.Config(
        task="addition", model=config.model, quiet=True, critic_learning_rate=0.01
    )
    run = SeedsRun(run_config, [0])
    policy = load_policy(run_config, run)
    critic = load_scalars(config.model, run_config, policy, run, "--model")
    rollout = rollout_of(trained[1].samples)
    zeros = torch.zeros(rollout.tokens.shape)
    batch = rlhf_ppo.Batch(
        **vars(rollout), reference=zeros, values=zeros, advantages=zeros, returns=zeros + 1.0
    )
    optimizer = critic.optimizer()
    for _ in range(30):
        grpo_group.update_critic(critic, optimizer, batch, run_config)
    with torch.no_grad():
        values = rlhf_ppo.values_of(critic, rollout)
    assert values[rollout.mask].mean() > 0.5


def test_command(trained: tuple[Any, Sampled, Any], tmp_path: Path, monkeypatch: Patch) -> None:
    """Writes what the page reads."""
    from manyseeds.benchmarks.web import grpo as page

    monkeypatch.setattr(grpo_group, "train", lambda *_: (trained[1], trained[2]))
    monkeypatch.setattr(grpo_group, "from_preset", lambda *_, **__: trained[0])
    grpo_group.main(["--results", str(tmp_path), "--steps", "2"])
    assert json.loads((tmp_path / page.FILE).read_text())["step"] == 2
    assert [x.file for x in page.pages(tmp_path)] == ["grpo.html"]
