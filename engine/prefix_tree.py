"""Which token sequences have their KV in the context: a radix tree whose leaves own the sequence ids.

A node is a run of tokens and of the cells that hold their KV; all sequences below it share them. A leaf owns one sequence id,
which covers the whole path down to it; other nodes own none. So the cells in use are the tokens of all nodes, and what a
sequence would give back is the length of its leaf's own run. Requests grow their leaf; a leaf that no request holds is kept
for those to come.

Two nodes under one parent may start with the same tokens: requests that computed the same at the same time. The longer
match counts.

Source: RadixAttention (Zheng et al., SGLang, arXiv 2312.07104), with sequence ids in the place of pages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

_STRIDE: Final = 64
"""Slices are compared in C, so long runs are compared in slices first."""


def common_length(run: Sequence[int], tokens: Sequence[int], at: int = 0) -> int:
    """Return how many tokens of `run` follow in `tokens` from index `at` on."""
    longest = min(len(run), len(tokens) - at)
    same = 0
    while same + _STRIDE <= longest and run[same : same + _STRIDE] == tokens[at + same : at + same + _STRIDE]:
        same += _STRIDE
    while same < longest and run[same] == tokens[at + same]:
        same += 1
    return same


@dataclass(eq=False, slots=True)
class Leaf:
    """A sequence id and the node that its path ends with; `in_use` while a request computes in it.

    Of what `is_private` leaves alone hold, nobody else is told. `rent_from_s` is what a cell had cost until it was left, `used_at` is in
    seconds since 1970. `conversation` is that of the last request. A leaf that `lacks_checkpoint` cannot be gone on from yet.
    """

    sequence_id: int
    node: "Node"
    in_use: bool = True
    is_private: bool = False
    rent_from_s: float = 0.0
    used_at: float = 0.0
    conversation: str | None = None
    lacks_checkpoint: bool = False

    @property
    def length(self) -> int:
        """How many tokens the sequence holds."""
        return self.node.end

    @property
    def usable_length(self) -> int:
        return 0 if self.lacks_checkpoint else self.length

    @property
    def own_cells(self) -> int:
        """The cells that no other sequence shares."""
        return len(self.node.run)

    def tokens(self, start: int = 0) -> list[int]:
        """Return what the sequence holds, from a position on."""
        nodes = [node for node in self.node.path() if node.end > start]
        runs = (node.run[max(0, start - node.start) :] for node in reversed(nodes))
        return [*chain.from_iterable(runs)]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Node:
    """`run` starts at position `start`. A node has a leaf or children, and of these two or more; only a root may differ."""

    parent: "Node | None"
    start: int
    run: list[int]
    children: list["Node"] = field(default_factory=list)
    leaf: Leaf | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.run)

    def path(self) -> Iterator["Node"]:
        """Yield this node and those above it."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def is_public(self) -> bool:
        return any(not leaf.is_private for leaf in self.leaves())

    def leaves(self) -> Iterator[Leaf]:
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()


class Match(NamedTuple):
    """`length` tokens are there; the last of them lies in `node` (for length 0, the root). Valid until the tree changes."""

    node: Node
    length: int

    @property
    def source(self) -> Leaf | None:
        """A sequence that holds these tokens, None for no tokens."""
        return next(self.node.leaves(), None) if self.length else None

    @property
    def idle_leaf(self) -> Leaf | None:
        """The sequence that holds just these tokens and that no request holds, if there is one."""
        leaf = self.node.leaf
        return leaf if leaf is not None and not leaf.in_use and leaf.length == self.length else None

    def following(self, limit: int) -> list[int]:
        """Return up to so many tokens with which a known sequence goes on after the matched ones; none of a private one."""
        at = self.length - self.node.start
        found = self.node.run[at : at + limit] if self.node.is_public else []
        node: Node | None = self.node
        while node is not None and len(found) < limit:
            node = next((child for child in node.children if child.run and child.is_public), None)
            found += [] if node is None else node.run[: limit - len(found)]
        return found


