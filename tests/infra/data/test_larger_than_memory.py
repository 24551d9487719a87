"""Files that do not fit in memory: the same events, byte for byte, and an import in less memory than its files take."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.data.mapping import read_mapping
from infra.data.spool import Spool, SpoolBounds
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.errors import Unavailable
from tests.infra.data.shops import write_items, write_number_shop, write_text_shop

SCHEMA = pa.schema([("number", pa.int64())])
TINY = SpoolBounds(memory_bytes=2_000, block_rows=37, merged_runs_max=3)


def test_a_full_folder_for_temporary_files_is_named_with_the_setting_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("w+b"))  # noqa: SIM115 (closed with the spool)
    batch = pa.record_batch([pa.array(range(100_000), pa.int64())], SCHEMA)
    with pytest.raises(Unavailable, match=r"disk_full: no room in .* name another folder with TMPDIR"):
        Spool.of([pa.Table.from_batches([batch])], SCHEMA, TINY)


def _write_versions(folder: Path) -> Path:
    """Items with versions out of order, and a table of values over time."""
    chance = np.random.default_rng(3)
    rows = 300
    (folder / "prices.csv").write_text(
        "id,at,price,label\n"
        + "".join(f"{i % 20},2024-02-{1 + int(chance.integers(28)):02d},{chance.integers(9)},l{chance.integers(3)}\n" for i in range(rows))
    )
    mapping = """[items]
file = "items.csv"
id = "id"
[items.features]
sort = "sort"
[item_history]
file = "prices.csv"
id = "id"
time = "at"
known_after_days = 1
[item_history.features]
price = "price"
label = "label"
"""
    return write_items(folder, mapping, id=[i % 20 for i in range(60)], sort=[f"s{i % 7}" for i in range(60)])


def _all_bytes(catalogue: MeasuredCatalogue) -> list[str]:
    kinds = [catalogue.items, catalogue.new_items, catalogue.users, catalogue.behaviours]
    told = [event.model_dump_json(by_alias=True) for kind in kinds for event in kind()]
    if len(catalogue.sources.positives):
        told += [event.model_dump_json(by_alias=True) for event in catalogue.impressions()]
        told.append(repr(catalogue.evaluation()))
    told.append(catalogue.schema.fingerprint)
    return told + sorted(f"{r.file} {r.row} {r.reason}" for r in catalogue.rejections.named)


@pytest.mark.parametrize("write", [write_text_shop, write_number_shop, _write_versions], ids=["text", "number", "versions"])
def test_events_are_the_same_whether_rows_are_in_memory_or_on_disk(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    mapping = write(tmp_path)
    inside = MeasuredCatalogue(read_mapping(mapping), tmp_path)
    outside = MeasuredCatalogue(read_mapping(mapping), tmp_path, bounds=TINY)
    assert _all_bytes(inside) == _all_bytes(outside)
    assert outside.sources.item_rows.spool.on_disk and not inside.sources.item_rows.spool.on_disk


GROWN = """
import resource, sys
from pathlib import Path
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from infra.data.mapping import read_mapping
from infra.data.spool import SpoolBounds
import infra.data.tables

infra.data.tables.SAMPLED_BYTES_MAX = 1 << 20
folder = Path(sys.argv[1])
def count(name):
    catalogue = MeasuredCatalogue(read_mapping(folder / name), folder, bounds=SpoolBounds(memory_bytes=1 << 20))
    return sum(1 for _ in catalogue.behaviours())
count("little.toml")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(count("large.toml"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_a_log_of_four_times_the_rows_takes_no_more_memory(tmp_path: Path) -> None:
    """Text cells of 800 bytes and times out of order: 25 MB of rows, which are sorted, written and read again."""
    for name, rows in (("little", 7_500), ("large", 30_000)):
        cells = {"user": np.arange(rows) % 50, "item": np.arange(rows) % 20, "at": (np.arange(rows) * 7_919) % 1_000_003 + 10**9}
        notes = pa.array([f"{i:0800d}" for i in range(rows)])
        pq.write_table(pa.table({**{n: pa.array(c) for n, c in cells.items()}, "note": notes}), tmp_path / f"{name}.parquet")
        mapping = f"""[items]
file = "items.csv"
id = "id"
[behaviours]
file = "{name}.parquet"
user = "user"
item = "item"
time = "at"
[behaviours.features]
note = "note"
[evaluation]
hold_out = false
"""
        write_items(tmp_path, mapping, id=list(range(20))).rename(tmp_path / f"{name}.toml")
    done = subprocess.run([sys.executable, "-c", GROWN, str(tmp_path)], capture_output=True, text=True, check=True)
    rows, grown_kib = map(int, done.stdout.split())
    assert rows == 30_000 and grown_kib < 9_000, f"{grown_kib} KiB more than a log of a quarter of the rows"
