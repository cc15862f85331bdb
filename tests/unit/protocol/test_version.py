"""Which slurm-elastic this is."""

from __future__ import annotations

import pytest

from slurm_elastic.protocol import version


def test_a_process_is_of_the_release_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed meanwhile: a supervisor says its release with every resize."""
    was, build = version.version(), version.build()
    monkeypatch.setattr(version, "installed", lambda name: "9.9.9")
    assert (version.version(), version.build()) == (was, build)
    assert version.version_on_disk() == "9.9.9"
    assert version.build_on_disk().startswith("9.9.9, build ")
