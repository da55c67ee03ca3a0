"""The doors: command line, settings, and the service that owns the engines."""
