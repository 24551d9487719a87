"""Candidates for `aif query`: from a file, or drawn from the live version in the index store.

Ids are sent as text; a server with an int64 catalogue reads them as numbers.
"""

import random
from pathlib import Path

from infra.index.control_log import ControlLog
from infra.index.parts import read_full_part, read_incremental_part, read_manifest
from infra.index.store import open_index_store
from schemas.errors import RejectedInput, Unavailable
from schemas.ids import Id, decode_index_key
from schemas.index.digest import merge_parts


def read_items(path: Path) -> list[Id]:
    """One id per line; empty lines are skipped. Raises RejectedInput (`bad_items_file`)."""
    try:
        items: list[Id] = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RejectedInput("bad_items_file", f"{path} does not read: {error}; give a text file with one id a line") from error
    if not items:
        raise RejectedInput("bad_items_file", f"{path} names no item; give a text file with one id a line")
    return items


def draw_items(store_url: str, count: int, seed: int) -> list[Id]:
    """`count` ids of the live version as it was sealed (all of them if there are fewer). Raises Unavailable (`no_version`)."""
    store = open_index_store(store_url)
    current = ControlLog(store).refresh().current
    if current is None:
        raise Unavailable("no_version", f"no version is live in {store_url}; publish a checkpoint and start `aif worker`")
    manifest = read_manifest(store, current)
    kind, keys = manifest.layout.id_kind, list[bytes]()
    for seal in manifest.seals:
        increments = read_incremental_part(store, seal.incremental)
        for block in merge_parts(manifest.layout, read_full_part(store, seal.full, manifest.layout), increments):
            keys += block.keys
    return [str(decode_index_key(key, kind)) for key in random.Random(seed).sample(keys, min(count, len(keys)))]
