"""Records which functions the C kernels were written for: manyseeds/kernels/known.json."""

from manyseeds.benchmarks.measurements.known_kernels import main

if __name__ == "__main__":
    main()
