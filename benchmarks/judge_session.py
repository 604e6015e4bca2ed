"""Judges fifty edits of PPO, one after another, as one session."""

from manyseeds.benchmarks.measurements.judge_session import main

if __name__ == "__main__":
    main()
