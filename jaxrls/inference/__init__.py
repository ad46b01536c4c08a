"""What a fit leaves behind: predictions, influence, labels."""
