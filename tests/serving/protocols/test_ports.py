"""Ports are refused in words, and never hold so many clients that the process cannot open its own files."""

import contextlib
import resource

import pytest

from schemas.errors import Misconfigured
from schemas.limits import CONNECTIONS_MAX
from serving.protocols import ports
from serving.protocols.ports import bind_port, connections_max, listen


@pytest.mark.parametrize(
    ("files", "expected"), [(1024, 256), (1_000_000, CONNECTIONS_MAX), (resource.RLIM_INFINITY, CONNECTIONS_MAX), (3, 1)]
)
def test_both_ports_leave_half_of_the_files_to_the_rest(monkeypatch: pytest.MonkeyPatch, files: int, expected: int) -> None:
    monkeypatch.setattr(ports.resource, "getrlimit", lambda _: (files, files))
    assert connections_max() == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_refused_by_the_option_that_gives_another(host: str) -> None:
    with contextlib.closing(bind_port(host, 0)) as first:
        port = int(first.getsockname()[1])
        with contextlib.closing(bind_port(host, port)) as second:
            listen(first, 1.0)
            with pytest.raises(Misconfigured, match="port_taken"):
                listen(second, 1.0)
        with pytest.raises(Misconfigured, match="--grpc-port"):
            bind_port(host, port, "--grpc-port")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Misconfigured, match="address_unusable"):
        bind_port("192.0.2.1", 0)


def test_the_port_after_the_last_one_and_a_host_that_is_no_name_are_refused() -> None:
    """gRPC's port is the next one by default, so `--port 65535` asks for it."""
    with pytest.raises(Misconfigured, match=r"address_unusable: port 65536 .* give another with --grpc-port"):
        bind_port("127.0.0.1", 65_536, "--grpc-port")
    with pytest.raises(Misconfigured, match=r"address_unusable: cannot listen on ä"):
        bind_port("ä" * 70, 0)
