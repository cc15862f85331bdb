"""Companions of a job as its supervisor asks for them and gives them back, by real processes that stand in for Slurm's
commands: a file for each job that "Slurm" has."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.protocol.messages import Shape
from slurm_elastic.trainer_shim.allocation import companions as module
from slurm_elastic.trainer_shim.allocation.companions import Companions
from slurm_elastic.trainer_shim.allocation.pieces.events import ClockDiffers, CompanionGranted, CompanionRefused
from slurm_elastic.trainer_shim.control.background_writer import BackgroundWriter
from slurm_elastic.trainer_shim.control.event_loop import Children, Loop

SHAPE = Shape(1, 1)
JOB = """JobId=%s JobName=%s Partition=p Account=a JobState=RUNNING BatchHost=n1 EndTime=%s TimeLimit=%s Comment=%s"""
GPUS = "$([ -e poor ] && echo 0 || cat gpus 2>/dev/null || echo 1)"
HOLDS = f" Nodes=$(cat nodes 2>/dev/null || echo n1) CPU_IDs=0-1 Mem=0 GRES=gpu:{GPUS}"
COMMANDS = {
    "scontrol": f"""
        [ "$1" = update ] && {{ echo "$@" >>updated; touch fits; exit; }}
        number=$(tail -1 asked 2>/dev/null | sed -n 's/.*;resize=\\([0-9]*\\).*/\\1/p')
        name=$(cat name 2>/dev/null || echo selastic-100)
        said=$(cat said 2>/dev/null || echo "selastic:companion-of=100;resize=$number")
        end=$(cat end 2>/dev/null || echo Unknown) limit=$(cat limit 2>/dev/null)
        echo "$(printf "{JOB}" "${{@: -1}}" "$name" "$end" "$limit" "$said"){HOLDS}\"""",
    "sdiag": "[ -e now ] && echo 'sdiag output at some time or other ('$(cat now)')'",
    "salloc": """
        echo "$@" >>asked
        id=$(($(ls jobs | sort -n | tail -1) + 1))
        echo "$id|N/A|(null)|n2|selastic:companion-of=100;resize=1" >waits
        while [ -e busy ] && ! [ -e fits ]; do sleep 0.02; done
        echo "salloc: Granted job allocation $id" >&2
        touch jobs/$id""",  # in this order: one that is killed leaves no job that it has not told
    "squeue": """
        case "$*" in *"--states=PD "*) cat busy waits; exit;; esac
        if [ -e deaf ]; then rm deaf; echo "squeue: error: Unable to contact slurm controller" >&2; exit 1; fi
        for id in $(ls jobs); do echo "$id|selastic:companion-of=100;resize=1"; done""",
    "scancel": """
        echo "$@" >>cancelled
        if [ -e mute ]; then rm mute; exit 1; fi
        if [ -e alone ]; then rm alone; echo "Unable to contact slurm controller" >&2; exit 1; fi
        for id in "$@"; do rm -f jobs/$id; done""",
}


