"""Whole engines on the fake memory: one namespace learns nothing of another, wherever that is kept."""

import pytest
from fakes import END_OF_TURN, make_engine, make_store, run_to_end, submit
from kv_world import ABC, World, ask

from pinyon.engine.cache_report import CacheReport, Miss
from pinyon.engine.events import Finished

NOTHING = CacheReport(miss=Miss.NEW)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def computed_for(world, name, prompt, namespace):
    """Return what is said about a request, and how many tokens of its prompt were computed."""
    _, report = world.run(name, prompt, namespace=namespace)
    return report, world.made.runner.computed[name] - 7


@pytest.mark.parametrize("is_restarted", [False, True], ids=["context", "disk"])
@pytest.mark.parametrize(
    "probe", [ABC[:150], ABC[:100], f"{ABC[:100]}and then?", ABC[:64]], ids=["all", "a part", "a guess", "a block"]
)
def test_another_one_s_prompt_is_computed_like_any_other(world, probe, is_restarted):
    world.run("a", ABC[:150], namespace="A")
    if is_restarted:
        world = world.restarted()
    assert computed_for(world, "b", probe, "B") == (NOTHING, len(probe))
    assert computed_for(world, "c", probe, "") == (NOTHING, len(probe))
    report, computed = computed_for(world, "d", probe, "A")  # so there was something to find
    assert report.cached == len(probe) - computed >= 63
    world.engine.close()


def test_what_had_to_make_room_is_not_told_to_others():
    made = make_engine(cells=256, store=make_store(blocks=4))
    for name, prompt in (("a", ABC[:200]), ("b", ABC[200:400])):
        run_to_end(made.engine, ask(name, prompt, namespace="A"))
        made.engine.tidy()
    ends = [run_to_end(made.engine, ask(name, ABC[:200], namespace=name))[name][-1] for name in ("B", "A")]
    assert [end.cache.miss for end in ends] == [Miss.NEW, Miss.EVICTED]


def test_nobody_waits_for_what_another_one_computes():
    made = make_engine()
    for name in ("A", "B"):
        submit(made.engine, ask(name, ABC[:300], namespace=name))
    made.engine.step()
    assert [sequence.request.id for sequence in made.scheduler.running] == ["A", "B"]
    ends = {}
    while made.engine.busy:
        ends |= {name: event for name, event in made.engine.step() if isinstance(event, Finished)}
    assert [ends[name].usage.cached_tokens for name in ("A", "B")] == [0, 0]
    assert made.runner.computed == {"A": 307, "B": 307}


def test_an_answer_is_spelled_as_it_was_in_its_own_namespace_alone(tmp_path):
    def says(_request_id, _tokens, generated):
        return (*b"a lion", END_OF_TURN)[generated]

    world = World(tmp_path, next_token=says)
    world.run("a", "q", namespace="A")
    for _ in range(2):
        find = world.engine._past_answers.find
        assert [find(namespace, b"qa lion") for namespace in ("A", "B", "")] == [tuple(b"qa lion"), None, None]
        world = world.restarted()
    world.engine.close()
