"""What the tests' training scripts share: the knobs that every one of them has, and a piece of user state.

Imported by its name: however a script is run, the folder it lies in comes first on the path.
"""

from __future__ import annotations

import argparse


def knobs(samples: int = 403) -> argparse.ArgumentParser:
    """The options of every script; `out` is the folder that its results go to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=0.004, help="seconds per micro batch")
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--micro", type=int)
    parser.add_argument("--lr", default="auto")
    parser.add_argument("--name", default="final")
    parser.add_argument("out")
    return parser


class Average:
    """User state: the number of steps that this object has seen."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]
