"""Criteria of the order of rows, computed with pairs of rows or whole queries held out."""

from jaxrls.ranking.criteria import PairsOut, QueriesOut, misordered, pairwise_ranking_error

__all__ = ["PairsOut", "QueriesOut", "misordered", "pairwise_ranking_error"]
