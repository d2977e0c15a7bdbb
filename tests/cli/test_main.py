"""The command line answers and complains in words."""

from __future__ import annotations

import pytest

from flambeau.cli.main import main


def test_no_command_prints_help(capsys) -> None:
    assert main([]) == 2
    assert "generate" in capsys.readouterr().out


def test_version(capsys) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()


def test_missing_model(capsys, tmp_path) -> None:
    assert main(["generate", str(tmp_path / "nothing.gguf"), "Hello"]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_wrong_kind_of_file(capsys, tmp_path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"x")
    assert main(["generate", str(file), "Hello"]) == 1
    assert "must be .gguf" in capsys.readouterr().err


def test_bad_option(capsys, tmp_path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert main(["generate", str(file), "Hello", "--top-p", "2"]) == 1
    assert "top_p" in capsys.readouterr().err


def test_unknown_command_exits() -> None:
    with pytest.raises(SystemExit):
        main(["generat", "x"])
