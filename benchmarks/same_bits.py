"""Checks that the current code trains bit-identically to an older commit."""

from manyseeds.benchmarks.measurements.same_bits import main

if __name__ == "__main__":
    main()
