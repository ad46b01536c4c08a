"""Pairs of rows and queries: held out together, and criteria of their order."""

from jaxrls.ranking.criteria import PairsOut, QueriesOut, misordered, pairwise_ranking_error

__all__ = ["PairsOut", "QueriesOut", "misordered", "pairwise_ranking_error"]
