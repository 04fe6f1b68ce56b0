"""A broker or coordinator that takes itself for another release: `python -m tests.integration.other_release_broker`.

`HEADRACE_TEST_RELEASE` names the release; imported before anything that reads the own one.
"""

import os

from headrace.wire import releases

releases.RELEASE = os.environ["HEADRACE_TEST_RELEASE"]
