"""DPO: its loss and gradient against hand-worked numbers and a slow loop, its pairs, its runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from manyseeds.errors import UsageError
from manyseeds.llm_track import dpo, models, sampling, tasks
from manyseeds.llm_track.tasks import Preference
from manyseeds.record import RunFolder, read_json
from manyseeds.runs.language import LanguageRun, main
from manyseeds.runs.parallel import Processes

CPU = torch.device("cpu")
PAIRS = [
    Preference("1+2=", "<think></think><answer>3</answer>", "<answer>4"),
    Preference("47+85=", "132", "131 or so"),
    Preference("9", "a longer completion", "b"),
    Preference("10+20=", "<answer>30</answer>", "<answer>31</answer>"),
    Preference("5+5=", "", "what?"),
]


@pytest.fixture
def small(few_samples: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, and an accuracy that random weights earn half of the time."""
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: len(text) % 2)


def config_of(model: str, **settings: Any) -> dpo.Config:
    given = {"batch_size": len(PAIRS), "max_new_tokens": 12, "quiet": True}
    return dpo.Config(**{"model": model, **given, **settings})


def moved(policy: Any, seed: int = 1) -> Any:
    """Away from where it began: else every margin is 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.parameters():
            p += 0.05 * torch.randn(p.shape, generator=generator)
    return policy


def update(
    config: dpo.Config,
    pairs: Sequence[Preference] = PAIRS,
    move: bool = True,
    double: bool = False,
) -> tuple[dict[str, Tensor], Tensor]:
    """Metrics and the unclipped gradient of one step of plain gradient descent."""
    policy, tokenizer = models.load_model(config, CPU, Processes())
    policy = policy.double() if double else policy
    reference = models.Reference(policy)
    if move:
        moved(policy)
    before = torch.cat([p.detach().flatten().clone() for p in policy.parameters()])
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    run = LanguageRun(config, [0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpo, "MAX_GRAD_NORM", math.inf)
        if double:
            patch.setattr(torch.Tensor, "float", lambda x: x)
            torch.set_default_dtype(torch.float64)
        task = tasks.make(config.task)
        try:
            metrics = dpo.update(policy, reference, tokenizer, task, optimizer, pairs, config, run)
        finally:
            torch.set_default_dtype(torch.float32)
    after = torch.cat([p.detach().flatten() for p in policy.parameters()])
    return metrics, before - after


# ---- The loss ------------------------------------------------------------------------------


def test_the_loss_by_hand() -> None:
    """log pi of (-2, -5), log pi_ref of (-3, -4), beta 0.5: rewards 0.5 and -0.5, margin 1."""
    chosen = dpo.rewards(torch.tensor([-2.0]), torch.tensor([-3.0]), 0.5)
    rejected = dpo.rewards(torch.tensor([-5.0]), torch.tensor([-4.0]), 0.5)
    assert (chosen.item(), rejected.item()) == (0.5, -0.5)
    loss = dpo.preference_loss(chosen, rejected)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert dpo.preference_loss(rejected, chosen).item() == pytest.approx(math.log(1 + math.e))
    equal = dpo.preference_loss(torch.zeros(3), torch.zeros(3))
    torch.testing.assert_close(equal, torch.full((3,), math.log(2)))


def test_the_gradient_by_hand() -> None:
    """- beta sigmoid(r_l - r_w) for log pi(y_w), and its opposite for log pi(y_l) (sec. 4)."""
    logprobs = torch.tensor([-2.0, -5.0], requires_grad=True)
    chosen, rejected = dpo.rewards(logprobs, torch.tensor([-3.0, -4.0]), 0.5).split(1)
    dpo.preference_loss(chosen, rejected).sum().backward()
    weight = 0.5 / (1 + math.e)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-weight, weight])


def test_the_loss_stays_finite_far_away() -> None:
    far = torch.tensor([1e4, -1e4], requires_grad=True)
    loss = dpo.preference_loss(far, -far)
    assert loss.tolist() == [0, 2e4]
    loss.sum().backward()
    assert far.grad is not None
    assert far.grad.isfinite().all()


def test_at_the_beginning_it_is_log_2(folder: str) -> None:
    metrics, gradient = update(config_of(folder), move=False)
    assert metrics["loss"].item() == pytest.approx(math.log(2), abs=1e-7)
    for name in ("accuracy", "margin", "reward_chosen", "reward_rejected"):
        assert metrics[name] == 0, name
    assert metrics["logprob_chosen"] < -1
    assert gradient.abs().max() > 1e-3


def by_loops(config: dpo.Config) -> tuple[dict[str, float], Tensor]:
    """The metrics and the gradient, a token at a time in float64."""
    policy, tokenizer = models.load_model(config, CPU, Processes())
    policy.double()
    reference, _ = models.load_model(config, CPU, Processes())
    reference.double()
    moved(policy)

    def log_probability(model: Any, prompt: str, completion: str) -> Tensor:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        told = tokenizer(completion, add_special_tokens=False)["input_ids"]
        total = torch.zeros((), dtype=torch.float64)
        for token in [*told, tokenizer.eos_token_id][: config.max_new_tokens]:
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            total = total + logits.log_softmax(-1)[token]
            ids = [*ids, token]
        return total

    sums: Counter[str] = Counter()
    whole = torch.zeros((), dtype=torch.float64)
    for pair in PAIRS:
        lp, ref = (
            [log_probability(model, pair.prompt, text) for text in (pair.chosen, pair.rejected)]
            for model in (policy, reference)
        )
        w, l = (config.beta * (lp[k] - ref[k].detach()) for k in (0, 1))  # noqa: E741
        loss = -torch.log(1 / (1 + torch.exp(l - w)))
        whole = whole + loss / len(PAIRS)
        found = {
            "loss": loss, "accuracy": w > l, "margin": w - l, "reward_chosen": w,
            "reward_rejected": l, "logprob_chosen": lp[0], "logprob_rejected": lp[1],
        }  # fmt: skip
        for name, x in found.items():
            sums[name] += float(x.detach()) / len(PAIRS)  # type: ignore[assignment]
    whole.backward()
    return dict(sums), torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_a_step_equals_a_slow_loop(folder: str, beta: float) -> None:
    """Sums over tokens, the end among them; some completions are cut off."""
    config = config_of(folder, beta=beta)
    expected, gradient = by_loops(config)
    metrics, got = update(config, double=True)
    assert 0 < expected["accuracy"] < 1
    for name, x in expected.items():
        assert float(metrics[name]) == pytest.approx(x, abs=1e-9), name
    torch.testing.assert_close(got, gradient, rtol=1e-4, atol=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert gradient.norm() > 0.05


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_micro_batches_change_nothing(folder: str, size: int) -> None:
    whole, gradient = update(config_of(folder))
    parts, got = update(config_of(folder, micro_batch_size=size))
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got, gradient, rtol=1e-3, atol=2e-6)


def test_the_shares_of_processes_add_up(qwen: str) -> None:
    """Each divides by the pairs of all of them."""
    config = config_of(qwen)
    whole, gradient = update(config)
    shares = [update(config, PAIRS[rank::2]) for rank in (0, 1)]
    torch.testing.assert_close(shares[0][1] + shares[1][1], gradient, rtol=1e-3, atol=2e-6)
    for name in set(whole) - {"grad_norm"}:
        total = shares[0][0][name] + shares[1][0][name]
        torch.testing.assert_close(total, whole[name], rtol=1e-4, atol=1e-5)


def test_the_order_and_the_company_of_pairs_change_nothing(qwen: str) -> None:
    """The padding of a pair is that of its neighbours."""
    whole, gradient = update(config_of(qwen))
    again, got = update(config_of(qwen), PAIRS[::-1])
    torch.testing.assert_close(got, gradient, rtol=1e-3, atol=2e-6)
    torch.testing.assert_close(again["loss"], whole["loss"])


def test_steps_widen_the_margin(qwen: str) -> None:
    config = config_of(qwen, learning_rate=1e-3)
    policy, tokenizer = models.load_model(config, CPU, Processes())
    reference, task = models.Reference(policy), tasks.make("addition")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate)
    run = LanguageRun(config, [0])
    for _ in range(30):
        metrics = dpo.update(policy, reference, tokenizer, task, optimizer, PAIRS, config, run)
    assert metrics["accuracy"] == 1
    assert metrics["margin"] > 0.5
    assert metrics["loss"] < 0.5
    margin = metrics["reward_chosen"] - metrics["reward_rejected"]
    torch.testing.assert_close(margin, metrics["margin"])


# ---- The pairs -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_pairs_are_the_policy_s_own(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one for each prompt, of prompts that are trained on, at the temperature."""
    monkeypatch.setattr(dpo, "PROMPTS", 8)
    config = config_of(qwen, total_samples=90, temperature=0.7)
    policy, tokenizer = models.load_model(config, CPU, Processes())
    task, run = tasks.make("addition"), LanguageRun(config, [3])
    graded: list[tasks.Graded] = []
    grade, sample = tasks.Addition.grade, sampling.sample
    temperatures = []

    def spy_grade(self: Any, problem: Any, text: str) -> Any:
        graded.append(grade(self, problem, text))
        return graded[-1]

    def spy_sample(*args: Any, **options: Any) -> Any:
        temperatures.append(args[4])
        return sample(*args)

    monkeypatch.setattr(tasks.Addition, "grade", spy_grade)
    monkeypatch.setattr(sampling, "sample", spy_sample)
    pairs, generated = dpo.make_pairs(policy, tokenizer, task, config, run)
    assert generated == len(graded) == 96  # whole blocks of 8 prompts
    assert set(temperatures) == {0.7}
    assert 3 < len(pairs) < 24
    right = {(x.problem.prompt, x.text) for x in graded if x.accuracy}
    wrong = {(x.problem.prompt, x.text) for x in graded if not x.accuracy}
    for pair in pairs:
        assert (pair.prompt, pair.chosen) in right
        assert (pair.prompt, pair.rejected) in wrong
        assert not tasks.held_out(pair.prompt)
    mixed = {p for p, _ in right} & {p for p, _ in wrong}
    assert {pair.prompt for pair in pairs} == mixed
    assert dpo.make_pairs(policy, tokenizer, task, config, run)[0] == pairs
    assert dpo.make_pairs(policy, tokenizer, task, config, LanguageRun(config, [4]))[0] != pairs


