"""Measures what a tenth of a training tells of its learning rate."""

from manyseeds.benchmarks.measurements.learning_rates import main

if __name__ == "__main__":
    main()
