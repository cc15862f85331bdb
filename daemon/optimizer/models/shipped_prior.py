"""The prior that the daemon starts with: learned from 58 public profiles of 11 programs, each begun at three micro
batches: adaptdl's OSDI'21 artifact and Sia's (T4, A100, RTX, DGX), Gavel's (K80, P100, V100), ElasticFlow's (A100).
Written by `bench_models.py --profiles FOLDER... --print-prior`.
"""

from __future__ import annotations

from .prior import Prior

DEFAULT = Prior(
    mean=(-1.358, -0.789, -1.508, -4.42, -1.001, -4.622, -2.031),
    covariance=(
        (0.66, -0.315, 0.169, 0.388, 0.103, 0.37, 0.207),
        (-0.315, 1.194, -0.04, -0.267, 0.186, -0.232, -0.685),
        (0.169, -0.04, 0.9, -0.272, 0.461, 0.217, 0.313),
        (0.388, -0.267, -0.272, 4.531, -0.066, 1.682, -1.508),
        (0.103, 0.186, 0.461, -0.066, 1.024, 0.342, -0.153),
        (0.37, -0.232, 0.217, 1.682, 0.342, 2.59, -1.236),
        (0.207, -0.685, 0.313, -1.508, -0.153, -1.236, 3.67),
    ),
    slope=(
        (-0.42, -0.165),
        (0.459, 0.101),
        (-0.314, -0.252),
        (-0.265, -0.285),
        (-0.426, -0.304),
        (-0.491, -0.261),
        (0.099, 0.095),
    ),
    at=(-1.702, 4.215),
    spread=(1.465, 2.316),
    noise=0.1,
    noise_apart=0.2,
    runs=170,
)
"""The normal distribution over what a step consists of that an unknown program starts from."""
