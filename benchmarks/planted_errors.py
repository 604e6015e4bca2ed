"""Whether reinforcement learning makes a model reconsider the same mistakes more often."""

from manyseeds.benchmarks.measurements.planted_errors import main

if __name__ == "__main__":
    main()
