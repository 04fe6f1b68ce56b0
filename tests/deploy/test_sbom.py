"""The software bill of materials that `make sbom` writes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.deploy.conftest import ROOT

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def test_sbom_names_every_package_of_the_image_with_its_hashes(tmp_path: Path) -> None:
    """The command of the Makefile lists each pinned package of the image with version, purl and hashes."""
    recipe = re.search(r"-m cyclonedx_py (.*)", (ROOT / "Makefile").read_text())
    assert recipe is not None
    output = tmp_path / "headrace.cdx.json"
    arguments = recipe[1].replace("dist/headrace.cdx.json", str(output)).split()
    subprocess.run([ROOT / ".venv/bin/python", "-W", "ignore", "-m", "cyclonedx_py", *arguments], cwd=ROOT, check=True)
    document = json.loads(output.read_text())
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "headrace")
    pinned = sorted(PINNED.findall((ROOT / "requirements-image.lock").read_text()))
    assert sorted((each["name"], each["version"]) for each in document["components"]) == pinned
    assert len(pinned) > 20
    for component in document["components"]:
        assert component["purl"].startswith("pkg:pypi/")
        assert all(reference["hashes"] for reference in component["externalReferences"])
