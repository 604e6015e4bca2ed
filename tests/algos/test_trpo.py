"""TRPO: its step against a dense Fisher solve, its constraint on real rollouts, its faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, hessian

from manyseeds import envs, kernels
from manyseeds.algos import trpo
from manyseeds.cli import UsageError
from manyseeds.optim import SeedAdam, flatten_parameters, views_like
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams

VARIANTS: dict[str, dict[str, Any]] = {
    "discrete": {},
    "box": {"env_id": "Pendulum-v1", "log_std_init": -0.5},
    "normalised": {"env_id": "Acrobot-v1", "normalize_obs": True, "normalize_reward": True},
}


def small_batch(
    dtype: torch.dtype = torch.float64, S: int = 3, env_id: str = "CartPole-v1", **settings: Any
) -> tuple[trpo.Config, trpo.ActorCritic, Tensor, trpo.Batch]:
    """A rollout by S agents that have a preference: config, agent, its theta and the batch."""
    settings = {"hidden": (16,), "num_envs": 4, "num_steps": 16, "minibatch_size": 32, **settings}
    config = trpo.Config(env=env_id, **settings)
    env = envs.make(env_id)
    agent = trpo.ActorCritic(env.spec, config, SeedStreams(range(S), "init")).to(dtype)
    if agent.obs_stats is not None:
        agent.obs_stats.double()
    theta = flatten_parameters(agent.policy_parameters())
    agent.actor.weights[-1].data.mul_(50)
    streams = SeedStreams(range(S), "train")
    state, obs = env.reset(streams.uniform(4, env.initial_noise).to(dtype))
    noise = agent.draw(streams, 16, 4).to(dtype), streams.uniform(16, 4, env.noise_size).to(dtype)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    return config, agent, theta, trpo.prepare(agent, rollout, config)


class Policy(torch.nn.Module):
    """ActorCritic.policy as a module's forward, for functional_call."""

    def __init__(self, agent: trpo.ActorCritic) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, obs: Tensor) -> Any:
        return self.agent.policy(obs)


def of_one_seed(
    agent: trpo.ActorCritic, batch: trpo.Batch, s: int
) -> tuple[Tensor, Callable[..., Any]]:
    """The policy of seed s as a function of its parameters [P]: theta, and theta -> policy.

    In plain terms, without the seeds around it: the seed axis is one long.
    """
    parameters = list(agent.policy_parameters())
    names = {id(p): f"agent.{name}" for name, p in agent.named_parameters()}
    others = {f"agent.{name}": x[s : s + 1].detach() for name, x in agent.state_dict().items()}

    def policy(theta: Tensor) -> Any:
        sizes = [p[0].numel() for p in parameters]
        parts = theta.split(sizes)
        mine = {
            names[id(p)]: x.view(1, *p.shape[1:]) for p, x in zip(parameters, parts, strict=True)
        }
        return functional_call(Policy(agent), others | mine, (batch.obs[s : s + 1],))

    return torch.cat([p[s].detach().flatten() for p in parameters]), policy


def dense_fisher(agent: trpo.ActorCritic, batch: trpo.Batch, s: int) -> Tensor:
    """The Hessian of the mean KL of seed s at its parameters, [P, P], from torch's own KL."""
    theta, policy = of_one_seed(agent, batch, s)

    def kl(x: Tensor) -> Tensor:
        return torch.distributions.kl_divergence(torchs(policy(theta)), torchs(policy(x))).mean()

    return hessian(kl)(theta)  # type: ignore[no-any-return]


def torchs(policy: Any) -> torch.distributions.Distribution:
    """The same distributions of torch."""
    if isinstance(policy, trpo.Categorical):
        return torch.distributions.Categorical(logits=policy.logits, validate_args=False)
    normal = torch.distributions.Normal(policy.mean, policy.log_std.exp(), validate_args=False)
    return torch.distributions.Independent(normal, 1, validate_args=False)


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_kl_is_torchs(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if kind == "categorical":
        logits = draw(2, 5, 4)
        logits[0, 0, 0] = -800.0  # an action that is never taken
        pair: list[Any] = [trpo.Categorical(logits), trpo.Categorical(draw(2, 5, 4))]
    else:
        pair = [trpo.Gaussian(draw(2, 5, 3), draw(2, 1, 3)) for _ in range(2)]
    old, new = pair
    expected = torch.distributions.kl_divergence(torchs(old), torchs(new))
    torch.testing.assert_close(trpo.kl_divergence(old, new), expected, atol=1e-12, rtol=1e-12)
    assert (trpo.kl_divergence(old, old) == 0).all()
    assert (expected > 0.01).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_fisher_vector_product_is_the_dense_hessian_of_kl(variant: str) -> None:
    _, agent, theta, batch = small_batch(**VARIANTS[variant])
    parameters = list(agent.policy_parameters())
    product = trpo.fisher_vector_product(agent.policy(batch.obs), parameters, 0.03)
    vector = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0)).to(theta)
    got = views_like(product(vector), parameters)
    for s in range(3):
        v = torch.cat([x[s].flatten() for x in views_like(vector, parameters)])
        expected = dense_fisher(agent, batch, s) @ v + 0.03 * v
        found = torch.cat([x[s].flatten() for x in got])
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


