"""The software bill of materials that `make sbom` writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from headrace.wire.releases import RELEASE

from tests.deploy.conftest import ROOT

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def test_sbom_names_every_package_of_the_image_with_its_hashes(tmp_path: Path) -> None:
    """It lists each pinned package of the image with version, purl and hashes, and is of this version of headrace."""
    output = tmp_path / "headrace.cdx.json"
    subprocess.run([sys.executable, ROOT / "tools/sbom.py", output], check=True)
    document = json.loads(output.read_text())
    component = document["metadata"]["component"]
    assert (document["bomFormat"], component["name"], component["version"]) == ("CycloneDX", "headrace", RELEASE)
    pinned = sorted(PINNED.findall((ROOT / "requirements-image.lock").read_text()))
    assert sorted((each["name"], each["version"]) for each in document["components"]) == pinned
    assert len(pinned) > 20
    for component in document["components"]:
        assert component["purl"].startswith("pkg:pypi/")
        assert all(reference["hashes"] for reference in component["externalReferences"])
