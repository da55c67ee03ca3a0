import pytest

from pinyon.models.output_parser import reasoning_tags

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("template", "start", "ends"),
    [
        (CHATML + "<think>\n", "<think>", ("</think>",)),
        ("{% set content = content.split('</think>')[-1] %}", "<think>", ("</think>",)),
        ("{{ '[THINK]' + thoughts + '[/THINK]' }}", "[THINK]", ("[/THINK]",)),
        ("{{ '<|START_THINKING|>' }}", "<|START_THINKING|>", ("<|END_THINKING|>",)),
        (
            "<|start|>assistant<|channel|>analysis<|message|>{{ thinking }}<|end|>",
            "<|channel|>analysis<|message|>",
            ("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
        ),
    ],
)
def test_a_template_tells_the_tags_of_its_model(template, start, ends):
    tags = reasoning_tags(template)
    assert tags is not None
    assert (tags.start, tags.ends) == (start, ends)


@pytest.mark.parametrize("template", [None, CHATML, "I think, therefore {{ i }}", ""])
def test_a_model_whose_template_has_no_tags_does_not_think_aloud(template):
    assert reasoning_tags(template) is None


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
    ],
)
def test_a_block_is_open_where_the_prompt_ends_with_the_start_tag(prompt, is_open):
    tags = reasoning_tags("<think>")
    assert tags is not None
    assert tags.are_open_in(prompt) is is_open
