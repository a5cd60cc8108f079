"""What the language cannot say."""


class Unsupported(Exception):
    """Why the language cannot say an operation: the reason is what cases are counted by, and what a split of a graph tells."""
