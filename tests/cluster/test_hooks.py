"""The SPANK plugin and job_submit.lua in a real Slurm: what a user types, what Slurm keeps, what is refused."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hooks_build import HOOKS, build, remove_build
from live_daemon import PYTHON, live_daemon
from own_sandbox import OwnSandbox
from request_comments import COMMENTS
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.slurm import CommandClient
from slurm_elastic.protocol.request import find

Run = subprocess.CompletedProcess[str]
GOOD = "gpus=2-32,batch=256-8192"
USER = "games"


class Site:
    """A private Slurm with the plugin, and ways to give it another policy or another plugin."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder

    def run(self, *command: str, user: str | None = None, env: dict[str, str] | None = None) -> Run:
        """A Slurm command, from /."""
        return self.sandbox.run(command, user=user, env=env)

    def sbatch(
        self, *options: str, wrap: str = "true", user: str | None = None, env: dict[str, str] | None = None
    ) -> int:
        """Submit; the job's id."""
        answer = self.run("sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", wrap, user=user, env=env)
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout)

    def comment(self, job: int) -> str:
        """The job's comment as squeue shows it."""
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%k").stdout.strip()

    def jobs(self) -> set[str]:
        """Ids of all jobs that Slurm still remembers."""
        return set(self.run("squeue", "-h", "-t", "all", "-o", "%i").stdout.split())

    def ended(self, job: int) -> str:
        """Wait for the job's end; its state."""

        def state() -> str:
            now = self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T").stdout.strip()
            return "" if now in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING") else now

        return wait_until(state, 60, lambda: self.run("squeue", "-t", "all").stdout)

    def client_conf(self, name: str, plugstack: str) -> dict[str, str]:
        """Environment for commands that see another plugstack.conf than the cluster's own."""
        stack, conf = self.folder / f"plugstack-{name}.conf", self.folder / f"slurm-{name}.conf"
        stack.write_text(plugstack)
        own = (self.sandbox.dir / "slurm.conf").read_text()
        conf.write_text(own.replace(f"{self.folder}/plugstack.conf", str(stack)))
        return {"SLURM_CONF": str(conf)}

    def policy(self, text: str) -> None:
        """Give slurmctld another job_submit.lua; it asks at each submission whether the file has become newer."""
        file = self.sandbox.dir / "job_submit.lua"
        newer = file.stat().st_mtime + 1
        file.write_text(text.replace("/usr/share/slurm-elastic", str(HOOKS)))
        os.utime(file, (newer, newer))


def policy(body: str) -> str:
    """The job_submit.lua that we ship, with another table in it."""
    shipped = (HOOKS / "job_submit.lua").read_text()
    head, _, rest = shipped.partition("local policy = {")
    return f"{head}local policy = {{\n{body}\n}}{rest.partition(chr(10) + '}')[2]}"


@pytest.fixture(scope="module")
def site(can_run_slurm: None) -> Iterator[Site]:
    """Two nodes, a second partition, and the plugin; no job_submit."""
    # Not pytest's own folder, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="selastic-site-"))
    folder.chmod(0o755)
    plugin = shutil.copy(build() / "spank_elastic.so", folder)
    (folder / "plugstack.conf").write_text(f"optional {plugin}\n")
    extra = (
        f"PlugStackConfig={folder}/plugstack.conf",
        "PartitionName=debug Nodes=n1 State=UP",
    )
    with OwnSandbox.up(SandboxSpec(nodes=2, with_accounting=False, extra_slurm_conf=extra)) as sandbox:
        yield Site(sandbox, folder)
    shutil.rmtree(folder)
    remove_build()


@pytest.fixture(scope="module")
def lua_site(site: Site) -> Site:
    """The same with job_submit/lua switched on, as an admin does it; tests before this one ran without."""
    conf = site.sandbox.dir / "slurm.conf"
    shipped = (HOOKS / "job_submit.lua").read_text()
    (site.sandbox.dir / "job_submit.lua").write_text(shipped.replace("/usr/share/slurm-elastic", str(HOOKS)))
    conf.write_text(conf.read_text() + "JobSubmitPlugins=lua\n")
    site.sandbox.daemons.stop("slurmctld")
    site.sandbox.start_daemon("slurmctld")
    return site


