"""One grammar, read by Python, by the SPANK plugin in C and by the site policy in Lua: same verdict, same sentence."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hooks_build import HOOKS, build, remove_build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from request_comments import COMMENTS

from slurm_elastic.protocol.errors import RequestError
from slurm_elastic.protocol.request import COMBINES, ENDS, KEYS, LR_RULES, MECHANISMS, find, parse

MOMENTS = (
    *("20:00", "8:00", "00:00", "23:59:59", "2026-11-27", "2028-02-29", "2400-02-29", "2026-11-27T20:00"),
    *("2026-12-31T8:00:30", "now+3600", "now+1second", "now+90minutes", "now+2hours", "now+1day", "now+2weeks"),
    "now+999999999weeks",
)
NO_MOMENTS = (
    *("24:00", "20:60", "20", "20:0", "20:00:60", "20:00:", ":00", "100:00", "20:00pm", "tomorrow", "now", "now-1hour"),
    *("now+", "now+hours", "now+1fortnight", "now+1s", "now+1hourss", "now+1234567890", "now+1.5hours", "NOW+1hour"),
    *("2026-02-29", "2100-02-29", "2026-13-01", "2026-00-10", "2026-11-31", "2026-11-00", "26-11-27", "2026-1-2"),
    *("2026-11-27T", "2026-11-27T25:00", "2026-11-27t20:00", "1999-12-31", "2026-11-27-20:00", "2026-11", "T20:00"),
    *("2026-11-27T20:00T", "1127", "11/27", "20\uff1a00", "now+1days2", "2026-11-27TT20:00"),
)
GOOD = (
    "gpus=2-32,batch=256-8192",
    "elastic:gpus=2-32,batch=256-8192",
    "ELASTIC:gpus=2-32,batch=256-8192",
    "Elastic:gpus=2-32,batch=256-8192",
    "batch=256-8192,gpus=2-32",
    "gpus=4,batch=512",
    "gpus=2:32,batch=256:8192",
    "gpus=2:2,batch=256-8192",
    "gpus=1,batch=1",
    "gpus=4-64,batch=256-8192,step=4",
    "gpus=8-64,batch=256-8192,group=8",
    "gpus=4-64,batch=256,group=4,step=8",
    "gpus=3-9,batch=64-64,group=4,step=1",
    "gpus=2-32,batch=256-8192,lr=none,weight=0.5,via=shrink",
    "gpus=2-32,batch=256-8192,via=shrink+companion+component+requeue+expand",
    "gpus=2-32,batch=256-8192,via=shrink+shrink",
    "gpus=2-32,batch=256-8192,weight=1000",
    "gpus=2-32,batch=256-8192,weight=1000.000000",
    "gpus=2-32,batch=256-8192,weight=0.000001",
    "gpus=02-0032,batch=0256-8192",
    "gpus=5-6,batch=6-6",
    "gpus=1,batch=1000000000",
    "gpus=2-32,batch=256-8192,until=epochs",
    "until=quality,gpus=2-32,batch=256-8192",
    "gpus=2-32,batch=256-8192,guard=80",
    "gpus=2-32,batch=256-8192,slice=2",
    "gpus=3-6,batch=64-66,slice=2",
    "gpus=8,batch=64,group=2,slice=16",
    *(f"gpus=2-32,batch=256-8192,lr={rule}" for rule in LR_RULES),
    *(f"gpus=2-32,batch=256-8192,combine={way}" for way in COMBINES),
    *(f"gpus=2-32,batch=256-8192,combine=adasum,lr={rule}" for rule in ("auto", "none")),
    "gpus=2-32,batch=256-8192,lr=sqrt,combine=mean",
    "gpus=2-32",
    "gpus=4-64,group=4,step=8,weight=0.5,via=shrink",
    *(f"gpus=2-32,speedup={value}" for value in ("linear", "0.9", "1", "1.0", "0.500001")),
    *(f"gpus=2-32,batch=256,deadline={value}" for value in MOMENTS),
    "gpus=2-32,speedup=0.9,deadline=8:00,budget=12.5",
    *(f"gpus=2-32,batch=256,budget={value}" for value in ("1", "0.000001", "999999", "96.5")),
)
BAD = (
    "",
    "elastic:",
    "elastic:elastic:gpus=2-32,batch=256-8192",
    "elastic\x1agpus=2-32,batch=256-8192",
    "ela\u017ftic:gpus=2-32,batch=256-8192",
    "gpus",
    "gpus=",
    "gpus=2-8:16,batch=64",
    "gpus=2:8-16,batch=64",
    "gpus=2:4:8,batch=64",
    "gpus=:8,batch=64",
    "gpus=8:2,batch=64",
    "=4",
    "batch=256",
    "step=2",
    "gpus=2-32,batch=256-8192,",
    ",gpus=2-32,batch=256-8192",
    "gpus=2-32,,batch=256-8192",
    "gpus=2-32 ,batch=256-8192",
    "gpus= 2-32,batch=256-8192",
    "gpus=2-32;batch=256-8192",
    "GPUS=2-32,batch=256-8192",
    "gpu=2-32,batch=256-8192",
    "batches=2-32,gpus=1",
    "nonsense=1,gpus=1,batch=1",
    "gpus=2-32,batch=256-8192,gpus=2",
    "gpus=2-32,batch=256-8192,weight=1,weight=1",
    "gpus=32-2,batch=256",
    "gpus=2-32,batch=8192-256",
    "gpus=-2,batch=4",
    "gpus=2-,batch=4",
    "gpus=-,batch=4",
    "gpus=2--4,batch=4",
    "gpus=2-4-8,batch=4",
    "gpus=0,batch=4",
    "gpus=0-4,batch=4",
    "gpus=+2,batch=4",
    "gpus=2.0,batch=4",
    "gpus=1e3,batch=4",
    "gpus=0x10,batch=4",
    "gpus=\uff12,batch=4",
    "gpus=1,batch=1000000001",
    "gpus=1,batch=10000000000",
    "gpus=1,batch=99999999999999999999999999",
    "gpus=2-32,batch=256,step=0",
    "gpus=2-32,batch=256,step=2-4",
    "gpus=2-32,batch=256,group=x",
    "gpus=2-32,batch=256,lr=cubic",
    "gpus=2-32,batch=256,lr=auto+none",
    "gpus=2-32,batch=256,weight=0",
    "gpus=2-32,batch=256,weight=0.0",
    "gpus=2-32,batch=256,weight=1000.1",
    "gpus=2-32,batch=256,weight=1000.000001",
    "gpus=2-32,batch=256,weight=.5",
    "gpus=2-32,batch=256,weight=5.",
    "gpus=2-32,batch=256,weight=-1",
    "gpus=2-32,batch=256,weight=1,5",
    "gpus=2-32,batch=256,weight=0.0000001",
    "gpus=2-32,batch=256,weight=nan",
    "gpus=2-32,batch=256,via=",
    "gpus=2-32,batch=256,via=+",
    "gpus=2-32,batch=256,via=shrink+",
    "gpus=2-32,batch=256,via=shrink,companion",
    "gpus=2-32,batch=256,via=teleport",
    "gpus=2-32,batch=256,until=dawn",
    "gpus=2-32,batch=256,combine=median",
    *(f"lr={rule},gpus=2-32,batch=256,combine=adasum" for rule in LR_RULES if rule not in ("auto", "none")),
    "gpus=4,batch=7,lr=sqrt,combine=adasum",
    "gpus=2-32,batch=256,guard=0",
    "gpus=2-32,batch=256,slice=0",
    "gpus=2-32,batch=256,slice=1.5",
    "gpus=2-32,batch=256,slice=1000000001",
    "gpus=3,batch=63,slice=2",
    "gpus=2-32,batch=256,slice=1000000000",
    "gpus=4-6,batch=64,group=2,slice=64",
    "gpus=2-32,batch=256,guard=101",
    "gpus=2-32,batch=256,guard=0.8",
    "gpus=2-32,batch=256,until=quality,until=epochs",
    "gpus=2-3,batch=256,group=4",
    "gpus=3-11,batch=256,group=4,step=4",
    "gpus=4,batch=7",
    "gpus=8-16,batch=3-5",
    "gpus=4-6,batch=7-7",
    "gpus=7=7,batch=4",
    *(f"gpus=2-32,{key}" for key in ("slice=2", "lr=sqrt", "combine=adasum", "until=epochs", "guard=80")),
    "gpus=2-32,until=epochs,slice=2",
    "gpus=2-32,batch=256,speedup=0.9",
    "gpus=2-3,group=4",
    *(f"gpus=2-32,speedup={value}" for value in ("0.5", "1.1", "cubic", "0", ".9", "2", "nan", "0.9000001")),
    *(f"gpus=2-32,batch=256,deadline={value}" for value in NO_MOMENTS),
    *(f"gpus=2-32,budget={value}" for value in ("0", "0.0", "-1", "1e3", "1000000", ".5", "nan", "12h", "0.0000001")),
    "gpus=2-32,batch=256,deadline=20:00,deadline=20:00",
    "gpus=2-32,batch=7,budget=0,deadline=x",
)


Ask = Callable[[list[str]], list[str]]
"""Requests in, one verdict for each out: `ok`, or `refused: ` and the sentence."""
HARNESS = Path(__file__).parent / "request_harness.lua"


def answers(command: list[str | Path], lines: list[str]) -> list[str]:
    """What a program that answers line by line says."""
    text = "".join(f"{line}\n" for line in lines)
    answer = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr.decode()
    said = answer.stdout.decode().split("\n")[:-1]
    assert len(said) == len(lines)
    return said


def lua(interpreter: str, command: str, lines: list[str]) -> list[str]:
    """What slurm_hooks/elastic.lua says under that Lua."""
    return answers([interpreter, HARNESS, HOOKS / "elastic.lua"], [f"{command} {line}" for line in lines])


@pytest.fixture(scope="module")
def c_program() -> Iterator[Path]:
    """The program around the plugin's own checker; building it installs Lua too where it is missing."""
    yield build() / "check_request"
    remove_build()