def test_fast_tanh_has_a_second_derivative() -> None:
    """In float32 the products go through it; in float64 above through torch.tanh.

    The kernels have none: `policy_step` switches them off.
    """
    products = []
    for dtype in (torch.float32, torch.float64):
        _, agent, theta, batch = small_batch(torch.float32, hidden=(64, 64))
        agent, batch = agent.to(dtype), trpo.Batch(*(x.to(dtype) for x in batch))
        vector = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
        parameters = list(agent.policy_parameters())
        with kernels.off():
            policy = agent.policy(batch.obs)
        product = trpo.fisher_vector_product(policy, parameters, 0.0)
        products.append(product(vector.to(dtype)).double())
    torch.testing.assert_close(*products, atol=1e-5, rtol=1e-4)
    assert products[0].abs().max() > 0.1


def spd(S: int, n: int, rank: int | None = None) -> Tensor:
    """Symmetric positive matrices [S, n, n]."""
    a = torch.randn(S, n, rank or n, generator=torch.Generator().manual_seed(0)).double()
    return a @ a.mT + 0.5 * torch.eye(n).double()


def test_a_converged_seed_is_frozen() -> None:
    """Three different eigenvalues converge in three steps, a zero gradient in none, NaN never."""
    A, b = spd(4, 8), torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).double()
    A[0] = torch.diag(torch.tensor([1.0, 1, 2, 2, 5, 5, 5, 5])).double()
    b[1], b[2] = 0, torch.nan

    def product(v: Tensor) -> Tensor:
        return (A @ v.unsqueeze(-1)).squeeze(-1)

    three, eight, fifty = (trpo.conjugate_gradient(product, b, k) for k in (3, 8, 50))
    torch.testing.assert_close(three[0], b[0] / A[0].diagonal(), atol=1e-9, rtol=0)
    assert torch.equal(three[0], fifty[0])
    assert (fifty[1] == 0).all()
    assert not torch.equal(three[3], eight[3])
    assert fifty[[0, 1, 3]].isfinite().all()
    torch.testing.assert_close(fifty[3], torch.linalg.solve(A[3], b[3]), atol=1e-4, rtol=0)


