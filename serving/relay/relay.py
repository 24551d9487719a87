"""The relay: prefixes computed while retrieval runs, and the final rankings that take them over. Three threads, next to the engine's.

    signal          decides (core/relay_trigger.py) and reserves pages; the prefix thread computes, a piece at a time, while nothing is ranked
    rank            the ranking thread takes the best rung that is in time (core/relay_rungs.py) and orders AIF's answer
    expect, arrive  a signal's prefix is held until its ranking comes, or counts as wasted when its time is over
    keep house      opens rankers, drops what is over, once a second; so neither the event loop nor a prefix waits for it

A ranking never waits for the prefix thread: it takes over an unfinished prefix and computes the rest itself. Nothing is computed twice at once: a signal
finds the prefix that another has started.
The prefix thread begins no piece while the engine or the ranking thread has work. A lower priority of the thread would do harm: it would keep the interpreter's
lock while others have its core, and the ports would wait for it.
Keys are (user, version): a prefix never crosses versions, and all of a version's go when it is not resident any more.

Here: threads, queues, who computes what. Not here: torch (backend.py), pages (kv_pool.py), requests (final_call.py).
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from infra.guarded_thread import GuardedThread, note_fault
from infra.metrics import Metrics
from schemas.ids import Id
from schemas.limits import MIB
from schemas.model.parameters import Parameters
from schemas.model.ranker.spec import RankerSpec
from schemas.model.spec import ModelSpec
from serving.core.relay_rungs import FinalRung, choose_final_rung
from serving.core.relay_trigger import Decision, Load, RelayCosts, count_work, decide, predict_ms
from serving.relay.final_work import FinalResult, FinalWork, Found, aif_order
from serving.relay.kv_pool import PAGE_ELEMENTS, KvPool, Prefix, PrefixKey
from serving.relay.settings import RelaySection
from serving.relay.window import Window, open_window
from serving.users.user_store import KnownUser

if TYPE_CHECKING:
    from serving.relay.backend import RankerBackend

PIECE = 128  # tokens of a prefix between two looks at what else there is to do: 0.3 to 2 ms
_GIVE_WAY_S = 0.001
_KEEP_HOUSE_S, _CHECK_S = 1.0, 60.0
_CLOSE_S_MAX = 10.0
_TRUNCATED_MIN = 32  # behaviours


class Relay:
    """`find_parameters(version)`: a resident version's model, None if it is gone. `device`: of the engine. `engine_busy`: whether AIF has work now."""

    def __init__(
        self,
        settings: RelaySection,
        metrics: Metrics,
        find_parameters: Callable[[int], Parameters | None],
        device: str = "cpu",
        engine_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings, self._metrics, self._find_parameters, self._device = settings, metrics, find_parameters, device
        self._engine_busy, self._is_ranking = engine_busy, False
        self._pool: KvPool | None = None
        self._backends: dict[int, RankerBackend] = {}
        self._wanted, self._has_opened = frozenset[int](), False
        self._prefixes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._rankings: queue.SimpleQueue[tuple[FinalWork, Future[FinalResult]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.costs, self._load = RelayCosts(), Load()
        self._stopping = threading.Event()
        self._wake, self._check_at_s = threading.Event(), 0.0
        self._threads: list[GuardedThread] = []
        self._shown = (0, 0, 0)

    # --- versions -------------------------------------------------------------------------------------------------------

    def follow(self, versions: Collection[int]) -> None:
        """Called again and again with the resident versions: the rankers of new ones will be opened, those that are gone answer no more. Starts nothing
        while no version has a ranker, so that a server without one never imports torch."""
        alive = frozenset(versions)
        with self._lock:
            changed, self._wanted = alive != self._wanted, alive
            self._backends = {version: backend for version, backend in self._backends.items() if version in alive}
        if not self._threads and any(self._find_ranker(version) for version in alive):
            self._start()
        elif changed:
            self._wake.set()
        if self._pool is not None:
            self._show(self._pool)

    def is_opening(self, version: int) -> bool:
        """Whether the version has a ranker, and this server, which has just started, has not yet tried to open any."""
        return not self._has_opened and self._find_ranker(version) is not None

    def _find_ranker(self, version: int) -> Parameters | None:
        parameters = self._find_parameters(version)
        return parameters if parameters is not None and parameters.spec.ranker is not None else None

    def _start(self) -> None:
        works = {"prefixes": self._run_prefixes, "rankings": self._run_rankings, "keeping": self._keep_house}
        self._threads = [GuardedThread(work, f"relay-{name}", self._stopping) for name, work in works.items()]
        for thread in self._threads:
            thread.start()

    def _keep_house(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            if self._pool is not None:
                self._tidy(self._pool)
            failed: Exception | None = None
            for version in sorted(self._wanted - self._backends.keys()):
                try:
                    self._open(version)
                except Exception as error:  # the others are opened all the same
                    failed = error
            self._has_opened = True
            if failed is not None:
                raise failed  # and this one is tried again after a pause
            self._wake.wait(_KEEP_HOUSE_S)

    def _tidy(self, pool: KvPool) -> None:
        pool.drop_other_versions(self._wanted)
        pool.expire()
        if time.monotonic() >= self._check_at_s:
            self._check_at_s = time.monotonic() + _CHECK_S
            pool.check()

    def _open(self, version: int) -> None:
        from serving.relay.backend import PageMemory, RankerBackend, limit_threads

        limit_threads()
        parameters = self._find_ranker(version)
        if parameters is None:
            return
        if self._pool is None:
            pages = max(1, int(self.settings.kv_mib * MIB) // (2 * PAGE_ELEMENTS))
            memory = PageMemory(pages, PAGE_ELEMENTS, self._device)
            host_bytes, of_time = int(self.settings.host_mib * MIB), (self.settings.signal_s, self.settings.keep_s)
            self._pool = KvPool(memory, pages, host_bytes, *of_time)
        backend = RankerBackend(parameters, self._device)
        with self._lock:
            if version in self._wanted:
                self._backends = {**self._backends, version: backend}

    def spec(self, version: int) -> ModelSpec | None:
        """The spec of a version whose ranker is ready; None without one."""
        backend = self._backends.get(version)
        return None if backend is None else backend.spec

    # --- the signal -----------------------------------------------------------------------------------------------------

    def signal(self, user_id: Id, user: KnownUser, version: int, request_id: str, candidates: int) -> Decision:
        """Decides about a prefix and, if it is admitted, begins it. Called from any thread."""
        decision = self._decide(user_id, user, version, request_id, candidates)
        self._metrics.counter("relay_signals").labels(decision.value).inc()
        return decision

    def _decide(self, user_id: Id, user: KnownUser, version: int, request_id: str, candidates: int) -> Decision:
        backend, pool = self._backends.get(version), self._pool
        if backend is None or pool is None:
            return Decision.NO_RANKER
        if not len(user.behaviours):
            return Decision.NO_HISTORY
        spec, window, key = backend.ranker, open_window(backend.spec, user), PrefixKey(user_id, version)
        whole = count_work(spec, window.tokens, 0) + count_work(spec, candidates, window.tokens, causal=False)
        with self._lock:
            self._load = self._load.arrive(time.monotonic(), self.settings.load_share)
            risk_ms = predict_ms(self.costs.rank * whole, self._load)
        with pool.lock:
            prefix = pool.find(key)
            known = prefix is not None and window.begins_with(prefix.window)
            if prefix is not None and known and len(prefix.window) == len(window):
                pool.expect(prefix, request_id)
                return Decision.RESIDENT if prefix.finished else Decision.RUNNING
            former = prefix if known else None
            done = pool.saved_tokens(key, window) if former is None else former.done
            work_ms = self.costs.prefix * count_work(spec, window.tokens - done, done)
            at_risk = risk_ms > self.settings.budget_ms - self.settings.margin_ms
            room = pool.pages_free + (len(former.pages) if former is not None and former.leases else 0)
            waiting_free = pool.pages - self._prefixes.qsize()
            decision = decide(at_risk, work_ms, self._load, pool.pages_for(spec, window.tokens), room, waiting_free)
            if decision is Decision.ADMITTED:
                decision = self._admit(pool, backend, key, window, former, request_id)
                if decision is not Decision.NO_ROOM:
                    with self._lock:
                        self._load = self._load.spend(work_ms)
            return decision

    def _admit(
        self, pool: KvPool, backend: "RankerBackend", key: PrefixKey, window: Window, prefix: Prefix | None, request_id: str
    ) -> Decision:
        """REQUIRES: the pool's lock."""
        decision = Decision.EXTENDED
        if prefix is not None:
            if not pool.grow(prefix, window):
                return Decision.NO_ROOM
            pool.expect(prefix, request_id)
        else:
            reloaded = pool.reload(key, backend.ranker, window)
            decision = Decision.ADMITTED if reloaded is None else Decision.EXTENDED
            prefix = reloaded or pool.reserve(key, backend.ranker, window)
            if prefix is None:
                return Decision.NO_ROOM
            pool.expect(prefix, request_id)
            pool.release(prefix)  # the hold of `reserve`: the signal's is there instead
        admitted = prefix
        self._prefixes.put(lambda: self._compute(backend, pool, admitted))
        return decision

    def _compute(self, backend: "RankerBackend", pool: KvPool, prefix: Prefix) -> None:
        """The prefix thread: the pieces of one prefix, until it is finished, dropped, or taken over by a ranking."""
        with pool.held(prefix):
            if self._give_way() or prefix.dropped or prefix.taken_over:
                return
            with pool.lock:
                window, first = prefix.window, prefix.done
            kv = backend.open(window, pool.memory, prefix.pages, first) if first < window.tokens else None
            while kv is not None and first < window.tokens and not (self._give_way() or prefix.dropped or prefix.taken_over):
                end, began_s = min(first + PIECE, window.tokens), time.perf_counter()
                backend.extend(window, first, end, kv)
                took_ms = 1000 * (time.perf_counter() - began_s)
                with pool.lock:
                    if prefix.dropped or prefix.taken_over or prefix.done != first:  # a ranking computes the rest, or has done so
                        break
                    pool.memory.write(backend.ranker, prefix.pages, first, kv.part(first, end))
                    prefix.done = end
                with self._lock:
                    self.costs = self.costs.fold_prefix(count_work(backend.ranker, end - first, first), took_ms)
                first = end
            if prefix.finished and not self._give_way():
                pool.save(prefix)

    def _give_way(self) -> bool:
        """Waits while AIF or the ranking thread has work. Returns whether the relay is stopping."""
        while (self._is_ranking or self._engine_busy()) and not self._stopping.is_set():
            time.sleep(_GIVE_WAY_S)
        return self._stopping.is_set()

    # --- the ranking ----------------------------------------------------------------------------------------------------

    def submit_rank(self, work: FinalWork) -> "Future[FinalResult]":
        """The final ranking of AIF's answer. Never fails: AIF's order is the answer while the server stops, and after an error, which is logged."""
        future: Future[FinalResult] = Future()
        with self._lock:  # a ranking put before `close` is answered
            if waits := bool(self._threads) and not self._stopping.is_set():
                self._rankings.put((work, future))
        if not waits:
            future.set_result(aif_order(work))
        return future

    def _rank(self, work: FinalWork) -> FinalResult:
        backend, pool = self._backends.get(work.version), self._pool
        if backend is None or pool is None:
            return aif_order(work)
        began_s = time.monotonic()
        left_ms = 1000 * (work.due_s - began_s)
        with contextlib.ExitStack() as ending:
            prefix = pool.borrow(PrefixKey(work.user_id, work.version))
            if prefix is not None:
                ending.callback(pool.release, prefix)
                ending.callback(pool.arrive, prefix, work.request_id)
            found = self._find(backend, pool, prefix, work, left_ms)
            rung = self._choose(backend.ranker, pool, work, found, left_ms)
            if rung is FinalRung.AIF_ORDER:
                with self._lock:
                    self.costs = self.costs.doubt_rank()
                return aif_order(work)
            if rung is FinalRung.RELOADED:
                reloaded = pool.reload(PrefixKey(work.user_id, work.version), backend.ranker, found.window)
                if reloaded is None:
                    rung = FinalRung.INLINE
                else:
                    ending.callback(pool.release, reloaded)
                    found = replace(found, prefix=reloaded, had=found.window)
            result, computed = self._take(backend, pool, work, found, rung)
        took_ms = 1000 * (time.monotonic() - began_s)
        with self._lock:
            self.costs = self.costs.fold_rank(computed, took_ms)
        return result

    def _find(self, backend: "RankerBackend", pool: KvPool, prefix: Prefix | None, work: FinalWork, left_ms: float) -> Found:
        older, had, done, expected = None, None, 0, False
        if prefix is not None:
            with pool.lock:
                had, done, expected = prefix.window, prefix.done, work.request_id in prefix.request_ids
        window = open_window(backend.spec, work.user, known=had)
        same = had is not None and window.begins_with(had)
        if had is not None and not same and had.start < window.start:
            other = open_window(backend.spec, work.user, had.start)
            older = other if other.begins_with(had) else None
        count = len(window) // 2
        while count > _TRUNCATED_MIN and self._after_ms(backend.ranker, count + 1, 0, len(work.item_ids)) > left_ms:
            count //= 2
        return Found(window, prefix, had, done, expected, same, older, window.cut(len(window) - count, len(window)))

    def _choose(self, spec: RankerSpec, pool: KvPool, work: FinalWork, found: Found, left_ms: float) -> FinalRung:
        candidates, window = len(work.item_ids), found.window
        took_ms = {FinalRung.INLINE: self._after_ms(spec, window.tokens, 0, candidates)}
        if found.same:
            finished = found.had is not None and found.done >= found.had.tokens
            kept = FinalRung.WAITED if not finished else FinalRung.RESIDENT if found.expected else FinalRung.EXTENDED
            took_ms[kept] = self._after_ms(spec, window.tokens, found.done, candidates)
        elif saved := pool.saved_tokens(PrefixKey(work.user_id, work.version), window):
            took_ms[FinalRung.RELOADED] = self._after_ms(spec, window.tokens, saved, candidates)
        if found.older is not None:
            took_ms[FinalRung.OLDER_PREFIX] = self._after_ms(spec, found.older.tokens, found.done, candidates)
        if len(found.truncated):
            took_ms[FinalRung.TRUNCATED] = self._after_ms(spec, found.truncated.tokens, 0, candidates)
        return choose_final_rung(took_ms, left_ms)

    def _after_ms(self, spec: RankerSpec, tokens: int, done: int, candidates: int) -> float:
        work = count_work(spec, tokens - done, done) + count_work(spec, candidates, tokens, causal=False)
        return self.costs.rank * work

    def _take(self, backend: "RankerBackend", pool: KvPool, work: FinalWork, found: Found, rung: FinalRung) -> tuple[FinalResult, float]:
        """(result, multiply-adds) of one rung. REQUIRES: the prefix is held."""
        window = {FinalRung.OLDER_PREFIX: found.older, FinalRung.TRUNCATED: found.truncated}.get(rung) or found.window
        prefix = None if rung in (FinalRung.INLINE, FinalRung.TRUNCATED) else found.prefix
        kept = 0
        if prefix is not None and found.had is not None:
            # A signal may have lengthened it: then the prefix thread computes the rest, and its tokens of our window are used.
            with pool.lock:
                kept = min(prefix.done, found.had.tokens)
                prefix.taken_over = rung in (FinalRung.WAITED, FinalRung.RELOADED) and not prefix.finished and prefix.window is found.had
        try:
            kv = backend.open(window, pool.memory, [] if prefix is None else prefix.pages, kept)
            for first in range(kept, window.tokens, PIECE):
                backend.extend(window, first, min(first + PIECE, window.tokens), kv)
            with pool.lock:
                if prefix is not None and prefix.taken_over:  # the user's next request will find it whole
                    pool.memory.write(backend.ranker, prefix.pages, kept, kv.part(kept, prefix.window.tokens))
                    prefix.done = prefix.window.tokens
        finally:
            if prefix is not None and prefix.taken_over:
                prefix.taken_over = False
                self._prefixes.put(lambda: self._compute(backend, pool, prefix))  # which saves it, or computes the rest after an error
        logits_CT = backend.score(kv, work.context, work.item_ids, work.aif_logits_CT)
        computed = count_work(backend.ranker, window.tokens - kept, kept)
        computed += count_work(backend.ranker, len(work.item_ids), window.tokens, causal=False)
        return FinalResult(rung, logits_CT, window.start, len(window), max(0, kept - 1), window.offset), computed

    # --- threads --------------------------------------------------------------------------------------------------------

    def _run_prefixes(self) -> None:
        from serving.relay.backend import limit_threads

        limit_threads()
        while (job := self._prefixes.get()) is not None:
            job()

    def _run_rankings(self) -> None:
        from serving.relay.backend import limit_threads

        limit_threads()
        while (entry := self._rankings.get()) is not None:
            work, future = entry
            if not future.set_running_or_notify_cancel():
                self._withdraw(work)
                continue
            self._is_ranking, result = not self._stopping.is_set(), aif_order(work)
            try:
                if self._is_ranking:
                    result = self._rank(work)
            except Exception as error:
                note_fault("relay-rankings", error, "this ranking keeps AIF's order")
            finally:  # also where the thread itself is ended: a caller waits, and prefixes do
                self._metrics.counter("relay_rankings").labels(result.rung.value).inc()
                future.set_result(result)
                self._is_ranking = False

    def _withdraw(self, work: FinalWork) -> None:
        """Gives up the signal's hold of a prefix for a ranking that was cancelled before it began."""
        if (pool := self._pool) is not None:
            with pool.lock:
                prefix = pool.find(PrefixKey(work.user_id, work.version))
                if prefix is not None:
                    pool.arrive(prefix, work.request_id)

    def _show(self, pool: KvPool) -> None:
        self._metrics.gauge("relay_resident_bytes").set(pool.resident_bytes)
        self._metrics.gauge("relay_host_bytes").set(pool.host_bytes)
        now = (pool.wasted, pool.evicted, pool.reloaded)
        for name, after, before in zip(("wasted", "evicted", "reloaded"), now, self._shown, strict=True):
            self._metrics.counter("relay_prefixes").labels(name).inc(after - before)
        self._shown = now

    def close(self) -> None:
        """Ends the threads. Rankings that wait are answered in AIF's order."""
        with self._lock:
            self._stopping.set()
        self._wake.set()
        self._prefixes.put(None)
        self._rankings.put(None)
        for thread in self._threads:
            thread.join(_CLOSE_S_MAX)  # one that hangs in a device must not keep the process
        while not self._rankings.empty():  # of a thread that ended with a fault
            entry = self._rankings.get()
            if entry is not None and entry[1].set_running_or_notify_cancel():
                entry[1].set_result(aif_order(entry[0]))
