"""Helm and kubectl as users call them, and a load on a release from outside the cluster."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import headrace

from tests.containers.records import until
from tests.kubernetes.inside import CHART

AT_ONCE = 5  # Records of a load between two pauses.


class CommandError(Exception):
    """A command failed; the message is all that it said."""


def run(*command: str, stdin: str = "") -> str:
    """Run it and return what it printed.

    Raises:
        CommandError: its exit code is not 0.
    """
    process = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise CommandError(f"{' '.join(command)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    return process.stdout


class Release:
    """A release in a namespace of its own, under the restricted Pod Security level."""

    def __init__(self, name: str, namespace: str) -> None:
        self.name, self.namespace = name, namespace
        self.fullname = f"{name}-headrace"
        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": namespace, "labels": restricted}
        run(
            "kubectl",
            "apply",
            "-f",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
        )

    def helm(self, verb: str, *arguments: str, values: dict[str, Any] | None = None) -> str:
        """`helm install` and its like on the chart as it is, with these values."""
        chart = (str(CHART),) if verb in ("install", "upgrade") else ()
        file = () if values is None else ("--values=-",)
        command = ("helm", "--namespace", self.namespace, verb, self.name, *chart, *arguments, *file)
        return run(*command, stdin=json.dumps(values or {}))

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """kubectl in the release's namespace."""
        return run("kubectl", "--namespace", self.namespace, *arguments, stdin=stdin)

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """`kubectl get` these, as objects."""
        found = json.loads(self.kubectl("get", *arguments, "--output=json"))
        items: list[dict[str, Any]] = found.get("items", [found])
        return items

    def headrace(self, *arguments: str, stdin: str = "") -> str:
        """The command line in a coordinator's container, as NOTES.txt has it."""
        command = ("exec", "--stdin", f"deploy/{self.fullname}-coordinator", "--", "headrace", *arguments)
        return self.kubectl(*command, stdin=stdin)

    def restarts(self) -> dict[str, int]:
        """How often each pod's container was started anew."""
        return {
            pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
            for pod in self.objects("pods")
        }


class Load:
    """Sends numbered records with acks=all from a thread, and knows which were acknowledged and how long each took."""

    def __init__(self, servers: str, topic: str, *, pause: float = 0.01) -> None:
        self.acknowledged: list[bytes] = []
        self.failures: list[str] = []
        self.seconds: list[float] = []
        self._servers, self._topic, self._pause = servers, topic, pause
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Send meanwhile; at the end wait for what is under way."""
        thread = threading.Thread(target=self._send, name="load")
        thread.start()
        try:
            until(lambda: len(self.acknowledged) > 100, "the load runs")
            yield self
        finally:
            self._stop.set()
            thread.join()

    def p99(self) -> float:
        """Of the time from a send to its acknowledgement, seconds."""
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]

    def _send(self) -> None:
        with headrace.Producer(bootstrap_servers=self._servers, acks="all") as producer:
            for first in itertools.count(step=AT_ONCE):
                if self._stop.wait(self._pause):
                    return
                begun = time.perf_counter()
                for number in range(first, first + AT_ONCE):
                    value = b"%d" % number
                    done = functools.partial(self._done, value=value, begun=begun)
                    producer.send(self._topic, value, key=value).add_done_callback(done)

    def _done(self, future: headrace.RecordFuture, value: bytes, begun: float) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged.append(value)
            self.seconds.append(time.perf_counter() - begun)
        else:
            self.failures.append(repr(error))
