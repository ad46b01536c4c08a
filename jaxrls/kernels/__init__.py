"""What a kernel is and its algebra; the families; those that a caller brings."""
