"""By which tags a model tells its thoughts from its answer, read off its chat template.

The engine does the splitting, because grammars, stop strings and counts depend on it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """Thoughts run from `start` to the first of `ends`."""

    start: str
    ends: tuple[str, ...]

    def are_open_in(self, prompt: str) -> bool:
        """Whether the prompt ends inside a block: the template has written the start tag itself."""
        return prompt.rstrip().endswith(self.start.rstrip())


_KNOWN = (
    ReasoningTags("<think>", ("</think>",)),
    ReasoningTags("[THINK]", ("[/THINK]",)),
    ReasoningTags("<seed:think>", ("</seed:think>",)),
    ReasoningTags("<|START_THINKING|>", ("<|END_THINKING|>",)),
    ReasoningTags("<|channel>thought\n", ("<channel|>",)),
    ReasoningTags(
        "<|channel|>analysis<|message|>",
        ("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
    ),
)


def reasoning_tags(template: str | None) -> ReasoningTags | None:
    """Return the tags of the model with this chat template; None for one that does not think aloud.

    A template mentions its tags where it opens a block, or where it takes old thoughts out of the history. Templates put
    tags together from parts, so one half is enough.
    """
    if template is None:
        return None
    return next((tags for tags in _KNOWN if _mentions(template, tags)), None)


def _mentions(template: str, tags: ReasoningTags) -> bool:
    return any(tag.strip() in template for tag in (tags.start, *tags.ends)) or (
        "<|channel|>" in tags.start and "<|channel|>analysis" in template
    )
