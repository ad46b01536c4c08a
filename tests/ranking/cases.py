"""The columns of the grid of pairs and queries."""

from contract.cases import COLUMNS, ELSEWHERE, PLANS

import jaxrls as rls

COLUMNS["pairs"] = rls.ranking.PairsOut(loss=rls.extend.squared_error)
ELSEWHERE["queries"] = rls.ranking.QueriesOut(PLANS["uneven"])
