"""The volumes of the Kubernetes tier: the end of their thread ends the tests, which would wait for them for ever."""

from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kubernetes.volumes import Disks

WAIT = 30


def test_the_tests_end_with_the_error_of_the_volumes() -> None:
    """At once, whatever they wait for; the error itself follows with the end of the cluster."""

    def fail(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    api = SimpleNamespace(create=lambda *_: None, get=fail)
    disks = Disks(cast(Any, SimpleNamespace(api=api)))
    with pytest.raises(OSError, match="No space left"), disks.served():
        with pytest.raises(pytest.exit.Exception, match="volumes are served no more: OSError"):
            threading.Event().wait(WAIT)
            raise AssertionError("the wait has ended")