def script(site: Site, text: str) -> str:
    """A batch script that every user may read."""
    file = site.folder / "job.sh"
    file.write_text("#!/bin/bash\n" + text)
    file.chmod(0o755)
    return str(file)


# --- The plugin alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["sbatch", "salloc", "srun"])
def test_the_option_is_in_the_help(site: Site, command: str) -> None:
    """A user finds --elastic where every other option is."""
    text = site.run(command, "--help").stdout
    assert "--elastic=gpus=MIN-MAX,batch=MIN-MAX" in text
    assert "GPUs and global batch sizes" in text


@pytest.mark.parametrize("command", ["sbatch", "salloc", "srun"])
def test_a_bad_request_is_refused_with_one_sentence(site: Site, command: str) -> None:
    """A slip costs a second at the prompt, not a night in the queue as a job of fixed size."""
    before = site.jobs()
    rest = ["--wrap", "true"] if command == "sbatch" else ["true"]
    answer = site.run(command, "--elastic=gpus=2-x,batch=256", *rest)
    assert answer.returncode == 1
    assert (
        answer.stderr
        == f"{command}: error: --elastic: gpus=x is not accepted; accepted: a whole number from 1 to 100000\n"
    )
    assert site.jobs() == before


def test_the_request_reaches_the_comment_from_the_command_line(site: Site) -> None:
    """The daemon reads a pending job's request where every Slurm shows it to everyone."""
    assert site.comment(site.sbatch(f"--elastic={GOOD}")) == f"elastic:{GOOD}"
    assert site.comment(site.sbatch(f"--elastic=elastic:{GOOD}", user=USER)) == f"elastic:{GOOD}"


def test_the_request_reaches_the_comment_from_the_script(site: Site) -> None:
    """`#SBATCH --elastic=` works from a file and from standard input, and the command line overrides it."""
    file = script(site, f"#SBATCH --elastic={GOOD}\n#SBATCH -o /dev/null\ntrue\n")
    from_file = int(site.run("sbatch", "--parsable", file).stdout)
    from_stdin = int(site.run("sh", "-c", f"sbatch --parsable < {file}").stdout)
    overridden = int(site.run("sbatch", "--parsable", "--elastic=gpus=1,batch=8", file).stdout)
    assert site.comment(from_file) == site.comment(from_stdin) == f"elastic:{GOOD}"
    assert site.comment(overridden) == "elastic:gpus=1,batch=8"


@pytest.mark.parametrize("command", ["salloc", "srun"])
def test_the_request_reaches_the_comment_of_an_interactive_job(site: Site, command: str) -> None:
    """salloc and srun say it the same way."""
    answer = site.run(command, "-Q", f"--elastic={GOOD}", "squeue", "-h", "-o", "%j %k")
    assert f"elastic:{GOOD}" in answer.stdout, answer.stderr


def test_the_users_own_comment_stays(site: Site) -> None:
    """The request stands beside what the user wrote, and the daemon's parser still finds it."""
    assert (
        site.comment(site.sbatch(f"--elastic={GOOD}", "--comment=run 7; lr sweep")) == f"elastic:{GOOD};run 7; lr sweep"
    )


def test_the_same_request_twice_is_one_and_two_different_ones_are_refused(site: Site) -> None:
    """There is never a doubt which request holds."""
    assert site.comment(site.sbatch(f"--elastic={GOOD}", f"--comment=elastic:{GOOD}")) == f"elastic:{GOOD}"
    answer = site.run("sbatch", f"--elastic={GOOD}", "--comment=elastic:gpus=1,batch=8", "--wrap", "true")
    assert answer.returncode == 1
    assert "the job's comment holds another elastic request, 'elastic:gpus=1,batch=8'" in answer.stderr


