"""Forged and damaged bytes for every reader: an error of the project or a value, never another exception."""

import random

import pytest

from tests.fuzz.readers import READERS, Reader


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_the_sample_of_a_reader_reads(reader: Reader) -> None:
    reader.read(reader.original())


@pytest.mark.parametrize("inputs", [150, pytest.param(20_000, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_forged_bytes_are_read_or_refused_by_name(reader: Reader, inputs: int) -> None:
    read = 0
    for seed in range(inputs):
        raw = reader.forge(random.Random(seed))
        try:
            reader.read(raw)
            read += 1
        except reader.raises:
            pass
        except Exception as error:
            error.add_note(f"{reader.name}, seed {seed}: {raw[:2_000]!r}")
            raise
    assert read < inputs or reader.raises == ()
