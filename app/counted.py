"""Numbers of things in sentences."""


def counted(number: int, thing: str) -> str:
    """Return the number with the thing's name, in the plural where there is not just one: "1 token", "2,000 tokens"."""
    return f"1 {thing}" if number == 1 else f"{number:,} {thing}s"


def memory(size_bytes: int) -> str:
    """Return bytes as people speak of memory: "1.2 GiB", "300 MiB"."""
    return f"{size_bytes / 2**30:,.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