def test_a_request_in_a_comment_is_checked_too(site: Site) -> None:
    """The way without --elastic gives the same protection, and other comments are nobody's business."""
    answer = site.run("sbatch", "--comment=note elastic:gpus=4-2,batch=8", "--wrap", "true")
    assert answer.returncode == 1
    assert answer.stderr.startswith("sbatch: error: --comment: gpus=4-2 has its minimum above its maximum")
    assert site.comment(site.sbatch("--comment=inelastic:demand")) == "inelastic:demand"


def test_a_comment_without_room_is_refused(site: Site) -> None:
    """Slurm's limit of 1024 characters is met with a sentence that says so."""
    answer = site.run("sbatch", f"--elastic={GOOD}", f"--comment={'x' * 1010}", "--wrap", "true")
    assert answer.returncode == 1
    assert "leaves no room for the request" in answer.stderr
    room = 1024 - len(f"elastic:{GOOD};")
    assert site.comment(site.sbatch(f"--elastic={GOOD}", f"--comment={'x' * room}")).endswith("xxx")


def test_steps_of_an_elastic_job_run_as_ever(site: Site) -> None:
    """Slurm repeats the job's options to each srun inside it: that must neither fail nor print anything, nor take the
    request from the step."""
    out = site.folder / "steps.out"
    job = site.sbatch(
        "-n2",
        f"--elastic={GOOD}",
        wrap=f"srun -n2 true > {out} 2>&1 && echo fine >> {out}; env > {out}.env; srun -n1 env > {out}.step",
    )
    assert site.ended(job) == "COMPLETED"
    assert out.read_text() == "fine\n"
    for environment in (f"{out}.env", f"{out}.step"):
        assert f"SELASTIC_REQUEST=elastic:{GOOD}" in Path(environment).read_text().splitlines()


def test_a_job_submitted_by_an_elastic_job_is_not_elastic(site: Site) -> None:
    """A job that submits others, as a companion's or a chain's does, does not hand them its own request."""
    out = site.folder / "nested.out"
    inner = "sbatch --parsable -o /dev/null --wrap 'env > %s.env'; salloc -Q squeue -h -o '%%j:%%k' -n inner -t R"
    job = site.sbatch(f"--elastic={GOOD}", wrap=f"({inner % out}) > {out} 2>&1")
    assert site.ended(job) == "COMPLETED"
    nested = int(out.read_text().split()[0])
    assert site.ended(nested) == "COMPLETED"
    assert site.comment(nested) == "(null)"
    assert f"elastic:{GOOD}" not in out.read_text()
    assert "SELASTIC_REQUEST" not in Path(f"{out}.env").read_text()


def test_a_heterogeneous_job_speaks_through_its_first_component(site: Site) -> None:
    """--elastic stands once, in front; behind a colon it would be lost, so it is refused there."""
    answer = site.run("sbatch", "--parsable", "-o", "/dev/null", f"--elastic={GOOD}", ":", "-n1", "--wrap", "true")
    assert answer.returncode == 0, answer.stderr
    assert f"elastic:{GOOD}" in site.comment(int(answer.stdout))
    answer = site.run("sbatch", "-o", "/dev/null", "-n1", ":", f"--elastic={GOOD}", "--wrap", "true")
    assert answer.returncode == 1
    assert "give it to the first component" in answer.stderr


def test_an_elastic_job_appends_to_its_output(site: Site) -> None:
    """A restart must not wipe the log of what was trained before; who asks for truncation gets it."""
    out = site.folder / "log.out"
    for options, kept in (
        ((f"--elastic={GOOD}",), True),
        ((f"--elastic={GOOD}", "--open-mode=truncate"), False),
        ((), False),
    ):
        out.write_text("before\n")
        answer = site.run("sbatch", "--parsable", "-o", str(out), *options, "--wrap", "echo after")
        assert site.ended(int(answer.stdout)) == "COMPLETED"
        assert out.read_text() == ("before\nafter\n" if kept else "after\n")


