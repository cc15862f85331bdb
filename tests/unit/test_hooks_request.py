"""The plugin's checker in C and the Python parser: one grammar, so the same verdict and sentence on anything."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooks_build import build, remove_build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_elastic.trainer_shim.errors import RequestError
from slurm_elastic.trainer_shim.request import KEYS, LR_RULES, MECHANISMS, find, parse

GOOD = (
    "gpus=2-32,batch=256-8192",
    "elastic:gpus=2-32,batch=256-8192",
    "batch=256-8192,gpus=2-32",
    "gpus=4,batch=512",
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
    *(f"gpus=2-32,batch=256-8192,lr={rule}" for rule in LR_RULES),
)
BAD = (
    "",
    "elastic:",
    "elastic:elastic:gpus=2-32,batch=256-8192",
    "gpus",
    "gpus=",
    "=4",
    "gpus=2-32",
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
    "gpus=2-3,batch=256,group=4",
    "gpus=3-11,batch=256,group=4,step=4",
    "gpus=4,batch=7",
    "gpus=8-16,batch=3-5",
    "gpus=4-6,batch=7-7",
    "gpus=7=7,batch=4",
)


@pytest.fixture(scope="module")
def checker() -> Iterator[Path]:
    """The program around the plugin's own checker."""
    yield build() / "check_request"
    remove_build()


def c_verdicts(checker: Path, lines: list[str], *mode: str) -> list[str]:
    """What the C code says of each line."""
    text = "".join(f"{line}\n" for line in lines)
    answer = subprocess.run([checker, *mode], input=text.encode(), capture_output=True, timeout=60, check=True)
    said = answer.stdout.decode().splitlines()
    assert len(said) == len(lines)
    return said


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


def test_good_requests_are_good_to_both(checker: Path) -> None:
    """No request that the daemon would take is refused at submission."""
    assert [python_verdict(text) for text in GOOD] == ["ok"] * len(GOOD)
    assert c_verdicts(checker, list(GOOD)) == ["ok"] * len(GOOD)


def test_bad_requests_are_refused_in_the_same_words(checker: Path) -> None:
    """A request that the daemon would not take never gets past submission, and the user reads the same sentence."""
    ours = [without_hint(said) for said in c_verdicts(checker, list(BAD))]
    assert ours == [without_hint(python_verdict(text)) for text in BAD]
    assert all(said.startswith("refused: ") for said in ours)


def test_a_mistyped_key_is_guessed(checker: Path) -> None:
    """A typing slip costs one look, not a look into the manual."""
    said = c_verdicts(checker, ["gpu=2,batch=4", "bacth=2,gpus=4", "wieght=2,gpus=1,batch=1", "cats=3"])
    assert [re.findall(r"did you mean (\w+)", line) for line in said] == [["gpus"], ["batch"], ["weight"], []]


def test_no_range_however_large_takes_long(checker: Path) -> None:
    """A request cannot make the submitting command spin: what cannot be met is known from arithmetic, not by trying."""
    wide = ["gpus=1-100000,batch=1-1000000000", "gpus=2-100000,batch=1", "gpus=3-100000,batch=100003,group=2"]
    assert [said.partition(":")[0] for said in c_verdicts(checker, wide)] == ["ok", "refused", "refused"]


def test_an_endless_request_is_refused(checker: Path) -> None:
    """Slurm takes comments up to a length; longer requests are refused instead of cut."""
    [said] = c_verdicts(checker, ["gpus=1,batch=1,via=" + "+".join(["shrink"] * 200)])
    assert said == "refused: the elastic request has 1418 characters; accepted: at most 1000"


numbers = st.one_of(st.integers(0, 40), st.integers(0, 3000)).map(str)
spans = st.one_of(numbers, st.tuples(numbers, numbers).map("-".join))
junk = st.text(alphabet="0123456789-+.,=; xgpus", max_size=8)
values = {
    "gpus": spans,
    "batch": spans,
    "step": numbers,
    "group": st.integers(0, 9).map(str),
    "lr": st.sampled_from((*LR_RULES, "cubic")),
    "weight": st.one_of(numbers, st.floats(0, 2000).map(lambda x: f"{x:.6f}"), junk),
    "via": st.lists(st.sampled_from((*MECHANISMS, "x", "")), min_size=1, max_size=4).map("+".join),
}
words = st.sampled_from(KEYS).flatmap(lambda key: values[key].map(lambda value: f"{key}={value}"))
nearly = st.tuples(spans, spans, st.lists(words, max_size=3)).map(
    lambda t: ",".join([f"gpus={t[0]}", f"batch={t[1]}", *t[2]])
)
anything = st.one_of(nearly, nearly, st.lists(st.one_of(words, junk), max_size=4).map(",".join))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(anything, min_size=40, max_size=40))
def test_both_say_the_same_of_anything(checker: Path, texts: list[str]) -> None:
    """Sixteen hundred requests, most of them nearly right: same verdict, same sentence."""
    ours = [without_hint(said) for said in c_verdicts(checker, texts)]
    assert ours == [without_hint(python_verdict(text)) for text in texts]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    comments=st.lists(
        st.lists(st.sampled_from((" ", ";", "elastic:", "gpus=1", "x", "\t", ",")), max_size=8).map("".join),
        min_size=20,
        max_size=20,
    )
)
def test_both_find_the_same_request_in_a_comment(checker: Path, comments: list[str]) -> None:
    """What the plugin checks inside a comment is what the daemon will read there."""
    assert c_verdicts(checker, comments, "find") == [find(comment) or "none" for comment in comments]
