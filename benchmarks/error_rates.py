"""Simulates how often intervals and verdicts err."""

from manyseeds.benchmarks.measurements.error_rates import main

if __name__ == "__main__":
    main()
