"""Messages of the library in the options of the command line, and text that a terminal can show."""

import re

# What a message says to a caller in Python, and how it is typed.
TYPED = (
    (r"\blams=\[…\]", "--lams A,B,..."),
    (r"\blams=\[([^\]]*)\]", r"--lams \1"),
    (r"\b(lams|criterion|landmarks)=(['\"])(\w+)\2", r"--\1 \3"),
    (r"\bcriterion=log_marginal_likelihood", "--criterion evidence"),
    (r"\bconstant of intercept=True", "constant (unless --no-intercept)"),
    (r"\bintercept=False", "--no-intercept"),
    (r"\bkeep=True", "--intervals"),
    (r"\bsolver=Spectral\(\)", "--lams 100, a grid"),
    (r" \((header=False|NumPy float64 input)\)", ""),
    (r"\b(landmarks|lams|groups|weights|checkpoint|criterion)= ?", r"--\1 "),
)


def typed(message: str) -> str:
    """A message of the library, in one line, with options in place of Python's arguments.

    >>> typed("give others weight, or take intercept=False")
    'give others weight, or take --no-intercept'
    """
    words = " ".join(message.split())
    for pattern, option in TYPED:
        words = re.sub(pattern, option, words)
    return words.strip()


def shown(text: str) -> str:
    r"""A text with its control characters, which a terminal would obey, as escapes.

    >>> shown("1,\033[31m2")
    '1,\\x1b[31m2'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
