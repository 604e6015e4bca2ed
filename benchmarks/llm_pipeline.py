"""The pipeline of DeepSeek-R1 with tiny models, and distillation against RL on a smaller one."""

from manyseeds.benchmarks.measurements.llm_pipeline import main

if __name__ == "__main__":
    main()
