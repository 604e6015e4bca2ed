"""Samples per second of learning: ours against TRL at the same settings."""

from manyseeds.benchmarks.measurements.trl_speed import main

if __name__ == "__main__":
    main()
