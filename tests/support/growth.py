"""What grows: samples of processes, and the slopes of their measures."""

from __future__ import annotations

from pathlib import Path

WARM_UP = 0.3
"""This part of the rounds is not counted."""
Sample = dict[str, float]
Slopes = dict[str, tuple[float, float, float]]
"""Of each measure: its value at the end, its growth per unit behind the warm-up, and the growth's standard error."""


def names(folder: Path) -> set[str]:
    """Of what is in it; nothing where it belongs to a process that has just ended."""
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:
        return set()


def anonymous_kb(pid: int) -> int:
    """What this process has in memory that is of no file."""
    return _kb(pid, "smaps_rollup", "Anonymous:")


def reserved_kb(pid: int) -> int:
    """What this process may write to without asking for more. Memory that grows within it, as heaps that are there
    already are used to their ends, comes to a halt."""
    return _kb(pid, "status", "VmData:")


def _kb(pid: int, file: str, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(field))


def line(values: list[float]) -> tuple[float, float]:
    """Slope of the least-squares line through equally spaced values, and the slope's standard error."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
    rest = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    return slope, (rest / max(1, count - 2) / spread) ** 0.5


def slopes(samples: list[Sample], units: int, fills: int = 0) -> Slopes:
    """units: resizes, or jobs, between two samples. fills: so many of them at least are the warm-up, where there are
    half as many more behind it."""
    full = -(-fills // units)
    kept = samples[max(int(len(samples) * WARM_UP), full if 2 * len(samples) >= 3 * full else 0) :]
    found = {}
    for name in kept[-1]:
        values = [sample[name] for sample in kept]
        slope, error = line(values)
        found[name] = (values[-1], slope / units, error / units)
    return found


def print_slopes(found: Slopes, unit: str) -> None:
    print(f"| what | at the end | {unit} | standard error |\n|---|---|---|---|")
    for name, (value, slope, error) in found.items():
        print(f"| {name} | {value:.0f} | {slope:.4f} | {error:.4f} |")
