"""Which etcd chaos uses: the one that is named, one on PATH that may be killed, or one that is built."""

import pytest

from tests import newer_etcd
from tests.containers.packages import UnavailableError


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Puts an etcd of a version on PATH; nothing is built."""

    def put(version):
        program = tmp_path / "etcd"
        program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
        program.chmod(0o755)
        return program

    def build(directory):
        raise UnavailableError("go not found")

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("HEADRACE_ETCD", raising=False)
    monkeypatch.setattr(newer_etcd, "build_etcd", build)
    return put


def test_an_etcd_on_path_that_may_be_killed_is_used(on_path, capsys):
    program = on_path("3.5.3")
    newer_etcd.main()
    captured = capsys.readouterr()
    assert captured.out == f"{program}\n"
    assert "3.5.3: it is on PATH" in captured.err


@pytest.mark.parametrize("version", ["3.5.2", "none"])
def test_another_one_is_built(on_path, capsys, monkeypatch, tmp_path, version):
    """Without Go there is none, and the reason is given: tests use the wheel's."""
    on_path(version)
    newer_etcd.main()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the wheel's; go not found" in captured.err
    monkeypatch.setattr(newer_etcd, "build_etcd", lambda directory: tmp_path / "built")
    newer_etcd.main()
    assert capsys.readouterr().out == f"{tmp_path}/built\n"


def test_the_one_that_is_named_comes_first(on_path, capsys, monkeypatch):
    """Whatever its version is."""
    program = on_path("3.5.1")
    monkeypatch.setenv("HEADRACE_ETCD", str(program))
    newer_etcd.main()
    assert capsys.readouterr().out == f"{program}\n"
