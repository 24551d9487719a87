"""Diagnosis and the generated reference.

- cli.py: `aif doctor`, `aif status`; doctor.py: the checks; watch.py: the whole system, for `aif status --watch`
- retained.py, unknown_features.py: two checks of `aif doctor`; standing_shards.py, statistics_age.py: two parts of both commands
- reference.py: the pages of docs/reference; errors.toml: cause and remedy of every error code
"""
