"""Fork detection: threads, locks and connections do not survive a fork, so objects created before it must not be used
in the child.
"""

import os
import weakref
from collections.abc import Callable

_guards: "weakref.WeakSet[ForkGuard]" = weakref.WeakSet()


class ForkGuard:
    """Calls a bound method of its owner in the child right after a fork. Costs nothing until then.

    The owner is referenced weakly: a guard never keeps it alive.
    """

    __slots__ = ("__weakref__", "_in_child")

    def __init__(self, in_child: Callable[[], None]) -> None:
        self._in_child = weakref.WeakMethod(in_child)
        _guards.add(self)

    def fire(self) -> None:
        """Call the method in the child."""
        method = self._in_child()
        if method is not None:
            method()


def _after_fork_in_child() -> None:
    for guard in list(_guards):
        guard.fire()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