def test_line_search_takes_the_first_that_fits_per_seed() -> None:
    """Parabolas: KL = x^2, objective x - c x^2 of the one parameter x; the full step is 1."""
    bound = 0.3
    c = torch.tensor([0.0, 0.0, 3.0, 200.0, torch.nan])
    scale = torch.tensor([1.0, 0.25, 1.0, 1.0, 1.0])  # of KL

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor]:
        x = theta[:, 0]
        return x - c * x**2, scale * x**2

    old, step = torch.zeros(5, 1), torch.ones(5, 1)
    found = trpo.line_search(evaluate, old, step, torch.zeros(5), bound, 0.5, 4)
    # KL: 1, .25 | .25 at once | objective: -2, -.25, 1/4 - 3/16 > 0 | never, last 1/8 | NaN
    assert found.fraction.tolist() == [0.5, 1.0, 0.25, 0.0, 0.0]
    assert torch.equal(found.theta[:, 0], found.fraction)
    assert found.kl.tolist() == [0.25, 0.25, 0.0625, 0.0, 0.0]
    assert found.objective.tolist() == [0.5, 1.0, 0.0625, 0.0, 0.0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_is_that_of_a_dense_fisher_solve(variant: str) -> None:
    """theta + fraction sqrt(2 delta / x.H x) x with x = H^-1 g, seed by seed, in float64."""
    settings = {"cg_steps": 200, "cg_damping": 0.1, "target_kl": 1e-3, **VARIANTS[variant]}
    config, agent, theta, batch = small_batch(**settings)
    old = [of_one_seed(agent, batch, s) for s in range(3)]
    steps = []
    for s, (start, policy) in enumerate(old):

        def objective(x: Tensor, s: int = s, policy: Any = policy) -> Tensor:
            logprobs = torchs(policy(x)).log_prob(batch.actions[s : s + 1])
            A = batch.advantages[s : s + 1]
            return ((logprobs - batch.logprobs[s : s + 1]).exp() * (A - A.mean()) / A.std()).mean()

        H = dense_fisher(agent, batch, s) + 0.1 * torch.eye(len(start), dtype=start.dtype)
        x = torch.linalg.solve(H, torch.func.grad(objective)(start))
        steps.append((2 * 1e-3 / (x @ H @ x)).sqrt() * x)
    metrics = trpo.policy_step(agent, theta, batch, config)
    assert (metrics["line_search_success"] == 1).all()
    for s, (start, _) in enumerate(old):
        now, _ = of_one_seed(agent, batch, s)
        expected = metrics["step_fraction"][s] * steps[s]
        # Conjugate gradients end at a residual of 1e-5, not at 0.
        assert (now - start - expected).norm() < 1e-3 * expected.norm()
        assert expected.norm() > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_accepted_step_keeps_the_constraint_and_improves(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over whole trainings, all seeds, recomputed in float64 from the parameters before and after.

    Where nothing is accepted, the policy stays bit for bit.
    """
    settings = dict(VARIANTS[variant])
    env_id = settings.pop("env_id", "CartPole-v1")
    step, accepted, refused, shrunk = trpo.policy_step, 0, 0, 0

    def double(agent: trpo.ActorCritic, batch: trpo.Batch) -> Any:
        policy = agent.policy(batch.obs)
        return type(policy)(*(field.detach().clone().double() for field in policy))

    def spy(agent: Any, theta: Tensor, batch: Any, config: Any) -> Any:
        nonlocal accepted, refused, shrunk
        before, old = theta.clone(), double(agent, batch)
        metrics = step(agent, theta, batch, config)
        new = double(agent, batch)
        kl = torch.distributions.kl_divergence(torchs(old), torchs(new)).mean(-1)
        torch.testing.assert_close(metrics["kl"].double(), kl, atol=1e-6, rtol=1e-3)
        assert (metrics["kl"] <= config.target_kl).all()
        assert (kl <= config.target_kl + 1e-6).all()
        A = batch.advantages.double()
        A = (A - A.mean(-1, keepdim=True)) / A.std(-1, keepdim=True)
        logratio = torchs(new).log_prob(batch.actions) - torchs(old).log_prob(batch.actions)
        objective = (logratio.exp() * A).mean(-1)
        torch.testing.assert_close(
            -metrics["policy_loss"].double(), objective, atol=1e-5, rtol=1e-4
        )
        success = metrics["line_search_success"] == 1
        assert torch.equal(success, (theta != before).any(-1))
        assert torch.equal(success, metrics["step_fraction"] > 0)
        assert (objective[success] > 0).all()
        assert torch.equal(theta[~success], before[~success])
        assert (metrics["kl"][~success] == 0).all()
        accepted, refused = accepted + int(success.sum()), refused + int((~success).sum())
        shrunk += int((success & (metrics["step_fraction"] < 1)).sum())
        return metrics

    monkeypatch.setattr(trpo, "policy_step", spy)
    settings |= {"num_steps": 64, "cg_steps": 5, "cg_damping": 1e-3, "line_search_steps": 2}
    settings |= {"target_kl": 0.05, "critic_epochs": 2, "total_timesteps": 128 * 20}
    config = trpo.Config(env=env_id, seeds=4, quiet=True, **settings)
    run = Run(config)
    monkeypatch.setattr(run, "evaluate_if_due", lambda *args: None)
    trpo.train(config, run)
    assert accepted + refused == 80
    assert accepted > 40
    assert shrunk > 0
    assert refused > 0


def test_each_update_moves_its_own_network_only() -> None:
    config, agent, theta, batch = small_batch(torch.float32)
    optimizer = SeedAdam(agent.critic, eps=1e-5)
    before = {name: x.clone() for name, x in agent.state_dict().items()}

    def moved() -> set[str]:
        found = {
            name.split(".")[0]
            for name, x in agent.state_dict().items()
            if (x != before[name]).any()
        }
        before.update({name: x.clone() for name, x in agent.state_dict().items()})
        return found

    trpo.policy_step(agent, theta, batch, config)
    assert moved() == {"actor"}
    trpo.fit_critic(agent, optimizer, batch, torch.rand(3, 2, 64), config)
    assert moved() == {"critic"}
    assert all(p.grad is None for p in agent.parameters())


def test_a_flat_objective_moves_nothing() -> None:
    """Advantages of 0 give a gradient of 0: no step, and nothing that is not a number."""
    config, agent, theta, batch = small_batch(torch.float32)
    flat = batch._replace(advantages=batch.advantages * torch.tensor([[1.0], [0.0], [1.0]]))
    before = theta.clone()
    metrics = trpo.policy_step(agent, theta, flat, config)
    assert metrics["line_search_success"].tolist() == [1, 0, 1]
    assert torch.equal(theta[1], before[1])
    assert all(x.isfinite().all() for x in metrics.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_kl": 0.0}, "--target-kl 0.0: must be a finite number above 0"),
        ({"cg_steps": 0}, "--cg-steps 0: must be"),
        ({"cg_damping": -0.1}, "--cg-damping -0.1: must be"),
        ({"line_search_steps": 0}, "--line-search-steps 0: must be"),
        ({"line_search_shrink": 0.0}, "--line-search-shrink 0.0: must be a number above 0 to 1"),
        ({"line_search_shrink": 1.5}, "--line-search-shrink 1.5: must be"),
        ({"critic_epochs": 0}, "--critic-epochs 0: must be"),
        ({"minibatch_size": 100}, "--minibatch-size 100: must divide num_envs"),
    ],
)
def test_bad_flags(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trpo.Config(**settings)
