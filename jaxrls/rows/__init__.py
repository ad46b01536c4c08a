"""The n rows of X where they are not one array: from files, on many devices, or of your own."""

from jaxrls.core.data import DenseRows
from jaxrls.rows.host import HostRows as Rows
from jaxrls.rows.sharded import ShardedRows, shard
from jaxrls.rows.sources import stream

__all__ = ["DenseRows", "Rows", "ShardedRows", "shard", "stream"]