@pytest.mark.usefixtures("small")
def test_pairs_do_not_depend_on_the_processes(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that hand each other their graded completions make what one makes."""
    monkeypatch.setattr(dpo, "PROMPTS", 8)
    config = config_of(qwen, total_samples=64)
    policy, tokenizer = models.load_model(config, CPU, Processes())
    task, run = tasks.make("addition"), LanguageRun(config, [0])
    pairs, generated = dpo.make_pairs(policy, tokenizer, task, config, run)
    found: dict[int, list[list[Any]]] = {0: [], 1: []}
    for rank in (0, 1):
        part = Processes()
        part.rank, part.size = rank, 2
        monkeypatch.setattr(
            part, "gather_lists", lambda items, rank=rank: found[rank].append(items) or items
        )
        dpo.make_pairs(policy, tokenizer, task, config, LanguageRun(config, [0], processes=part))
    together = iter([a + b for a, b in zip(found[0], found[1], strict=True)])
    monkeypatch.setattr(run.processes, "gather_lists", lambda items: next(together))
    assert dpo.make_pairs(policy, tokenizer, task, config, run) == (pairs, generated)


@pytest.mark.parametrize(("N", "pairs"), [(4, 12), (5, 12), (7, 3), (1, 1), (32, 10)])
def test_every_pass_goes_through_all_pairs(N: int, pairs: int) -> None:
    run = LanguageRun(dpo.Config(model="x", quiet=True), [0])
    steps = -(-3 * pairs // N)
    rows = [row for step in range(steps) for row in dpo.rows_of_step(step, N, pairs, run)]
    assert len(rows) == steps * N
    for k in range(3):
        assert sorted(rows[k * pairs : (k + 1) * pairs]) == list(range(pairs))
    if pairs > 8:
        assert rows[:pairs] != rows[pairs : 2 * pairs]
    again = [dpo.rows_of_step(step, N, pairs, run) for step in reversed(range(steps))]
    assert [row for rows in reversed(again) for row in rows] == rows  # whatever came before


# ---- Runs ----------------------------------------------------------------------------------


def train(config: dpo.Config) -> tuple[Path, pd.DataFrame]:
    """Train seed 0 as the command does; the part and the logged metrics."""
    main(config, dpo.train, dpo.PRESETS)
    part = RunFolder.of(config, "dpo").path / "seeds-000-000"
    return part, pd.read_parquet(part / "metrics.parquet")


@pytest.mark.usefixtures("small")
def test_end_to_end_from_own_samples(folder: str, tmp_path: Path) -> None:
    config = config_of(folder, total_samples=256, epochs=2, batch_size=8, evaluations=2)
    part, metrics = train(replace(config, results=str(tmp_path), name="x"))
    summary = read_json(part / "summary.json")
    assert summary["samples"] == 256
    assert summary["diverged"] is None
    assert summary["initial"]["kl"] == pytest.approx(0, abs=1e-4)
    pairs = int(metrics["pairs"].iloc[0])
    assert 16 < pairs <= 64
    assert len(metrics) == math.ceil(2 * pairs / 8)
    assert metrics["loss"].iloc[0] == pytest.approx(math.log(2), abs=1e-6)
    # The samples that were generated, spread over the steps.
    spread = [256 * k // len(metrics) for k in range(1, len(metrics) + 1)]
    assert metrics["samples"].tolist() == spread
    # Everything that is logged is documented.
    documented = (dpo.__doc__ or "").split("Logged per step:")[1]
    for name in set(metrics) - {"seed", "samples", "learn_s"}:
        assert name in documented, name
    assert metrics.notna().all().all()


def preferences(path: Path, n: int) -> str:
    rows = [{"prompt": f"{k}+1=", "chosen": f"{k + 1}", "rejected": "?"} for k in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.usefixtures("small")
def test_end_to_end_from_a_file(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is generated; two samples for each pair that is gone through."""
    path = preferences(tmp_path / "p.jsonl", 20)

    def refuse(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(dpo, "make_pairs", refuse)
    config = config_of(folder, preferences=path, total_samples=60, batch_size=8, beta=0.5)
    part, metrics = train(replace(config, results=str(tmp_path), name="x", learning_rate=3e-3))
    assert metrics["samples"].tolist() == [16, 32, 48, 64]
    assert (metrics["pairs"] == 20).all()
    assert metrics["loss"].iloc[0] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["loss"].iloc[-1] < 0.6
    assert read_json(part / "summary.json")["samples"] == 64


@pytest.mark.usefixtures("small")
def test_the_rate_falls_to_0(qwen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    real = dpo.update

    def spy(*args: Any) -> Any:
        rates.append(args[4].param_groups[0]["lr"])
        return real(*args)

    monkeypatch.setattr(dpo, "update", spy)
    path = preferences(tmp_path / "p.jsonl", 20)
    config = config_of(qwen, preferences=path, total_samples=80, batch_size=8, learning_rate=1e-3)
    train(replace(config, results=str(tmp_path), name="x"))
    assert rates == pytest.approx([1e-3, 8e-4, 6e-4, 4e-4, 2e-4])


@pytest.mark.parametrize("source", ["own samples", "a file"])
@pytest.mark.usefixtures("small", "eager")
def test_an_interrupted_training_goes_on_as_if_nothing_had_been(
    source: str, qwen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with the pairs of the first model: they are not made again by a later one."""
    config = config_of(qwen, total_samples=256, batch_size=8, epochs=1, evaluations=1)
    config = replace(config, checkpoint_interval=1e-9)
    if source == "a file":
        path = preferences(tmp_path / "p.jsonl", 20)
        config = replace(config, preferences=path, total_samples=96)
    save, make = LanguageRun.save_if_due, dpo.make_pairs
    steps: list[int] = []
    made: list[int] = []
    weights, curves = [], []

    def spy(*args: Any) -> Any:
        made.append(1)
        return make(*args)

    monkeypatch.setattr(dpo, "make_pairs", spy)
    for name, last in (("whole", 99), ("broken", 3)):
        named = replace(config, name="x", results=str(tmp_path / name))

        def stop(self: Any, step: int, *args: Any, last: int = last, **extra: Any) -> None:
            save(self, step, *args, **extra)
            steps.append(step)
            if step == last:
                raise KeyboardInterrupt

        monkeypatch.setattr(LanguageRun, "save_if_due", stop)
        if last == 3:
            with pytest.raises(SystemExit, match="130"):
                main(named, dpo.train, {})
        part, metrics = train(named)
        curves.append(metrics.drop(columns="learn_s"))
        weights.append((part / "model" / "model.safetensors").read_bytes())
    n = len(steps) // 2
    assert n > 3
    own = source == "own samples"
    whole = [*range(0 if own else 1, steps[n - 1] + 1)]  # the pairs are saved before the first step
    assert steps == whole * 2
    assert len(made) == (2 if own else 0)
    pd.testing.assert_frame_equal(curves[0], curves[1], check_exact=True)
    assert weights[0] == weights[1]


@pytest.mark.usefixtures("small")
def test_without_a_pair_there_is_nothing_to_learn(
    qwen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: 0.0)
    config = config_of(qwen, total_samples=64, results=str(tmp_path), name="x")
    run = LanguageRun(config, [0])
    with pytest.raises(UsageError, match="of no prompt it has both right and wrong completions"):
        dpo.train(config, run)


def test_a_file_that_is_not_there_is_refused_before_anything_begins(tmp_path: Path) -> None:
    path = tmp_path / "missing.jsonl"
    with pytest.raises(UsageError, match=f"--preferences {path}: there is no such file"):
        dpo.Config(preferences=str(path))


def test_preferences_that_do_not_fit_are_refused(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A completion that is cut has lost its end: it is not what was preferred."""
    path = tmp_path / "p.jsonl"
    rows = [
        {"prompt": "1+1=", "chosen": "2", "rejected": "a-longer-one"},
        {"prompt": "9" * 120, "chosen": "2", "rejected": "3"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for tokens, message in (
        (12, f"--preferences {path}: has a completion of 13 tokens, more than the 12 of"),
        (13, "--max-new-tokens 13: with prompts of up to 120 tokens this is beyond the context"),
    ):
        results = tmp_path / "results"
        config = config_of(
            folder, preferences=str(path), max_new_tokens=tokens, results=str(results)
        )
        with pytest.raises(SystemExit, match="2"):
            main(config, dpo.train, {})
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {message}")
        assert not results.exists()


@pytest.mark.slow
def test_it_learns_addition(tiny_results: str) -> None:
    """With the preset; the tiny model is made on the way."""
    settings = dpo.PRESETS["addition"].settings
    config = dpo.Config(
        results=tiny_results, total_samples=12_800, evaluations=1, quiet=True, **settings
    )
    run = LanguageRun(config, [0])
    run.open([])
    dpo.train(config, run)
    summary = run.finish(None)
    assert summary["final"]["pass@1"] > summary["initial"]["pass@1"] + 0.1
    assert summary["final"]["format"] > 0.9
    late = run.metrics().tail(20)
    assert late["accuracy"].mean() > 0.85
