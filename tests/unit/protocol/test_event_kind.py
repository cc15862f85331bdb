"""Every state of a resize is an event, and is read back as the same member."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from slurm_elastic.protocol.codes import EventKind, ResizeState


@pytest.mark.parametrize("state", ResizeState)
def test_every_state_of_a_resize_is_an_event(state: ResizeState) -> None:
    """Whoever reports it, the event has the same name."""
    assert EventKind.of(state) == f"resize_{state}"


@pytest.mark.parametrize("word", [*EventKind, *ResizeState])
def test_a_word_survives_messages_and_copies(word: EventKind | ResizeState) -> None:
    """The database and the messages carry the word alone."""
    assert json.loads(json.dumps(word)) == word.value
    assert type(word)(word.value) is copy.deepcopy(word) is pickle.loads(pickle.dumps(word)) is word
    assert word.meaning and str(word) == word.value
