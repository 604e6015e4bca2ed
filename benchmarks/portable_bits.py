"""Checks that a seed is trained to the same bits by every build, in any batch, on any threads."""

from manyseeds.benchmarks.measurements.portable_bits import main

if __name__ == "__main__":
    main()
