"""Tests run in the process that a training script sets up: one thread, denormals flushed."""

from benchmarks.harness.process import set_up_process

set_up_process(threads=1)
