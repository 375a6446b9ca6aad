"""Drawing with torch and diffusers. Nothing outside this package imports either."""

import os

# Read by OpenMP when torch is loaded. Threads that wait actively keep the core from the thread
# they wait for: on two cores, with one of them busy elsewhere, a picture took 28 times as long
# (docs/benchmarks/2026-11-29-two-cores.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# So that torch counts GPUs as the driver lists them, and the environment names the right one.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