class Site:
    """A supervisor's companions, and the Slurm that they are jobs of."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.folder, self.loop = folder, loop
        (folder / "jobs").mkdir()
        (folder / "bin").mkdir()
        for name, body in COMMANDS.items():
            self.program(name, body)
        (folder / "jobs" / "1000").touch()  # a companion that nobody remembers
        env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self.events: list[Any] = []
        self.companions = Companions(loop, Children(loop, BackgroundWriter()), env, 100, 0, self.events.append)

    def program(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\ncd {self.folder}\n{body}\n")
        path.chmod(0o755)

    def until(self, predicate: Any) -> None:
        turns = 0
        while not predicate():
            self.loop.turn(0.2)
            turns += 1
            assert turns < 2000, (self.events, self.cancelled())

    def grow(self, resize_id: int) -> int:
        """Ask for one companion; its job id."""
        self.companions.submit(resize_id, 0, SHAPE, 600.0)
        self.until(lambda: self.events and not isinstance(self.events[-1], ClockDiffers))
        granted = self.events.pop()
        assert isinstance(granted, CompanionGranted)
        return granted.piece.slurm_job_id

    def close(self) -> None:
        ended: list[bool] = []
        self.companions.close(lambda: ended.append(True))
        self.until(lambda: ended)

    def cancelled(self) -> list[str]:
        """The arguments of each scancel."""
        file = self.folder / "cancelled"
        return file.read_text().splitlines() if file.exists() else []

    def jobs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "jobs").iterdir())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    monkeypatch.setattr(module, "CANCEL_AGAIN_S", 0.01)
    loop = Loop()
    yield Site(tmp_path, loop)
    loop.leave_in_child()


def test_one_scancel_at_the_end_for_what_slurm_still_has(site: Site) -> None:
    """A job that has had many companions cancels those that are there, by one command."""
    ids = [site.grow(number) for number in range(1, 9)]
    for job_id in ids[:-2]:  # as selasticd gives them back
        (site.folder / "jobs" / str(job_id)).unlink()
    site.companions.retain(frozenset({100, *ids[-2:]}))
    site.close()
    assert site.cancelled() == [" ".join(map(str, [1000, *ids[-2:]]))]
    assert site.jobs() == []
    assert site.companions.swept


def test_a_companion_is_given_back_when_slurmctld_answers_again(site: Site) -> None:
    """As after a partition between the two; what slurmctld refuses is not asked again."""
    job_id = site.grow(1)
    (site.folder / "alone").touch()
    site.companions.cancel(job_id)
    site.until(lambda: str(job_id) not in site.jobs())
    assert site.cancelled() == [str(job_id)] * 2
    (site.folder / "mute").touch()
    site.companions.cancel(job_id)
    site.until(lambda: len(site.cancelled()) == 3)
    for _ in range(5):
        site.loop.turn(0.05)
    assert len(site.cancelled()) == 3


def test_companions_that_the_job_has_left_are_forgotten(site: Site) -> None:
    """What is remembered is what is in use or asked for, whatever the job has had: granted, refused or dropped."""
    for number in range(1, 6):
        kept = site.grow(number)
        site.companions.retain(frozenset({100, kept}))
    dropped = site.grow(7)
    site.companions.drop(7)
    site.until(lambda: str(dropped) in site.cancelled())
    (site.folder / "bin" / "salloc").write_text("#!/bin/bash\necho 'salloc: error: no' >&2; exit 1\n")
    site.companions.submit(8, 0, SHAPE, 600.0)
    site.until(lambda: site.events)
    assert isinstance(site.events.pop(), CompanionRefused)
    assert list(site.companions._jobs) == [kept]
    assert [asked.job_id for asked in site.companions._asked] == [kept]


def test_a_companion_without_its_gpus_is_given_back_and_asked_for_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slurmctld that has just taken over grants a job none of the GPUs that it asked for: it is no companion."""
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.01)
    (site.folder / "poor").touch()
    site.companions.submit(1, 0, SHAPE, 600.0)
    site.until(lambda: len(site.cancelled()) > 1)
    assert not site.events
    (site.folder / "poor").unlink()
    site.until(lambda: site.events)
    assert isinstance(site.events.pop(), CompanionGranted)
    assert len(site.jobs()) == 2


def test_a_companion_that_never_gets_its_gpus_is_refused_in_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking again ends with the time that a companion may be waited for, and leaves nothing behind."""
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.01)
    (site.folder / "poor").touch()
    site.companions.submit(1, 0, SHAPE, 1.0)
    site.until(lambda: site.events)
    assert isinstance(site.events.pop(), CompanionRefused)
    site.until(lambda: site.jobs() == ["1000"])


POLICY = "salloc: error: interactive jobs are not allowed; use sbatch\nsalloc: error: Job submit/allocate failed: Error"
SBATCH = """
    echo "sbatch $@" >>asked
    [[ -e no_names && "$*" == *--nodelist=* ]] && { echo "sbatch: error: no node lists here" >&2; exit 1; }
    id=$(($(ls jobs | sort -n | tail -1) + 1)); touch jobs/$id; echo $id"""


@pytest.mark.parametrize("named", [True, False])
def test_a_site_that_refuses_jobs_without_a_script_gives_companions_by_sbatch(site: Site, named: bool) -> None:
    """And without the names of nodes, where it refuses those, too; the next is asked for in that way at once."""
    site.program("salloc", f"echo 'salloc' >>asked; echo '{POLICY}' >&2; exit 1")
    site.program("sbatch", SBATCH)
    if not named:
        (site.folder / "no_names").touch()
    for number, tries in ((1, 2 if named else 4), (2, 1)):
        site.companions.submit(number, 0, Shape(1, 1, node_list=("n1",)), 600.0)
        site.until(lambda: site.events)
        assert isinstance(site.events.pop(), CompanionGranted)
        asked = (site.folder / "asked").read_text().splitlines()
        assert len(asked) == tries and asked[-1].startswith("sbatch ") and ("--nodelist=n1" in asked[-1]) is named
        (site.folder / "asked").unlink()
    site.close()
    assert site.jobs() == []


@pytest.mark.parametrize(
    ("changed", "to", "known"),
    [
        ("name", "ann-selastic-100", False),
        ("said", "", False),
        ("said", "project=7", False),
        ("said", "selastic:companion-of=100;resize=1;project=7", True),
    ],
)
def test_a_companion_that_the_site_names_otherwise_is_given_back(
    site: Site, changed: str, to: str, known: bool
) -> None:
    """selasticd would take it for a job like others, and nobody would find it at the end."""
    (site.folder / changed).write_text(to)
    site.companions.submit(1, 0, SHAPE, 600.0)
    site.until(lambda: site.events)
    told = site.events.pop()
    if known:
        assert isinstance(told, CompanionGranted)
    else:
        site.until(lambda: site.jobs() == ["1000"])
        assert (
            isinstance(told, CompanionRefused) and "selastic-100 and selastic:companion-of=100;resize=1" in told.detail
        )
        assert (to or "the comment ''") in told.detail


@pytest.mark.parametrize(
    ("changed", "to", "told"), [("gpus", "4", "4 GPUs on n1"), ("nodes", "n1,n2", "2 GPUs on n1,n2")]
)
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_companion_that_holds_more_than_was_asked_for_is_given_back(
    site: Site, changed: str, to: str, told: str, exclusive: bool
) -> None:
    """A rule of the site gave it whole nodes, or more of them: training would be larger than planned. An exclusive
    job's companions have whole nodes."""
    (site.folder / changed).write_text(to)
    scontrol = site.folder / "bin" / "scontrol"
    scontrol.write_text(
        scontrol.read_text().replace("Partition=p", f"OverSubscribe={'NO' if exclusive else 'OK'} Partition=p")
    )
    site.companions.submit(1, 0, SHAPE, 600.0)
    site.until(lambda: site.events)
    granted = site.events.pop()
    if exclusive:
        assert isinstance(granted, CompanionGranted)
    else:
        assert isinstance(granted, CompanionRefused) and f"holds {told}; asked for: 1 on each of 1" in granted.detail
        site.until(lambda: site.jobs() == ["1000"])


