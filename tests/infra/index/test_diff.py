"""Two versions compared: equal, other data, other floats, other items, other columns; and a replay's folder as a side."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.index.control_log import ControlLog, ensure_init
from infra.index.diff import Difference, Side, diff_versions, open_side
from infra.index.parts import write_full_part, write_incremental_part
from infra.index.store import IndexStore, open_index_store
from schemas.errors import Incompatible, Misconfigured
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.layout import Column, RowBlock, RowLayout
from schemas.index.manifest import Manifest, Seal
from tests.infra.index_fixture import INIT, LAYOUT, LSH, MODEL, increments, publish_version, rows_block

Change = Callable[[RowBlock], RowBlock]


def side(store: IndexStore, change: Change = lambda block: block, layout: RowLayout = LAYOUT, increments_from: int | None = None) -> Side:
    """600 items in three blocks of one shard, and maybe increments."""
    blocks = [change(rows_block(first, 200)) for first in (1000, 2000, 3000)]
    changes = [] if increments_from is None else increments(increments_from, 40)
    full, incremental = write_full_part(store, 0, 0, blocks, layout), write_incremental_part(store, 0, 0, 0, changes)
    digest = ShardDigest(layout, MODEL, LSH)
    for block in merge_parts(layout, blocks, changes):
        digest.update(block)
    seal = Seal(0, full, incremental, 0, {}, digest.rows, digest.hexdigest, digest.data_hexdigest, "cpu")
    return Side("x", store, Manifest(0, 0, MODEL, "f" * 64, "s", LSH, "cpu", layout, (seal,), 0))


def changed(column: str, at: int, amount: float, inputs: bool) -> Change:
    def change(block: RowBlock) -> RowBlock:
        rows, stamps = block.rows.copy(), block.stamps.copy()
        rows[column][at] += amount
        stamps["input_hash"][at] += inputs
        return RowBlock(block.keys, stamps, rows)

    return change


def test_a_version_does_not_differ_from_itself_however_it_is_cut_into_parts(store: IndexStore) -> None:
    assert diff_versions(side(store, increments_from=2150), side(store, increments_from=2150)).is_equal
    found = diff_versions(side(store), side(store, increments_from=2150))
    assert (found.rows_a, found.rows_b, found.only_a, found.only_b) == (600, 590, 10, 0)  # every fourth of 40 increments is a tombstone
    assert (found.data, found.floats) == (0, 30)


def test_versions_of_two_models_are_not_equal_although_every_row_is(store: IndexStore) -> None:
    """As two that differ in their heads alone."""
    a = side(store)
    b = dataclasses.replace(a, manifest=dataclasses.replace(a.manifest, checkpoint_sha256="e" * 64))
    found = diff_versions(a, b)
    assert (found.only_a, found.only_b, found.data, found.floats) == (0, 0, 0, 0)
    assert found.other_model and not found.is_equal and not diff_versions(a, a).other_model


def test_other_inputs_are_data_and_other_rows_of_the_same_inputs_are_floats(store: IndexStore) -> None:
    plain = side(store)
    data = diff_versions(plain, side(store, changed("bid", 7, 0.5, inputs=True)))
    assert (data.data, data.floats, data.columns["bid"].items) == (3, 0, 3) and data.columns["bid"].greatest == pytest.approx(0.5)
    assert [(e.id, e.kind, e.columns) for e in data.examples] == [(i, "data", ("bid",)) for i in (1007, 2007, 3007)]
    floats = diff_versions(plain, side(store, changed("vector", 3, 0.25, inputs=False)))
    assert (floats.data, floats.floats, list(floats.columns)) == (0, 3, ["vector"])


def test_other_inputs_without_another_row_are_data_too(store: IndexStore) -> None:
    found = diff_versions(side(store), side(store, changed("bid", 7, 0.0, inputs=True)))
    assert (found.data, found.floats, found.columns) == (3, 0, {}) and not found.is_equal


def test_items_that_only_one_side_has_are_named(store: IndexStore) -> None:
    def without_last(block: RowBlock) -> RowBlock:
        return RowBlock(block.keys[:-1], block.stamps[:-1], block.rows[:-1])

    found = diff_versions(side(store, without_last), side(store))
    assert (found.only_a, found.only_b, found.rows_a) == (0, 3, 597)
    assert [(e.id, e.kind) for e in found.examples] == [(i, "only in B") for i in (1199, 2199, 3199)]


def test_columns_of_another_width_are_left_out_and_said(store: IndexStore) -> None:
    wide = RowLayout((Column("vector", "<f2", 4), *LAYOUT.columns[1:]), LAYOUT.id_kind)

    def narrowed(block: RowBlock) -> RowBlock:
        rows = np.zeros(len(block), wide.dtype)
        for name in ("has_signature", "bid"):
            rows[name] = block.rows[name]
        return RowBlock(block.keys, block.stamps, rows)

    found = diff_versions(side(store), side(store, narrowed, wide))
    assert found == Difference(600, 600, left_out=("vector",)) and not found.is_equal


def test_catalogues_that_do_not_match_are_refused(store: IndexStore) -> None:
    one = side(store)
    two = Side("two", store, dataclasses.replace(one.manifest, seals=one.manifest.seals * 2))
    with pytest.raises(Incompatible, match="other_catalogue"):
        diff_versions(one, two)


def run(store: IndexStore, *arguments: str, exit_code: int) -> dict[str, Any]:
    result = CliRunner(env={"AIF_INDEX__STORE": store.url}).invoke(build_app(), ["index", "diff", *arguments, "--json"])
    assert result.exit_code == exit_code, (result.output, result.exception)
    return json.loads(result.stdout)


def test_the_command_takes_versions_and_stores_and_says_by_its_exit_code_whether_they_differ(store: IndexStore, tmp_path: Path) -> None:
    publish_version(store)
    publish_version(store)
    other = open_index_store(str(tmp_path / "other"))
    publish_version(other)
    assert run(store, "0", "1.0", exit_code=0)["equal"] is True
    first = run(store, "live", "0", exit_code=0)["sides"][0]
    assert (first["version"], first["model"]) == ("1.0", MODEL)
    found = run(store, "0.0", other.url, exit_code=0)
    assert found["sides"][0]["digest"] == found["sides"][1]["digest"] and found["examples"] == []


def test_what_is_no_side_is_refused(store: IndexStore, tmp_path: Path) -> None:
    log = ControlLog(store)
    ensure_init(log, INIT, 0, "test")
    with pytest.raises(Incompatible, match="unknown_version"):
        open_side("9", log)
    for text in (str(tmp_path / "nothing"), "x" * 300):
        with pytest.raises(Misconfigured, match="diff_side"):
            open_side(text, log)
