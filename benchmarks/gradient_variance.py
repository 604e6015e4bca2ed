"""Variance of the policy gradient with each weight of the log-probabilities."""

from manyseeds.benchmarks.measurements.gradient_variance import main

if __name__ == "__main__":
    main()
