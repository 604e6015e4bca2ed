"""What people read for an algorithm or a method; commands and folders have the short names."""

from __future__ import annotations

from manyseeds.benchmarks.experiments import catalog

# In the order of tables and legends, which is that of the colours of figures. Others come last.
FIRST = (
    *("ppo", "a2c", "trpo", "dqn", "grpo", "reinforce", "sac", "td3"),
    *("ddpg", "sac_discrete", "rainbow", "pqn", "q_learning", "sarsa"),
    *("policy_iteration", "value_iteration", "monte_carlo", "td_prediction"),
)
# Likewise of environments: control from the easiest on, then tables.
FIRST_ENVIRONMENTS = (
    *("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    *("FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "Taxi-v4"),
)
LANGUAGE = {
    "sft": "SFT",
    "reward_model": "Reward model",
    "rlhf_ppo": "RLHF-PPO",
    "dpo": "DPO",
    "dr_grpo": "Dr. GRPO",
    "dapo": "DAPO",
    "rloo": "RLOO",
    "reinforce_pp": "REINFORCE++",
    "gspo": "GSPO",
    "cispo": "CISPO",
    "process_grpo": "Process GRPO",
    "distill": "Distillation",
}
OTHERS = [algo for algo in catalog.names("algos") if algo not in FIRST]
NAMES = {
    **{algo: catalog.facts(algo).name for algo in FIRST},
    **LANGUAGE,
    **{algo: catalog.facts(algo).name for algo in OTHERS},
}
# Of baselines, as the store names them.
OWNERS = {"sb3-": "SB3's ", "sbx-": "SBX's ", "rejax-": "rejax's ", "trl-": "TRL's "}
PEERS = {"sb3-rainbow": "sb3-contrib's QR-DQN"}  # of Rainbow's parts it has one


def display(algo: str) -> str:
    """`SB3's PPO` for `sb3-ppo`; a name that is not ours stays as it is."""
    if algo in PEERS:
        return PEERS[algo]
    for prefix, owner in OWNERS.items():
        if algo.startswith(prefix):
            return owner + display(algo.removeprefix(prefix))
    return NAMES.get(algo, algo)


def short(number: int) -> str:
    """`100k`, `1M`, `1.5M`, of a number of timesteps."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def place_of(algo: str) -> tuple[int, str]:
    """A sorting key: in the order of NAMES, others behind them by their name."""
    known = list(NAMES)
    return (known.index(algo) if algo in NAMES else len(known), algo)


def place_of_env(env: str) -> tuple[int, str]:
    """A sorting key: in the order of FIRST_ENVIRONMENTS, others behind them by their name."""
    known = FIRST_ENVIRONMENTS
    return (known.index(env) if env in known else len(known), env)
