"""The configuration of a private Slurm, rendered without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.daemon.sandbox import SandboxSpec
from slurm_elastic.daemon.sandbox.config import Layout, node_names, ports_needed, render
from slurm_elastic.protocol.errors import SandboxError

AT = Layout(Path("/tmp/box"), "host7", 21000, ("/tmp/box/dev/gpu0", "/tmp/box/dev/gpu1"))


def settings(text: str) -> dict[str, str]:
    """key -> value of a slurm.conf; of lines with several pairs the first names it."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_every_daemon_has_a_port_of_its_own() -> None:
    """slurmctld, slurmdbd and each node's slurmd get different ports, all within the block that is asked for."""
    spec = SandboxSpec(nodes=3)
    files = render(spec, AT, (22, 5))
    conf = settings(files["slurm.conf"][0])
    assert ports_needed(spec) == 5
    assert (conf["SlurmctldPort"], conf["AccountingStoragePort"]) == ("21000", "21001")
    assert " Port=[21002-21004] " in conf["NodeName"]
    assert "DbdPort=21001" in files["slurmdbd.conf"][0]


def test_a_single_node_is_written_without_brackets() -> None:
    """n[1-1] would be accepted by some of Slurm's parsers only."""
    conf = settings(render(SandboxSpec(nodes=1), AT, (22, 5))["slurm.conf"][0])
    assert conf["NodeName"].startswith("n1 ") and " Port=21002 " in conf["NodeName"]
    assert conf["PartitionName"].startswith("main Nodes=n1 ")
    assert node_names(SandboxSpec(nodes=3)) == ["n1", "n2", "n3"]


def test_everything_lives_in_the_sandbox_directory() -> None:
    """No file of the machine's own Slurm, MUNGE or MariaDB is written: every path is inside the directory."""
    files = render(SandboxSpec(), AT, (22, 5))
    for name, (text, _) in files.items():
        for line in text.splitlines():
            value = line.partition("=")[2]
            if value.startswith("/"):
                assert value.startswith("/tmp/box/"), f"{name}: {line}"
    assert "skip-networking" in files["my.cnf"][0]


def test_the_file_with_database_access_is_private() -> None:
    """slurmdbd refuses to start unless slurmdbd.conf is 0600; users' commands must read slurm.conf."""
    files = render(SandboxSpec(), AT, (22, 5))
    assert files["slurmdbd.conf"][1] == 0o600
    assert files["slurm.conf"][1] == 0o644


def test_gpus_are_device_files() -> None:
    """Each GPU is a character device of gres.conf, or Slurm would not set CUDA_VISIBLE_DEVICES."""
    files = render(SandboxSpec(gpus_per_node=2, gpu_type="v100"), AT, (22, 5))
    assert files["gres.conf"][0].splitlines() == [
        "Name=gpu Type=v100 File=/tmp/box/dev/gpu0",
        "Name=gpu Type=v100 File=/tmp/box/dev/gpu1",
    ]
    assert "Gres=gpu:v100:2" in files["slurm.conf"][0]


def test_a_cluster_without_gpus_names_none() -> None:
    """gpus_per_node=0 leaves no trace of GPUs."""
    files = render(SandboxSpec(gpus_per_node=0), AT, (22, 5))
    assert "gpu" not in files["slurm.conf"][0].lower()
    assert not settings(files["gres.conf"][0])


def test_without_accounting_there_is_no_database() -> None:
    """with_accounting=False needs neither slurmdbd nor MariaDB."""
    files = render(SandboxSpec(with_accounting=False), AT, (22, 5))
    assert set(files) == {"slurm.conf", "gres.conf"}
    assert settings(files["slurm.conf"][0])["AccountingStorageType"] == "accounting_storage/none"


def test_only_newer_slurm_gets_a_cgroup_file() -> None:
    """CgroupPlugin=disabled is needed from 23.02 on and unknown before."""
    assert "cgroup.conf" not in render(SandboxSpec(), AT, (22, 5))
    assert render(SandboxSpec(), AT, (24, 11))["cgroup.conf"][0] == "CgroupPlugin=disabled\n"


def test_extra_lines_reach_slurm_conf() -> None:
    """A test of a plugin or a prolog adds its lines at the end, after all others."""
    spec = SandboxSpec(extra_slurm_conf=("PrologSlurmctld=/bin/true",))
    assert render(spec, AT, (22, 5))["slurm.conf"][0].endswith("\nPrologSlurmctld=/bin/true\n")


@pytest.mark.parametrize(
    "field, value",
    [("nodes", 0), ("nodes", 513), ("gpus_per_node", -1), ("cpus_per_node", 0), ("mem_mb", 1), ("kill_wait_s", 0)],
)
def test_sizes_out_of_range_are_refused_by_name(field: str, value: int) -> None:
    """The error names the field, the value and the accepted range."""
    with pytest.raises(SandboxError, match=rf"^{field}={value} of the sandbox is outside \d+-\d+"):
        SandboxSpec(**{field: value})


def test_a_gpu_type_that_could_break_the_file_is_refused() -> None:
    """Letters and digits only: the type is written into slurm.conf as it is."""
    with pytest.raises(SandboxError, match="gpu_type='a100 State=DOWN'"):
        SandboxSpec(gpu_type="a100 State=DOWN")
