"""Models that are on this machine already: in folders, and in the stores of other programs."""
