"""Simulates how often sessions of the judge err."""

from manyseeds.benchmarks.measurements.judge_rates import main

if __name__ == "__main__":
    main()
