"""Two functions on texts: `typed` puts the options of the command line into messages of the
library, and `shown` makes text safe for a terminal.
"""

import re

# Patterns of Python arguments in messages of the library, and the options that replace them.
TYPED = (
    (r"\blams=\[…\]", "--lams A,B,..."),
    (r"\blams=\[([^\]]*)\]", r"--lams \1"),
    (r"\b(lams|criterion|landmarks)=(['\"])(\w+)\2", r"--\1 \3"),
    (r"\bcriterion=log_marginal_likelihood", "--criterion evidence"),
    (r"\bconstant of intercept=True", "constant (unless --no-intercept)"),
    (r"\bintercept=False", "--no-intercept"),
    (r"\bkeep=True", "--intervals"),
    (r"\bsolver=Spectral\(\)", "--lams 100, a grid"),
    (r" \((header=False|NumPy float64 input|in Python: [^)]*)\)", ""),
    (r"\b(landmarks|lams|groups|weights|checkpoint|criterion)= ?", r"--\1 "),
)


def typed(message: str) -> str:
    """Return a message of the library in one line, with options in place of Python arguments.

    >>> typed("give others weight, or take intercept=False")
    'give others weight, or take --no-intercept'
    """
    words = " ".join(message.split())
    for pattern, option in TYPED:
        words = re.sub(pattern, option, words)
    return words.strip()


def shown(text: str) -> str:
    r"""Return a text with its control characters, which a terminal would obey, as escapes.

    >>> shown("1,\033[31m2")
    '1,\\x1b[31m2'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
