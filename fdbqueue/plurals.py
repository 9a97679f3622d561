"""A number with its noun, for messages: 1 task, 2 tasks."""


def counted(count: int, noun: str) -> str:
    """The count with its thousands apart, and the noun in the singular or with an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
