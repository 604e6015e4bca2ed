"""Exact bias and variance of the LLM track's estimators, by enumerating every completion."""

from manyseeds.benchmarks.measurements.llm_oracle import main

if __name__ == "__main__":
    main()
