"""Files of others, read as a mapping says, as events.

One pipeline: read -> clean -> statistics as of each time -> events.

    mapping.py, mapping_source.py      the sections of a mapping file
    files.py, json_lines.py            read: CSV, JSON lines, Parquet in chunks
    columns.py, tables.py, spool.py    clean: cells decoded, rows kept or rejected, sorted in bounded memory
    log.py, interactions.py            behaviours in order of time; shown_impressions.py, sampled_impressions.py: requests
    items.py, item_embeddings.py       features and embeddings of items as of any time
    log_statistics.py                  statistics: counts, rates, means as of any time, and what is learnt from the log
    inferred_schema.py, periods.py     choices that a mapping leaves open: statistics, features, times
    mapped_sources.py                  the files of a mapping, loaded and joined
    mapped_catalogue.py                events
    doubts.py                          warnings; leakage.py: columns that know the future
    cli.py                             `aif import`; choices.py: the choices and their reasons
"""
