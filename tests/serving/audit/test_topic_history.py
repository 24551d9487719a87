"""What `aif query --trace` says of updates without an effect."""

from serving.audit.topic_history import advise_version


def test_the_time_in_ms_is_advised_only_where_it_is_above_the_stored_version() -> None:
    now_ms = 1_795_810_040_047
    assert "such as the time in ms" in advise_version(now_ms - 1, now_ms)
    assert "a version above that" in advise_version(now_ms * 1_000_000, now_ms)
