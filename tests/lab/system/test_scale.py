"""The scale bench: the bytes that count as the version's, and its sizes as given on the command line."""

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.figures import Figures
from lab.system import scale
from lab.system.scale import _part_bytes
from schemas.ids import IdKind
from schemas.index.layout import Column, RowLayout
from schemas.index.manifest import Manifest, Part, PartFile, Seal


def test_the_bytes_of_a_version_are_those_of_all_files_of_all_its_parts() -> None:
    def part(*sizes: int) -> Part:
        return Part("d", tuple(PartFile(str(n), size, "0") for n, size in enumerate(sizes)), 1)

    seals = tuple(Seal(n, part(100, 10), part(n), 0, {}, 1, "", "", "") for n in range(2))
    layout = RowLayout((Column("bid", "<f4", 1),), IdKind.INT64)
    assert _part_bytes(Manifest(1, 0, "m", "", "", "", "", layout, seals, 0)) == 2 * 110 + 1


def test_sizes_are_read_from_the_command_line_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(scale, "measure_scale", lambda sizes: asked.append(sizes) or Figures(scale.SCALE))
    assert CliRunner().invoke(build_app(), ["bench", "scale", "--sizes", "5,10", "--json"]).exit_code == 0
    assert asked == [[5, 10]]
    for sizes in ("many", "10,0", "10,-5"):
        refused = CliRunner().invoke(build_app(), ["bench", "scale", "--sizes", sizes])
        assert refused.exit_code == 2 and "for example 100000,1000000" in refused.output
