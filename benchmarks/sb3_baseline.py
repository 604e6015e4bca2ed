"""stable-baselines3's A2C, PPO and DQN, and sb3-contrib's TRPO, with our hyperparameters."""

from manyseeds.benchmarks.baselines.sb3_baseline import main

if __name__ == "__main__":
    main()
