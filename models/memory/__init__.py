"""How much memory a model takes, from its header alone, and what of it fits."""
