"""Data that is no Dataset, in a loop of the script's own, over resizes: docs/how-to/data-that-is-no-dataset.md."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from worker_harness import SCRIPT, Control, Zygote

STREAM = SCRIPT.with_name("own_stream_train.py")


def resized(zygote: Zygote, directory: Path, kind: str) -> list[list[object]]:
    """What was drawn for micro batches that count, by 1 -> 3 -> 2 workers."""
    for shard in range(60):
        with tarfile.open(directory / f"shard-{shard}.tar", "w") as archive:
            for sample in range(3):
                archive.addfile(tarfile.TarInfo(str(100 * shard + sample)))
    control = Control(zygote, directory, ["--kind", kind, "--hold-from", "0", "--pace", "0.01"], STREAM)
    control.start("a")
    control.resize("a", "b", "c")
    control.resize("b", "c")
    assert control.exits(*"abc") == [0] * 3, control.story()
    control.close()
    return [json.loads(line) for path in directory.glob("drawn-*") for line in path.read_text().splitlines()]


def test_tokens_by_iteration_come_in_order_whoever_reads_them(zygote: Zygote, tmp_path: Path) -> None:
    drawn = sorted(resized(zygote, tmp_path, "tokens"))
    assert [token for *_, batch in drawn for token in batch] == list(range(6 * 4 * 40))


def test_a_stream_for_each_rank_is_made_anew_in_each_world(zygote: Zygote, tmp_path: Path) -> None:
    """Each micro batch of an iteration once; no two ranks, and no two worlds, read the same."""
    drawn = resized(zygote, tmp_path, "shards")
    assert sorted((step, number) for step, number, *_ in drawn) == [(s, n) for s in range(40) for n in range(6)]
    streams: dict[tuple[int, int], list[int]] = {}
    for _, _, generation, rank, batch in sorted(drawn, key=lambda line: line[:2]):
        streams.setdefault((generation, rank), []).extend(batch)
    assert len(streams) == 1 + 3 + 2
    begins = [tuple(read[:8]) for read in streams.values()]
    assert len(set(begins)) == len(begins)
