"""The policy gradient of every algorithm is the exact one, on an MDP that can be enumerated.

Three states, two actions, at most three steps, chance in everything. The exact gradient is a sum
over all trajectories in float64. What an algorithm estimates of it has to agree within the error
of many episodes, which the seeds tell: each is one estimate of the same policy.

Unbiased for the gradient of J = E[r_0 + gamma r_1 + ...], up to a known factor:

REINFORCE   total_return always; return_to_go, baseline and q for gamma 1 (for gamma < 1 they lack
            gamma^t: the sum that they do estimate is enumerated too)
A2C, PPO    like return_to_go: with lambda 1 whatever V is, with the exact V for every lambda
GRPO        without a division: outcome always, return_to_go for gamma 1. A peer's mean holds the
            episode itself, which takes away 1 / G of the gradient, where nobody has ended or ended
            peers count. Process takes away more of what is farther from the end: enumerated too.
            Deviations of the peers, and peers that leave, do change the direction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import a2c, grpo, ppo, reinforce
from manyseeds.seeds import SeedStreams

X, A, H = 3, 2, 3  # states, actions, steps
S = 64  # seeds: independent estimates of one gradient
START = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
P = torch.tensor(  # [X, A, X]
    [
        [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]],
        [[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]],
        [[0.2, 0.6, 0.2], [0.5, 0.1, 0.4]],
    ],
    dtype=torch.float64,
)
R = torch.tensor([[1.0, -0.5], [0.3, 2.0], [-1.0, 0.7]], dtype=torch.float64)  # [X, A]
THETA = torch.tensor([[0.4, -0.3], [-0.6, 0.2], [0.1, 0.9]], dtype=torch.float64)


class Chain(envs.NativeEnv):
    """The MDP above, observed one-hot. physics: (state, time).

    exit: an episode ends when it comes to state 2, and after H steps anyway (a termination).
    timed: the observation tells the time too, as one of H X cases: values can then be exact.
    """

    initial_noise, transition_noise = 1, 1

    def __init__(self, exit: bool = False, timed: bool = False) -> None:
        self.exit, self.timed = exit, timed
        size = H * X if timed else X
        self.spec = envs.EnvSpec("Chain", num_actions=A, time_limit=H, obs_size=size)

    @staticmethod
    def pick(probabilities: Tensor, noise: Tensor) -> Tensor:
        """Categories [...] from cumulated probabilities [..., X] and uniforms [...]."""
        return (noise.double().unsqueeze(-1) >= probabilities.cumsum(-1)[..., :-1]).sum(-1)

    def initial(self, noise: Tensor) -> Tensor:
        state = self.pick(START, noise[..., 0])
        return torch.stack((state, torch.zeros_like(state)), dim=-1)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        state = self.pick(P[physics[..., 0], action], noise[..., 0])
        return torch.stack((state, physics[..., 1] + 1), dim=-1)

    def observation(self, physics: Tensor) -> Tensor:
        state, time = physics.unbind(-1)
        case = time.clamp(max=H - 1) * X + state if self.timed else state
        return torch.nn.functional.one_hot(case, self.spec.obs_size or 0).float()

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return R[physics[..., 0], action].float()

    def terminal(self, physics: Tensor) -> Tensor:
        state, time = physics.unbind(-1)
        return (time >= H) | ((state == X - 1) & self.exit)


# ---- Exactly ----------------------------------------------------------------------------

Weight = Callable[[list[float], int], float]  # of step t of an episode with these rewards


def trajectories(exit: bool) -> list[tuple[float, list[int], list[int], list[float]]]:
    """All episodes: probability of what is not the policy's, states, actions and rewards."""
    found = []
    for T in range(1, H + 1):
        for states in itertools.product(range(X), repeat=T):
            if exit and X - 1 in states[1:]:
                continue
            for actions in itertools.product(range(A), repeat=T):
                chance = START[states[0]].item()
                for t in range(T - 1):
                    chance *= P[states[t], actions[t], states[t + 1]].item()
                if T < H:  # it ends here: only by the way out
                    chance *= P[states[-1], actions[-1], X - 1].item() if exit else 0.0
                rewards = [R[x, a].item() for x, a in zip(states, actions, strict=True)]
                if chance > 0:
                    found.append((chance, list(states), list(actions), rewards))
    return found


