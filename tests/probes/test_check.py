"""Probes: right code of other libraries passes, planted bugs are named."""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from manyseeds.probes import FORMULAS, check, compare, example
from tests.probes import others

RIGHT: dict[str, list[Callable[..., Any]]] = {
    "ppo.advantages": [others.ppo_gae, others.sb3_gae],
    "a2c.advantages": [others.ppo_gae, others.sb3_gae],
    "ppo.loss": [others.ppo_loss, others.sb3_ppo_loss],
    "ppo.ratio": [others.ppo_ratio],
    "ppo.normalized": [others.ppo_normalized],
    "a2c.loss": [others.a2c_loss, others.sb3_a2c_loss],
    "dqn.loss": [others.dqn_loss],
    "dqn.target": [others.dqn_target],
    "dqn.double_target": [others.dqn_double_target],
    "dqn.polyak": [others.dqn_polyak],
    "dqn.importance_weights": [others.dqn_importance_weights],
    "dqn.weighted_loss": [others.dqn_weighted_loss],
    "dqn.target_updates": [others.dqn_target_updates],
    "dqn.epsilon": [others.dqn_epsilon],
    "sac.target": [others.sac_target],
    "sac.critic_loss": [others.sac_critic_loss, others.sb3_sac_critic_loss],
    "sac.actor_loss": [others.sac_actor_loss, others.sb3_sac_actor_loss],
    "sac.alpha_loss": [others.sac_alpha_loss, others.sb3_sac_alpha_loss],
    "sac.logprobs": [others.sac_logprobs],
    "sac.polyak": [others.sac_polyak],
    "grpo.advantages": [others.grpo_advantages],
    "grpo.loss": [others.grpo_loss],
    "llm.grpo.advantages": [others.llm_advantages],
    "llm.grpo.loss": [others.llm_loss],
    "llm.dapo.advantages": [others.llm_advantages],
    "llm.dr_grpo.advantages": [others.llm_dr_grpo_advantages],
    "llm.dapo.loss": [others.llm_dapo_loss],
    "llm.dr_grpo.loss": [others.llm_dr_grpo_loss],
}
# The functions of DAPO and Dr. GRPO have neither a KL nor an entropy.
SETTINGS: dict[str, dict[str, Any]] = {
    "llm.dapo.loss": {"kl_coef": 0.0, "entropy_coef": 0.0},
    "llm.dr_grpo.loss": {"kl_coef": 0.0, "entropy_coef": 0.0},
}


