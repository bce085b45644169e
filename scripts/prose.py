"""Measure how plain the prose of a tree is, and list its hardest sentences.

    python -m scripts.prose                        rates of docs, package and tests, beside the target
    python -m scripts.prose docs/guards.md         the sentences of one file (or folder) that a rule matches
    python -m scripts.prose --worst 40 shedlock_py the sentences that most rules match
    python -m scripts.prose --check                exit 1 if a rate is over its target

Reads Markdown, but not docs/results, and docstrings and comments of Python. Rates are sentences with a match per 100
sentences. The targets are the highest rates among httpx, psycopg, Procrastinate, structlog, stamina, limits, filelock
and River. A match is a place to look, not a mistake.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

RULES = {  # name: (pattern, target per 100 sentences, what to write instead)
    "what-clause": (
        r"(^|[,;:.] |\b(of|by|from|to|with|is|are|says|on|and|names?|shows?|about|knows?) )[Ww]hat (?!is\b\?)",
        1.0,
        "name the thing: 'what a store keeps of runs' -> 'run history'; a docstring begins with a verb or a noun",
    ),
    "no noun": (
        r"\b([Oo]ne|[Oo]nes|[Nn]one|[Aa]nother|[Oo]thers|[Ee]ach|[Ss]uch)"
        r"( (that|which|who|of|is|are|has|have|may|can|with|from|in)\b|[.,;:])",
        3.0,
        "repeat the noun after one, each, none, another, such",
    ),
    "that of": (r"\b(that|those) of\b", 0.3, "repeat the noun"),
    "is no": (
        r"\b(is|are|was|were|has|have|had|there is|there are) (no|none|neither|nobody|nothing)\b",
        1.5,
        "'is not an X', 'does not exist'",
    ),
    "whose, in which": (
        r"\b(whose|(in|of|by|with|to|for|at|on|from|under) which)\b",
        1.7,
        "two sentences",
    ),
    "likewise": (
        r"\b([Ll]ikewise|the same holds|the like|its like|the others|the rest|the latter|the former)\b",
        0.6,
        "say it again, or leave it out",
    ),
    "as it must": (
        r"\bas (it|they) (must|should|is|are|was|were|does|do|did|can|would|has|have|may|stands?)\b",
        0.5,
        "leave it out",
    ),
    "nor, inversion": (
        r"^(Nor|Neither|Not|Never|Only|Nothing|Nobody|None|No) |\bnor (is|are|does|do|has|have|can|may)\b",
        2.0,
        "subject first",
    ),
}
WORDS = {"docs": 18.5, "code": 15.5}
"""The most words of a sentence, on average."""
LONG = 30
"""Words: a longer sentence in the docs is listed."""


def markdown_sentences(text: str) -> Iterator[str]:
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [
            line for line in paragraph.strip("\n").split("\n") if not line.startswith(("#", "![", "|", ":::", "!!!"))
        ]
        if not "".join(lines).strip() or lines[0].startswith("    "):
            continue
        for item in re.split(r"\n(?= *(?:[-*] |\d+\. ))", "\n".join(lines)):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"^ *(?:[-*] |\d+\. )", "", item))
            yield from split_sentences(re.sub(r"[*`#>]", "", plain))


def python_sentences(source: str) -> Iterator[str]:
    texts = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    comments: list[str] = []
    last = -5
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment = token.string.lstrip("# ")
            if re.match(r"(type:|noqa|fmt:|pragma)", comment):
                continue
            if token.start[0] == last + 1 and comments:
                comments[-1] += " " + comment
            else:
                comments.append(comment)
            last = token.start[0]
    for text in texts + comments:
        for paragraph in re.split(r"\n\s*\n", text):
            plain = re.sub(r":\w+:`~?([^`]*)`", r"\1", paragraph)
            yield from split_sentences(re.sub(r":(param|raises|returns|ivar)[^:]*:", ". ", re.sub(r"[*`]", "", plain)))


def split_sentences(text: str) -> Iterator[str]:
    text = re.sub(r"\s+", " ", text).strip(" -")
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"“(])", text):
        if len(sentence.split()) > 3:
            yield sentence.strip()


def sentences(path: Path) -> Iterator[tuple[Path, str]]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in files:
        if any(part.startswith(".") or part in {"__pycache__", "build", "site", "results"} for part in file.parts):
            continue
        try:
            if file.suffix == ".md":
                yield from ((file, each) for each in markdown_sentences(file.read_text("utf-8")))
            elif file.suffix == ".py":
                yield from ((file, each) for each in python_sentences(file.read_text("utf-8")))
        except (SyntaxError, UnicodeDecodeError):
            continue


def matches(sentence: str) -> list[str]:
    return [name for name, (pattern, _, _) in RULES.items() if re.search(pattern, sentence)]


def rates(paths: list[str]) -> int:
    over = 0
    print(f"{'':16}" + "".join(f"{path:>14}" for path in paths) + f"{'target':>10}")
    found = {path: list(sentences(Path(path))) for path in paths}
    for name, (pattern, target, cure) in RULES.items():
        counts = [sum(bool(re.search(pattern, s)) for _, s in found[p]) for p in paths]
        row = [100 * count / max(1, len(found[p])) for count, p in zip(counts, paths, strict=True)]
        over += sum(
            rate > target and count > 1 for rate, count in zip(row, counts, strict=True)
        )  # a single match is not a habit
        print(f"{name:16}" + "".join(f"{rate:14.1f}" for rate in row) + f"{target:10.1f}   {cure}")
    row = [sum(len(s.split()) for _, s in found[p]) / max(1, len(found[p])) for p in paths]
    limits = [WORDS["docs" if p.endswith(("docs", ".md")) else "code"] for p in paths]
    over += sum(mean > limit for mean, limit in zip(row, limits, strict=True))
    print(f"{'words/sentence':16}" + "".join(f"{mean:14.1f}" for mean in row) + f"{'18.5/15.5':>10}")
    print(f"{'words':16}" + "".join(f"{sum(len(s.split()) for _, s in found[p]):14}" for p in paths))
    return over


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--worst", type=int, metavar="N")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not arguments.paths or arguments.check:
        over = rates(arguments.paths or [p for p in ("README.md", "docs", "shedlock_py", "tests") if Path(p).exists()])
        return int(arguments.check and over > 0)
    found = [(file, s, matches(s)) for path in arguments.paths for file, s in sentences(Path(path))]
    hits = [x for x in found if x[2] or (x[0].suffix == ".md" and len(x[1].split()) > LONG)]
    if arguments.worst:
        hits = sorted(hits, key=lambda x: (-len(x[2]), -len(x[1].split())))[: arguments.worst]
    for file, sentence, names in hits:
        print(f"{file} [{', '.join(names) or 'long'}]\n    {sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