def expectation(theta: Tensor, exit: bool, gamma: float) -> Tensor:
    """J, differentiable in theta [X, A], or [H X, A] where the policy sees the time."""
    logprobs, total = theta.log_softmax(-1), torch.zeros((), dtype=torch.float64)
    timed = len(theta) == H * X
    for chance, states, actions, rewards in trajectories(exit):
        cases = [t * X + x for t, x in enumerate(states)] if timed else states
        played = logprobs[cases, actions].sum().exp()
        total = total + chance * played * sum(gamma**t * r for t, r in enumerate(rewards))
    return total


def exact_gradient(theta: Tensor, exit: bool, gamma: float) -> Tensor:
    theta = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(expectation(theta, exit, gamma), theta)
    return gradient


def weighted_gradient(theta: Tensor, exit: bool, weight: Weight) -> Tensor:
    """E[sum_t weight(rewards, t) grad log pi(a_t | s_t)], by enumeration."""
    theta = theta.clone().requires_grad_()
    logprobs, total = theta.log_softmax(-1), torch.zeros((), dtype=torch.float64)
    timed = len(theta) == H * X
    for chance, states, actions, rewards in trajectories(exit):
        cases = [t * X + x for t, x in enumerate(states)] if timed else states
        chosen = logprobs[cases, actions]
        weights = torch.tensor(
            [weight(rewards, t) for t in range(len(rewards))], dtype=torch.float64
        )
        total = total + chance * chosen.sum().exp().detach() * (weights * chosen).sum()
    (gradient,) = torch.autograd.grad(total, theta)
    return gradient


def to_go(gamma: float) -> Weight:
    return lambda rewards, t: sum(gamma**k * r for k, r in enumerate(rewards[t:]))


def state_values(theta: Tensor, gamma: float) -> Tensor:
    """V of every state at every time, [H X], by backward induction, for a policy [X, A]."""
    policy, value, values = theta.softmax(-1), torch.zeros(X, dtype=torch.float64), []
    for _ in range(H):
        value = (policy * (R + gamma * P @ value)).sum(-1)
        values.append(value)
    return torch.cat(values[::-1])


# ---- By the algorithms ------------------------------------------------------------------


def set_policy(weights: Tensor, bias: Tensor, theta: Tensor) -> None:
    """A linear layer [S, 1, O, 16] on one-hot observations as a table of logits, for all seeds."""
    weights.data.zero_()
    bias.data.zero_()
    weights.data[:, 0, :, :A] = theta.float()


def assert_estimates(estimates: Tensor, expected: Tensor, most: float = 4.5) -> None:
    """Means over the seeds [S, ...] within `most` standard errors, and those errors are small."""
    error = estimates.double().std(0) / math.sqrt(len(estimates))
    z = (estimates.double().mean(0) - expected) / error
    assert z.abs().max() < most, z
    assert error.max() < 0.1 * expected.abs().max()


def is_biased(estimates: Tensor, expected: Tensor) -> bool:
    """Negative control: as many episodes do tell another gradient from this one."""
    error = estimates.double().std(0) / math.sqrt(len(estimates))
    return bool(((estimates.double().mean(0) - expected) / error).abs().max() > 8)


def noise_of(env: envs.Env, actor: Any, N: int) -> tuple[Tensor, Tensor, Tensor]:
    streams = SeedStreams(range(S), "train")
    start = streams.uniform(N, env.initial_noise)
    action_noise = actor.draw(streams, H, N)
    return start, action_noise, streams.uniform(H, N, env.transition_noise)


def by_reinforce(gamma: float, exit: bool, N: int = 512, **settings: Any) -> Tensor:
    """Estimates of the gradient, [S, X, A]."""
    config = reinforce.Config(
        hidden=(), episodes=N, normalize_advantage=False, gamma=gamma, **settings
    )
    env = Chain(exit)
    init = SeedStreams(range(S), "init")
    actor = reinforce.Actor(env.spec, config, init)
    set_policy(actor.network.weights[0], actor.network.biases[0], THETA)
    critic = None
    if config.weight == "baseline":
        critic = reinforce.Critic(env.spec, config, init)  # any V is right, and this is a bad one
        critic.network.weights[0].data[..., 0] = torch.tensor([3.0, -2.0, 1.0])
    elif config.weight == "q":
        critic = ExactQ(gamma)  # type: ignore[assignment]
    episodes = envs.play(env, actor, *noise_of(env, actor, N))
    batch = reinforce.prepare(actor, episodes, config)
    reinforce.policy_gradient(actor, batch, reinforce.phi(critic, batch, config), config)
    gradient = actor.network.weights[0].grad
    assert gradient is not None
    return -gradient[:, 0, :, :A]


