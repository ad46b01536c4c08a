"""The columns of the grid of pairs and queries."""

from contract.cases import COLUMNS, ELSEWHERE, PLANS

import jaxrls as rls

COLUMNS["pairs"] = rls.PairsOut(loss=rls.squared_error)
ELSEWHERE["queries"] = rls.QueriesOut(PLANS["uneven"])
