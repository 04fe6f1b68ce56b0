"""Descriptors of .proto files, by the compiler of gRPC's tools in a process of its own.

Texts are from callers, so that a process compiles each, with bounded time and memory, and without files: the text comes
from its standard input, the descriptors of its imports and its result go through anonymous memory. A compilation takes
a fifth of a second, and happens once: the descriptor is stored with the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from google.protobuf import descriptor_pb2
from headrace.wire.errors import Outcome, TimedOutError

from headrace_coordinator.core.schemas.schema import InvalidSchemaError

COMPILE_SECONDS = 10.0
COMPILE_BYTES = 1 << 30
"""Maximum address space of the compiler."""
MAX_COMPILATIONS = 2
"""Maximum compilers that run at once; further calls wait."""
MAX_ERROR_CHARACTERS = 2_000


class ProtoCompiler:
    """Compiler of one coordinator. Belongs to the event loop."""

    def __init__(self) -> None:
        self._permits = asyncio.Semaphore(MAX_COMPILATIONS)

    async def compile(self, text: str, name: str, imports: Mapping[str, bytes]) -> bytes:
        """Return the serialized `FileDescriptorProto` of a .proto file.

        Args:
            name: path of the file.
            imports: serialized descriptors of the files that it imports, directly or through others, by path.

        Raises:
            InvalidSchemaError: If the text has an error; the message has its line and column.
            TimedOutError: If it takes more than `COMPILE_SECONDS`.
        """
        known = descriptor_pb2.FileDescriptorSet()
        for path, descriptor in imports.items():
            known.file.add().MergeFromString(descriptor)
            known.file[-1].name = path
        async with self._permits:
            with _memory(known.SerializeToString()) as given, _memory(b"") as made:
                errors = await _run(text, name, given, made)
                compiled = _read(made)
        if not compiled.file:
            raise InvalidSchemaError(
                f"the .proto file is not valid: {errors or 'the compiler failed'}",
                action="Correct it, and add a reference for each import.",
            )
        return compiled.file[0].SerializeToString()


async def _run(text: str, name: str, given: int, made: int) -> str:
    """Run the compiler and return its errors."""
    tools = find_spec("grpc_tools")
    assert tools is not None and tools.origin is not None, "it is a dependency of the services"  # noqa: PT018
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={name}=/dev/stdin",
        f"--proto_path={Path(tools.origin).parent / '_proto'}",
        f"--descriptor_set_in=/dev/fd/{given}",
        f"--descriptor_set_out=/dev/fd/{made}",
        name,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=(given, made),
    )
    try:
        with contextlib.suppress(ProcessLookupError):  # It has ended already.
            if hasattr(resource, "prlimit"):  # Only Linux limits another process.
                resource.prlimit(process.pid, resource.RLIMIT_AS, (COMPILE_BYTES, COMPILE_BYTES))
        async with asyncio.timeout(COMPILE_SECONDS):
            _, errors = await process.communicate(text.encode())
    except TimeoutError:
        raise TimedOutError(
            f"compiling the .proto file took more than {COMPILE_SECONDS:g} s",
            outcome=Outcome.NOT_APPLIED,
            action="Try again; if it repeats, split the file.",
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = errors.decode(errors="replace").replace("/dev/stdin", name).strip()
    return said[:MAX_ERROR_CHARACTERS]


@contextlib.contextmanager
def _memory(content: bytes) -> Iterator[int]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("headrace-proto", 0)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> descriptor_pb2.FileDescriptorSet:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return descriptor_pb2.FileDescriptorSet.FromString(file.read())
