"""Shell completion of lock names with a colon in bash, and with a comma in fish. Click's own scripts split them."""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, CompletionItem, FishComplete, add_completion_class, split_arg_string

_BREAKS = (":", "=", "@")
"""Characters that break words in bash (COMP_WORDBREAKS). Bash replaces the part after the last such character."""


class _Bash(BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        given, current = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        words: list[str] = []
        for word in given[: current + 1]:
            if words and (word.startswith(_BREAKS) or words[-1].endswith(_BREAKS)):
                words[-1] += word
            else:
                words.append(word)
        incomplete = words.pop() if current < len(given) else ""
        self._kept = incomplete[: 1 + max(incomplete.rfind(each) for each in _BREAKS)]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._kept)}"


class _Fish(FishComplete):
    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


def register() -> None:
    add_completion_class(_Bash)
    add_completion_class(_Fish)
