"""Every bound of the system, in one place, with its reason. Beyond a bound there is a clear error before memory is taken (I8).

What an operator may lower is a setting whose maximum is the constant here. Relations between bounds are asserted at the end.
"""

KIB = 1024
MIB = 1024 * KIB

# --- ids -----------------------------------------------------------------------------------------------------------
TEXT_ID_BYTES_MAX = 128  # a text id is a RocksDB key and a Kafka key
HASH_BUCKETS_MAX = 1 << 24  # rows of one embedding table

# --- events --------------------------------------------------------------------------------------------------------
RECORD_BYTES_MAX = 4 * MIB  # one Kafka record of ours; topics are created with it as max.message.bytes
UPDATES_PER_RECORD_MAX = 256  # its index fits an item order's u16
EVENT_VERSION_MAX = (1 << 63) - 1  # a signed 64-bit column everywhere
FEATURES_PER_SCHEMA_MAX = 256
BAG_VALUES_MAX = 64  # values of one bag feature
FEATURE_TEXT_BYTES_MAX = 1 * KIB  # one categorical value
EMBEDDING_WIDTH_MAX = 1024
FLOAT32_END = float(2**128 - 2**103)  # from here on a number rounds to infinity as float32
ITEMS_PER_IMPRESSION_MAX = 1_000
NAME_CHARS_MAX = 64  # a feature, kind, model id or label

# --- model ---------------------------------------------------------------------------------------------------------
WIDTH_MAX = 512  # async vector
BRIDGES_MAX = 64
HASH_BITS_MAX = 1024
TIERS_MAX = 64
TASKS_MAX = 8
RECENCY_SCALES_MAX = 8
CHECKPOINT_BYTES_MAX = 8 * 1024 * MIB
CHECKPOINT_HEADER_BYTES_MAX = 16 * MIB  # names, shapes and the manifest, read before any tensor
HIDDEN_LAYERS_MAX = 8  # of one part of the network
HIDDEN_MAX = 8_192  # width of one of them
REALTIME_BUCKETS_MAX = 256  # a categorical the head reads at ranking time

# --- index ---------------------------------------------------------------------------------------------------------
SHARDS_MAX = 4096
ROWS_PER_FILE_BLOCK = 256  # rows of one columnar block of a full part
BUILD_ROWS_AT_ONCE = 8 * ROWS_PER_FILE_BLOCK  # items that a build reads and encodes at a time
DELTA_RECORD_BYTES_MAX = 1 * MIB  # a micro-batch's row changes are cut into records of at most this
MICRO_BATCH_RECORDS_MAX = 10_000  # of all shards of a worker; each cuts its share into write batches
WRITE_BATCH_UPDATES_MAX = 2_000  # a larger RocksDB batch holds the GIL too long (50k rows: 90 ms)
# Of a shard's rows that wait for their tables, in memory: what a restart reads again, and a checkpoint writes in 0.1 s.
CONTROL_ENTRY_BYTES_MAX = 256 * KIB
MANIFEST_BYTES_MAX = 64 * MIB

# --- requests ------------------------------------------------------------------------------------------------------
CANDIDATES_MAX = 131_072
TOP_K_MAX = 10_000
FINAL_CANDIDATES_MAX = 1_000  # that the ranker orders
DEAD_LETTERS_WAITING_BYTES_MAX = 256 * MIB  # of the user topics, on a server's disk, while the broker takes none
BODY_BYTES_MAX = 8 * MIB
BODIES_BYTES_MAX = 256 * MIB  # of all bodies that one server reads at the same time
JSON_DEPTH_MAX = 16
JSON_VALUES_MAX = 262_144  # of one body: the most candidates, and as many values for the most behaviours; parsed in 40 ms
HTTP_HEADERS_MAX = 64
HTTP_HEADER_BYTES_MAX = 32 * KIB  # all headers of one request
HTTP_URI_CHARS_MAX = 8 * KIB  # path and query
HTTP_HEAD_BUFFER_BYTES = 2 * HTTP_HEADER_BYTES_MAX  # of a connection: a head that is too large by less is read, and refused with a reason
CONNECTIONS_MAX = 4096  # open at once on one port: 3 KiB each, and while its head comes HTTP_HEAD_BUFFER_BYTES
BEHAVIOURS_PER_REQUEST_MAX = 20_000
BEHAVIOURS_PER_USER_MAX = 100_000  # what the user view keeps of one user: the newest
STATE_EXTENSIONS_MAX = 64  # new behaviours added to a user's sums before they are made again: rows change, and sums round
REQUEST_ID_CHARS_MAX = 128
DEADLINE_MS_MAX = 60_000
UNKNOWN_ITEMS_NAMED_MAX = 100
CARRIED_STATE_BYTES_MAX = 1 * MIB  # a user state that travels with call 2: 1,000 behaviours of 128 bits in 300 categories are 80 KiB
QUEUED_REQUESTS_MAX = 256
USER_STATES_MAX = 10_000
DELTA_ROWS_PER_APPLY_MAX = 200  # between two batches of requests: 0.1 us a row, so 20 us

assert TEXT_ID_BYTES_MAX * CANDIDATES_MAX <= 2 * BODY_BYTES_MAX
assert DELTA_RECORD_BYTES_MAX < RECORD_BYTES_MAX
