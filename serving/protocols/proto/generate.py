"""Writes the Python form of open_inference.proto: `python -m serving.protocols.proto.generate` (needs grpcio-tools, which is a tool of development).

Differs from what protoc writes in one word: the messages are registered in our own pool (pool.py says why).
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
_NAME = "open_inference"
_DEFAULT_POOL = "from google.protobuf import descriptor_pool as _descriptor_pool\n"
_OUR_POOL = "from serving.protocols.proto.pool import POOL as _POOL\n"
_UNCHECKED = {".py": "E501, I001", ".pyi": "A002, E501, I001, RUF023, UP007, UP045"}  # rules that generated text does not follow


def generate() -> Mapping[str, str]:
    """File name → text, as protoc writes it now for the one .proto of this folder."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        code = protoc.main(["protoc", f"-I{FOLDER}", f"--python_out={folder}", f"--pyi_out={folder}", f"{_NAME}.proto"])
        assert code == 0, f"protoc refused {_NAME}.proto with exit code {code}"
        return {name: _finish(Path(folder) / name) for name in (f"{_NAME}_pb2.py", f"{_NAME}_pb2.pyi")}


def _finish(written: Path) -> str:
    head = f"# ruff: noqa: {_UNCHECKED[written.suffix]}\n# fmt: off\n"
    return head + written.read_text().replace(_DEFAULT_POOL, _OUR_POOL).replace("_descriptor_pool.Default()", "_POOL")


if __name__ == "__main__":
    for name, text in generate().items():
        (FOLDER / name).write_text(text)
