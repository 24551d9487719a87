"""The digests of a shard's rows, as a seal has them."""

from collections.abc import Iterable

from schemas.index.digest import ShardDigest
from schemas.index.layout import RowBlock
from streams.encoder_protocol import Encoder


def digest_blocks(encoder: Encoder, blocks: Iterable[RowBlock]) -> ShardDigest:
    digest = ShardDigest(encoder.layout, encoder.model_id, encoder.lsh_version)
    for block in blocks:
        digest.update(block)
    return digest
