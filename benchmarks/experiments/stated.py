"""Searches whose spaces were stated before they were run: `benchmarks/search.py --stated NAME`.

`preset/ENV`: PPO in ten minutes of one core, without the preset's own point, which no random draw
hits. `preset/reinforce/ENV`: REINFORCE where a weight of the ablations beat its preset, or where it
fails. `preset/sac_discrete/ENV/...`: SAC for discrete actions with its preset, which has the rhythm
of DQN's and the networks of Rainbow's, and alpha learned or given. `target/...`: what is still
missing. `sensitivity/ALGO/ENV`: random configurations around an algorithm's defaults, the same ones
on every environment.
"""

from __future__ import annotations

SEEDS = "--first-seed 100"  # no published run has them
PPO_SPACE = (
    "learning_rate=log:1e-4:5e-3 gamma=0.9,0.95,0.98,0.99,0.995,0.999 gae_lambda=linear:0.8:1 "
    "clip_range=linear:0.1:0.4 entropy_coef=0,0.001,0.01 num_envs=4,8,16 num_steps=32,128,512,1024 "
    "minibatch_size=64,128,256 epochs=4,10,20 anneal_lr=true,false normalize_obs=true,false "
    "normalize_reward=true,false"
)
DQN_SPACE = (
    "learning_rate=log:1e-4:1e-2 gamma=0.95,0.98,0.99 tau=0.1,0.5,1 batch_size=32,64,128 "
    "buffer_size=10000,50000,100000 target_update_interval=10,100,500 train_freq=64,256 "
    "gradient_steps=32,128 exploration_fraction=linear:0.05:0.5 max_grad_norm=0,1,10 "
    "exploration_final_eps=linear:0.01:0.15 hidden=64-64,120-84,256-256 loss=huber,mse"
)
# Changes no shape: all configurations are one batch.
SAC_DISCRETE_SPACE = "learning_rate=log:3e-4:5e-3 tau=log:0.002:0.5"
ALPHA = {  # flags, and what is varied; a preset may give alpha, and 0 is to learn it
    "learned": ("--alpha 0", "target_entropy=linear:0.05:0.98"),
    "given": ("", "alpha=log:0.003:0.3"),
}
ACTIONS = " log_std_init=linear:-1:1"

# By environment: seeds, share of the timesteps, minutes for the trials.
PRESET_SEARCHES = {
    "CartPole-v1": ("--seeds 10 --cut 0.3", ""),
    "Acrobot-v1": ("--seeds 5 --cut 0.1", ""),
    "MountainCar-v0": ("--seeds 5 --cut 0.2", ""),
    "MountainCarContinuous-v0": ("--seeds 10 --cut 0.5", ACTIONS),
    "Pendulum-v1": ("--seeds 10 --cut 0.5", ACTIONS),
}
# Of SAC for discrete actions: trials, seeds, share of the timesteps; about ten minutes of a core.
SAC_DISCRETE_SEARCHES = {
    "CartPole-v1": "--trials 48 --seeds 4 --cut 0.4 --fresh-seeds 10",
    "Acrobot-v1": "--trials 16 --seeds 3 --cut 0.15 --finalists 2 --fresh-seeds 10",
    "MountainCar-v0": "--trials 16 --seeds 3 --cut 0.5 --finalists 2 --fresh-seeds 10",
}
REINFORCE_SPACE = (
    "weight=total_return,return_to_go,baseline,q normalize_advantage=true,false episodes=4,8,16 "
    "learning_rate=log:3e-4:1e-2 gamma=0.95,0.98,0.99,0.995,1 entropy_coef=0,0.001,0.01 "
    "anneal_lr=true,false max_grad_norm=0,0.5"
)
# What is varied changes no shape: all configurations are one batch.
AROUND_DEFAULTS = {
    "ppo": "learning_rate=log:1e-5:1e-2 gamma=linear:0.9:0.999 gae_lambda=linear:0.8:1 "
    "clip_range=linear:0.05:0.5 entropy_coef=log:1e-5:0.1 value_coef=linear:0.1:1 "
    "max_grad_norm=log:0.1:10 anneal_lr=true,false",
    "a2c": "learning_rate=log:1e-5:1e-2 gamma=linear:0.9:0.999 gae_lambda=linear:0.8:1 "
    "entropy_coef=log:1e-5:0.1 value_coef=linear:0.1:1 max_grad_norm=log:0.1:10 "
    "anneal_lr=true,false",
    "reinforce": "learning_rate=log:1e-4:3e-2 gamma=linear:0.9:0.999 entropy_coef=log:1e-5:0.1 "
    "max_grad_norm=log:0.1:10 anneal_lr=true,false",
    "grpo": "learning_rate=log:1e-4:3e-2 gamma=linear:0.9:0.999 clip_range=linear:0.05:0.5 "
    "entropy_coef=log:1e-5:0.1 max_grad_norm=log:0.1:10 anneal_lr=true,false",
    "dqn": "learning_rate=log:1e-5:1e-2 gamma=linear:0.9:0.999 tau=linear:0.1:1 "
    "exploration_fraction=linear:0.05:0.8 exploration_final_eps=linear:0.01:0.2 "
    "max_grad_norm=log:0.1:10",
}
TRIALS = {"ppo": 200, "a2c": 200, "reinforce": 50, "grpo": 50, "dqn": 30}
TIMESTEPS = {"Acrobot-v1": 200_000}  # elsewhere 100,000


