"""The stateless alternative to the state pool: call 1 gives the user's state to the client as Base64 text, and call 2 brings it back.

    text      Base64 of [ signature, 32 bytes | length of the head, 4 bytes | head, JSON | state, serving/engine/call_one/user_state.py ]
    head      user, version token, time of creation
    signature HMAC-SHA256 under the key of the settings, over the name of the index and all that follows

Any server with the same key and the same index accepts it, so the two calls need not reach the same server. It costs bandwidth (Base64 adds a third, as
in the paper) and 0.3 ms on either side, but no memory between the calls. Without a key it is off.
Invariant: nothing is decoded before the signature was verified. A valid state that is too old, or of a version that is gone, counts as lost, not as an
error: the ladder continues with the next rung.
"""

import base64
import binascii
import hmac
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import SecretStr

from schemas.errors import RejectedInput
from schemas.ids import Id
from schemas.limits import CARRIED_STATE_BYTES_MAX
from schemas.token import VersionToken, decode_token
from serving.engine.call_one.user_state import EngineUserState, decode_state, encode_state
from serving.engine.work import UserState

_MAC_BYTES, _LENGTH_BYTES = 32, 4
_FORM = b"aif user state 1"


@dataclass(frozen=True, slots=True)
class Carried:
    """A state that came with call 2, and the token of the version that it was made on."""

    token: VersionToken
    state: UserState


class CarriedStates:
    """Seals and opens states of the versions of one `index`. `events` counts: sealed, too_large, opened, expired, refused."""

    def __init__(self, key: SecretStr | None, index: str, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        self._key = None if key is None else key.get_secret_value().encode()
        self._index, self._ttl_s, self._clock = index.encode(), ttl_s, clock
        self.events: Counter[str] = Counter()

    def seal(self, user: Id, token: VersionToken, state: UserState) -> str | None:
        """The text for the client; None if it would be larger than call 2 accepts. Raises RejectedInput (`user_state_off`)."""
        key = self._expect_key()
        assert isinstance(state, EngineUserState)
        head = json.dumps({"user": user, "token": str(token), "made_ms": int(self._clock() * 1000)}).encode()
        signed = len(head).to_bytes(_LENGTH_BYTES, "little") + head + encode_state(state)
        if _MAC_BYTES + len(signed) > CARRIED_STATE_BYTES_MAX:
            self.events["too_large"] += 1
            return None
        self.events["sealed"] += 1
        return base64.b64encode(self._sign(key, signed) + signed).decode()

    def open(self, text: str, user: Id) -> Carried | None:
        """The state in the text; None if it is too old. Raises RejectedInput (`user_state_off`, `bad_user_state`)."""
        key = self._expect_key()
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self._refuse(f"is not Base64: {error}") from error
        signed = raw[_MAC_BYTES:]
        if not hmac.compare_digest(raw[:_MAC_BYTES], self._sign(key, signed)):
            raise self._refuse("is not signed by this server's key for this index, or was changed")
        end = _LENGTH_BYTES + int.from_bytes(signed[:_LENGTH_BYTES], "little")
        head = json.loads(signed[_LENGTH_BYTES:end])
        if head["user"] != user:
            raise self._refuse("is another user's")
        if abs(self._clock() * 1000 - head["made_ms"]) > self._ttl_s * 1000:  # made in the future: a clock was set back
            self.events["expired"] += 1
            return None
        self.events["opened"] += 1
        return Carried(decode_token(head["token"]), decode_state(signed[end:]))

    def _expect_key(self) -> bytes:
        if self._key is None:
            raise RejectedInput(
                "user_state_off",
                "this server hands out no user states and takes none; leave carry_state and user_state out, or set AIF_USERS__CARRIED_STATE_KEY",
            )
        return self._key

    def _sign(self, key: bytes, signed: bytes) -> bytes:
        made = hmac.new(key, digestmod="sha256")
        for part in (_FORM, len(self._index).to_bytes(_LENGTH_BYTES, "little"), self._index, signed):
            made.update(part)
        return made.digest()

    def _refuse(self, what: str) -> RejectedInput:
        self.events["refused"] += 1
        return RejectedInput("bad_user_state", f"user_state {what}; send the user_state of call 1's answer as it came, or none")
