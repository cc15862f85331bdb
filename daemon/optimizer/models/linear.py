"""Small dense linear algebra on lists: for one model at a time, where importing numpy costs more than it saves."""

from __future__ import annotations

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def cholesky(a: Matrix) -> list[list[float]]:
    """The lower factor of a symmetric positive definite matrix; ZeroDivisionError/ValueError when it is not one."""
    n = len(a)
    low = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = a[i][j] - sum(low[i][k] * low[j][k] for k in range(j))
            low[i][j] = math.sqrt(rest) if i == j else rest / low[j][j]
    return low


def solve(a: Matrix, b: Sequence[float]) -> list[float]:
    """x with a x = b, a symmetric positive definite."""
    low, n = cholesky(a), len(b)
    x = list(b)
    for i in range(n):
        x[i] = (x[i] - sum(low[i][k] * x[k] for k in range(i))) / low[i][i]
    for i in reversed(range(n)):
        x[i] = (x[i] - sum(low[k][i] * x[k] for k in range(i + 1, n))) / low[i][i]
    return x


def inverse(a: Matrix) -> list[list[float]]:
    """The inverse of a symmetric positive definite matrix, symmetric to the last bit."""
    n = len(a)
    columns = [solve(a, [1.0 if i == j else 0.0 for i in range(n)]) for j in range(n)]
    return [[(columns[i][j] + columns[j][i]) / 2 for j in range(n)] for i in range(n)]
