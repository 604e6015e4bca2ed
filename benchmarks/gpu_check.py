"""Compares CUDA with the CPU on a machine with a GPU, then measures the throughput."""

from manyseeds.benchmarks.measurements.gpu_check import main

if __name__ == "__main__":
    main()
