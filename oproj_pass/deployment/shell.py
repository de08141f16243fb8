"""Finds the one `vllm serve` command of a shell script, with the script's own variables filled in.

Reads, runs nothing. Understood are quotes, line continuations, comments, redirections, several commands,
and variables that the script assigns or this process has; a substitution `$(...)` stays as it is written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from oproj_pass.errors import ConfigError

__all__ = ["holds_serve_command", "serve_arguments", "serve_arguments_of_script"]

_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_SEPARATORS = ";&|<>()\n"
_SERVER_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")


def holds_serve_command(text: str) -> bool:
    """Whether `text` is a script with such a command, rather than a mapping."""
    return re.search(r"\bvllm\s+serve\b|-m\s+vllm\.entrypoints", text) is not None


def serve_arguments_of_script(text: str, source: str) -> list[str]:
    """The arguments of the script's one `vllm serve`.

    Raises:
        ConfigError: a quote is not closed, or there is no such command, or more than one.
    """
    found = []
    variables = dict(os.environ)
    for words in _commands(text, source):
        words = [_filled_in(word, variables) for word in words]
        assigned = _assignments(words)
        variables |= assigned
        arguments = serve_arguments(words[len(assigned) :])
        if arguments is not None:
            found.append(arguments)
    if len(found) != 1:
        raise ConfigError(
            f"{source} holds {len(found)} `vllm serve` commands, required: one. "
            "Give one command: oproj check -- vllm serve ..."
        )
    return found[0]


def serve_arguments(words: Sequence[str]) -> list[str] | None:
    """What follows `vllm serve`, or the server's module, in one command; None for another command."""
    for position, word in enumerate(words):
        following = words[position + 1 : position + 2]
        if PurePath(word).name == "vllm" and following == ["serve"]:
            return list(words[position + 2 :])
        if word == "-m" and following and following[0] in _SERVER_MODULES:
            rest = list(words[position + 2 :])
            return rest[1:] if rest[:1] == ["serve"] else rest
    return None


def _commands(text: str, source: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(
        _COMMENT.sub("", text).replace("\\\n", " "), posix=True, punctuation_chars=_SEPARATORS
    )
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    in_comment = False
    try:
        for word in lexer:
            if set(word) <= set(_SEPARATORS):
                if word[0] in "<>" and words and words[-1].isdigit():
                    words.pop()  # a file descriptor, as in 2>&1
                yield words
                words, in_comment = [], in_comment and "\n" not in word
            elif in_comment or word.startswith("#"):
                in_comment = True
            else:
                words.append(word)
    except ValueError as error:
        raise ConfigError(f"{source} is malformed: {str(error).lower()}") from None
    yield words


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """The variables that a command sets first, `export` counted as one that is called so."""
    assigned = {}
    for word in words:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None and word != "export":
            break
        name, value = match.groups() if match else ("export", "")
        assigned[name] = value
    return assigned


def _filled_in(word: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[0] if match[2] is None else match[2])

    return _VARIABLE.sub(value, word)