@pytest.mark.parametrize(
    ("name", "right"),
    [(name, right) for name, functions in RIGHT.items() for right in functions],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_right_code_passes(name: str, right: Callable[..., Any]) -> None:
    unseen = check(name, right, **SETTINGS.get(name, {}))
    known = ["the gradient flows through the log-probabilities into the policy"]
    assert unseen == (known if right is others.sb3_sac_alpha_loss else [])


def test_every_formula_has_right_code_of_others() -> None:
    assert RIGHT.keys() == FORMULAS.keys()


@pytest.mark.parametrize("name", [name for name in RIGHT if name != "dqn.target_updates"])
def test_right_code_passes_on_other_batches(name: str) -> None:
    """On five, with the example's numbers in another order: no two belong together."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        batch = example(name) | SETTINGS.get(name, {})
        for k, x in batch.items():
            if isinstance(x, np.ndarray) and k not in ("alive", "lengths"):
                batch[k] = rng.permutation(x.flatten()).reshape(x.shape)
        right = [f for f in RIGHT[name] if f is not others.sb3_gae]  # V of the next step is its own
        for function in right:
            check(name, function, **batch)


def test_right_code_with_other_settings_passes() -> None:
    check("dqn.loss", others.sb3_dqn_loss, loss="huber")
    check("ppo.loss", others.sb3_ppo_loss, normalize_advantage=False, value_coef=0.25)
    check("a2c.loss", others.sb3_a2c_loss, normalize_advantage=True)


# ---- Planted bugs ------------------------------------------------------------------------------


class Bug(NamedTuple):
    """A right function with some text replaced, and what a probe has to say of it."""

    name: str
    right: Any
    old: str
    new: str
    said: str


BUGS = [
    Bug("ppo.advantages", others.ppo_gae, "1.0 - terminated[t].float()", "1.0",
        "a termination is bootstrapped"),
    Bug("ppo.advantages", others.ppo_gae, "* bootstrap", "* nextnonterminal",
        "a truncation is not bootstrapped"),
    Bug("ppo.advantages", others.ppo_gae, "1.0 - (terminated[t] | truncated[t]).float()",
        "bootstrap", "behind a truncation, into the next episode"),
    Bug("ppo.advantages", others.ppo_gae, "next_values[t] * bootstrap",
        "(values[t + 1] if t + 1 < num_steps else next_values[t]) * bootstrap",
        "V of the state after the reset"),
    Bug("ppo.advantages", others.ppo_gae, "(terminated[t] | truncated[t])",
        "(terminated[t - 1] | truncated[t - 1])", ""),
    Bug("ppo.advantages", others.ppo_gae, "gamma * gae_lambda * next", "gae_lambda * next",
        "the decay lacks gamma"),
    Bug("ppo.advantages", others.ppo_gae, "gamma * gae_lambda * next", "gamma * next",
        "lambda is not used"),
    Bug("ppo.advantages", others.ppo_gae, "- values[t]", "", "V is not subtracted"),
    Bug("ppo.advantages", others.sb3_gae, "(rewards + gamma * next_values * cut)", "rewards",
        "a truncation is not bootstrapped"),
    Bug("ppo.advantages", others.sb3_gae, "next_values[-1]", "torch.zeros(N)",
        "the last step of the rollout is not bootstrapped"),
    Bug("ppo.advantages", others.sb3_gae, "episode_starts[1:] = done[:-1]",
        "episode_starts[:] = done", "one step early"),
    Bug("ppo.normalized", others.ppo_normalized, "- advantages.mean()", "",
        "the mean is not subtracted"),
    Bug("ppo.normalized", others.ppo_normalized, ".std()", ".std(unbiased=False)", "ddof 0"),
    Bug("ppo.normalized", others.ppo_normalized, ".std()", ".var()", "variance"),
    Bug("ppo.ratio", others.ppo_ratio, "logprobs - old_logprobs", "old_logprobs - logprobs",
        "inverted"),
    Bug("ppo.loss", others.ppo_loss, "logprobs - old_logprobs", "old_logprobs - logprobs",
        "the ratio is inverted"),
    Bug("ppo.loss", others.ppo_loss, "torch.max(", "torch.min(", "the clip is on the wrong side"),
    Bug("ppo.loss", others.ppo_loss, "torch.max(pg_loss1, pg_loss2)", "pg_loss2",
        "only the clipped term"),
    Bug("ppo.loss", others.ppo_loss, "torch.max(pg_loss1, pg_loss2)", "pg_loss1",
        "the ratio is not clipped"),
    Bug("ppo.loss", others.ppo_loss, "- entropy_coef", "+ entropy_coef",
        "the entropy bonus has the wrong sign"),
    Bug("ppo.loss", others.ppo_loss, "if normalize_advantage", "if False", "not normalised"),
    Bug("ppo.loss", others.ppo_loss, "v_loss = (", "v_loss = 0.5 * (", "half as large"),
    Bug("ppo.loss", others.ppo_loss, "values - returns", "values - advantages",
        "learns from advantages"),
    Bug("ppo.loss", others.ppo_loss, "values - returns", "values.detach() - returns",
        "V has no gradient"),
    Bug("ppo.loss", others.ppo_loss, "logprobs - old_logprobs", "logprobs - logprobs.detach()",
        "the ratio is 1"),
    Bug("a2c.loss", others.a2c_loss, "-(advantages", "(advantages", "policy loss has the wrong"),
    Bug("a2c.loss", others.a2c_loss, "-(advantages *", "-((returns - values) *",
        "flows through the advantages into V"),
    Bug("a2c.loss", others.a2c_loss, "-torch.mean(entropy)", "torch.mean(entropy)",
        "entropy is punished"),
    Bug("dqn.loss", others.dqn_loss, "terminated.float()", "(terminated | truncated).float()",
        "a truncation is not bootstrapped"),
    Bug("dqn.loss", others.dqn_loss, "* (1 - terminated.float())", "",
        "a termination is bootstrapped"),
    Bug("dqn.loss", others.dqn_loss, "next_q_values.max", "online_next_q_values.max",
        "the target network is not used"),
    Bug("dqn.loss", others.dqn_loss, "torch.no_grad()", "torch.enable_grad()",
        "the gradient flows through the target"),
    Bug("dqn.loss", others.dqn_loss, "target_max, _ = next_q_values.max(dim=1)",
        "target_max = next_q_values.max()", "the whole batch"),
    Bug("dqn.loss", others.dqn_loss, "gamma * target_max", "target_max", "gamma is not used"),
    Bug("dqn.double_target", others.dqn_double_target, "online_next_q_values.argmax",
        "next_q_values.argmax", "not double"),
    Bug("dqn.double_target", others.dqn_double_target, "= next_q_values.gather",
        "= online_next_q_values.gather", "the target network is not used"),
    Bug("dqn.polyak", others.dqn_polyak, "tau * online + (1.0 - tau) * target",
        "tau * target + (1.0 - tau) * online", "tau is inverted, or the networks"),
    Bug("dqn.importance_weights", others.dqn_importance_weights, "(-beta)", "beta",
        "the exponent is positive"),
    Bug("dqn.importance_weights", others.dqn_importance_weights, " / weights.max()", "",
        "not divided by the largest"),
    Bug("dqn.weighted_loss", others.dqn_weighted_loss, "weights * ", "",
        "importance weights are missing"),
    Bug("dqn.target_updates", others.dqn_target_updates, "timestep = global_step",
        "timestep = global_step // num_envs", "counts steps of the vector environment"),
    Bug("dqn.target_updates", others.dqn_target_updates, "timestep = global_step",
        "timestep = global_step // (num_envs * train_freq)", "gradient steps"),
    Bug("dqn.epsilon", others.dqn_epsilon, "exploration_fraction * total", "total",
        "over the whole training"),
    Bug("sac.critic_loss", others.sac_critic_loss,
        "torch.min(qf1_next_target, qf2_next_target) - ", "qf1_next_target - ",
        "only the first critic"),
    Bug("sac.critic_loss", others.sac_critic_loss, " - alpha * next_logprobs", "",
        "the entropy term is missing"),
    Bug("sac.critic_loss", others.sac_critic_loss, "- alpha", "+ alpha",
        "the entropy term has the wrong sign"),
    Bug("sac.critic_loss", others.sac_critic_loss, "torch.no_grad()", "torch.enable_grad()",
        "the gradient flows through the target"),
    Bug("sac.actor_loss", others.sac_actor_loss, "torch.min(", "torch.max(",
        "the larger of both critics"),
    Bug("sac.actor_loss", others.sac_actor_loss, "- min_qf_pi", "+ min_qf_pi",
        "Q has the wrong sign"),
    Bug("sac.alpha_loss", others.sac_alpha_loss, "+ target", "- target",
        "the target entropy has the wrong sign"),
    Bug("sac.logprobs", others.sac_logprobs, "log_prob -= torch.log(1 - y_t.pow(2) + 1e-6)",
        "pass", "the derivative of tanh is missing"),
    Bug("sac.logprobs", others.sac_logprobs, "log_prob -=", "log_prob +=",
        "the derivative of tanh has the wrong sign"),
    Bug("sac.logprobs", others.sac_logprobs, "log_prob(x_t)", "log_prob(y_t)",
        "that of tanh(u), not of u"),
    Bug("sac.polyak", others.sac_polyak, "tau * online + (1 - tau) * target", "online",
        "copied"),
    Bug("grpo.advantages", others.grpo_advantages,
        "(peers - peers.mean()) / (peers.std() + 1e-8)",
        "(peers - returns[t, k].mean()) / (returns[t, k].std() + 1e-8)", ""),
    Bug("grpo.advantages", others.grpo_advantages, " / (peers.std() + 1e-8)", "",
        "not divided by the standard deviation"),
    Bug("grpo.advantages", others.grpo_advantages, "peers - peers.mean()", "peers", ""),
    Bug("grpo.loss", others.grpo_loss, "x[mask]", "x", "the mask is not used"),
    Bug("grpo.loss", others.grpo_loss, "- kl_coef", "+ kl_coef", "the KL has the wrong sign"),
    Bug("grpo.loss", others.grpo_loss, "torch.min(", "torch.max(", "on the wrong side"),
    Bug("sac.target", others.sac_target, "next_q_values.min(0).values", "next_q_values.mean(0)",
        "the mean of both critics"),
    Bug("llm.grpo.advantages", others.llm_advantages, "dim=1", "dim=0", "compared over prompts"),
    Bug("llm.grpo.advantages", others.llm_advantages, ".std(dim=1, ", ".std(dim=1, correction=0, ",
        "ddof 0"),
    Bug("llm.grpo.loss", others.llm_loss, "mask.float()",
        "torch.cat((mask[:, :1] & False, mask[:, :-1]), 1).float()",
        "the mask is shifted by one token"),
    Bug("llm.grpo.loss", others.llm_loss, "mask.float()",
        "(mask & (mask.cumsum(1) < mask.sum(1, keepdim=True))).float()",
        "the end of the sequence, is missing"),
    Bug("llm.grpo.loss", others.llm_loss, "mask.float()", "torch.ones_like(logprobs)",
        "the mask is not used"),
    Bug("llm.grpo.loss", others.llm_loss,
        "(per_token_loss * completion_mask).sum(-1) / tokens).mean()",
        "(per_token_loss * completion_mask).sum() / completion_mask.sum())",
        "the mean over all tokens"),
    Bug("llm.grpo.loss", others.llm_loss, "+ kl_coef", "- kl_coef", "the KL has the wrong sign"),
    Bug("llm.grpo.loss", others.llm_loss,
        "torch.exp(reference - logprobs) - (reference - logprobs)",
        "torch.exp(logprobs - reference) - (logprobs - reference)", "each other's place"),
    Bug("llm.grpo.loss", others.llm_loss,
        "torch.exp(reference - logprobs) - (reference - logprobs) - 1", "logprobs - reference",
        "the KL is k1"),
    Bug("llm.grpo.loss", others.llm_loss, "torch.exp(logprobs - old_logprobs)",
        "torch.exp(old_logprobs - logprobs)", "the ratio is inverted"),
    Bug("llm.dapo.loss", others.llm_dapo_loss, "1 + clip_range_high", "1 + clip_range",
        "the upper clip range is the lower one"),
    Bug("llm.dapo.loss", others.llm_dapo_loss, "(losses * mask).sum() / mask.sum()",
        "((losses * mask).sum(1) / mask.sum(1)).mean()", "the mean over completions"),
    Bug("llm.dr_grpo.loss", others.llm_dr_grpo_loss, "max_tokens)", "1)",
        "the sum over tokens, and the mean over completions"),
]  # fmt: skip


def planted(bug: Bug) -> Any:
    """The function with the bug in it."""
    text = textwrap.dedent(inspect.getsource(bug.right))
    assert text.count(bug.old) == 1 or bug.old in ("dim=1", "- advantages.mean()"), text
    code = compile(text.replace(bug.old, bug.new), bug.name, "exec", dont_inherit=True)
    scope: dict[str, Any] = {**vars(others)}
    exec(code, scope)
    found = scope[bug.right.__name__]
    assert isinstance(found, FunctionType)
    return found


@cache
def message_of(bug: Bug) -> str:
    with pytest.raises(AssertionError) as raised:
        check(bug.name, planted(bug), **SETTINGS.get(bug.name, {}))
    return str(raised.value)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name}, {bug.said or bug.new}")
def test_a_planted_bug_is_named(bug: Bug) -> None:
    message = message_of(bug)
    assert message.startswith(bug.name)
    if bug.said:
        assert bug.said in message.partition(". Yours")[0]
    else:
        assert "no known mistake gives exactly these numbers" in message


def test_nine_of_ten_are_named() -> None:
    """And the rest are found, all within seconds."""
    began = time.process_time()
    messages = [message_of(bug) for bug in BUGS]
    assert time.process_time() - began < 60
    named = [bug for bug, x in zip(BUGS, messages, strict=True) if bug.said and bug.said in x]
    assert len(named) >= 0.9 * len(BUGS) >= 36


# ---- The formulas themselves ---------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_every_known_mistake_is_named_as_itself(name: str) -> None:
    """On the example no two look alike, and none like what is right, but for settings."""
    formula = FORMULAS[name]
    batch = formula.example()
    right = compare.outputs_of(formula.compute, batch, formula)
    of = dict(compare.tried(formula, batch, formula.mistakes.items()))
    assert of.keys() == formula.mistakes.keys()
    settings = [text for text, outputs in of.items() if compare.equal(outputs, right)]
    assert len(settings) <= 2
    for text in of.keys() - set(settings):
        alike = [other for other, x in of.items() if compare.equal(of[text], x)]
        assert alike == [text]


@pytest.mark.parametrize("name", FORMULAS)
def test_ours_is_right_and_an_example_shows_all(name: str) -> None:
    formula = FORMULAS[name]
    batch = example(name)
    tensors = {k: compare.as_tensor(x) if formula.shapes[k] else x for k, x in batch.items()}
    numbers = compare.outputs_of(formula.compute, tensors, formula)
    assert check(name, {k: x.numpy() for k, x in numbers.items()}, **batch) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULAS)
def test_what_nobody_knows_is_told_by_its_place(name: str) -> None:
    """After all pairs of mistakes, some of which exclude each other."""
    formula, generator = FORMULAS[name], torch.Generator().manual_seed(0)
    right = compare.outputs_of(formula.compute, formula.example(), formula)
    wrong = {k: x + 1 + torch.rand(x.shape, generator=generator) for k, x in right.items()}
    with pytest.raises(AssertionError) as raised:
        check(name, lambda **batch: wrong)
    assert f"{name}: no known mistake gives exactly these numbers" in str(raised.value)
    assert ". Yours for ours: " in str(raised.value)


def test_a_batch_may_be_too_small_for_a_mistake() -> None:
    advantages = np.array([1.0, 2.0, 4.0])
    right = (advantages - advantages.mean()) / advantages.std(ddof=1)
    assert check("ppo.normalized", right, advantages=advantages) == [
        "advantages are normalised over the wrong axis, in parts"
    ]


def test_a_loss_without_gradients_does_not_show_them() -> None:
    def loss(**batch):
        wanted = inspect.signature(others.dqn_loss).parameters
        return others.dqn_loss(**{k: batch[k] for k in wanted}).item()

    assert check("dqn.loss", loss) == [
        "the gradient flows through the target",
        "the gradient reaches the target alone",
    ]


def test_two_mistakes_at_once_are_named() -> None:
    def two(rewards, values, next_values, terminated, truncated, gamma, gae_lambda):
        never = torch.zeros_like(terminated)
        ends = terminated | truncated
        return others.ppo_gae(rewards, values, next_values, never, ends, gamma, 1.0)

    with pytest.raises(
        AssertionError,
        match=r"termination is boot.*; and lambda is not|lambda is not.*; and a term",
    ):
        check("ppo.advantages", two)


def test_numbers_need_their_batch_and_tell_what_it_cannot_show() -> None:
    batch = example("ppo.advantages")
    batch["truncated"][:] = False
    numbers = others.ppo_gae(**{k: torch.as_tensor(x) for k, x in batch.items()})
    unseen = check("ppo.advantages", numbers.tolist(), **batch)
    assert any("truncation is not bootstrapped" in text for text in unseen)
    assert not any("termination is bootstrapped, as" in text for text in unseen)
    with pytest.raises(
        TypeError, match=r"rewards, .* missing; it is computed from rewards \[T, N\]"
    ):
        check("ppo.advantages", numbers)
    del batch["gamma"]
    with pytest.raises(TypeError, match="gamma missing"):
        check("ppo.advantages", numbers, **batch)


def test_flags_may_be_numbers() -> None:
    batch = example("dqn.target")
    found = check(
        "dqn.target",
        lambda rewards, terminated, next_q_values, gamma: (
            rewards + gamma * next_q_values.amax(1) * ~terminated
        ),
        terminated=batch["terminated"].astype(np.float32),
        truncated=list(batch["truncated"]),
    )
    assert found == []


def test_a_function_may_write_to_its_arguments() -> None:
    def writing(rewards, terminated, truncated, next_q_values, gamma):
        targets = others.dqn_target(rewards, terminated, next_q_values, gamma)
        terminated |= truncated
        rewards.zero_()
        return targets

    assert check("dqn.target", writing) == []


def test_gradients_are_compared_where_numbers_have_them() -> None:
    batch = {
        k: torch.as_tensor(x) if isinstance(x, np.ndarray) else x
        for k, x in example("ppo.loss").items()
    }
    leaves = {k: batch[k].requires_grad_() for k in ("logprobs", "entropy", "values")}
    wanted = inspect.signature(others.ppo_loss).parameters
    loss = others.ppo_loss(**{k: x for k, x in batch.items() if k in wanted})
    loss.backward()
    right = {"loss": loss.item()} | {f"{k}.grad": x.grad for k, x in leaves.items()}
    assert check("ppo.loss", right, **batch) == []
    logprobs = leaves["logprobs"]
    with pytest.raises(AssertionError, match="wrong sign"):
        check("ppo.loss", {"logprobs.grad": -logprobs.grad}, **batch)
    with pytest.raises(TypeError, match=r"no actor\.grad; it has loss, logprobs\.grad"):
        check("ppo.loss", {"actor.grad": -logprobs.grad}, **batch)


@pytest.mark.parametrize(
    ("name", "yours", "given", "error", "said"),
    [
        ("ppo.gae", None, {}, ValueError, "ppo.gae: no formula has this name; there are ppo.adv"),
        ("ppo.ratio", lambda new: new, {}, TypeError, "nothing is called new; it is computed from"),
        ("ppo.ratio", lambda logprobs: logprobs[1:], {}, AssertionError, "shape [36], not [37]"),
        ("ppo.ratio", lambda logprobs: logprobs * torch.nan, {}, AssertionError, "ratio: NaN."),
        ("ppo.ratio", lambda logprobs: logprobs, {"clip": 1}, TypeError, "no clip; it is"),
        ("ppo.ratio", lambda logprobs: logprobs, {"logprobs": np.ones(3)}, TypeError,
         "old_logprobs has shape [37], not [M] with M = 3"),
        ("dqn.polyak", lambda tau: tau, {"online": np.ones((3, 1))}, TypeError,
         "online has shape [3, 1], not [P] with P = 7"),
        ("sac.actor_loss", [0.0], {"logprobs": [1.0], "q_values": [[1.0]], "alpha": 1}, TypeError,
         "q_values has shape [1, 1], not [2, M] with M = 1"),
        ("sac.actor_loss", [0.0], {"logprobs": [1.0], "q_values": [[1.0], [2.0]], "alpha": 1},
         AssertionError, "loss has shape [1], not []"),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, yours: Any, given: Any, error: Any, said: str) -> None:
    with pytest.raises(error) as raised:
        check(name, yours, **given)
    assert said in str(raised.value)


def test_a_probe_follows_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares with the function that stands there, not with a copy."""
    from manyseeds.algos import ppo

    monkeypatch.setattr(ppo, "policy_loss", lambda ratio, advantages, clip: 0 * ratio.sum(-1))
    with pytest.raises(AssertionError):
        check("ppo.loss", others.ppo_loss)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([1.37], ""),
        ([-1.0], "the sign is inverted"),
        ([4.0], "4 times as large"),
        ([-0.25], "-0.25 times as large"),
        ([1.37, 2.74], "1.37 times as large"),
        ([1.37, 2.7], ""),
    ],
)
def test_a_single_number_is_a_multiple_only_by_a_whole_number(
    found: list[float], said: str
) -> None:
    right = torch.tensor([1.0, 2.0][: len(found)])
    assert compare.factor({"loss": torch.tensor(found)}, {"loss": right}) == said
