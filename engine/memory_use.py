"""How much memory this process takes."""


def resident_bytes() -> int:
    import psutil  # noqa: PLC0415  takes 10 ms, which a model's load need not wait for

    return int(psutil.Process().memory_info().rss)
