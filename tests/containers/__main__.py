"""`make test-containers`: docker-compose.yml and the Dockerfile as they are, on a Docker engine of this run's own."""

from __future__ import annotations

import sys

from tests.containers.engine import CONTROL_GROUP
from tests.containers.images import ROOT
from tests.containers.tier import Tier

TIER = Tier(
    name="containers",
    module="tests.containers.inside",
    cache=ROOT / ".headrace" / "containers",
    control_group=CONTROL_GROUP,
)

if __name__ == "__main__":
    sys.exit(TIER.run(sys.argv[1:]))
