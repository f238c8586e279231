"""Generate the gRPC stubs from the .proto; `--check` only says whether they are up to date.

Needs grpcio-tools at the version of requirements-dev.txt: the generator writes its version into
what it generates, and the oldest protobuf that can then load it is that one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
FOLDER = Path("grace/serve/kserve/protos")
NAME = "grpc_predict_v2"
# Every client library of the protocol registers these message names in protobuf's one default
# pool, and the second to do so in a process fails at import. Grace keeps its own in its own pool.
DEFAULT_POOL = "_descriptor_pool.Default()"
OWN_POOL = "_descriptor_pool.DescriptorPool()"


def generate() -> dict[Path, str]:
    """Return the stubs: path below the root → text."""
    with tempfile.TemporaryDirectory() as out:
        flags = [f"-I{ROOT}", f"--python_out={out}", f"--grpc_python_out={out}"]
        code = protoc.main(["protoc", *flags, str(FOLDER / f"{NAME}.proto")])
        if code != 0:
            raise SystemExit(f"protoc failed with {code}")
        stubs = {
            path: (Path(out) / path).read_text(encoding="utf-8")
            for path in (FOLDER / f"{NAME}_pb2.py", FOLDER / f"{NAME}_pb2_grpc.py")
        }
    messages = FOLDER / f"{NAME}_pb2.py"
    if stubs[messages].count(DEFAULT_POOL) != 1:
        raise SystemExit(f"{messages}: expected {DEFAULT_POOL} once")
    stubs[messages] = stubs[messages].replace(DEFAULT_POOL, OWN_POOL)
    return stubs


def main(arguments: list[str]) -> int:
    stale = []
    for path, text in generate().items():
        target = ROOT / path
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(str(path))
            if "--check" not in arguments:
                target.write_text(text, encoding="utf-8")
    verb = "out of date" if "--check" in arguments else "written"
    print("\n".join(f"{verb}: {path}" for path in stale) or "up to date")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
