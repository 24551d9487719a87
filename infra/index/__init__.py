"""The index on a disk or in a bucket: a store of immutable files, the control log in it, and the parts of versions.

store.py        the interface of an index store, its clock, and the store in a folder: read it first
s3_store.py     the store in a bucket; file_cache.py keeps local copies of its files
store_path.py   which paths are allowed in both kinds of store
checkpoint_upload.py  a checkpoint put into the store, and the record that announces it
control_log.py  the log of decisions about versions; control_folds.py: its folds in the store
parts.py        full and incremental parts and manifests, written and read
sample.py       a few rows of a version
verify.py       whether a version is whole
diff.py         in which rows two versions differ
removal.py      which files are due for removal, and removing them
delta_tail.py   the last messages of the shards to their readers, and how far a version is behind them
describe.py     versions and shards as rows that commands print
cli.py          `aif index`, `aif model`
"""
