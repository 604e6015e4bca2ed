"""Measures whether GRPO learns on MountainCar from a policy that reaches the goal."""

from manyseeds.benchmarks.measurements.goal_first import main

if __name__ == "__main__":
    main()
