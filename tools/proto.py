"""Generator of the members' Python code from proto/, and check that the committed code is current.

Run by `make proto` and `make check`, under `.venv`; the compiler is in `.venv-proto` (grpcio-tools 1.62.3, old on
purpose: its code runs under protobuf 4.25 and later, so users of the SDK do not need the latest). Its wheels exist
for Python 3.11 and 3.12; on machines with neither, the check prints that and passes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOC = ROOT / ".venv-proto" / "bin" / "python"
PUBLIC = "sdk/headrace/v1"
INTERNAL = "services/common/headrace_server/internal_v1"
# Only files that declare a service have stubs; the compiler writes an empty module for the others.
WITH_SERVICE = ("auth", "broker", "cluster", "groups", "process", "tables")


def protoc(*arguments: str) -> None:
    """Run the compiler in the workspace's root; exit if it fails."""
    done = subprocess.run([PROTOC, "-m", "grpc_tools.protoc", *arguments], cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit("protoc failed: see above")


def generate(into: Path) -> dict[str, bytes]:
    """Generate all files below `into`; return path (relative to the root) -> content."""
    public = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto/headrace/v1").glob("*.proto"))
    internal = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto/headrace/internal/v1").glob("*.proto"))
    sdk, common = into / "sdk", into / "services" / "common"
    for directory in (sdk, common):
        directory.mkdir(parents=True)
    protoc("-Iproto", f"--python_out={sdk}", f"--pyi_out={sdk}", f"--grpc_python_out={sdk}", *public)
    # Mapped to the path below the member, so that the generated module is in the package that uses it.
    mapped = "-Iheadrace_server/internal_v1=proto/headrace/internal/v1"
    protoc(mapped, "-Iproto", f"--python_out={common}", f"--pyi_out={common}", *internal)
    generated = {str(path.relative_to(into)): path.read_bytes() for path in sorted(into.rglob("*_pb2*"))}
    return {
        path: content
        for path, content in generated.items()
        if not path.endswith("_grpc.py") or Path(path).name.removesuffix("_pb2_grpc.py") in WITH_SERVICE
    }


def committed() -> dict[str, bytes]:
    """Return path -> content of the generated files in the work tree."""
    found = [path for folder in (PUBLIC, INTERNAL) for path in sorted((ROOT / folder).glob("*_pb2*"))]
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in found}


def main(check: bool) -> int:
    """Return exit code 0 if the code is current, was written, or (check only) no compiler is available."""
    made = subprocess.run([sys.executable, ROOT / "tools" / "set_up.py", "proto"], check=False)
    if made.returncode != 0:
        if not check:
            return made.returncode
        print("SKIPPED: is the generated code fresh? No protobuf compiler (see above).", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        wanted = generate(Path(directory))
    present = committed()
    stale = sorted(path for path in wanted.keys() | present.keys() if wanted.get(path) != present.get(path))
    if check:
        if stale:
            print("generated code is not what proto/ gives; run `make proto`:", *stale, sep="\n  ", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        if path in wanted:
            (ROOT / path).write_bytes(wanted[path])
        else:
            (ROOT / path).unlink()
        print("wrote" if path in wanted else "removed", path)
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
