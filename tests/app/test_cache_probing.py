"""F7: who has one token of --token-file learns nothing of the prompts of another: not from an answer, not from its time.

What an answer says and how much was computed for it is exact, and is compared exactly. Time is noisy: it is compared by
ranks, over enough probes that a tenth of a prompt would be seen.
"""

import contextlib
import json
import random
import time
from bisect import bisect_left, bisect_right
from math import sqrt
from statistics import NormalDist

import httpx
import pytest
from command_line import pinyon, serving

pytestmark = pytest.mark.model

ALICE, BOB, CAROL = TOKENS = ("the-token-of-alice", "the-token-of-bob", "the-token-of-carol")
PROMPT_TOKENS = 128
PROBES = 200
CHANCE = 0.01
"""Less probable differences count as real, if they show twice."""


@contextlib.contextmanager
def client_of(home, model, vocabulary):
    """A client of a server that has these tokens."""
    pinyon(home, "add", model, "--name", "model", check=True)
    tokens = home / "tokens"
    tokens.write_text("\n".join(TOKENS))
    tokens.chmod(0o600)
    with (
        serving(home, "--model", "model", "--preload", "--token-file", str(tokens)) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http,
    ):
        yield Client(http, vocabulary)


class Client:
    """Asks for one token after a prompt of random tokens, below `vocabulary`, that nobody has sent before."""

    def __init__(self, http, vocabulary):
        self._http = http
        self._random = random.Random(7)
        self._vocabulary = vocabulary

    def new_prompt(self):
        return self._random.choices(self._vocabulary, k=PROMPT_TOKENS)

    def is_heads(self):
        return self._random.random() < 0.5

    def ask(self, token, prompt):
        """Return what an answer says about computing its prompt, and the seconds to its first token."""
        body = {"prompt": prompt, "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}}
        started = time.perf_counter()
        with self._http.stream(
            "POST", "/v1/completions", json=body, headers={"authorization": f"Bearer {token}"}
        ) as answer:
            assert answer.status_code == 200
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            first = next(lines)
            seconds = time.perf_counter() - started
            chunks = [json.loads(line[6:]) for line in (first, *lines) if line != "data: [DONE]"]
        (cache,) = (chunk["pinyon"]["cache"] for chunk in chunks if "pinyon" in chunk)
        return (chunks[-1]["usage"], cache), seconds


def rank_test(one, other):
    """Return how probable ranks that differ so much are if nothing but chance is behind them.

    Two-sided, by the normal approximation; equals share their ranks (Mann and Whitney, 1947).
    """
    both = sorted([*one, *other])
    ranks = sum((bisect_left(both, each) + bisect_right(both, each) + 1) / 2 for each in one)
    pairs = len(one) * len(other)
    excess = ranks - len(one) * (len(one) + 1) / 2 - pairs / 2
    return 2 * NormalDist().cdf(-abs(excess) / sqrt(pairs * (len(both) + 1) / 12))


def test_the_rank_test_tells_chance_from_a_small_shift():
    chance = random.Random(1)
    one, same = ([chance.gauss(100, 10) for _ in range(PROBES)] for _ in range(2))
    assert rank_test(one, same) > CHANCE
    assert rank_test(one, [each + 5 for each in same]) < CHANCE
    assert rank_test([1, 1, 2], [1, 2, 2]) == rank_test([1, 2, 2], [1, 1, 2])
    # U = 0 of 9 pairs, by the formula: z = 4.5 / sqrt(9 * 7 / 12)
    assert rank_test([1, 2, 3], [4, 5, 6]) == pytest.approx(0.0495, abs=1e-4)


def test_an_answer_tells_nothing_of_another_one_s_prompts(tmp_path, tiny):
    with client_of(tmp_path, tiny, range(97, 123)) as client:
        seen, unseen = client.new_prompt(), client.new_prompt()
        new, _ = client.ask(ALICE, seen)
        assert new[1]["miss"] == "new"
        assert client.ask(BOB, seen)[0] == client.ask(CAROL, unseen)[0] == new
        assert client.ask(ALICE, seen)[0] != new, "there was something to find"


def times(client, prober):
    """Return the seconds of a probe for a prompt that Alice has just sent, and for one that nobody has, of many such pairs."""
    found = ([], [])
    for _ in range(PROBES):
        for is_seen in (first := client.is_heads(), not first):
            seen, unseen = client.new_prompt(), client.new_prompt()
            client.ask(ALICE, seen)
            found[not is_seen].append(client.ask(prober, seen if is_seen else unseen)[1])
    return found


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_an_answer_comes_no_sooner_for_another_one_s_prompt(tmp_path, smollm2):
    with client_of(tmp_path, smollm2, range(1000, 30000)) as client:
        assert any(rank_test(*times(client, BOB)) > CHANCE for _ in range(2))
        seen, unseen = times(client, ALICE)
        assert rank_test(seen, unseen) < CHANCE, "her own she finds sooner: the test can see it"
