"""The elastic request's grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from request_comments import COMMENTS

from slurm_elastic.protocol.errors import RequestError
from slurm_elastic.protocol.request import (
    COMBINES,
    ENDS,
    LR_RULES,
    MECHANISMS,
    ElasticRequest,
    check_start,
    find,
    parse,
)


def test_the_documented_form_is_read() -> None:
    """The form in the README means what it says, with the documented defaults."""
    request = parse("elastic:gpus=2-32,batch=256-8192")
    assert (request.min_gpus, request.max_gpus, request.min_batch, request.max_batch) == (2, 32, 256, 8192)
    assert (request.step, request.group, request.lr, request.weight) == (1, 1, "auto", 1.0)


def test_a_step_follows_the_group_unless_given() -> None:
    """With replicas of 4 GPUs only whole replicas are sizes."""
    assert parse("gpus=4-16,batch=64-512,group=4").sizes() == (4, 8, 12, 16)
    assert parse("gpus=4-16,batch=64-512,group=4,step=8").sizes() == (4, 12)


def test_without_a_batch_each_gpu_counts_as_one_sample() -> None:
    """What `selastic hold` asks for: sizes alone, and how they scale, if somebody says that."""
    request = parse("elastic:gpus=4-16,group=4,speedup=0.9")
    assert (request.max_batch, request.speedup, request.batches(8)) == (0, 0.9, (8,))
    assert parse("gpus=2-8,speedup=linear").text() == "elastic:gpus=2-8,speedup=1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gpus=8-2,batch=64", "gpus=8-2"),
        ("gpus=2-8,batch=512-64", "batch=512-64"),
        ("gpu=2-8,batch=64", "did you mean gpus?"),
        ("gpus=2-8,lr=sqrt", "lr= goes with batch="),
        ("gpus=2-8,batch=64,combine=median", "accepted: mean, adasum"),
        ("gpus=2-8,batch=64,combine=adasum,lr=sqrt", "lr=sqrt does not go with combine=adasum"),
        ("gpus=2-8,batch=64,speedup=0.9", "speedup= does not go with batch="),
        ("gpus=2-8,speedup=0.4", "accepted: linear, or a number above 0.5"),
        ("batch=64", "no gpus="),
        ("gpus=2-8,batch=64,colour=red", "unknown key 'colour'"),
        ("gpus=0-8,batch=64", "gpus=0"),
        ("gpus=-1,batch=64", "gpus="),
        ("gpus=2-8,batch=64,gpus=4", "twice"),
        ("gpus=3,batch=256", "batch=256 cannot be shared out evenly"),
        ("gpus=2-3,batch=63,slice=2", "accepted: a range holding a multiple of 4"),
        ("gpus=5-7,batch=8-64,group=4", "no multiple of group=4"),
        ("gpus=2-8,batch=64,lr=magic", "accepted: " + ", ".join(LR_RULES)),
        ("gpus=2-8,batch=64,via=teleport", "accepted: " + ", ".join(MECHANISMS)),
        ("gpus=2-8,batch=64,weight=0", "weight=0"),
        ("gpus=2-8,batch=64,weight=nan", "weight=nan"),
        ("gpus=2-8,,batch=64", "KEY=VALUE"),
        ("", "KEY=VALUE"),
        ("gpus=99999999999999999999,batch=64", "gpus=99999999999999999999"),
    ],
)
def test_a_malformed_request_gets_one_sentence_naming_the_fault(text: str, named: str) -> None:
    """Every malformed request is refused with one line that names the key or the value."""
    with pytest.raises(RequestError) as refusal:
        parse(text)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_range_that_excludes_the_starting_size_is_refused_with_the_nearest() -> None:
    """A job that starts with 3 GPUs cannot be one of 4 to 16 in steps of 4."""
    request = parse("gpus=4-16,batch=64-512,step=4")
    check_start(request, 8)
    with pytest.raises(RequestError, match=r"starts with 3 GPUs.*nearest accepted size: 4"):
        check_start(request, 3)
    with pytest.raises(RequestError, match=r"starts with 1 GPU, which gpus=4-16 \(step 4, group 1\) excludes"):
        check_start(request, 1)
    with pytest.raises(RequestError, match=r"which gpus=4-16 excludes"):
        check_start(parse("gpus=4-16,batch=64-512"), 1)


@pytest.mark.parametrize(("comment", "found"), COMMENTS)
def test_a_request_is_found_inside_a_comment(comment: str, found: str | None) -> None:
    """Other words in the comment are the user's own and are left alone."""
    assert find(comment) == found


sizes = st.integers(1, 64)


@st.composite
def requests(draw: st.DrawFn) -> ElasticRequest:
    low, batch, group = draw(sizes), draw(st.integers(1, 4096)), draw(st.sampled_from((1, 2, 4)))
    combine = draw(st.sampled_from(COMBINES))
    return ElasticRequest(
        min_gpus=low * group,
        max_gpus=(low + draw(sizes)) * group,
        min_batch=batch,
        max_batch=batch + draw(st.integers(3 * 64 * 128, 200_000)),
        step=group * draw(st.integers(1, 3)),
        group=group,
        lr=draw(st.sampled_from(LR_RULES if combine == "mean" else ("auto", "none"))),
        combine=combine,
        weight=draw(st.sampled_from((0.5, 1.0, 2.0, 12.25))),
        via=tuple(draw(st.lists(st.sampled_from(MECHANISMS), min_size=1, max_size=3, unique=True))),
        until=draw(st.sampled_from(ENDS)),
        guard=draw(st.sampled_from((0, 1, 80, 100))),
        slice=draw(st.sampled_from((1, 2, 3))),
    )


@given(requests())
def test_a_request_written_out_reads_back_equal(request: ElasticRequest) -> None:
    """What the hooks write is what the daemon reads."""
    assert parse(request.text()) == request


@given(requests())
def test_every_offered_batch_is_accepted_and_shared_out_evenly(request: ElasticRequest) -> None:
    """The planner may take any size with any batch offered for it."""
    for gpus in request.sizes():
        assert request.accepts(gpus)
        for batch in request.batches(gpus):
            assert request.min_batch <= batch <= request.max_batch
            assert batch % (gpus // request.group * request.slice) == 0