@pytest.mark.parametrize(
    ("left_min", "limit", "told"),
    [
        (None, "00:01:00", "was given 1 minutes of the unlimited asked for; accepted: at least 5"),
        (90, "00:04:00", "was given 4 minutes of the 90 asked for; accepted: at least 5"),
        (3, "00:02:00", "was given 2 minutes of the 3 asked for; accepted: at least 3"),
        (90, "00:05:00", ""),
        (3, "00:03:00", ""),
        (9000, "1-00:00:00", ""),
        (None, "UNLIMITED", ""),
    ],
)
def test_a_companion_that_the_site_gives_less_time_than_a_resize_is_worth_is_given_back(
    site: Site, left_min: int | None, limit: str, told: str
) -> None:
    """Its job would grow and leave again and again. What has little time left itself grows for that."""
    if left_min is not None:
        (site.folder / "end").write_text(
            time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + left_min * 60 + 30))
        )
    (site.folder / "limit").write_text(limit)
    site.companions.submit(1, 0, SHAPE, 600.0)
    site.until(lambda: site.events)
    granted = site.events.pop()
    if told:
        assert isinstance(granted, CompanionRefused) and told in granted.detail
        site.until(lambda: site.jobs() == ["1000"])
    else:
        assert isinstance(granted, CompanionGranted)


@pytest.mark.parametrize(
    ("by", "said", "tries"),
    [
        ("", POLICY, ["salloc", "sbatch", "salloc", "sbatch"]),
        ("salloc", POLICY, ["salloc", "salloc"]),
        ("sbatch", POLICY, ["sbatch", "sbatch"]),
        ("", "salloc: error: QOSMaxGRESPerUser; Job violates accounting/QOS policy", ["salloc"]),
        ("", "salloc: error: Requested node configuration is not available", ["salloc"]),
        ("", "salloc: error: Unable to contact slurm controller (connect failure)", ["salloc"]),
    ],
)
def test_what_the_site_refuses_in_every_form_is_refused_with_its_words(
    site: Site, by: str, said: str, tries: list[str]
) -> None:
    """Slurm's own limits, nodes that are taken and a slurmctld that is away are no reason to ask in another form."""
    for name in ("salloc", "sbatch"):
        site.program(name, f"echo {name} >>asked; echo '{said}' >&2; exit 1")
    site.companions.submit(1, 0, Shape(1, 1, node_list=("n1",), by=by), 600.0)
    site.until(lambda: site.events)
    refused = site.events.pop()
    assert isinstance(refused, CompanionRefused) and said.split(": ")[2].split("\n")[0] in refused.detail
    assert (site.folder / "asked").read_text().split() == tries


