"""Measures the cost of a store with thousands of parts: files, bytes, CPU time and memory."""

from manyseeds.benchmarks.measurements.store_scale import main

if __name__ == "__main__":
    main()
