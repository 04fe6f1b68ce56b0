"""What `keep_large_buffers` is for: a large buffer that is free is used again, and not mapped page by page."""

import os
import subprocess
import sys
from types import SimpleNamespace

import headrace
import pytest
from headrace.wire import allocator

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


def library_of_windows(name):
    raise TypeError(f"LoadLibrary() argument 1 must be str, not {type(name).__name__}")


def test_a_library_without_the_setting_changes_nothing(monkeypatch):
    """musl and macOS have no mallopt, and Windows no library of the process: the answer says so, nothing is raised."""
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())
    assert allocator.keep_large_buffers() is False
    monkeypatch.setattr(allocator.ctypes, "CDLL", library_of_windows)
    assert allocator.keep_large_buffers() is False
    set_to = {}
    fake = SimpleNamespace(mallopt=lambda name, value: set_to.update({name: value}) or 1)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: fake)
    assert allocator.keep_large_buffers() is True
    assert set_to == {
        allocator.M_MMAP_THRESHOLD: allocator.MMAP_BYTES,
        allocator.M_TRIM_THRESHOLD: allocator.TRIM_BYTES,
        allocator.M_ARENA_MAX: allocator.ARENAS,
    }
