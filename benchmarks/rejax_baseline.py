"""rejax's PPO and DQN with our hyperparameters; environments in JAX, PPO's seeds in one batch."""

from manyseeds.benchmarks.baselines.rejax_baseline import main

if __name__ == "__main__":
    main()