def test_a_companion_by_sbatch_that_is_no_longer_wanted_is_cancelled(site: Site) -> None:
    """While it waits in the queue."""
    site.program("sbatch", SBATCH)
    site.program("scontrol", f'echo "$(printf "{JOB}" "${{@: -1}}" Unknown | sed s/RUNNING/PENDING/){HOLDS}"')
    site.companions.submit(1, 0, Shape(1, 1, by="sbatch"), 600.0)
    site.until(lambda: "1001" in site.jobs() and site.companions._asked[0].job_id)
    site.companions.drop(1)
    site.until(lambda: site.jobs() == ["1000"])
    assert not site.events


@pytest.mark.parametrize(("starts_in", "minutes"), [(720, 11), (3600, 0), (120, 0)])
def test_a_companion_that_waits_for_another_jobs_start_ends_by_then(site: Site, starts_in: int, minutes: int) -> None:
    """Its nodes are another job's in 12 minutes: that is what fits, less one in which Slurm looks. Not where that job
    comes after its end, or within minutes: such a companion is not worth having."""
    now = int(time.time())
    (site.folder / "now").write_text(str(now))
    at = [time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now + after)) for after in (1800, starts_in)]
    (site.folder / "end").write_text(at[0])
    (site.folder / "busy").write_text(f"9|{at[1]}|n2|(null)|another job\n")
    site.companions.submit(1, 0, SHAPE, 1.5)
    site.until(lambda: site.events)
    updated = site.folder / "updated"
    assert isinstance(site.events.pop(), CompanionGranted if minutes else CompanionRefused)
    assert "--time=30 " in (site.folder / "asked").read_text()
    assert (updated.read_text() if updated.exists() else "") == (
        f"update JobId=1001 TimeLimit={minutes}\n" if minutes else ""
    )


@pytest.mark.parametrize(("most", "asked"), [(10, 10), (45, 30), (0, 30)])
def test_a_companion_has_the_minutes_that_its_job_and_the_site_leave_it(site: Site, most: int, asked: int) -> None:
    """The job has half an hour."""
    now = int(time.time())
    (site.folder / "now").write_text(str(now))
    (site.folder / "end").write_text(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now + 1800)))
    site.companions.submit(1, 0, replace(SHAPE, minutes=most), 60.0)
    site.until(lambda: site.events)
    assert f"--time={asked} " in (site.folder / "asked").read_text()


@pytest.mark.parametrize("fails", ["deaf", "mute"])
def test_a_sweep_that_failed_is_not_nothing_left(site: Site, fails: str) -> None:
    """Slurm does not answer the listing, or the cancelling, once: what is known goes at once, the rest when it does."""
    known = site.grow(1)
    (site.folder / fails).touch()
    site.close()
    assert site.cancelled()[0].split()[-1] == str(known)
    assert site.jobs() == []
    assert site.companions.swept


@pytest.mark.parametrize("ahead", [3600, -3600, 5])
def test_a_companion_is_asked_for_by_slurms_clock(site: Site, ahead: int) -> None:
    """This host's clock is an hour ahead of Slurm's, or behind: the companion still gets the time that its base has,
    and the difference is told; a few seconds are not."""
    slurm_now = int(time.time()) - ahead
    (site.folder / "now").write_text(str(slurm_now))
    (site.folder / "end").write_text(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(slurm_now + 1800)))
    site.grow(1)
    told = [event for event in site.events if isinstance(event, ClockDiffers)]
    assert "--time=30 " in (site.folder / "asked").read_text()
    assert [round(event.seconds / 600) for event in told] == ([] if ahead == 5 else [ahead / 600])


def test_without_slurms_time_this_hosts_counts(site: Site) -> None:
    """slurmctld is busy: the companion is asked for all the same."""
    (site.folder / "end").write_text(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 7200)))
    site.grow(1)
    assert "--time=1 " in (site.folder / "asked").read_text() and not site.events


def test_a_refusal_that_a_clock_may_be_the_cause_of_asks_for_it(site: Site) -> None:
    """MUNGE refuses what a host an hour off says, and Slurm's commands know nothing of clocks."""
    said = "slurm_load_jobs error: Zero Bytes were transmitted or received"
    (site.folder / "bin" / "scontrol").write_text(f"#!/bin/bash\necho '{said}' >&2; exit 1\n")
    site.companions.submit(1, 0, SHAPE, 600.0)
    site.until(lambda: site.events)
    refused = site.events.pop()
    assert isinstance(refused, CompanionRefused)
    assert refused.detail.endswith(f"{said} (do the clocks of the two hosts differ?)")
