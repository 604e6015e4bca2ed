"""What the critic costs: PPO against GRPO at the same budget, in memory and in time."""

from manyseeds.benchmarks.measurements.critic_cost import main

if __name__ == "__main__":
    main()
