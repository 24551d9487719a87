"""Windows are encoded once for a signal and its ranking."""

from serving.relay.window import open_window
from tests.serving.relay.stage import SPEC, longer, user_of


def test_the_window_of_the_same_snapshot_is_not_encoded_again() -> None:
    user = user_of(20)
    window = open_window(SPEC, user)
    assert open_window(SPEC, user, known=window) is window


def test_another_snapshot_or_part_is_encoded() -> None:
    user = user_of(20)
    window, more, same = open_window(SPEC, user), longer(user, 3), user_of(20)
    assert len(open_window(SPEC, more, known=window)) == len(open_window(SPEC, more))
    assert open_window(SPEC, same, known=window) is not window
    assert open_window(SPEC, user, window.start + 4, known=window).start == window.start + 4
    cut = window.cut(0, len(window) - 1)
    assert len(open_window(SPEC, user, known=cut)) == len(window)


def test_a_window_does_not_keep_the_snapshot() -> None:
    window = open_window(SPEC, user_of(20))
    assert window.made_of is not None and window.made_of() is None
