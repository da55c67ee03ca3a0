"""The engine: requests in, events out; scheduling, sampling and llama.cpp behind them."""
