"""Version tokens and the fold of a user's records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RejectedInput
from schemas.token import VersionToken, decode_token
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile


@given(st.integers(0, 10**18), st.integers(0, 10**9), st.from_regex(r"[0-9a-f]{8}", fullmatch=True))
def test_a_token_survives_its_text(version: int, revision: int, digest8: str) -> None:
    token = VersionToken(version, revision, digest8)
    assert decode_token(str(token)) == token


def test_tokens_of_one_version_are_compatible_whatever_the_revision_and_later_parts() -> None:
    token = decode_token("7.0-0123abcd")
    assert token.is_compatible(decode_token("7.3-ffffffff-lsh2")) and not token.is_compatible(decode_token("8.0-0123abcd"))


@pytest.mark.parametrize(
    "text", ["", "7", "7.0", "7.0-xyz", "07.0-0123abcd", "7.0-0123ABCD", "7.0-0123abcd\n", "-1.0-0123abcd", "9" * 30 + ".0-0123abcd"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RejectedInput, match="bad_version_token"):
        decode_token(text)


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40))
def test_folding_records_again_changes_nothing(log: list[tuple[int, bool]]) -> None:
    def fold(records: list[tuple[int, bool]]) -> UserHistory:
        history = UserHistory()
        for offset, is_profile in records:
            if is_profile:
                fold_profile(history, offset, {"at": offset})
            else:
                fold_behaviours(history, offset, [BehaviourEvent(offset, "click", offset)])
        return history

    in_order = sorted(set(log))
    assert fold(in_order) == fold([r for r in in_order for _ in (0, 1)])


def test_an_empty_record_forgets_the_profile() -> None:
    history = UserHistory()
    assert fold_profile(history, 0, {"country": "UK"}) and fold_profile(history, 1, None) and not history.profile
