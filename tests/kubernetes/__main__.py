"""`make test-kubernetes`: the chart on a real Kubernetes of three nodes, which is this run's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.containers.tier import Tier
from tests.kubernetes.machines import CONTROL_GROUP

TIER = Tier(
    name="kubernetes",
    module="tests.kubernetes.inside",
    cache=Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace-kubernetes",
    control_group=CONTROL_GROUP,
    programs=("unshare", "nsenter", "setpriv", "apt-get", "dpkg", "perl", "ip", "losetup"),
)

if __name__ == "__main__":
    sys.exit(TIER.run(sys.argv[1:]))
