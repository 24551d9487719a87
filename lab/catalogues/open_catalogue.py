"""The two sources of a catalogue: the synthetic world, and files read as a mapping says. Each source is imported only when it is opened."""

from pathlib import Path

from lab.catalogues.catalogue import Catalogue


def open_world(items: int, seed: int = 0) -> Catalogue:
    """The synthetic world with that many items."""
    from lab.catalogues.world import World, WorldSize
    from lab.catalogues.world_catalogue import WorldCatalogue

    return WorldCatalogue(World(seed, WorldSize(items=items)))


def open_mapping(directory: Path, mapping_file: Path) -> Catalogue:
    """CSV, JSON-lines or Parquet files under `directory`, read as the mapping file says. See docs/IMPORT.md.

    Raises Misconfigured that names the mapping file, the key, the column and the expectation.
    """
    from infra.data.mapping import read_mapping
    from lab.catalogues.measured_catalogue import MeasuredCatalogue

    return MeasuredCatalogue(read_mapping(mapping_file), directory)
