"""One thread of arithmetic, and none of compiling, in each process that tests run in or start: several that wait
for each other by spinning take a machine's few cores from the tests beside them, and sums would hang on how many
cores there are."""

import os

# read by NumPy's and torch's libraries while they are loaded, so this plug-in is the first in conftest.py
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more are processes that each import torch first