def test_arguments_of_the_plugin(site: Site) -> None:
    """A site can leave comments and output modes alone; a misspelt argument is named and costs nothing."""
    env = site.client_conf("quiet", f"optional {site.folder}/spank_elastic.so comments=ignore open_mode=site\n")
    assert site.comment(site.sbatch("--comment=elastic:nonsense", env=env)) == "elastic:nonsense"
    out = site.folder / "site.out"
    out.write_text("before\n")
    answer = site.run("sbatch", "--parsable", "-o", str(out), f"--elastic={GOOD}", "--wrap", "echo after", env=env)
    assert site.ended(int(answer.stdout)) == "COMPLETED"
    assert out.read_text() == "after\n"
    env = site.client_conf("typo", f"optional {site.folder}/spank_elastic.so open_mode=sight\n")
    answer = site.run("sbatch", "-o", "/dev/null", "--wrap", "true", env=env)
    assert answer.returncode == 0
    assert "argument 'open_mode=sight' in plugstack.conf is not known; accepted: open_mode=append|site" in answer.stderr


# --- With job_submit.lua ----------------------------------------------------------------------------------------------


@pytest.fixture
def blind(lua_site: Site) -> dict[str, str]:
    """Environment of commands whose plugin cannot reach the options, as in a build of Slurm that hides them."""
    target = lua_site.folder / "blind"
    if not target.exists():
        target.mkdir()
        for file in ("Makefile", "elastic_request.c", "elastic_request.h", "spank_elastic.c"):
            text = (HOOKS / file).read_text()
            (target / file).write_text(text.replace('"slurm_option_set"', '"a_name_that_is_not_there"'))
        subprocess.run(["make", "-s", "-C", target, "BUILD=out"], check=True)
    return lua_site.client_conf("blind", f"optional {target}/out/spank_elastic.so\n")


