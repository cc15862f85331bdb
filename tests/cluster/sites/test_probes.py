"""`selastic probe` at a site that refuses much: its words stand in the table, and settings follow."""

from __future__ import annotations

import pytest
from probing import probing
from site_cluster import SiteCluster


def test_a_hostile_site(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No jobs without a script, no names of nodes, no changes of size, and an epilog that takes long."""
    monkeypatch.setenv("SLURM_CONF", site.sandbox.env["SLURM_CONF"])
    site.veto("submit", "interactive jobs are not allowed; use sbatch", script="nil")
    site.veto("modify", "sizes are fixed", partition="main")
    for number in range(1, 9):
        site.veto("submit", "nodes are not to be named", req_nodes=f"n{number}")
    site.epilog_takes(2)
    with probing() as probe:
        assert probe.ended() == 0, probe.said
        shown = probe.out
    lines = {line.split()[0]: line for line in shown.splitlines() if line}
    assert " refused " in lines["salloc"] and "interactive jobs are not allowed; use sbatch" in lines["salloc"]
    assert " works " in lines["sbatch"] and "only where Slurm chooses the node (" in lines["sbatch"]
    assert "nodes are not to be named" in lines["sbatch"]
    assert (
        " refused " in lines["shrink"] and "Unspecified error" in lines["shrink"]
    )  # Slurm keeps the site's words to itself
    assert " works " in lines["requeue"] and " refused " in lines["component"]  # its second part has no script
    assert float(lines["epilog"].split()[2]) > 2 and f"{site.sandbox.dir}/epilog" in lines["epilog"]
    assert shown.split("settings to write:\n")[1].splitlines()[:4] == [
        "  [resizes]",
        '  companion_by = "sbatch"  # salloc is refused',
        '  release_by = "job"  # single nodes cannot be given back',
        "  # in elastic requests: via=companion",
    ]
    assert site.sandbox.run(["squeue", "-h", "-t", "PD,R,CF,S"]).stdout == ""
