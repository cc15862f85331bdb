"""Tables: columns chosen as with sacct, aligned or parsable, and harmless to a terminal."""

from __future__ import annotations

import pytest

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.text import tables
from slurm_elastic.protocol.text.tables import Field

FIELDS = (
    Field("JobID", "JOBID", lambda row: str(row["id"]), "job id"),
    Field("Name", "NAME", lambda row: row["name"] or "", "job name", left=True),
    Field("GPUs", "GPUS", lambda row: "" if row["gpus"] is None else str(row["gpus"]), "GPUs"),
)
ROWS = [{"id": 7, "name": "train", "gpus": 4}, {"id": 1207, "name": None, "gpus": None}]


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    """Numbers stand right and names left, a dash stands for what is not known, and no line has blanks at its end."""
    assert tables.lines(FIELDS, ROWS) == ["JOBID NAME  GPUS", "    7 train    4", " 1207 -        -"]


def test_the_header_can_be_left_out_or_underlined() -> None:
    """--noheader leaves only rows; sacct's dashes are as wide as their columns."""
    assert tables.lines(FIELDS, ROWS[:1], header=False) == ["7 train 4"]
    assert tables.lines(FIELDS, ROWS[:1], rule=True)[1] == "----- ----- ----"


def test_an_empty_table_is_its_header() -> None:
    """A cluster without elastic jobs gives the header and no error."""
    assert tables.lines(FIELDS, []) == ["JOBID NAME GPUS"]
    assert tables.lines(FIELDS, [], header=False) == []


def test_parsable_forms_differ_in_the_last_delimiter() -> None:
    """-p ends each line with a delimiter, -P does not; what is not known is empty in both."""
    assert tables.lines(FIELDS, ROWS, style="parsable")[1:] == ["7|train|4|", "1207|||"]
    assert tables.lines(FIELDS, ROWS, style="parsable2") == ["JOBID|NAME|GPUS", "7|train|4", "1207||"]


def test_a_narrow_terminal_leaves_out_what_can_be_spared_and_cuts_names() -> None:
    """Numbers are whole, the last column stays, and its sentences go on in the next line."""
    fields = (*FIELDS, Field("Why", "WHY", lambda row: row["why"], "why", left=True))
    rows = [{"id": 7, "name": "training-a-language-model", "gpus": 4, "why": "waiting jobs come first"}]
    wide = tables.lines(fields, rows)
    assert tables.lines(fields, rows, terminal=len(wide[1])) == wide
    for terminal in (60, 50, 45, 40, 34):
        shown = tables.lines(fields, rows, terminal=terminal)
        assert max(len(line) for line in shown) <= terminal
        assert " ".join(line[shown[0].index("WHY") :] for line in shown[1:]).split() == rows[0]["why"].split()
    spared = tables.lines(fields, rows, terminal=30, spare=("GPUs", "Name"))
    assert "GPUS" not in spared[0] and "NAME" in spared[0]
    assert max(len(line) for line in spared) <= 30


def test_format_chooses_orders_and_sizes_columns() -> None:
    """name%width aligns right, a negative width left, names are found in any case, longer text is cut with a +."""
    columns = tables.choose(FIELDS, "JobID", "name%3,JOBID%-6,gpus")
    assert tables.lines(columns, ROWS[:1], header=False) == ["tr+ 7      4"]


def test_without_a_format_the_default_columns_are_printed() -> None:
    """No --format means the command's own choice, and ALL means every field."""
    assert [field.name for field in tables.choose(FIELDS, "JobID,GPUs", None)] == ["JobID", "GPUs"]
    assert tables.choose(FIELDS, "JobID", "all") == list(FIELDS)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("jobid,gpu", "unknown field 'gpu' in --format (did you mean GPUs?); accepted: JobID, Name, GPUs"),
        ("", "unknown field ''"),
        ("jobid%", "'jobid%' in --format has no width"),
        ("jobid%0", "1 to 9999"),
        ("jobid%x", "'jobid%x'"),
    ],
)
def test_a_wrong_format_says_what_is_accepted(spec: str, said: str) -> None:
    """A field that is not there, or a width that is none, is refused by name and with the nearest one."""
    with pytest.raises(ConfigError, match="accepted") as refused:
        tables.choose(FIELDS, "JobID", spec)
    assert said in str(refused.value)


@pytest.mark.parametrize("style", ["table", "parsable", "parsable2"])
def test_a_jobs_name_cannot_steer_the_terminal(style: str) -> None:
    """Escape codes and newlines in a name that another user chose are shown as question marks."""
    shown = tables.lines(FIELDS, [{"id": 1, "name": "a\x1b[2J\nb", "gpus": 1}], style=style)
    assert len(shown) == 2
    assert "a?[2J?b" in shown[1]


def test_columns_count_what_a_terminal_shows() -> None:
    """Letters of East Asian width take two columns and marks on letters none, so that what follows stands in line."""
    rows = [{"id": 1, "name": name, "gpus": 4} for name in ("訓練", "e\u0301cole", "abcdef")]
    assert tables.lines(FIELDS, rows, header=False) == ["1 訓練   4", "1 e\u0301cole  4", "1 abcdef 4"]
    assert tables.cut("訓練訓練", 6) == "訓練+" and tables.cut("訓練訓練", 8) == "訓練訓練"


def test_helpformat_lists_every_field_with_its_meaning() -> None:
    """--helpformat names what --format accepts."""
    assert tables.helpformat(FIELDS) == ["JobID  job id", "Name   job name", "GPUs   GPUs"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.0, "0.00"), (0.1234, "0.12"), (1.922, "1.92"), (68.57, "68.6"), (410.4, "410"), (98765.4, "98765")],
)
def test_numbers_keep_three_digits_and_no_exponent(value: float | None, shown: str) -> None:
    """A throughput is readable at any size, and an unknown one is no number at all."""
    assert tables.number(value) == shown
