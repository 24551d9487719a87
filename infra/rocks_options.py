"""How RocksDB is set up.
Invariant: RocksDB makes no table files of memtables by itself, because `Database` marks them first (infra/rocks_marks.py).
Source: RocksDB 9.8 through rocksdict 0.3.29.
"""

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, WriteOptions

_MEMTABLE_BYTES_MAX = 1 << 30  # of one family, never reached: RocksDB would flush it without a mark
_BLOCKS_BYTES = 64 << 20  # of one database, all column families together: unpacked blocks of table files
_BLOOM_BITS = 10  # a key: one that a table file lacks is known to be, without a look, 99 times of 100
_INFO_LOGS_KEPT = 2


def new_block_cache() -> Cache:
    """For one database, all column families together."""
    return Cache(_BLOCKS_BYTES)


def make_options(create: bool, blocks: Cache | None = None) -> Options:
    """Options of a database and of a column family alike. `create`: make what is missing."""
    tables = BlockBasedOptions()
    tables.set_bloom_filter(_BLOOM_BITS, False)
    if blocks is not None:
        tables.set_block_cache(blocks)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    options.set_write_buffer_size(_MEMTABLE_BYTES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(_INFO_LOGS_KEPT)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def write_options(sync: bool) -> WriteOptions:
    """`sync`: the write also survives a power cut."""
    options = WriteOptions()
    options.sync = sync
    return options
