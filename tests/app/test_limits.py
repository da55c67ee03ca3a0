"""The table of limits says what the constants are, and the constants are what is enforced elsewhere."""

import pytest

from pinyon.app import limits

SHOWN = {
    "body of a request": "8 MiB",
    "request line and headers": "32 KiB, 200 headers",
    "tokens in --token-file": "256",
    "open connections": "512",
    "answers that wait for their turn, each choice of n counted (the setting max_queued)": "128",
    "those of one client: token, user or connection (the setting max_queued_per_client)": "128",
    "time to the first token, where a request has ttft_deadline_s": "as predicted",
    "wait of a model for others to leave memory": "60 s",
    "time to receive a request": "15 s",
    "time without a next request on a connection": "5 s",
    "time in which a client reads nothing": "30 s",
    "silence in a stream": "10 s",
    "time to finish answers at shutdown": "10 s",
    "model, a name": "512 characters",
    "n": "8",
    "stop": "16 strings of 256 bytes",
    "logit_bias": "1,024 tokens",
    "top_logprobs": "20",
    "prompts of one completion request": "16",
    "token ids of a prompt, or to detokenize": "1,048,576",
    "messages": "4,096",
    "content parts of all messages": "4,096",
    "tool_calls of a message": "128",
    "JSON schema": "64 KiB, 32 levels, 2,000 nodes",
    "GBNF or Lark grammar": "64 KiB, 200 levels",
    "regular expression": "512 bytes",
    "check of a grammar, regular expression or schema": "1 s, 512 MiB of memory",
    "such checks at once": "2",
    "chat template": "256 KiB, 2 s, 256 MiB of memory",
}


def test_the_table_shows_every_number():
    assert {row.name: row.value for row in limits.TABLE} == SHOWN


def test_each_row_says_what_happens_past_it():
    assert all(row.past for row in limits.TABLE)
    assert {row.past for row in limits.TABLE if "Retry-After" in row.past} == {
        "503 with Retry-After: 5",
        "503 with Retry-After: 5, and the connection is closed",
        "503 with Retry-After as predicted",
        "429 with Retry-After as predicted",
    }


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(512, "512 bytes"), (1024, "1 KiB"), (1025, "1,025 bytes"), (1536 << 10, "1,536 KiB"), (2048 << 20, "2,048 MiB")],
)
def test_sizes_are_shown_exactly(size_bytes, shown):
    assert limits._size(size_bytes) == shown
