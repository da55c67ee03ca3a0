"""Pinyon: local LLM inference on the machine in front of you."""