@pytest.fixture(params=["C", "lua5.1", "lua5.4"], scope="module")
def ask(request: pytest.FixtureRequest, c_program: Path) -> Ask:
    """One of the checkers. Slurm is built with whichever Lua the site has: 5.1 and 5.4 are the ends of the range."""
    if request.param == "C":
        return lambda lines: answers([c_program], lines)
    return lambda lines: lua(request.param, "parse", lines)


def python_verdict(text: str) -> str:
    """What the Python parser says, in the C program's form."""
    try:
        parse(text)
    except RequestError as error:
        return f"refused: {error}"
    return "ok"


def without_hint(sentence: str) -> str:
    """The guess at what a mistyped key meant may differ: nothing hangs on it."""
    return re.sub(r" \(did you mean \w+\?\)", "", sentence)


def test_good_requests_are_good_to_all(ask: Ask) -> None:
    """No request that the daemon would take is refused at submission."""
    assert [python_verdict(text) for text in GOOD] == ["ok"] * len(GOOD)
    assert ask(list(GOOD)) == ["ok"] * len(GOOD)


def test_bad_requests_are_refused_in_the_same_words(ask: Ask) -> None:
    """A request that the daemon would not take never gets past submission, and the user reads the same sentence."""
    said = [without_hint(line) for line in ask(list(BAD))]
    assert said == [without_hint(python_verdict(text)) for text in BAD]
    assert all(line.startswith("refused: ") for line in said)


