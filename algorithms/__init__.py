"""Credit-assignment algorithms: the training mathematics, importing torch only."""
