"""The prior that the daemon starts with: learned from 36 public profiles (6 programs on T4, A100, RTX and DGX clusters,
each begun at three micro batches). Written by `bench_models.py --profiles FOLDER... --print-prior`.
"""

from __future__ import annotations

from .prior import Prior

DEFAULT = Prior(
    mean=(-1.042, -1.198, -1.051, -2.927, -0.513, -3.658, -1.448),
    covariance=(
        (0.539, -0.174, -0.009, 0.151, 0.047, 0.155, 0.16),
        (-0.174, 1.418, 0.139, -0.124, 0.304, -0.084, -0.552),
        (-0.009, 0.139, 0.857, -0.174, 0.34, -0.069, 0.425),
        (0.151, -0.124, -0.174, 1.431, -0.023, 0.483, -0.255),
        (0.047, 0.304, 0.34, -0.023, 0.849, -0.098, 0.228),
        (0.155, -0.084, -0.069, 0.483, -0.098, 0.969, -0.478),
        (0.16, -0.552, 0.425, -0.255, 0.228, -0.478, 2.622),
    ),
    slope=(
        (-0.49, -0.152),
        (0.779, 0.135),
        (-0.208, -0.258),
        (-0.252, -0.303),
        (-0.238, -0.198),
        (-0.345, -0.195),
        (-0.264, 0.186),
    ),
    at=(-1.621, 4.137),
    spread=(1.489, 2.344),
    noise=0.1,
    noise_apart=0.2,
    runs=108,
)
"""The normal distribution over what a step consists of that an unknown program starts from."""
