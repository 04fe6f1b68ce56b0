"""What `keep_large_buffers` is for: a large buffer that is free is used again, and not mapped page by page."""

import os
import subprocess
import sys

import headrace
import pytest

PROGRAM = """
import resource, sys, threading
import headrace

kept = sys.argv[1] == "kept" and headrace.keep_large_buffers()

def work():
    for _ in range(50):
        buffers = [b"x" * (1 << 20) for _ in range(16)]
        del buffers

thread = threading.Thread(target=work)  # gRPC's buffers are freed on threads of its own.
thread.start()
thread.join()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def page_faults(way):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PROGRAM, way]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=True, timeout=60)
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


def test_large_buffers_are_used_again():
    """Fifty times sixteen megabytes are 200,000 pages; what the interpreter itself maps is some thousands."""
    kept, faults = page_faults("kept")
    if not kept:
        pytest.skip("this C library has no such setting")
    _, without = page_faults("as it comes")
    assert faults < without / 5


def test_it_is_public():
    assert "keep_large_buffers" in headrace.__all__