class ExactQ:
    """Q(s, a), averaged over the times at which the policy comes by: what a table would learn."""

    def __init__(self, gamma: float) -> None:
        values = state_values(THETA, gamma).view(H, X)
        values = torch.cat((values, torch.zeros(1, X, dtype=torch.float64)))
        policy = THETA.softmax(-1)
        visits, q, total = START, torch.zeros(X, A).double(), torch.zeros(X).double()
        for t in range(H):
            q += visits.unsqueeze(-1) * (R + gamma * P @ values[t + 1])
            total += visits
            visits = torch.einsum("x,xa,xay->y", visits, policy, P)
        self.q = (q / total.unsqueeze(-1)).float()

    def __call__(self, features: Tensor, actions: Tensor) -> Tensor:
        return self.q[features.argmax(-1), actions]


@pytest.mark.parametrize("exit", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("weight", ["total_return", "return_to_go", "baseline", "q"])
def test_reinforce(weight: Any, gamma: float, exit: bool) -> None:
    """All weights have one mean; only total_return's is the gradient of J for gamma < 1, too."""
    if weight == "q" and exit:
        return  # the table above is that of episodes of H steps
    estimates = by_reinforce(gamma, exit, weight=weight)
    exact = exact_gradient(THETA, exit, gamma)
    if weight == "total_return" or gamma == 1:
        assert_estimates(estimates, exact)
    else:
        assert_estimates(estimates, weighted_gradient(THETA, exit, to_go(gamma)))
        assert is_biased(estimates, exact)


def test_the_weights_of_reinforce_differ_in_variance() -> None:
    """Causality and a baseline lower it; a bad baseline raises it."""
    variance = {}
    for weight in ("total_return", "return_to_go", "baseline", "q"):
        variance[weight] = by_reinforce(1.0, False, weight=weight).var(0).sum().item()
    assert variance["q"] < variance["return_to_go"] < variance["total_return"]
    assert variance["baseline"] > variance["return_to_go"]


def by_grpo(
    gamma: float, exit: bool, group_size: int = 4, groups: int = 128, **settings: Any
) -> Tensor:
    config = grpo.Config(hidden=(), groups=groups, group_size=group_size, gamma=gamma, **settings)
    env = Chain(exit)
    actor = grpo.Actor(env.spec, config, SeedStreams(range(S), "init"))
    set_policy(actor.network.weights[0], actor.network.biases[0], THETA)
    start, *noise = noise_of(env, actor, config.num_envs)
    start = start[:, :groups].repeat_interleave(group_size, dim=1)
    episodes = envs.play(env, actor, start, *noise)
    batch, mask, _ = grpo.prepare(actor, None, episodes, config)
    total, _ = grpo.loss(actor, batch, mask, config)
    # The mean over samples as the sum over steps, mean over episodes.
    (total * mask.sum(-1) / config.num_envs).sum().backward()
    gradient = actor.network.weights[0].grad
    assert gradient is not None
    return -gradient[:, 0, :, :A]


@pytest.mark.parametrize("exit", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("advantage", ["outcome", "return_to_go"])
def test_grpo(advantage: Any, gamma: float, exit: bool) -> None:
    """Ended peers count as 0 here: those who are left would be another number at every step."""
    estimates = by_grpo(gamma, exit, advantage=advantage, std="none", peers="all") * 4 / 3
    exact = exact_gradient(THETA, exit, gamma)
    if advantage == "outcome" or gamma == 1:
        assert_estimates(estimates, exact)
    else:
        assert_estimates(estimates, weighted_gradient(THETA, exit, to_go(gamma)))
        assert is_biased(estimates, exact)


@pytest.mark.parametrize("gamma", [1.0, 0.6])
def test_grpo_where_nobody_ends_early(gamma: float) -> None:
    """The peers still alive are all of them."""
    estimates = by_grpo(gamma, False, std="none", peers="alive") * 4 / 3
    assert_estimates(estimates, weighted_gradient(THETA, False, to_go(gamma)))


@pytest.mark.parametrize("gamma", [1.0, 0.6])
def test_grpo_with_process_rewards(gamma: float) -> None:
    """Each reward minus the mean m of all H G of the group, then summed to the end.

    m holds what follows a_t once, undiscounted: c_t = sum_k gamma^k of it are subtracted.
    """
    G = 4

    def weight(rewards: list[float], t: int) -> float:
        c = sum(gamma**k for k in range(H - t))
        return to_go(gamma)(rewards, t) - c * sum(rewards[t:]) / (H * G)

    estimates = by_grpo(gamma, False, advantage="process", std="none")
    assert_estimates(estimates, weighted_gradient(THETA, False, weight))


def test_dividing_by_the_deviation_of_few_peers_is_another_direction() -> None:
    """Negative control: groups with little spread count more (what Dr. GRPO leaves out)."""
    estimates = by_grpo(1.0, False, std="group", groups=512)
    exact = exact_gradient(THETA, False, 1.0)
    mean = estimates.double().mean(0)
    scale = (mean * exact).sum() / exact.square().sum()
    assert is_biased(estimates / scale, exact)
    assert torch.cosine_similarity(mean.flatten(), exact.flatten(), dim=0) > 0.9


def by_actor_critic(
    module: Any, gamma: float, theta: Tensor, values: Tensor, N: int = 512, **settings: Any
) -> Tensor:
    """Estimates from one rollout of exactly one episode per environment, for a critic's values."""
    env = Chain(timed=len(theta) == H * X)
    sizes: dict[str, Any] = {"num_envs": N, "num_steps": H, "hidden": (), "gamma": gamma}
    config = module.Config(
        **sizes, normalize_advantage=False, value_coef=0.0, entropy_coef=0.0, **settings
    )
    agent = module.ActorCritic(env.spec, config, SeedStreams(range(S), "init"))
    set_policy(agent.networks.weights[0], agent.networks.biases[0], theta)
    agent.networks.weights[0].data[:, 1, :, 0] = values.float()
    start, action_noise, noise = noise_of(env, agent, N)
    env_noise = torch.cat((noise, torch.zeros(S, H, N, env.initial_noise)), dim=-1)
    _, _, rollout = envs.rollout(env, agent, *env.reset(start), action_noise, env_noise)
    assert rollout.terminated[:, -1].all()
    if module is a2c:
        total, _ = a2c.loss(agent, a2c.prepare(agent, rollout, config), config)
    else:
        total, _ = ppo.loss(agent, ppo.prepare(agent, rollout, config), config, torch.tensor(0.2))
    (total * H).sum().backward()  # the mean over samples as the sum over steps
    gradient = agent.networks.weights[0].grad
    return -gradient[:, 0, :, :A]


BAD_VALUES = torch.tensor([3.0, -2.0, 1.0])
ESTIMATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a2c, lambda 1": (a2c, {"gae_lambda": 1.0}),
    "a2c, Monte Carlo": (a2c, {"advantage": "monte_carlo", "gae_lambda": 0.0}),
    "a2c, n steps to the end": (a2c, {"advantage": "n_step", "n_steps": H}),
    "ppo, lambda 1": (ppo, {"gae_lambda": 1.0}),
}


@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("case", ESTIMATES)
def test_actor_critic_without_bootstrapping(case: str, gamma: float) -> None:
    """Right for whatever V: it is a baseline then."""
    module, settings = ESTIMATES[case]
    estimates = by_actor_critic(module, gamma, THETA, BAD_VALUES, **settings)
    assert_estimates(estimates, weighted_gradient(THETA, False, to_go(gamma)))


BOOTSTRAPPING: dict[str, tuple[Any, dict[str, Any]]] = {
    "a2c, lambda 0": (a2c, {"gae_lambda": 0.0}),
    "a2c, one step": (a2c, {"advantage": "n_step", "n_steps": 1}),
    "a2c, two steps": (a2c, {"advantage": "n_step", "n_steps": 2}),
    "ppo, lambda 0": (ppo, {"gae_lambda": 0.0}),
    "ppo, lambda 0.7": (ppo, {"gae_lambda": 0.7}),
}


@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("case", BOOTSTRAPPING)
def test_actor_critic_with_the_exact_values(case: str, gamma: float) -> None:
    """Right for every lambda and n: delta_t has then the mean of the advantage."""
    module, settings = BOOTSTRAPPING[case]
    theta = THETA.repeat(H, 1)  # by (time, state), the same at all times
    exact = state_values(THETA, gamma)
    expected = weighted_gradient(theta, False, to_go(gamma))
    estimates = by_actor_critic(module, gamma, theta, exact, **settings)
    assert_estimates(estimates, expected)
    if settings.get("n_steps") != 2:  # two steps on, the chain has all but forgotten the action
        wrong = by_actor_critic(module, gamma, theta, BAD_VALUES.repeat(H), **settings)
        assert is_biased(wrong, expected)
