"""KV is the same by bytes wherever it comes from: computed, shared in the context, brought back from RAM, or from disk after a restart.

Conversations are random, models are real. After each thing that is done, all cells that any sequence holds are compared.
"""

from contextlib import closing

import pytest
from conversation_trees import ACTIONS, LONG_TREES, ConversationTree, grow
from kv_bytes import TIERS, KvWitness

from pinyon.engine.block import BLOCK_TOKENS

pytestmark = pytest.mark.model


TRAINED = [
    ConversationTree.next_turn,
    ConversationTree.rest,
    ConversationTree.press,
    ConversationTree.next_turn,
    ConversationTree.neighbour,
    ConversationTree.edit,
    ConversationTree.restart,
    ConversationTree.alternate,
    ConversationTree.shorter,
]


def test_kv_is_the_same_wherever_it_comes_from(tiny_model, tmp_path):
    grown = grow(tiny_model, tmp_path, trees=6, actions=30)
    grown.require(hits=15, cells=1000)
    assert grown.actions.keys() == {action.__name__ for action in ACTIONS}


def test_kv_of_a_trained_model_is_the_same_wherever_it_comes_from(smollm2, tmp_path):
    witness = KvWitness()
    with closing(ConversationTree(smollm2, tmp_path / "kv", 0, witness, contexts=(320,))) as tree:
        for action in TRAINED:
            tree.do(action)
    assert all(witness.cells[tier] >= BLOCK_TOKENS for tier in TIERS), f"only {witness.cells} cells were compared"


def test_a_comparison_of_too_little_is_noticed(tiny_llama, tmp_path):
    grown = grow(tiny_llama, tmp_path, trees=1, actions=1)
    with pytest.raises(AssertionError, match="only"):
        grown.require(hits=1, cells=1)


@pytest.mark.long
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize(
    ("name", "contexts"),
    [
        ("smollm2", (384, 512)),
        ("gemma3:270m", (1024, 1536)),  # its window is 512
        ("qwen2.5-coder:0.5b", (384, 512)),
        ("qwen2.5-coder:1.5b", (384, 512)),
    ],
)
def test_kv_is_the_same_in_hundreds_of_trees(catalogue_model, name, contexts, tmp_path):
    grown = grow(catalogue_model(name), tmp_path, LONG_TREES, 30, contexts=contexts)
    grown.require(hits=LONG_TREES, cells=LONG_TREES * BLOCK_TOKENS)
