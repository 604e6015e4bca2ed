"""Groups of completions from one step of GRPO, for the interactive page."""

from manyseeds.benchmarks.measurements.grpo_group import main

if __name__ == "__main__":
    main()
