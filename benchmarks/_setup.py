"""Imported first by every benchmark: one thread, and the packages of this checkout, installed or not."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(1, str(Path(__file__).parents[1] / "packaging" / "namespace"))
