"""TRL's SFT, reward-model, DPO and GRPO trainers with our hyperparameters and evaluation."""

from manyseeds.benchmarks.baselines.trl_baseline import main

if __name__ == "__main__":
    main()
