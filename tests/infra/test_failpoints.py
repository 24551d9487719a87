"""A failpoint kills where and when it was told to, and costs nothing otherwise."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.failpoints import FAILPOINTS, failpoint, read_armed
from schemas.errors import Misconfigured

PASSES = (
    "from infra.failpoints import failpoint\nfor n in range(5): print(n, flush=True); failpoint('before-write'); failpoint('after-write')"
)


def run_armed(arming: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PASSES], env={"FAILPOINT": arming}, capture_output=True, text=True, check=False)


def test_the_process_is_killed_at_the_pass_it_was_told_and_says_so_in_the_file(tmp_path: Path) -> None:
    done = run_armed(f"after-write:3:{tmp_path / 'fired'}")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2"]
    assert (tmp_path / "fired").exists()


def test_a_failpoint_that_is_not_armed_lets_everything_pass(tmp_path: Path) -> None:
    done = run_armed(f"before-seal:1:{tmp_path / 'fired'}")
    assert done.returncode == 0 and not (tmp_path / "fired").exists()
    for name in FAILPOINTS:
        failpoint(name)


@pytest.mark.parametrize("raw", ["", "after-write", "after-write:1", "nowhere:1:/f", "after-write:0:/f", "after-write:x:/f"])
def test_arming_what_does_not_exist_is_refused(raw: str) -> None:
    with pytest.raises(Misconfigured, match="bad_failpoint"):
        read_armed({"FAILPOINT": raw})


def test_a_name_that_is_not_in_the_list_cannot_be_passed() -> None:
    with pytest.raises(AssertionError):
        failpoint("somewhere")


DISK = """
import os, sys
from pathlib import Path
from infra.index.store import open_index_store
from infra.rocks import open_database
from schemas.errors import Unavailable
folder, switch = Path(sys.argv[1]), Path(os.environ["FAILING_DISK"])
database, store = open_database(folder / "d", ("a",)), open_index_store(str(folder / "s"))
def write(n):
    batch = database.new_batch()
    batch.put("a", b"%d" % n, b"x")
    database.write(batch)
def code(call):
    try: call()
    except Unavailable as error: return error.code
for name in ("full", "broken"):
    (switch / name).touch()
    print(code(lambda: write(1)), code(lambda: store.put_bytes("a", b"")), code(database.reopen), len(list(database.scan("a"))))
    (switch / name).unlink()
    print(code(database.reopen), code(lambda: write(3)), code(lambda: store.put_bytes("a", b"")))
print([key.decode() for key, _ in database.scan("a")])
"""


def test_a_disk_that_is_told_to_fail_fails_every_write_and_a_database_until_it_is_opened_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DISK, str(tmp_path)], env={"FAILING_DISK": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "disk_full disk_full disk_full 0" and lines[2] == "database_failed store_unwritable database_failed 1", "it reads"
    assert lines[1] == lines[3] == "None None None"
    assert lines[4] == "['3']"


def test_every_failpoint_of_the_list_is_passed_somewhere_in_the_code() -> None:
    root = Path(__file__).parents[2]
    code = "".join(path.read_text() for folder in ("infra", "streams", "lab") for path in (root / folder).rglob("*.py"))
    assert {name for name in FAILPOINTS if f'failpoint("{name}")' in code} == FAILPOINTS
