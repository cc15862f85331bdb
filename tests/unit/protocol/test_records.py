"""A record is a frozen dataclass but for the check at runtime, which is mypy's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_elastic.protocol.messages import Piece


def test_records_are_compared_hashed_copied_and_printed_by_their_fields() -> None:
    one, same = Piece(1, "base", ("n1",), 2), Piece(1, "base", ("n1",), 2)
    other = replace(one, nodes=("n2",))
    assert one == same != other and len({one, same, other}) == 2
    assert repr(other) == "Piece(slurm_job_id=1, kind='base', nodes=('n2',), gpus_per_node=2, gpu_type='')"


def test_a_record_takes_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        Piece(1, "base", ("n1",), 2).host = "n1"  # type: ignore[attr-defined]
