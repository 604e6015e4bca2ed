"""PPO and DQN of SBX, the JAX library by stable-baselines3's authors, with our hyperparameters."""

from manyseeds.benchmarks.baselines.sbx_baseline import main

if __name__ == "__main__":
    main()
