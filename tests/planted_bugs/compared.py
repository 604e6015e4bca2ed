"""A plugin of pytest: C counts as compared with the Python, also where a bug is planted in it.

Otherwise PyTorch would compute in the place of the bug (manyseeds/kernels/guard.py).
"""

from manyseeds.kernels import guard

guard.c_reached = lambda *origin: {}
