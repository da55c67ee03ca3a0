import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinyon.app.history.errors import NoMessageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Message, Role, State
from pinyon.app.history.tree import Tree


def message(number, parent=None, used=None):
    return Message(number, "c", parent, Role.USER, str(number), "", State.COMPLETE, 0.0, used=used or number)


def path_of(tree, leaf=None):
    return [each.id for each in tree.path(leaf)]


FORKED = [message(1), message(2, 1), message(3, 2), message(4, 1), message(5, 4), message(6, 4)]
"""1 - 2 - 3, and beside 2 a 4 with the answers 5 and 6."""


def test_an_empty_tree_has_an_empty_path():
    assert Tree([]).path() == []


def test_the_path_goes_to_what_was_used_last():
    assert path_of(Tree(FORKED)) == [1, 4, 6]
    used = [msgspec.structs.replace(each, used=9) if each.id == 3 else each for each in FORKED]
    assert path_of(Tree(used)) == [1, 2, 3]
    assert path_of(Tree(used), 5) == [1, 4, 5]


def test_siblings_are_in_the_order_of_their_age():
    tree = Tree(reversed(FORKED))
    assert tree.siblings(4) == [2, 4]
    assert tree.siblings(6) == [5, 6]
    assert tree.siblings(1) == [1]


def test_a_branch_leads_to_its_leaf_that_was_used_last():
    tree = Tree([*FORKED[:4], message(5, 4, used=8), message(6, 4)])
    assert (tree.leaf_below(2), tree.leaf_below(4), tree.leaf_below(3)) == (3, 5, 3)


def test_a_message_that_was_used_without_what_follows_it_ends_the_path():
    tree = Tree([*FORKED[:3], message(4, 1, used=9), *FORKED[4:]])
    assert path_of(tree) == [1, 4]


def test_what_is_not_there_is_an_error():
    tree = Tree(FORKED)
    for ask in (tree.message, tree.path, tree.siblings, tree.leaf_below):
        with pytest.raises(NoMessageError, match="99"):
            ask(99)


def test_parents_that_cannot_be_are_none():
    """A file may say anything: a circle, a message that is its own parent, one that is not there."""
    tree = Tree([message(1, 2), message(2, 1), message(3, 3), message(4, 99)])
    assert [path_of(tree, each) for each in (1, 2, 3, 4)] == [[1], [1, 2], [3], [4]]
    assert tree.siblings(3) == [1, 3, 4]
    assert tree.leaf_below(1) == 2


ACTIONS = st.lists(st.tuples(st.sampled_from(["add", "use", "restart"]), st.integers(0, 50)), max_size=25)


@settings(max_examples=30, deadline=None)  # each of them writes a file
@given(ACTIONS)
def test_a_history_keeps_the_tree_that_was_grown(tmp_path_factory, actions):
    """Against the plainest model: a list of parents, and who was used last."""
    path = tmp_path_factory.mktemp("tree") / "history.db"
    history = History(path)
    name = history.start(title="", model="").id
    parents, order = {}, []
    for action, choice in actions:
        numbers = sorted(parents)
        if action == "add":
            parent = numbers[choice % len(numbers)] if numbers and choice % 7 else None
            added = history.add(name, parent, Role.USER, "word").id
            assert added > max(parents, default=0)
            parents[added] = parent
            order.append(added)
        elif action == "use" and numbers:
            used = numbers[choice % len(numbers)]
            history.use_leaf(name, used)
            order.append(used)
        elif action == "restart":
            history.close()
            history = History(path)
    tree = history.tree(name)
    assert {each.id: each.parent for each in tree.messages.values()} == parents
    assert path_of(tree) == way(parents, order[-1] if order else None)
    for each, parent in parents.items():
        assert tree.siblings(each) == sorted(other for other, theirs in parents.items() if theirs == parent)
        below = [other for other in parents if each in way(parents, other)]
        assert tree.leaf_below(each) == max(below, key=lambda other: len(order) - order[::-1].index(other))
    history.close()


def way(parents, leaf):
    return [] if leaf is None else [*way(parents, parents[leaf]), leaf]
