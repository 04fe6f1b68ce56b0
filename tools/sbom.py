"""`make sbom`: the image's software bill of materials (CycloneDX), from its lock file, and the SDK's version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "dist" / "headrace.cdx.json"


def main(output: Path) -> None:
    """Write the document. Add the version, because cyclonedx-bom reads it only from pyproject.toml."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "cyclonedx_py",
        "requirements",
        "--pyproject",
        "sdk/pyproject.toml",
    ]
    command += ["--output-reproducible", "--of", "JSON", "requirements-image.lock"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    document = json.loads(done.stdout)
    found = re.search(r'^__version__ = "(.+)"', (ROOT / "sdk/headrace/__init__.py").read_text("utf-8"), re.MULTILINE)
    assert found, "sdk/headrace/__init__.py has no __version__"
    document["metadata"]["component"]["version"] = found[1]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    print(output)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
