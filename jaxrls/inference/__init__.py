"""What a fit leaves behind: predictions, uncertainty, influence, class labels."""
