"""Cost of separate hyperparameters per row: 64 learning rates x 10 seeds against 640 seeds."""

from manyseeds.benchmarks.measurements.rows_speed import main

if __name__ == "__main__":
    main()
