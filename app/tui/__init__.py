"""The HTTP door: its guard, its connections, and one file for each dialect that it speaks."""
