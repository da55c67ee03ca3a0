"""Pinyon: local LLM inference on the machine in front of you."""

from importlib.metadata import version

__version__ = version("pinyon")
