"""A relay over networks of random weights, users with histories, and one pass over the same tokens to compare with."""

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import numpy as np
import torch

from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.behaviour_columns import EMPTY
from schemas.features import Scope, encode_features
from schemas.ids import Id
from schemas.model.inputs import FeatureTensors, encode_context
from schemas.model.network import AifNetwork, build_network
from schemas.model.parameters import Parameters, parameters_of
from schemas.model.ranker.spec import encode_items
from serving.core.relay_rungs import FinalRung
from serving.relay.final_work import FinalResult, FinalWork
from serving.relay.kv_pool import Prefix, PrefixKey
from serving.relay.relay import Relay
from serving.relay.settings import RelaySection
from serving.users.user_store import KnownUser
from tests.schemas.model.samples import SPECS, make_network

SPEC = SPECS["ranker"]
assert SPEC.ranker is not None
FP16 = 2e-2  # of logits of a few units, keys and values stored in fp16
KINDS = ("click", "buy", "other")


def user_of(length: int, seed: int = 0, age: float = 3.0) -> KnownUser:
    rng = random.Random(seed)
    rows = [(rng.randrange(40), rng.choice(KINDS), 1_000 + n, {}) for n in range(length)]
    return KnownUser({"age": age}, EMPTY.append(rows, 10_000), (0, length))


def longer(user: KnownUser, more: int) -> KnownUser:
    rows = [(n % 7, "click", 9_000 + n, {}) for n in range(more)]
    return KnownUser(user.profile, user.behaviours.append(rows, 10_000), (0, user.offsets[1] + more))


@torch.inference_mode()
def reference(network: AifNetwork, user: KnownUser, start: int, work: FinalWork) -> np.ndarray:
    """One pass over everything."""
    ranker = network.ranker
    assert ranker is not None
    behaviours = user.behaviours[start:]
    kinds = [SPEC.schema.behaviour_kinds.index(one.kind) + 1 if one.kind in SPEC.schema.behaviour_kinds else 0 for one in behaviours]
    items = torch.from_numpy(encode_items(ranker.spec, [one.item_id for one in behaviours]))
    block = FeatureTensors.from_block(encode_features(SPEC.schema.of(Scope.USER), [user.profile]))
    before = torch.cat(
        [
            ranker.profile_token(block),
            ranker.behaviour_tokens(items[None], torch.tensor(kinds, dtype=torch.int64)[None]),
            ranker.context_token(encode_context(SPEC, work.context)),
        ],
        1,
    )
    n, logits = before.shape[1], torch.from_numpy(work.aif_logits_CT)[None]
    candidates = ranker.candidate_tokens(torch.from_numpy(encode_items(ranker.spec, work.item_ids))[None], logits)
    return ranker.full(before, torch.arange(n)[None], torch.ones(1, n, dtype=torch.bool), candidates, logits)[0].numpy()


def work_of(user: KnownUser, user_id: Id = 1, version: int = 1, request_id: str = "r", left_s: float = 30.0, count: int = 9) -> FinalWork:
    logits = np.random.default_rng(count).standard_normal((count, 1)).astype(np.float32)
    return FinalWork(user_id, user, version, request_id, list(range(count)), logits, {"hour": 3}, time.monotonic() + left_s)


class Bench:
    """A relay with the networks of its versions."""

    def __init__(self, relay: Relay, networks: Mapping[int, AifNetwork]) -> None:
        self.relay, self.networks = relay, networks

    def rank(self, work: FinalWork) -> FinalResult:
        result = self.relay.submit_rank(work).result(30)
        if result.rung is not FinalRung.AIF_ORDER:
            expected = reference(self.networks[work.version], work.user, result.start, work)
            assert np.abs(result.logits_CT - expected).max() <= FP16
        return result

    def prefix(self, user_id: Id, version: int = 1) -> Prefix:
        assert self.relay._pool is not None
        prefix = self.relay._pool.find(PrefixKey(user_id, version))
        assert prefix is not None
        return prefix

    def wait_until_computed(self) -> None:
        done: Future[None] = Future()
        self.relay._prefixes.put(lambda: done.set_result(None))
        done.result(30)


def open_bench(engine_busy: Callable[[], bool] = lambda: False, **settings: float) -> Bench:
    networks = {version: make_network(SPEC, seed=version).eval() for version in (1, 2)}
    parameters: Mapping[int, Parameters] = {version: parameters_of(network) for version, network in networks.items()}
    networks = {version: build_network(one) for version, one in parameters.items()}
    section = RelaySection(**({"budget_ms": 1.0, "margin_ms": 1.0, "load_share": 1.0, "kv_mib": 4.0} | settings))
    bench = Bench(Relay(section, Metrics(), parameters.get, engine_busy=engine_busy), networks)
    bench.relay.follow([1, 2])
    wait_until(lambda: None not in (bench.relay.spec(1), bench.relay.spec(2)), 30, "the rankers to be opened")
    return bench
