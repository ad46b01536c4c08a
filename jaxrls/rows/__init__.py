"""Rows of X that are not one array: rows read from files, spread over devices, or from your own
source."""

from jaxrls.core.data import DenseRows
from jaxrls.rows.host import HostRows as Rows
from jaxrls.rows.sharded import ShardedRows, shard
from jaxrls.rows.sources import stream

__all__ = ["DenseRows", "Rows", "ShardedRows", "shard", "stream"]
