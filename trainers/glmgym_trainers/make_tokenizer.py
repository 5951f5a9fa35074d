"""Makes the tiny byte-level BPE tokenizer with GLM's special tokens: ``python -m glmgym_trainers.make_tokenizer OUT``.

Same texts, same words, same size: same file, in every process.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from glmgym.chat import Mark
from glmgym.errors import ConfigError

logger = logging.getLogger(__name__)

DEFAULT_VOCAB_SIZE = 512

# Letters take one leading space with them, punctuation keeps apart from letters, each digit stands alone: the pieces of
# a path are then the same tokens wherever they appear, which a tiny model needs in order to copy them.
_PRETOKENS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Role markers are special to the library; the tags are merely added tokens, as in GLM's own tokenizers.
_ROLE_MARKS = (Mark.END_OF_TEXT, Mark.GMASK, Mark.SOP, Mark.SYSTEM, Mark.USER, Mark.ASSISTANT, Mark.OBSERVATION)

DEFAULT_WORDS = ("run", "cmd", "cat", "ls", "grep", "find", "wc", "head", "tail", "sort", "sed", "echo", "answer")

DEFAULT_TEXTS = (
    "You work in a Linux shell. Use the tools to solve the task, then give the final answer.",
    "# Tools\n<tools>\n",
    '{"name": "run", "description": "Run a shell command and return its output.", "parameters": {"type": "object", '
    '"properties": {"cmd": {"type": "string", "description": "The command line."}}, "required": ["cmd"]}}\n</tools>',
    "How many lines of data/notes.txt contain the word error? Answer with a number.",
    "Find the file under /srv/data whose name ends with .log and report its size in bytes.",
    "Replace every old value with the new value in config/settings.toml and keep all other lines.",
    "Combine the files part_a.csv and part_b.csv into out/all.csv, sorted by name, without duplicate lines.",
    "The script fix_me.sh prints the wrong total. Repair it so that it prints the sum of the numbers.",
    "Follow the references: start in start.txt, each file names the next file, the last one holds the answer.",
    "Stop the background job that writes to the file and tell its process id.",
    "grep -c error data/notes.txt\n",
    "grep -rn name . | head -n 5\n",
    "find . -type f -name '*.log' | xargs wc -c | sort -n | tail -n 1\n",
    "cat start.txt && sed -i 's/old/new/g' config/settings.toml && ls -la /srv\n",
    "awk -F, '{ total += $2 } END { print total }' table.csv > out/result.txt\n",
    "sh: 1: cannot open file: No such file or directory\nexit code 1\n",
    "I should first look at the files, then count the lines, and then give the answer.",
    "The answer is 42.\n",
)


def train_tokenizer(texts: Iterable[str], vocab_size: int, words: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE over all 256 bytes, GLM's special tokens at the highest ids, digits always single.

    Args:
        words: get one token bare and one with a leading space.

    Raises:
        ConfigError: ``vocab_size`` is too small for the words, or a word is not all letters or all punctuation.
    """
    texts = list(texts)
    spaced = [form for word in words for form in (word, " " + word)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRETOKENS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(Mark),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # More often than any pair of bytes in the texts, so BPE completes every word before it merges anything else.
    repeats = 1 + max(_pair_counts(texts).values(), default=0)
    tokenizer.train_from_iterator([*texts, *(form for form in spaced for _ in range(repeats))], trainer)
    for form in spaced:
        pieces = tokenizer.encode(form).tokens
        if len(pieces) != 1:
            raise ConfigError(
                f"{form!r} is {len(pieces)} tokens {pieces}: raise vocab_size={vocab_size} or drop the word"
            )
    tokenizer.add_tokens([AddedToken(mark, special=mark in _ROLE_MARKS, normalized=False) for mark in Mark])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory for tokenizer.json")
    parser.add_argument("--vocab-size", type=int, default=DEFAULT_VOCAB_SIZE)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(DEFAULT_TEXTS, arguments.vocab_size, DEFAULT_WORDS)
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    logger.info("%s: %d ids", arguments.out / "tokenizer.json", tokenizer.get_vocab_size())


def _pair_counts(texts: Iterable[str]) -> Counter[tuple[int, int]]:
    counts: Counter[tuple[int, int]] = Counter()
    for text in texts:
        counts.update(pairwise(text.encode()))
    return counts


if __name__ == "__main__":
    main()
