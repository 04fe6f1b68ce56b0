"""Main loop of a cluster's owner: watch the parts, or execute commands from standard input.

The lines are `kill|stop|pause|resume|restart PART`, where PART is `etcd`, `coordinator-a`, `broker-1`, ...; each is
answered by one line of JSON, `{"ok": true}` or `{"error": "..."}`. The cluster stops at the end of input, and
therefore with its parent.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import IO

from headrace.wire.errors import HeadraceError

from headrace_devcluster.background import RESTART_SIGNAL
from headrace_devcluster.cluster import LocalCluster

WATCH_SECONDS = 0.5


def watch_parts(cluster: LocalCluster, on_restarted: Callable[[], None]) -> None:
    """Report parts that exit; on RESTART_SIGNAL restart exited parts, then call `on_restarted`.

    Returns when a signal raises through it, or when all parts have ended.
    """
    asked: list[int] = []
    signal.signal(RESTART_SIGNAL, lambda number, _frame: asked.append(number))
    alive = {part.name for part in cluster.parts}
    while alive:
        time.sleep(WATCH_SECONDS)
        if asked:
            asked.clear()
            restart_ended(cluster)
            alive = {part.name for part in cluster.parts if part.pid is not None}
            on_restarted()
        for part in cluster.parts:
            if part.name in alive and part.pid is None:
                alive.discard(part.name)
                print(f"{part.name} ended; the end of {part.log_file}:\n{part.log_tail()}", file=sys.stderr, flush=True)


def restart_ended(cluster: LocalCluster) -> None:
    """Restart every exited part, etcd first; report failures and continue."""
    restarts: list[tuple[str, Callable[[], None]]] = [
        (member.name, partial(cluster.restart_etcd, member)) for member in cluster.etcd_members if member.pid is None
    ]
    restarts += [(part.name, partial(cluster.restart, part)) for part in cluster.parts if part.pid is None]
    for name, restart in restarts:
        try:
            restart()
        except (HeadraceError, OSError) as error:
            print(f"{name} cannot be started again: {error}", file=sys.stderr, flush=True)


def serve_control(cluster: LocalCluster, commands: IO[str], answers: IO[str]) -> None:
    """Execute commands until the end of input."""
    for line in commands:
        answers.write(json.dumps(obey(cluster, line)) + "\n")
        answers.flush()


def obey(cluster: LocalCluster, line: str) -> dict[str, object]:
    """Execute one command line and return its result."""
    verb, _, name = line.strip().partition(" ")
    try:
        actions = _etcd_actions(cluster) if name == "etcd" else _part_actions(cluster, name)
    except KeyError:
        etcd = [] if cluster.spec.single else ["etcd"]
        known = ", ".join([*etcd, *(part.name for part in cluster.parts)])
        return {"error": f"no part {name!r}; there are {known}"}
    if verb not in actions:
        return {"error": f"cannot {verb!r}; can {', '.join(actions)}"}
    try:
        actions[verb]()
    except HeadraceError as error:
        return {"error": str(error)}
    return {"ok": True}


def _part_actions(cluster: LocalCluster, name: str) -> dict[str, Callable[[], object]]:
    part = cluster.part(name)

    def restart() -> None:
        part.stop()
        cluster.restart(part)

    return {"kill": part.kill, "stop": part.stop, "pause": part.pause, "resume": part.resume, "restart": restart}


def _etcd_actions(cluster: LocalCluster) -> dict[str, Callable[[], object]]:
    """Raise KeyError for a cluster without etcd."""
    if cluster.spec.single:
        raise KeyError("etcd")
    etcd = cluster.etcd

    def restart() -> None:
        etcd.stop()
        cluster.restart_etcd()

    return {"kill": etcd.kill, "stop": etcd.stop, "pause": etcd.pause, "resume": etcd.resume, "restart": restart}
