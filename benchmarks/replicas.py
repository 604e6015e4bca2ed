"""Measures whether replicas of PPO's update, averaged, learn more from the same samples."""

from manyseeds.benchmarks.measurements.replicas import main

if __name__ == "__main__":
    main()
