"""Measures timesteps per second: ours, SB3's and, where it is installed, rejax's."""

from manyseeds.benchmarks.measurements.throughput import main

if __name__ == "__main__":
    main()
