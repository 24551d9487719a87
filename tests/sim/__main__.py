"""`python -m tests.sim`: a campaign of histories, one history step by step, or every planted bug.

--histories 20000 [--start S]       as many seeds from S on, on all cores; ends with status 1 at the first that breaks an invariant
--seed S [--plant NAME]             that history, step by step
--plants [--histories 2000]         for every planted bug the first seed that finds it
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence

from tests.sim.campaign import find_violation, find_violation_on_all_cores
from tests.sim.history import run_history
from tests.sim.plants import PLANTS


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _show(seed: int, plant: str | None) -> int:
    outcome = run_history(seed, plant, traced=True)
    for line in outcome.lines:
        _say(line)
    _say(str(outcome.violation or "every invariant holds"))
    return int(outcome.violation is not None)


def _campaign(histories: int, start: int) -> int:
    began, used = time.monotonic(), os.times()
    found = find_violation_on_all_cores(range(start, start + histories))
    done = histories if found is None else found.seed - start + 1
    took_s, now = time.monotonic() - began, os.times()
    cpu_s = sum(now[:4]) - sum(used[:4])
    _say(f"{done} histories in {took_s:.1f} s: {done / took_s:.0f} a second, {done / cpu_s:.0f} a second of processor time")
    if found is not None:
        _say(f"{found.violation}\nstep by step: {found.command}")
    return int(found is not None)


def _plants(histories: int) -> int:
    missed = 0
    for name, plant in PLANTS.items():
        found = find_violation(range(histories), name)
        missed += found is None
        _say(f"{name}: {'NOT FOUND' if found is None else f'seed {found.seed}, {found.violation}'[:160]} ({plant.why})")
    return int(missed > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Deterministic simulation of the nearline half")
    parser.add_argument("--histories", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plant", choices=sorted(PLANTS))
    parser.add_argument("--plants", action="store_true")
    asked = parser.parse_args(arguments)
    logging.getLogger("aif").setLevel(logging.CRITICAL)
    if asked.seed is not None:
        return _show(asked.seed, asked.plant)
    return _plants(asked.histories) if asked.plants else _campaign(asked.histories, asked.start)


if __name__ == "__main__":
    sys.exit(main())
