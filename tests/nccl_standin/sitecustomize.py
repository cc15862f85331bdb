"""In an agent, and where STANDIN_HERE says so, the stand-in is there before torch looks for CUDA for the first time."""

import ctypes
import os
import sys

if "STANDIN_HERE" in os.environ or "slurm_elastic.trainer_shim.node.agent" in sys.orig_argv:
    ctypes.CDLL(os.environ["STANDIN_SO"], mode=ctypes.RTLD_GLOBAL)
