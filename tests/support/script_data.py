"""Small data sets for public training scripts, made up from numbers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LETTERS = 32


def text(folder: Path) -> None:
    """A made-up text of 20,000 letters as nanoGPT reads it: train.bin, val.bin, and the number of letters."""
    import numpy as np

    folder.mkdir(parents=True)
    walk = np.cumsum(np.random.default_rng(1).normal(size=20_000)) / 4
    letters = (walk.astype(int) % LETTERS).astype(np.uint16)
    letters[:18_000].tofile(folder / "train.bin")
    letters[18_000:].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": LETTERS}))


def images(folder: Path, classes: int, of_each: int, size: int) -> None:
    """Folders of small pictures, one for each class, which differ by their colour."""
    for number, picture, image in _pictures(folder, classes, of_each, size):
        place = folder / f"class{number}"
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{picture}.png")


def named_images(folder: Path, classes: int, of_each: int, size: int) -> None:
    """The same in one folder, with the class in their names."""
    folder.mkdir(parents=True)
    for number, picture, image in _pictures(folder, classes, of_each, size):
        image.save(folder / f"class{number}_{picture}.jpg")


def _pictures(folder: Path, classes: int, of_each: int, size: int) -> Iterator[tuple[int, int, Any]]:
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(len(str(folder.name)))
    for number in range(classes):
        for picture in range(of_each):
            noise = draw.integers(0, 120, (size, size, 3))
            noise[:, :, number % 3] += 40 + 30 * (number // 3)
            yield number, picture, Image.fromarray(noise.clip(0, 255).astype(np.uint8))


TIMM = """
import torch

class Small(torch.nn.Sequential):
    default_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}

    def get_classifier(self):
        return self[-1]

def create_model(name, pretrained, num_classes):
    convolution = torch.nn.Conv2d(3, 8, kernel_size=16, stride=16)
    return Small(convolution, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(),
                 torch.nn.Linear(32, num_classes))
"""
"""In place of the timm package: a model that is made at once, and has no weights to fetch."""
