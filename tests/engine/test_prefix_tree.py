"""The tree against a model without one: each sequence is a list of tokens in numbered cells, and a fork shares the cells."""

import gc
from itertools import count, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pinyon.engine.prefix_tree import PrefixTree, common_length

NAMESPACES = st.sampled_from(["", "other"])
TOKENS = st.lists(st.integers(0, 2), max_size=5)
IDS = 6


def length_in_common(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(same=st.integers(0, 200), rest=TOKENS, other_rest=TOKENS, before=TOKENS, as_tuple=st.booleans())
def test_the_common_length_is_that_of_a_plain_loop(same, rest, other_rest, before, as_tuple):
    shared = [position % 7 for position in range(same)]
    run, tokens = [*shared, *rest], [*before, *shared, *other_rest]
    found = common_length(tuple(run) if as_tuple else run, tokens, len(before))
    assert found == length_in_common(run, tokens[len(before) :]) >= same


class TreeMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.tree = PrefixTree()
        self.namespaces = {}
        self.kv = {}
        """Leaf -> (token, cell) by position; the least recently used leaf first."""
        self.new_cells = count()

    def some_leaf(self, data):
        return data.draw(st.sampled_from([*self.kv]))

    def kv_of(self, match):
        return self.kv[match.source][: match.length] if match.source else []

    def some_tokens(self, data):
        """Return the beginning of a sequence, perhaps of another namespace, with another end."""
        known = tokens_of(data.draw(st.sampled_from([*self.kv.values()] or [[]])))
        return [*known[: len(known) - data.draw(st.integers(0, len(known)))], *data.draw(TOKENS)]

    @precondition(lambda self: len(self.kv) < IDS)
    @rule(data=st.data(), namespace=NAMESPACES, stays_in_use=st.booleans())
    def fork(self, data, namespace, stays_in_use):
        tokens = self.some_tokens(data)
        match = self.tree.match(namespace, tokens)
        self.expect_the_longest(namespace, tokens, match)
        sequence_id = min({*range(IDS)} - {leaf.sequence_id for leaf in self.kv})
        leaf = self.tree.fork(match, sequence_id)
        assert leaf.in_use
        leaf.in_use = stays_in_use
        self.kv[leaf], self.namespaces[leaf] = self.kv_of(match), namespace
        if data.draw(st.booleans()):
            self.grow(leaf, tokens[leaf.length :])

    @precondition(lambda self: self.kv)
    @rule(data=st.data(), namespace=NAMESPACES)
    def match(self, data, namespace):
        tokens = self.some_tokens(data)
        match = self.tree.match(namespace, tokens)
        self.expect_the_longest(namespace, tokens, match)
        in_use = [kv for leaf, kv in self.kv.items() if leaf.in_use]
        assert self.tree.cells_in_use(match) == distinct_cells([*in_use, self.kv_of(match)])

    def expect_the_longest(self, namespace, tokens, match):
        known = [tokens_of(kv) for leaf, kv in self.kv.items() if self.namespaces[leaf] == namespace]
        assert match.length == max((length_in_common(each, tokens) for each in known), default=0)
        assert tokens_of(self.kv_of(match)) == tokens[: match.length]
        assert match.source is None or self.namespaces[match.source] == namespace
        following = [*tokens[: match.length], *match.following(1000)]
        assert any(each[: len(following)] == following for each in [*known, []])

    @precondition(lambda self: self.kv)
    @rule(data=st.data(), tokens=TOKENS)
    def extend(self, data, tokens):
        self.grow(self.some_leaf(data), tokens)

    def grow(self, leaf, tokens):
        self.tree.extend(leaf, tokens)
        self.kv[leaf] = self.kv[leaf] + [(token, next(self.new_cells)) for token in tokens]

    @precondition(lambda self: self.kv)
    @rule(data=st.data(), in_use=st.booleans())
    def touch(self, data, in_use):
        leaf = self.some_leaf(data)
        leaf.in_use = in_use
        self.tree.touch(leaf)
        self.kv[leaf] = self.kv.pop(leaf)

    @precondition(lambda self: self.kv)
    @rule(data=st.data())
    def remove(self, data):
        leaf = self.some_leaf(data)
        freed, before = leaf.own_cells, self.tree.cells
        self.tree.remove(leaf)
        del self.kv[leaf], self.namespaces[leaf]
        assert self.tree.cells == before - freed

    @invariant()
    def every_leaf_has_its_tokens(self):
        assert self.tree.leaves == [*self.kv]
        for leaf, kv in self.kv.items():
            assert leaf.tokens() == tokens_of(kv)
            assert leaf.length == len(kv)

    @invariant()
    def cells_are_shared_as_the_forks_were(self):
        assert self.tree.cells == distinct_cells(self.kv.values())
        assert self.tree.cells_in_use() == distinct_cells(kv for leaf, kv in self.kv.items() if leaf.in_use)
        for leaf, kv in self.kv.items():
            others = [other_kv for other, other_kv in self.kv.items() if other is not leaf]
            assert leaf.own_cells == distinct_cells([*others, kv]) - distinct_cells(others)

    @invariant()
    def what_is_held_twice_is_known(self):
        for leaf, kv in self.kv.items():
            others = [
                tokens_of(other_kv)[: len(kv)]
                for other, other_kv in self.kv.items()
                if other is not leaf and self.namespaces[other] == self.namespaces[leaf]
            ]
            assert self.tree.is_held_elsewhere(leaf) == (not kv or tokens_of(kv) in others)

    @invariant()
    def the_tree_is_sound(self):
        self.tree.check()


def tokens_of(kv):
    return [token for token, _ in kv]


def distinct_cells(kvs):
    return len({cell for kv in kvs for _, cell in kv})


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def grown(tree, sequence_id, tokens, namespace=""):
    """Return a leaf for these tokens, of which it computed those that nobody had."""
    match = tree.match(namespace, tokens)
    leaf = tree.fork(match, sequence_id)
    tree.extend(leaf, tokens[match.length :])
    return leaf


def three_leaves():
    """Return [1, 2] with the children [3], [4, 5] under it, and [6] beside it, each a leaf's path."""
    tree = PrefixTree()
    return tree, [grown(tree, *each) for each in [(0, [1, 2, 3]), (1, [1, 2, 4, 5]), (2, [6])]]


def test_a_common_prefix_is_held_once():
    tree, leaves = three_leaves()
    assert [leaf.own_cells for leaf in leaves] == [1, 2, 1]
    assert tree.cells == 6


def test_what_is_in_use_together_with_a_match_counts_shared_tokens_once():
    tree, leaves = three_leaves()
    for leaf in leaves[1:]:
        leaf.in_use = False
    assert tree.cells_in_use() == 3
    for tokens, cells in [([], 3), ([1], 3), ([1, 2, 4], 4), ([1, 2, 4, 5], 5), ([6, 7], 4)]:
        assert tree.cells_in_use(tree.match("", tokens)) == cells


def test_the_longer_of_two_equal_beginnings_counts():
    tree = PrefixTree()
    one, other = (tree.fork(tree.match("", [7, 8, 9]), sequence_id) for sequence_id in range(2))
    tree.extend(one, [7])
    tree.extend(other, [7, 8])
    assert tree.match("", [7, 8, 9]) == (other.node, 2)
    tree.extend(one, [8, 9])
    assert tree.match("", [7, 8, 9]) == (one.node, 3)


def test_a_match_tells_how_known_sequences_go_on():
    tree, _ = three_leaves()
    tree.fork(tree.match("", [1, 2]), 3)
    for tokens, following in [([], [1, 2]), ([1, 9], [2]), ([1, 2, 9], [3]), ([1, 2, 4], [5]), ([6], []), ([6, 1], [])]:
        assert tree.match("", tokens).following(len(following)) == following


def test_it_tells_as_much_of_it_as_is_wanted_past_branches_and_nothing_of_what_is_private():
    tree, (_, _, alone) = three_leaves()
    beginning = tree.match("", [])
    assert [beginning.following(limit) for limit in range(4)] == [[], [1], [1, 2], [1, 2, 3]]
    assert tree.match("", [6]).following(9) == []
    longer = grown(tree, 3, [6, 7, 8])
    assert tree.match("", [6]).following(9) == [7, 8]
    alone.is_private = True
    assert tree.match("", [6]).following(9) == [7, 8]
    longer.is_private = True
    assert tree.match("", [6]).following(9) == []


def test_a_prefix_of_a_leaf_is_shared_with_it():
    tree = PrefixTree()
    long = grown(tree, 0, [1, 2, 3])
    short = tree.fork(tree.match("", [1, 2]), 1)
    assert (short.tokens(), short.own_cells) == ([1, 2], 0)
    assert (long.tokens(), long.own_cells) == ([1, 2, 3], 1)


def test_an_only_child_becomes_one_with_its_parent():
    tree, (one, other, _) = three_leaves()
    tree.remove(one)
    assert (other.own_cells, other.node.start) == (4, 0)


def test_a_shared_run_is_cut_where_another_leaf_branches_off_and_joined_when_it_goes():
    tree, (one, other, _) = three_leaves()
    middle = grown(tree, 3, [1, 9])
    tree.check()
    assert (one.tokens(), other.tokens(), middle.tokens()) == ([1, 2, 3], [1, 2, 4, 5], [1, 9])
    assert (len([*one.node.path()]), tree.cells) == (4, 7)
    tree.remove(middle)
    tree.check()
    assert (one.tokens(), other.tokens()) == ([1, 2, 3], [1, 2, 4, 5])
    assert (len([*one.node.path()]), tree.cells) == (3, 6)


def test_a_taken_sequence_id_is_refused():
    tree, _ = three_leaves()
    with pytest.raises(AssertionError, match="sequence id 1 is taken"):
        tree.fork(tree.match("", []), 1)


def test_a_leaf_goes_once():
    tree, (leaf, *_) = three_leaves()
    tree.remove(leaf)
    grown(tree, leaf.sequence_id, [5])
    with pytest.raises(AssertionError, match="has gone already"):
        tree.remove(leaf)


def test_namespaces_share_nothing():
    tree = PrefixTree()
    grown(tree, 0, [1, 2, 3], "mine")
    assert tree.match("yours", [1, 2, 3]).length == 0
    assert grown(tree, 1, [1, 2, 3], "yours").own_cells == 3


def test_nothing_is_left_of_a_namespace_without_leaves():
    tree = PrefixTree()
    tree.match("asked for", [1])
    tree.remove(grown(tree, 0, [1], "held"))
    gc.collect()
    assert not tree._roots


def share_an_id(_tree, leaves):
    leaves[1].sequence_id = leaves[0].sequence_id


def lose_a_leaf(tree, leaves):
    del tree._leaves[leaves[0].sequence_id]


def lose_a_node(_tree, leaves):
    leaves[0].node.parent.children.remove(leaves[0].node)


def lose_a_token(_tree, leaves):
    leaves[0].node.parent.run.pop()


def leave_a_branch_empty(_tree, leaves):
    branch = leaves[0].node.parent
    branch.run.clear()
    for child in branch.children:
        child.start = 0


def hold_a_child_of_another(_tree, leaves):
    leaves[0].node.parent = leaves[2].node


def leave_an_only_child(tree, leaves):
    leaves[0].node.parent.children.remove(leaves[0].node)
    del tree._leaves[leaves[0].sequence_id]


def give_a_branch_an_id(_tree, leaves):
    leaves[0].node.parent.leaf = leaves[0]


def point_to_another_node(_tree, leaves):
    leaves[0].node = leaves[2].node


def give_the_root_tokens(_tree, leaves):
    leaves[2].node.parent.run.append(1)


@pytest.mark.parametrize(
    "fault",
    [
        share_an_id,
        lose_a_leaf,
        lose_a_node,
        lose_a_token,
        leave_a_branch_empty,
        hold_a_child_of_another,
        leave_an_only_child,
        give_a_branch_an_id,
        point_to_another_node,
        give_the_root_tokens,
    ],
)
def test_check_notices_a_planted_fault(fault):
    tree, leaves = three_leaves()
    tree.check()
    fault(tree, leaves)
    with pytest.raises(AssertionError):
        tree.check()
