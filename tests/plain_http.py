"""httpx's functions for servers without TLS. Each call of the originals reads every certificate authority: 40 ms of processor, before a test begins."""

import ssl
from functools import partial

import httpx

_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
get, post, put, request = (
    partial(call, verify=_NO_AUTHORITIES, timeout=60.0) for call in (httpx.get, httpx.post, httpx.put, httpx.request)
)
