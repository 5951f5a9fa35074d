"""``python -m glmgym_envs.search``: build the corpus, draw the shipped questions anew, serve an index over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from glmgym.errors import ConfigError
from glmgym_envs.search.corpus import SOURCES, build, mini_documents
from glmgym_envs.search.documents import Document, cache_root, read_documents, write_documents
from glmgym_envs.search.drawing import draw_questions, unanswered
from glmgym_envs.search.index import Index
from glmgym_envs.search.library import Library, built_library, mini_library, open_mini_index
from glmgym_envs.search.questions import data_file, read_questions, write_questions
from glmgym_envs.search.server import serve

_COUNTRIES = {"shared-neighbour": 50, "only-neighbour": 30, "largest-neighbour": 50, "currency-neighbour": 50}
_MINI = {**_COUNTRIES, "kind-2": 60, "kind-3": 40, "whole": 30}
_LARGE = {**_COUNTRIES, "kind-2": 70, "kind-3": 70, "whole": 60, "new-link": 120, "see-also": 20}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 for a mistake, which is said in one sentence."""
    parser = argparse.ArgumentParser(prog="python -m glmgym_envs.search", description="The corpus of search-v0.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="fetch the material and index it (a minute; 200 MB)")
    building.add_argument(
        "--corpus", action="append", default=[], help=f"one of {', '.join(s.corpus for s in SOURCES)}"
    )
    building.add_argument("--dense", action="store_true", help="index vectors of hashed words as well")
    commands.add_parser("draw", help="draw the shipped corpus and questions anew, for developers")
    serving = commands.add_parser("serve", help="answer Search-R1's /retrieve over HTTP")
    serving.add_argument("--port", type=int, default=8000)
    serving.add_argument("--mini", action="store_true", help="the small corpus, which needs no build")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "build":
            _build(arguments.corpus, arguments.dense)
        elif arguments.command == "draw":
            _draw()
        else:
            asyncio.run(_serve(mini_library() if arguments.mini else built_library(), arguments.port))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _build(corpora: Sequence[str], dense: bool) -> None:
    index = Index(build(cache_root(), corpora, dense=dense, say=print))
    if not corpora:
        questions = read_questions(data_file("search-v0.jsonl"))
        lost = unanswered(questions, index)
        print(f"questions: {len(questions) - len(lost)} of {len(questions)} are answered by the scripted expert")
        for id in lost[:5]:
            print(f"  not {id}: the packages differ from those that the questions were drawn from")


def _draw() -> None:
    root = cache_root()
    index = Index(build(root, say=print))
    write_documents(data_file("mini.jsonl"), mini_documents(root))
    large = [document for source in SOURCES for document in read_documents(root / f"{source.corpus}.jsonl")]
    _draw_set("search-v0", large, index, _LARGE)
    _draw_set("search-mini-v0", read_documents(data_file("mini.jsonl")), open_mini_index(), _MINI)


def _draw_set(name: str, documents: Sequence[Document], index: Index, most: dict[str, int]) -> None:
    drawn = draw_questions(documents, index, name=name, most=most)
    write_questions(data_file(f"{name}.jsonl"), drawn.questions)
    for family, count in drawn.candidates.items():
        print(f"{name} {family}: {drawn.solved[family]} of {count} found by the expert")


async def _serve(library: Library, port: int) -> None:
    await asyncio.to_thread(lambda: library.index)  # says at once that there is none
    server = await serve(library, port=port)
    print(f"http://127.0.0.1:{port}/retrieve")
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
