"""Computes the margins within which verdicts count differences as equivalent."""

from manyseeds.benchmarks.measurements.margins import main

if __name__ == "__main__":
    main()
