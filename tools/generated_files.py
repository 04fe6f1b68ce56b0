"""Writer and checker of committed generated files, for the tools that generate them."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def run(
    description: str, next_step: str, root: Path, texts: Callable[[], Mapping[Path, str]], arguments: list[str] | None
) -> int:
    """Write the files below `root` that differ from `texts()`, or with `--check` print their names.

    `next_step` completes "FILE is stale: ". Exit code 0 means that all files are current, or were written.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    check = parser.parse_args(arguments).check
    stale = {path: text for path, text in texts().items() if not path.is_file() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(root)} is stale: {next_step}", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(root)}")
    return 1 if check and stale else 0


def formatted(text: str, path: Path, root: Path) -> str:
    """Return the final text of a generated module: formatted, imports sorted, unused imports removed."""
    for arguments in (["check", "--select", "I,F401", "--fix", "--exit-zero"], ["format"]):
        name = str(path.relative_to(root))
        command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--stdin-filename", name, "-"]
        text = subprocess.run(command, cwd=root, input=text, check=True, capture_output=True, text=True).stdout
    return text
