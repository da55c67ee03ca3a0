"""What this machine has to compute with, and how fast it is."""
