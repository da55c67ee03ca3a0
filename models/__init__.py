"""Model files: what a GGUF says, where files come from, what is on disk, how messages become prompts."""