def test_a_mistyped_key_is_guessed(c_program: Path) -> None:
    """A typing slip costs one look at the terminal, none into the manual."""
    said = answers([c_program], ["gpu=2,batch=4", "bacth=2,gpus=4", "wieght=2,gpus=1,batch=1", "cats=3"])
    assert [re.findall(r"did you mean (\w+)", line) for line in said] == [["gpus"], ["batch"], ["weight"], []]


def test_no_range_however_large_takes_long(ask: Ask) -> None:
    """A request cannot make the submitting command spin, let alone slurmctld, nor fill the daemon's memory."""
    wide = [
        "gpus=1-100000,batch=1-1000000000",
        "gpus=100000,batch=1000000000",
        "gpus=2-100000,batch=1",
        "gpus=1-100001,batch=1",
        "gpus=1-1000000000,batch=1-1000000000",
    ]
    assert [said.partition(":")[0] for said in ask(wide)] == ["ok", "ok", "refused", "refused", "refused"]
    assert [python_verdict(text).partition(":")[0] for text in wide] == ["ok", "ok", "refused", "refused", "refused"]


def test_an_endless_request_is_refused(ask: Ask) -> None:
    """Slurm takes comments up to a length; longer requests are refused instead of cut."""
    [said] = ask(["gpus=1,batch=1,via=" + "+".join(["shrink"] * 200)])
    assert said == "refused: the elastic request has 1418 characters; accepted: at most 1000"


