"""Files of others, read as a mapping says, as events: one pipeline, read -> clean -> statistics as of each time -> events.

mapping.py, mapping_source.py      what the mapping file says
files.py, json_lines.py            read: CSV, JSON lines, Parquet in chunks
columns.py, tables.py, spool.py    clean: cells decoded, rows kept and sorted in bounded memory; rejections.py: rows that became nothing
log.py, interactions.py            who did what when; shown_impressions.py, sampled_impressions.py: requests
items.py, item_embeddings.py       what is known of items as of any time; text.py: embeddings from words
log_statistics.py                  statistics: counts, rates, means as of any time; inferred_schema.py: which;
                                   expected_takers.py, taken_together.py: what is learnt from all of the log
inferred_schema.py, periods.py     what a mapping leaves open: features, times
mapped_sources.py                  the files of a mapping, loaded and joined
mapped_catalogue.py                events
doubts.py                          what looks wrong; odd_columns.py: columns read in another way than meant;
                                   leakage.py, context_leakage.py, rank_measures.py: columns that know the future
cli.py                             `aif import`; choices.py: what it chose and why
"""
