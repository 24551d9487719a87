"""Files of others, read as a mapping says, as events: read, clean, statistics as of each time, events.

mapping.py                a mapping file; mapping_source.py: its sections with files; mapping_part.py: its errors; where.py: conditions
mapped_catalogue.py       files as events, from what mapped_sources.py has loaded; cli.py: `aif import`
file_chunks.py            files in chunks; file_format.py, json_lines.py: CSV and JSON lines
tables.py                 the rows of a section, kept in a spool.py, ordered by sorted_rows.py; rejections.py: rows that became nothing
columns.py                cells decoded; inferred_schema.py: what a mapping leaves open
interactions.py           who did what when; shown_impressions.py and sampled_impressions.py: requests
item_rows.py              items; item_history.py, item_statistics.py, item_embeddings.py: what is known of them; item_states.py: as of any time
chosen_statistics.py      which rates and counts items get by default; shown_statistics.py: counting them
expected_takers.py, taken_together.py, text.py      features that are learnt from the data
doubts.py                 what looks wrong; leakage.py, context_leakage.py: columns that know the future
"""