class PrefixTree:
    """The sequences of one context. Namespaces share nothing with one another."""

    def __init__(self) -> None:
        self._roots: WeakValueDictionary[str, Node] = WeakValueDictionary()  # a namespace ends with its last leaf
        self._leaves: dict[int, Leaf] = {}

    @property
    def leaves(self) -> list[Leaf]:
        """All leaves, the least recently touched first."""
        return list(self._leaves.values())

    @property
    def cells(self) -> int:
        """How many cells all sequences use together."""
        return sum(len(node.run) for node in _nodes_above(self._leaves.values()))

    def match(self, namespace: str, tokens: Sequence[int]) -> Match:
        """Return the longest beginning of the tokens that is here."""
        return _descend(self._roots.setdefault(namespace, Node(None, 0, [])), tokens, 0)

    def is_held_elsewhere(self, leaf: Leaf) -> bool:
        """Whether another leaf holds all tokens of this one, in shared cells or in its own."""
        *_, root = leaf.node.path()
        return _descend(root, leaf.tokens(), 0, without=leaf.node).length == leaf.length

    def fork(self, match: Match, sequence_id: int) -> Leaf:
        """Return a new leaf, in use, that starts with the matched tokens. Its id must be free, and cover them natively."""
        assert sequence_id not in self._leaves, f"sequence id {sequence_id} is taken"
        branch = _branch_at(match)
        node = Node(branch, branch.end, [])
        branch.children.append(node)
        leaf = node.leaf = self._leaves[sequence_id] = Leaf(sequence_id, node)
        return leaf

    def touch(self, leaf: Leaf) -> None:
        """Count a use of the leaf."""
        self._leaves[leaf.sequence_id] = self._leaves.pop(leaf.sequence_id)

    def extend(self, leaf: Leaf, tokens: Sequence[int]) -> None:
        """Add computed tokens to a leaf."""
        leaf.node.run += tokens

    def remove(self, leaf: Leaf) -> None:
        """Forget a leaf, and with it the cells that it alone holds."""
        node, parent = leaf.node, leaf.node.parent
        assert self._leaves.get(leaf.sequence_id) is leaf, (
            f"the leaf of sequence id {leaf.sequence_id} has gone already"
        )
        assert parent is not None, "a root has no leaf"
        del self._leaves[leaf.sequence_id]
        parent.children.remove(node)
        if len(parent.children) == 1 and parent.parent is not None:
            _absorb(parent, parent.children[0])

    def empty(self, leaf: Leaf) -> None:
        """Let a leaf start again without any token."""
        *_, root = leaf.node.path()
        self.remove(leaf)
        leaf.node = Node(root, 0, [], leaf=leaf)
        root.children.append(leaf.node)
        self._leaves[leaf.sequence_id] = leaf

    def cells_in_use(self, also: Match | None = None) -> int:
        """Return how many cells the leaves in use hold together, and those of a match; the others could be given up."""
        nodes = _nodes_above(leaf for leaf in self._leaves.values() if leaf.in_use)
        cells = sum(len(node.run) for node in nodes)
        if also is not None:
            cells += sum(min(node.end, also.length) - node.start for node in also.node.path() if node not in nodes)
        return cells

    def check(self) -> None:
        """Raise AssertionError where the tree contradicts itself. Walks all of it."""
        found: list[Leaf] = []
        for root in self._roots.values():
            assert root.parent is None, "a root has a parent"
            assert not root.run, "a root holds tokens"
            assert root.leaf is None, "a root is a leaf"
            _check_below(root)
            found += root.leaves()
        assert {leaf.sequence_id: leaf for leaf in found} == self._leaves, "a leaf is lost"
        assert len(found) == len(self._leaves), "two leaves share a sequence id"


def _nodes_above(leaves: Iterable[Leaf]) -> set[Node]:
    """Return the nodes that hold the tokens of some leaves, each once."""
    return {node for leaf in leaves for node in leaf.node.path()}


def _descend(node: Node, tokens: Sequence[int], at: int, without: Node | None = None) -> Match:
    best = Match(node, at)
    for child in node.children:
        common = 0 if child is without else common_length(child.run, tokens, at)
        if common == 0:
            continue
        is_all = common == len(child.run)
        found = _descend(child, tokens, at + common, without) if is_all else Match(child, at + common)
        if found.length > best.length:
            best = found
    return best


def _branch_at(match: Match) -> Node:
    """Return a node without a leaf that ends where the match does; what goes on there becomes its child."""
    node, length = match
    if node.parent is None or (length == node.end and node.leaf is None):
        return node
    rest = Node(node, length, node.run[length - node.start :], node.children, node.leaf)
    node.run, node.children, node.leaf = node.run[: length - node.start], [rest], None
    _adopt(rest)
    return node


def _absorb(parent: Node, child: Node) -> None:
    """Make one node of a parent and its only child."""
    parent.run += child.run
    parent.children, parent.leaf = child.children, child.leaf
    _adopt(parent)


def _adopt(node: Node) -> None:
    """Make the children and the leaf that a node got from another one its own."""
    for child in node.children:
        child.parent = node
    if node.leaf is not None:
        node.leaf.node = node


def _check_below(node: Node) -> None:
    for child in node.children:
        assert child.parent is node, "a child of another parent"
        assert child.start == node.end, "a node does not start where its parent ends"
        if child.leaf is None:
            assert len(child.children) >= 2, "neither a leaf nor a branch"
            assert child.run, "a branch without tokens"
        else:
            assert not child.children, "a leaf with children"
            assert child.leaf.node is child, "a leaf of another node"
        _check_below(child)
