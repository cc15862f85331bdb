"""torchvision beside a torch that its compiled part was not built for, as its wheels beside torch's CPU builds.

Importing this module makes `import torchvision` possible there: it declares the two operators that torchvision's own
Python code describes when it is imported. They have no implementation: models, datasets and transforms do without.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

_held: list[torch.library.Library] = []
"""A declaration ends with its library."""


def _compiled_part_loads() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True
    for file in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(file))
        except OSError:
            return False
    return True


if "torchvision" not in sys.modules and not _compiled_part_loads():
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _held.append(library)
