"""What a model file holds, read from its header alone."""
