"""Six conversations with one system prompt take turns in a context that holds three: how many prompt tokens are reused.

Answers of 64 tokens go back as text, as chat clients send them. `oracle_tokens` is what could be reused at best: every token of a
prompt that was in an earlier prompt or answer at that place. With a peer the same is said to llama.cpp's server.
"""

import asyncio
import tempfile
from pathlib import Path

import httpx
import msgspec
from common import finish, parse_arguments, say
from serving import Server, llama_server, pinyon_server

from pinyon.models.machine.cores import read_cores

CONVERSATIONS = 6
TURNS = 10
ANSWER_TOKENS = 64
SYSTEM_WORDS = 1480
CONTEXT_TOKENS = 7424
"""About three conversations of 1,500 tokens for the system prompt and 10 turns."""
SUBJECTS = ("rivers", "bridges", "engines", "gardens", "islands", "lanterns")
PEER_OPTIONS = ("--kv-unified", "--cache-ram", "8192", "--cache-reuse", "64")


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details = _Details()


class _Message(msgspec.Struct, frozen=True):
    content: str


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Timings(msgspec.Struct, frozen=True):
    queue_s: float = 0.0
    prefill_s: float = 0.0
    prompt_ms: float = 0.0


class _Extras(msgspec.Struct, frozen=True):
    timings: _Timings = _Timings()


class _Answer(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...]
    usage: _Usage
    pinyon: _Extras = _Extras()
    timings: _Timings = _Timings()

    @property
    def first_token_s(self) -> float:
        """Queue and prefill, as either server tells them."""
        return self.pinyon.timings.queue_s + self.pinyon.timings.prefill_s + self.timings.prompt_ms / 1000


def system_prompt() -> str:
    return " ".join(f"Rule {number} is to be kind." for number in range(SYSTEM_WORDS // 6))


async def talk(server: Server) -> dict[str, float]:
    """Hold the conversations; return sums over all turns."""
    hits = oracle = first_s = prompts = 0.0
    histories = [[{"role": "system", "content": system_prompt()}] for _ in range(CONVERSATIONS)]
    known = [0] * CONVERSATIONS
    system_tokens = 0
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        for turn in range(TURNS):
            for index, history in enumerate(histories):
                history.append({"role": "user", "content": f"Question {turn} about {SUBJECTS[index]}?"})
                body = {"messages": history, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
                response = await client.post("/v1/chat/completions", content=msgspec.json.encode(body))
                if response.status_code != 200:
                    raise SystemExit(f"invalid run: {response.status_code}: {response.text}")
                answer = msgspec.json.decode(response.content, type=_Answer)
                history.append({"role": "assistant", "content": answer.choices[0].message.content})
                usage = answer.usage
                system_tokens = system_tokens or usage.prompt_tokens
                hits += usage.prompt_tokens_details.cached_tokens
                oracle += known[index] or (system_tokens - 12 if index else 0)
                first_s += answer.first_token_s
                prompts += usage.prompt_tokens
                known[index] = usage.prompt_tokens + usage.completion_tokens
            say(f"turn {turn}: {hits:,.0f} of {oracle:,.0f} tokens reused, {first_s:.1f} s to first tokens")
    return {"hits": hits, "oracle": oracle, "first_s": first_s, "prompts": prompts}


def main() -> None:
    arguments = parse_arguments(__doc__, rounds=1, peer="llama-server of llama.cpp", needs_peer=False)
    with (
        tempfile.TemporaryDirectory() as home,
        pinyon_server(arguments.model, home, context_tokens=CONTEXT_TOKENS) as server,
    ):
        ours = asyncio.run(talk(server))
    result = {
        "model": Path(arguments.model).name,
        "prompt_tokens": int(ours["prompts"]),
        "hit_tokens": int(ours["hits"]),
        "oracle_tokens": int(ours["oracle"]),
        "ratio": round(ours["hits"] / ours["oracle"], 4),
        "ttft_sum_s": round(ours["first_s"], 2),
    }
    if arguments.peer is not None:
        options = arguments.peer_option or PEER_OPTIONS
        with llama_server(
            arguments.peer,
            arguments.model,
            context_tokens=CONTEXT_TOKENS,
            threads=read_cores().threads,
            slots=CONVERSATIONS // 2,
            options=options,
        ) as peer:
            theirs = asyncio.run(talk(peer))
        result |= {"peer_hit_tokens": int(theirs["hits"]), "peer_ttft_sum_s": round(theirs["first_s"], 2)}
    finish(result)


if __name__ == "__main__":
    main()
