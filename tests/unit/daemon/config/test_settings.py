"""Settings: what is accepted, what is refused in which words, and documents that cannot drift from the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from slurm_elastic.daemon.selasticd import reference
from slurm_elastic.daemon.selasticd.settings import FIELDS, TABLE_OF, Settings, by_table, check, load
from slurm_elastic.protocol.errors import ConfigError

ROOT = Path(__file__).parents[4]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "selasticd.toml"
    path.write_text(text)
    return path


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    """Every setting is optional, and the default changes nothing in the cluster."""
    assert load(write(tmp_path, "")) == Settings()
    assert Settings().mode == "review"
    assert Settings().database_url == "sqlite:////var/lib/slurm-elastic/selastic.db"


def test_values_are_read(tmp_path: Path) -> None:
    """Whole numbers are accepted where a setting is a time; lists of names become tuples."""
    text = (
        'mode = "act"\nround_interval_s = 5\npartitions = ["gpu", "long"]\nadmins = ["ada", 1001]\nlisten = "[::1]:0"\n'
    )
    found = load(write(tmp_path, text))
    assert (found.mode, found.round_interval_s, found.partitions) == ("act", 5.0, ("gpu", "long"))
    assert isinstance(found.round_interval_s, float)
    assert found.admins == ("ada", "1001") and found.address == ("::1", 0)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            'mode = "acting"',
            r"mode='acting' is not accepted \(did you mean act\?\); accepted: off, observe, review, act",
        ),
        ("roundinterval_s = 3", "setting roundinterval_s is not known; did you mean round_interval_s"),
        ("colour = 3", "setting colour is not known; accepted: mode, services, listen"),
        ("min_gain = -1", "min_gain=-1 is not accepted; accepted: a number from 0 to 10"),
        ("min_gain = nan", "min_gain=nan is not accepted"),
        ("min_gain = true", "min_gain=True is not accepted"),
        ('min_gain = "0.1"', "min_gain='0.1' is not accepted; accepted: a number"),
        ("max_resizes_per_round = 1.5", "max_resizes_per_round=1.5 is not accepted; accepted: a whole number from 1"),
        ('listen = "6850"', "listen='6850' is not accepted; accepted: HOST:PORT"),
        ('listen = "host:70000"', "accepted: a port from 0 to 65535"),
        ('state_dir = "relative/path"', "state_dir='relative/path' is not accepted; accepted: an absolute path"),
        ('partitions = "gpu"', "partitions='gpu' is not accepted; accepted: a list of names"),
        ('gpu_limits = ["alice=3"]', "accepted: a list of limits, such as"),
        ('partitions = ["a b"]', "accepted: a list of names"),
        ("round_interval_s = 1\nmin_round_gap_s = 5", "min_round_gap_s=5 is above round_interval_s=1"),
        ("user_mode = true", "user_mode is not a setting of the file; accepted: selasticd --user"),
        ("mode = ", "is not TOML"),
        ("[planner]\nlisten = 1", r"setting listen stands in \[planner\]; accepted: in \[server\]"),
        ('[models]\nmode = "act"', r"mode stands in \[models\]; accepted: above the first table"),
        ("min_gain = 1\n[planner]\nmin_gain = 1", r"min_gain stands in \[planner\] and above the first table"),
        ("[planer]\nmin_gain = 1", r"table \[planer\] is not known; did you mean \[planner\]\?"),
        ("[planner]\nmin_gian = 1", "setting min_gian is not known; did you mean min_gain"),
        ("planner = 3", r"planner=3 is not accepted; accepted: a table, \[planner\]"),
        ("[min_gain]\nx = 1", "min_gain={'x': 1} is not accepted; accepted: a number"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    """The sentence names the setting, the value and what is accepted, and the closest key for a misspelt one."""
    with pytest.raises(ConfigError, match=sentence) as caught:
        load(write(tmp_path, line))
    assert "\n" not in str(caught.value)


def test_a_setting_of_an_earlier_release_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """An old file needs one edit, and the sentence is that edit."""
    file = tmp_path / "selasticd.toml"
    file.write_text('slurm_client = "auto"\n')
    with pytest.raises(ConfigError, match=r"slurm_client of slurm-elastic 0\.2 is no more: .*; remove it$"):
        load(file)
    file.write_text("order_taken_s = 30\n")
    with pytest.raises(ConfigError, match=r"order_taken_s of .*0\.1\.0 is resize_taken_s since 0\.2\.0"):
        load(file)


def test_tables_and_where_settings_stood_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each setting counts in its table, and in this release above the tables, too: one line says what goes where."""
    tables = 'mode = "act"\n[server]\nlisten = "a:1"\n[planner]\nmin_gain = 0.1\nhorizon_s = 60\n'
    found = load(write(tmp_path, tables))
    assert (found.listen, found.min_gain, found.horizon_s) == ("a:1", 0.1, 60.0) and not caplog.messages
    assert load(write(tmp_path, 'mode = "act"\nlisten = "a:1"\nmin_gain = 0.1\nhorizon_s = 60\n')) == found
    [said] = caplog.messages
    assert said.endswith("these elsewhere: [server] listen; [planner] min_gain, horizon_s")
    assert {table for table, names in by_table(found).items() if "min_gain" in names} == {"planner"}
    assert sorted(name for names in by_table(found).values() for name in names) == sorted(FIELDS)


def test_an_old_word_counts_for_a_release(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon goes on in the mode its file names by the word of 0.2, and one line says the new word."""
    assert load(write(tmp_path, 'mode = "advise"')).mode == "review"
    assert caplog.messages == ['mode = "advise" is "review" now; the next release does not know the old word']
    caplog.clear()
    load(write(tmp_path, 'mode = "review"'))
    assert caplog.messages == []


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    """--config with a path that does not exist is a mistake, not an empty configuration."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_a_user_needs_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """selasticd --user keeps its state at home, takes a free port where nodes reach it and may act; a file changes
    that."""
    monkeypatch.setenv("HOME", str(tmp_path))
    found = load(user_mode=True)
    assert found.user_mode and found.mode == "act" and found.address == (None, 0)
    assert found.state_dir == f"{tmp_path}/.slurm-elastic"
    assert load(write(tmp_path, 'mode = "review"'), user_mode=True).mode == "review"


def test_every_setting_explains_itself() -> None:
    """A setting without a docstring under it cannot be merged."""
    assert [name for name in FIELDS if not reference.explanations().get(name)] == []


def test_the_reference_page_is_up_to_date() -> None:
    """docs/reference/settings.md is what `python -m slurm_elastic.daemon.selasticd.reference --markdown` prints."""
    assert (ROOT / "docs" / "reference" / "settings.md").read_text() == reference.markdown()


def test_the_sample_file_is_up_to_date() -> None:
    """packaging/selasticd.toml is what the code prints: python -m slurm_elastic.daemon.selasticd.reference --sample."""
    assert (ROOT / "packaging" / "selasticd.toml").read_text() == reference.sample()


def test_the_sample_file_shows_the_defaults() -> None:
    """With every comment sign taken off its settings, the sample is accepted and changes nothing."""
    lines = reference.sample().splitlines()
    bare = "\n".join(line.removeprefix("#") for line in lines if not line.startswith("# "))
    values = tomli.loads(bare)
    for table in set(TABLE_OF.values()) - {""}:
        values |= values.pop(table)
    assert set(values) == set(FIELDS) - set(reference.HIDDEN)
    assert check(values) == Settings()
