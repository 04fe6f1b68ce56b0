"""A process with the outside of a service: `--set name=value`, a ready file, a log. Run by test_service_process.py."""

import json
import os
import signal
import socket
import sys
from pathlib import Path

settings = dict(argument.split("=", 1) for argument in sys.argv[1:] if argument != "--set")
print("stand-in starts with", sorted(settings), flush=True)
if "fail" in settings:
    sys.exit(f"error: told to fail: {settings['fail']}")
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
host, _, port = settings["listen"].rpartition(":")
listener.bind((host, int(port)))
listener.listen()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # For `sigwait`: `pause` misses one that came before it.
if "never_ready" not in settings:
    ready = Path(settings["ready_file"])
    partial = ready.with_suffix(".partial")
    partial.write_text(json.dumps({"pid": os.getpid(), "address": f"{host}:{listener.getsockname()[1]}"}))
    partial.replace(ready)
signal.sigwait({signal.SIGTERM})
