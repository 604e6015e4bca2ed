"""What a critic costs a language model: rlhf_ppo, which has one, against grpo, which has none."""

from manyseeds.benchmarks.measurements.llm_critic_cost import main

if __name__ == "__main__":
    main()
