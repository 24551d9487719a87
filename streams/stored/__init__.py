"""Many items at once: what streams/core decides for one change, done by compiled passes over stored bytes, without a Python object for each.

plain_records.py     records that publishers wrote plainly; record_texts.py reads one of them
upserts.py           their upserts as columns; folded_upserts.py folds them into the stored components
changed_inputs.py    which of them touch a model's inputs (core/stale.py for one)
packed_changes.py    row changes as delta records hold them

item_block.py        items as a shard stores them
item_columns.py      what a model's FeatureSchema makes of them, from texts read by feature_texts.py
text_words.py, bucket_hash.py    of a text: its names and numbers, its hash bucket
kernels.py           loads all these kernels before the first batch
"""