def test_an_ordinary_user_holds_with_the_plugins_option(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sbatch --elastic` and `selastic hold`, without privilege: a node joins as that user, and goes in order."""
    with live_daemon(site.sandbox, monkeypatch) as selasticd, tempfile.TemporaryDirectory(prefix="selastic-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        join = 'echo "$(id -un) $SELASTIC_GPUS" >joined; exec sleep 1000'
        own = "while [ ! -e end ]; do sleep 0.2; done"
        hold = [PYTHON, "-m", "slurm_elastic.client.main", "hold", "--join", join, "--", "/bin/sh", "-c", own]
        found = {"PYTHONPATH": str(selasticd.shim), "HOME": name, **selasticd.found}
        exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in found.items())
        batch = script(site, f"{exports}\nexec {shlex.join(hold)}\n")
        words = ("-N1", "--gres=gpu:a100:4", "--time=30", "--elastic=gpus=4-8,step=4,speedup=linear")
        answer = site.run("sbatch", "--parsable", f"--chdir={name}", "-oout", *words, batch, user=USER)
        assert answer.returncode == 0, answer.stderr
        job = int(answer.stdout)
        selasticd.settles_at(job, 8)
        assert (folder / "joined").read_text() == f"{USER} 4\n"
        (folder / "end").touch()
        assert site.ended(job) == "COMPLETED"
        wait_until(lambda: not selasticd.companions(), 60, selasticd.log)


def test_the_policy_fills_the_comment_in_where_the_plugin_cannot(lua_site: Site, blind: dict[str, str]) -> None:
    """With job_submit.lua --elastic works on a Slurm whose commands hide their options."""
    job = lua_site.sbatch(f"--elastic={GOOD}", "--comment=mine", user=USER, env=blind)
    assert lua_site.comment(job) == f"elastic:{GOOD};mine"
    assert lua_site.comment(lua_site.sbatch(f"--elastic={GOOD}", env=blind)) == f"elastic:{GOOD}"
    assert lua_site.comment(lua_site.sbatch("--comment=mine", env=blind)) == "mine"


def test_the_policy_leaves_alone_what_the_plugin_wrote(lua_site: Site) -> None:
    """Plugin and policy together write the request once."""
    assert lua_site.comment(lua_site.sbatch(f"--elastic={GOOD}", user=USER)) == f"elastic:{GOOD}"


def refused(site: Site, *options: str, user: str | None = USER) -> str:
    """What the user is told when slurmctld refuses the submission."""
    env = site.client_conf("none", "")
    answer = site.run("sbatch", "-o", "/dev/null", *options, "--wrap", "true", user=user, env=env)
    assert answer.returncode != 0
    return answer.stderr


def test_the_policy_checks_requests_without_the_plugin(lua_site: Site) -> None:
    """A site that wants no SPANK plugin still refuses a bad request at submission, root's as well."""
    assert "gpus=0 is not accepted; accepted: a whole number from 1 to 100000" in refused(
        lua_site, "--comment=elastic:gpus=0,batch=1"
    )
    assert "unknown key 'gpu'" in refused(lua_site, "--comment=elastic:gpu=2,batch=1", user=None)


CASES: list[tuple[str, list[str], str]] = [
    ('users = { "nobody" }', [], "elastic jobs are not open to user games here"),
    ('accounts = { "ml" }', ["-A", "physics"], "not open to account 'physics' here; accepted accounts: ml"),
    ('partitions = { "debug" }', [], "partition main takes no elastic jobs; accepted partitions: debug"),
    ('partitions = { "debug" }', ["-p", "debug,main"], "partition main takes no elastic jobs"),
    (
        "max_gpus = 16",
        [],
        "gpus=2-32 is more than this site allows an elastic job in partition main; accepted: at most 16",
    ),
    ("max_gpus = { debug = 8 }", ["-p", "debug"], "in partition debug; accepted: at most 8"),
]


@pytest.mark.parametrize(("body", "options", "sentence"), CASES)
def test_the_site_decides_who_where_and_how_large(lua_site: Site, body: str, options: list[str], sentence: str) -> None:
    """Each rule refuses with its own sentence, and neither ordinary jobs nor root are touched by it."""
    lua_site.policy(policy(body))
    assert sentence in refused(lua_site, f"--comment=elastic:{GOOD}", *options)
    lua_site.sbatch("--comment=ordinary", *options, user=USER)
    lua_site.sbatch(f"--elastic={GOOD}", *options)


def test_the_site_decides_about_weight_and_mechanisms(lua_site: Site) -> None:
    """Nobody gives himself a larger say than others, or a mechanism that the site does not want."""
    lua_site.policy(policy('max_weight = 1, mechanisms = { "shrink", "companion", "component" }'))
    assert "weight=2 is more than this site allows; accepted: at most 1" in refused(
        lua_site, f"--comment=elastic:{GOOD},weight=2"
    )
    assert "via=requeue is not allowed here; accepted: via=shrink+companion+component" in refused(
        lua_site, f"--comment=elastic:{GOOD},via=requeue"
    )
    lua_site.sbatch(f"--elastic={GOOD}", user=USER)


def test_jobs_that_preempt_give_notice(lua_site: Site) -> None:
    """A job of such a partition starts no sooner than the site says; one that is to start later anyway, one of another
    partition, and a companion are left as they are."""
    lua_site.policy(policy("notice_s = { debug = 600 }"))

    def waits_s(*options: str) -> float:
        job = lua_site.sbatch(*options, user=USER)
        words = lua_site.run("scontrol", "-o", "show", "job", str(job)).stdout.split()
        shown = dict(word.partition("=")[::2] for word in words)
        lua_site.run("scancel", str(job))
        begin, submitted = (datetime.fromisoformat(shown[name]) for name in ("EligibleTime", "SubmitTime"))
        return (begin - submitted).total_seconds()

    assert 590 <= waits_s("-p", "debug") <= 610
    assert 590 <= waits_s("-p", "main,debug") <= 610
    assert waits_s("-p", "debug", "--begin=now+2hours") > 7000
    assert waits_s("-p", "main") == waits_s("-p", "debug", "--comment=selastic:companion-of=1;resize=1") == 0.0


def test_a_rule_that_is_met_lets_the_job_through(lua_site: Site) -> None:
    """A policy is no ban: what it accepts runs."""
    lua_site.policy(
        policy(f'users = {{ "{USER}" }}, partitions = {{ "debug" }}, max_gpus = {{ debug = 32 }}, max_weight = 3')
    )
    job = lua_site.sbatch("-p", "debug", f"--elastic={GOOD},weight=3", user=USER)
    assert lua_site.ended(job) == "COMPLETED"


def test_what_counts_for_the_daemon_is_what_the_policy_sees(lua_site: Site) -> None:
    """Of comments with every kind of space before a request, those that Slurm lets through are no requests to the
    daemon as it reads them; those that are never get in."""
    lua_site.policy(policy('partitions = { "debug" }'))
    for comment, found in COMMENTS:
        if found is not None and "\u00a0" in found:
            continue  # a request that nobody can read: refused by its grammar
        answer = lua_site.run(
            *("sbatch", "--parsable", "-H", "-o", "/dev/null", f"--comment={comment}", "--wrap", "true"), user=USER
        )
        assert (answer.returncode != 0) is (found is not None), (comment, answer.stderr)
        if found is not None:
            assert "partition main takes no elastic jobs" in answer.stderr
        else:
            job = CommandClient(lua_site.sandbox.env["SLURM_CONF"]).snapshot().jobs[int(answer.stdout)]
            assert find(job.comment) is None, job.comment
            lua_site.run("scancel", answer.stdout.strip())


def test_a_changed_comment_is_held_to_the_policy(lua_site: Site) -> None:
    """A job cannot be submitted small and made large afterwards; other updates are none of the policy's business."""
    lua_site.policy(policy("max_gpus = 32"))
    job = lua_site.sbatch("-H", f"--elastic={GOOD}", user=USER)
    update = ["scontrol", "update", f"JobId={job}"]
    answer = lua_site.run(*update, "Comment=elastic:gpus=2-64,batch=256-8192", user=USER)
    assert answer.returncode != 0
    # Slurm has no way to give the sentence to who runs scontrol; the admin finds it.
    assert "accepted: at most 32" in (lua_site.sandbox.dir / "log" / "slurmctld.log").read_text()
    assert lua_site.run(*update, "Comment=elastic:gpus=2-8,batch=256", user=USER).returncode == 0
    assert lua_site.run(*update, "JobName=other", user=USER).returncode == 0
    assert lua_site.comment(job) == "elastic:gpus=2-8,batch=256"


def test_a_resize_passes_the_policy(lua_site: Site) -> None:
    """job_submit is asked about every update, a shrink too: it must not stand in the daemon's way."""
    lua_site.policy(policy('users = { "nobody" }, max_gpus = 1'))
    job = lua_site.sbatch("-N2", "--gres=gpu:4", f"--elastic={GOOD}", wrap="sleep 300")

    def nodes() -> str:
        return lua_site.run("squeue", "-h", "-j", str(job), "-t", "R", "-o", "%N").stdout.strip()

    wait_until(lambda: nodes() == "n[1-2]", 30)
    answer = lua_site.run("scontrol", "update", f"JobId={job}", "NodeList=n1")
    assert answer.returncode == 0, answer.stderr
    wait_until(lambda: nodes() == "n1", 30)
    lua_site.run("scancel", str(job))


def test_slurmctld_starts_after_slurm_elastic_was_removed(lua_site: Site) -> None:
    """An admin who removes the package and forgets slurm.conf has a cluster that takes jobs, and a line in the log."""
    lua_site.policy(policy("").replace("/usr/share/slurm-elastic", "/nonexistent"))
    lua_site.sandbox.daemons.stop("slurmctld")
    lua_site.sandbox.start_daemon("slurmctld")
    assert lua_site.ended(lua_site.sbatch(f"--elastic={GOOD}", user=USER)) == "COMPLETED"
    log = (lua_site.sandbox.dir / "log" / "slurmctld.log").read_text()
    assert "slurm-elastic: jobs go through unchecked: cannot open /nonexistent/elastic.lua" in log


def test_a_policy_that_fails_lets_jobs_through(lua_site: Site) -> None:
    """A mistake in the table must not stop a cluster from taking jobs; the log says what happened."""
    lua_site.policy(policy('max_gpus = "many"'))
    assert lua_site.ended(lua_site.sbatch(f"--elastic={GOOD}", user=USER)) == "COMPLETED"
    log = (lua_site.sandbox.dir / "log" / "slurmctld.log").read_text()
    assert "slurm-elastic: a job went through unchecked" in log