def searches() -> dict[str, str]:
    """The words of every stated search, by name."""
    found = {}
    for env, (budget, more) in PRESET_SEARCHES.items():
        found[f"preset/{env}"] = (
            f"--algo ppo --env {env} --sampler tpe --minutes 6 {budget} {SEEDS} "
            f"--vary {PPO_SPACE}{more}"
        )
    for env in ("Acrobot-v1", "Pendulum-v1"):
        found[f"preset/reinforce/{env}"] = (
            f"--algo reinforce --env {env} --sampler random --trials 64 --seeds 10 {SEEDS} "
            f"--vary {REINFORCE_SPACE}"
        )
    for env, budget in SAC_DISCRETE_SEARCHES.items():
        for kind, (flags, space) in ALPHA.items():
            found[f"preset/sac_discrete/{env}/{kind}"] = (
                f"--algo sac_discrete --env {env} --sampler random {budget} {SEEDS} {flags} "
                f"--vary {SAC_DISCRETE_SPACE} {space}"
            )
    for number in (1, 2):  # the second with another space than the first
        space = PPO_SPACE + ACTIONS if number == 1 else PPO_SPACE + " hidden=64-64,128-128,256"
        found[f"target/ppo/Pendulum-v1/{number}"] = (
            f"--algo ppo --env Pendulum-v1 --sampler tpe --minutes 50 --seeds 10 --cut 0.5 "
            f"--finalists 10 {SEEDS} --vary {space}"
        )
    for env in ("CartPole-v1", "MountainCar-v0"):
        for number, sampler in enumerate(("tpe", "random"), 1):
            found[f"target/dqn/{env}/{number}"] = (
                f"--algo dqn --env {env} --sampler {sampler} --minutes 50 --seeds 5 "
                f"--finalists 8 {SEEDS} --vary {DQN_SPACE}"
            )
    for algo, space in AROUND_DEFAULTS.items():
        third = "MountainCar-v0" if algo == "dqn" else "Acrobot-v1"
        for env in ("CartPole-v1", third, *([] if algo == "dqn" else ["Pendulum-v1"])):
            found[f"sensitivity/{algo}/{env}"] = (
                f"--algo {algo} --env {env} --base defaults --sampler random "
                f"--trials {TRIALS[algo]} --total-timesteps {TIMESTEPS.get(env, 100_000)} "
                f"--seeds 5 {SEEDS} --fresh-seeds 0 --vary {space}"
            )
    return found


STATED = searches()
