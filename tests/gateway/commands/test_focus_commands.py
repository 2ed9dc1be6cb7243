"""`weighbridge focus check`: what it prints, and its exit status."""

import pathlib

import pytest

from gateway.cli import main

SAMPLE = pathlib.Path(__file__).parent.parent.parent / "data" / "focus" / "sample-1.2.csv"


def test_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["focus", "check", str(SAMPLE)]) == 0
    assert capsys.readouterr().out == f"{SAMPLE}: ok, 3 rows, FOCUS 1.2\n"


def test_a_faulty_one(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "faulty.csv"
    file.write_text(SAMPLE.read_text().replace("Usage-Based", "Hourly"))
    assert main(["focus", "check", str(file), "--show", "1"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out == [
        f"{file}:2: ChargeFrequency: allowed: 'Hourly' it must be one of One-Time, Recurring, Usage-Based",
        f"{file}: 3 findings in 3 rows, FOCUS 1.2: allowed 3",
    ]


def test_another_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["focus", "check", str(SAMPLE), "--focus-version", "1.4"]) == 1
    assert "FOCUS 1.4 wants it in every file" in capsys.readouterr().out


def test_what_cannot_be_read(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["focus", "check", str(tmp_path / "none.csv")]) == 1
    (tmp_path / "empty.csv").touch()
    assert main(["focus", "check", str(tmp_path / "empty.csv")]) == 1
    assert "No such file" in (err := capsys.readouterr().err)
    assert "has no header" in err