def test_a_request_cannot_steer_the_terminal_of_who_reads_the_log(c_program: Path) -> None:
    """What slurmctld logs of a refusal quotes the request: its control characters are question marks."""
    assert lua("lua5.1", "time", ["1 elastic:gpus=\x1b[2J,batch=1"]) == lua(
        "lua5.4", "time", ["1 elastic:gpus=?[2J,batch=1"]
    )


def test_the_policy_takes_microseconds(c_program: Path) -> None:
    """slurmctld holds its lock during job_submit: most jobs cost it 1 us, elastic ones some tens."""
    ordinary, elastic = lua(
        "lua5.1", "time", ["20000 a comment of an ordinary job", "5000 elastic:gpus=2-32,batch=256-8192,via=shrink"]
    )
    print(f"ordinary job {ordinary} us, elastic job {elastic} us")
    assert float(ordinary) < 50
    assert float(elastic) < 1000


numbers = st.one_of(st.integers(0, 40), st.integers(0, 3000)).map(str)
spans = st.one_of(numbers, st.tuples(numbers, numbers).map("-".join))
junk = st.text(alphabet="0123456789-+.,=; xgpus", max_size=8)
values = {
    "gpus": spans,
    "batch": spans,
    "step": numbers,
    "group": st.integers(0, 9).map(str),
    "lr": st.sampled_from((*LR_RULES, "cubic")),
    "combine": st.sampled_from((*COMBINES, "median")),
    "weight": st.one_of(numbers, st.floats(0, 2000).map(lambda x: f"{x:.6f}"), junk),
    "via": st.lists(st.sampled_from((*MECHANISMS, "x", "")), min_size=1, max_size=4).map("+".join),
    "until": st.sampled_from((*ENDS, "dawn")),
    "slice": numbers,
    "speedup": st.sampled_from(("linear", "0.9", "1", "1.5", "0.5")),
    "deadline": st.sampled_from((*MOMENTS, *NO_MOMENTS)),
    "budget": st.one_of(numbers, junk),
    "guard": st.sampled_from(("80", "100", "101", "0", "0.8")),
}
words = st.sampled_from(KEYS).flatmap(lambda key: values[key].map(lambda value: f"{key}={value}"))
nearly = st.tuples(spans, spans, st.lists(words, max_size=3)).map(
    lambda t: ",".join([f"gpus={t[0]}", *([f"batch={t[1]}"] if t[1] != "7" else []), *t[2]])
)
anything = st.one_of(nearly, nearly, st.lists(st.one_of(words, junk), max_size=4).map(",".join))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(anything, min_size=60, max_size=60))
def test_all_say_the_same_of_anything(ask: Ask, texts: list[str]) -> None:
    """Fifteen hundred requests for each checker, most of them nearly right: same verdict, same sentence."""
    said = [without_hint(line) for line in ask(texts)]
    assert said == [without_hint(python_verdict(text)) for text in texts]


def test_all_find_what_is_one_and_nothing_else(c_program: Path) -> None:
    """The table of comments that Python and a real Slurm are held to as well."""
    comments = [comment for comment, _ in COMMENTS]
    expected = [found or "none" for _, found in COMMENTS]
    assert answers([c_program, "find"], comments) == expected
    assert lua("lua5.1", "find", comments) == expected
    assert lua("lua5.4", "find", comments) == expected


pieces = st.sampled_from(
    (
        *(" ", ";", "elastic:", "ELASTIC:", "elaStic:", "ela\u017ftic:", "elastic", "gpus=1", "x", "\t", ","),
        *("\v", "\f", "\x1c", "\x1f", "\x85", "\u00a0", "\u2003", "\u3000"),
    )
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(comments=st.lists(st.lists(pieces, max_size=8).map("".join), min_size=30, max_size=30))
def test_all_find_the_same_request_in_a_comment(c_program: Path, comments: list[str]) -> None:
    """What is checked inside a comment at submission is what the daemon will read there."""
    expected = [find(comment) or "none" for comment in comments]
    assert answers([c_program, "find"], comments) == expected
    assert lua("lua5.1", "find", comments) == expected
    assert lua("lua5.4", "find", comments) == expected
