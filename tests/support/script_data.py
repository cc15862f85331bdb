"""Small data sets for public training scripts, made up from numbers."""

from __future__ import annotations

import pickle
from pathlib import Path

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
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(len(str(folder.name)))
    for number in range(classes):
        place = folder / f"class{number}"
        place.mkdir(parents=True)
        for picture in range(of_each):
            noise = draw.integers(0, 120, (size, size, 3))
            noise[:, :, number % 3] += 40 + 30 * (number // 3)
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(place / f"{picture}.png")
