"""etcd's messages and gRPC stubs from the `etcd3` package. No other module uses that package.

The package (0.12, unmaintained) contains modules of an old protoc that protobuf since 4.21 cannot import. They contain
the serialised descriptors, so this module reads these from the source text (without executing it), adds them to
protobuf's default pool in dependency order, builds the message classes with the current
`google.protobuf.internal.builder`, and registers them in `sys.modules` before it imports the package's stubs. Works
with protobuf 4.25 to 7, and the stubs work on `grpc` and `grpc.aio` channels. Nothing else of the package is used
(PROTOCOL H88).
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

_PACKAGE = "etcd3.etcdrpc"
_DEPENDENCY_ORDER = ("kv_pb2", "auth_pb2", "rpc_pb2")
_SERIALIZED = re.compile(r"serialized_pb=_b\(('(?:[^'\\]|\\.)*')\)")


class EtcdPackageError(ImportError):
    """The `etcd3` package is not installed or has an unknown layout. Install etcd3==0.12.0."""


def _package_directory() -> Path:
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise EtcdPackageError("the package etcd3 is not installed; install etcd3==0.12.0")
    return Path(spec.submodule_search_locations[0]) / "etcdrpc"


def _serialized_descriptor(path: Path) -> bytes:
    """Return the bytes of `serialized_pb=_b('...')` in a generated module."""
    try:
        found = _SERIALIZED.search(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EtcdPackageError(f"cannot read {path.name} of the package etcd3; install etcd3==0.12.0") from error
    if found:
        return str(ast.literal_eval(found[1])).encode("latin-1")
    raise EtcdPackageError(f"{path.name} of the package etcd3 holds no descriptor; install etcd3==0.12.0")


def _build_module(name: str, directory: Path) -> ModuleType:
    """Build one message module from its descriptor and register it."""
    qualified = f"{_PACKAGE}.{name}"
    module = ModuleType(qualified, f"Rebuilt from the descriptor in {name}.py of the package etcd3.")
    file_descriptor = descriptor_pool.Default().AddSerializedFile(_serialized_descriptor(directory / f"{name}.py"))
    contents: dict[str, Any] = module.__dict__
    contents["DESCRIPTOR"] = file_descriptor
    builder.BuildMessageAndEnumDescriptors(file_descriptor, contents)
    builder.BuildTopDescriptorsAndMessages(file_descriptor, qualified, contents)
    sys.modules[qualified] = module
    return module


def _load_stubs() -> tuple[dict[str, ModuleType], ModuleType]:
    """Return the message modules by name, and the package's stub module built on them."""
    directory = _package_directory()
    modules = {name: _build_module(name, directory) for name in _DEPENDENCY_ORDER}
    # The stub file is executed alone, under a parent that holds only our modules: the package's `__init__` would
    # import its own client.
    spec = importlib.util.spec_from_file_location(f"{_PACKAGE}.rpc_pb2_grpc", directory / "rpc_pb2_grpc.py")
    assert spec is not None
    assert spec.loader is not None
    stubs = importlib.util.module_from_spec(spec)
    borrowed = {"etcd3": ModuleType("etcd3"), _PACKAGE: ModuleType(_PACKAGE)}
    for name, module in modules.items():
        setattr(borrowed[_PACKAGE], name, module)
    kept = {name: sys.modules.get(name) for name in borrowed}
    sys.modules.update(borrowed)
    try:
        spec.loader.exec_module(stubs)
    finally:
        for name, previous in kept.items():
            if previous is None:
                del sys.modules[name]
            else:
                sys.modules[name] = previous
    return modules, stubs


_modules, _stubs = _load_stubs()

auth_pb2: Any = _modules["auth_pb2"]
"""Messages of `authpb`: Permission."""
kv_pb2: Any = _modules["kv_pb2"]
"""Messages of `mvccpb`: KeyValue, Event."""
rpc_pb2: Any = _modules["rpc_pb2"]
"""Messages of `etcdserverpb`."""
KVStub: Any = _stubs.KVStub
WatchStub: Any = _stubs.WatchStub
LeaseStub: Any = _stubs.LeaseStub
MaintenanceStub: Any = _stubs.MaintenanceStub
AuthStub: Any = _stubs.AuthStub

PROGRESS_REQUEST: Any = rpc_pb2.WatchRequest.FromString(b"\x1a\x00")
"""WatchRequest with field 3, `progress_request` (etcd 3.4), which the package's descriptor lacks: protobuf keeps
unknown fields when it serialises the message again."""
