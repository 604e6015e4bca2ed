"""The scores that an environment's results are normalised by: random policy 0, reference 1."""

from manyseeds.benchmarks.measurements.scores import main

if __name__ == "__main__":
    main()
