"""What a fit predicts without some of its rows: solves with blocks of one matrix, R = I − H."""
