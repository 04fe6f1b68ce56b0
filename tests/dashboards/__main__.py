"""`make test-dashboards`: pictures of the dashboards, of a live cluster's data, drawn by Grafana's own panels."""

from __future__ import annotations

import sys

from tests.containers.images import ROOT
from tests.containers.tier import Tier

TIER = Tier(
    name="dashboards",
    module="tests.dashboards.inside",
    cache=ROOT / ".headrace" / "dashboards",
    control_group="headrace-test-dashboards",
    programs=("unshare", "setpriv", "apt-get", "dpkg", "npm"),
)

if __name__ == "__main__":
    sys.exit(TIER.run(sys.argv[1:]))
