"""A broker or coordinator that takes itself for another release: `python -m tests.integration.other_release_broker`.

`HEADRACE_TEST_RELEASE` names the release, `HEADRACE_TEST_LACKS` capabilities that it does not have; imported before
anything that reads the own ones.
"""

import os

from headrace.wire import releases

releases.RELEASE = os.environ["HEADRACE_TEST_RELEASE"]
lacks = os.environ.get("HEADRACE_TEST_LACKS", "").split()
releases.CAPABILITIES = tuple(each for each in releases.CAPABILITIES if each not in lacks)
