"""The packages that tasks are made of: pinned archives, where their parts lie, and what each release repaired.

``PAIRS`` are two neighbouring releases, ``HOSTS`` are releases with a green suite to inject bugs into. The problem
statements are ours, written from the behaviour that the new tests pin down.
"""

from __future__ import annotations

from dataclasses import dataclass

from glmgym.env import Split


@dataclass(frozen=True, slots=True)
class Archive:
    """One file of the package index, pinned."""

    package: str
    version: str
    sha256: str
    is_wheel: bool = False

    @property
    def name(self) -> str:
        return f"{self.package}-{self.version}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie in a package's sources. Prefixes of paths, with "/" at the end of a directory."""

    licence: str  # SPDX
    sources: tuple[str, ...]  # what a patch may change
    tests: tuple[str, ...] = ("tests/",)
    root: str = "."  # the directory to import from
    deps: tuple[Archive, ...] = ()
    # Bugs in these are noise: generated tables, command lines, compatibility with other systems and versions.
    not_mutated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two releases; the task starts from the first and the tests of the second decide."""

    old: Archive
    new: Archive
    layout: Layout
    instruction: str


@dataclass(frozen=True, slots=True)
class Host:
    """A release whose suite is green. All mutations of one package lie in one split: each shows the others' repair."""

    archive: Archive
    layout: Layout
    split: Split = "train"


_DATEUTIL = Archive("python-dateutil", "2.9.0.post0",
                    "a8b2bc7bffae282281c8140a97d3aa9c14da0b136dfe83f850eea9a5f7470427", is_wheel=True)  # fmt: skip
_SIX = Archive("six", "1.17.0", "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274", is_wheel=True)
_FREEZEGUN = Archive("freezegun", "1.5.1",
                     "bf111d7138a8abe55ab48a71755673dbaa4ab87f4cff5634a4442dfec34c15f1", is_wheel=True)  # fmt: skip
_CLOCK = (_FREEZEGUN, _DATEUTIL, _SIX)

_XMLTODICT = Layout("MIT", ("xmltodict.py",))
_PARSE = Layout("MIT", ("parse.py",))
_WCWIDTH = Layout("MIT", ("wcwidth/",), not_mutated=("wcwidth/table_", "wcwidth/unicode_versions.py"))
_SQLPARSE = Layout("BSD-3-Clause", ("sqlparse/",))
_HUMANIZE = Layout("MIT", ("src/humanize/",), root="src", deps=_CLOCK)

_OLD_XMLTODICT = Archive("xmltodict", "0.14.1", "338c8431e4fc554517651972d62f06958718f6262b04316917008e8fd677a6b0")
_OLD_PARSE = Archive("parse", "1.20.1", "09002ca350ad42e76629995f71f7b518670bcf93548bdde3684fd55d2be51975")
_OLD_WCWIDTH = Archive("wcwidth", "0.2.12", "f01c104efdf57971bcb756f054dd58ddec5204dd15fa31d6503ea57947d97c02")

PAIRS = (
    Pair(
        _OLD_XMLTODICT,
        Archive("xmltodict", "0.14.2", "201e7c28bb210e374999d1dde6382923ab0ed1a8a5faeece48ab525b7810a553"),
        _XMLTODICT,
        """`xmltodict.parse` strips whitespace by default, but not everywhere. An element that holds nothing but
whitespace should come out as `None`, the same as an empty element. It does not: `parse('<root> </root>')` gives
`{'root': ' '}`, and an element of blanks next to other elements keeps its blanks, too.

Elements without children must be stripped like all others. With `strip_whitespace=False` the text has to stay exactly
as it is in the document.""",
    ),
    Pair(
        _OLD_PARSE,
        Archive("parse", "1.20.2", "b41d604d16503c79d81af5165155c0b20f6c8d6c559efa66b4b695c3e5a0a0ce"),
        _PARSE,
        """A field whose name has a hyphen in it is not recognised as a field: `parse.search('/{user-id}/end',
'/1647/end')` finds nothing, since `{user-id}` is taken as plain text.

Hyphens should be allowed in field names, and the result should be found under the name as it was written:
`result['user-id']`. In `Parser.named_fields`, where names have to be valid group names, a hyphen becomes an underscore,
as a dot does today. Names that would then be the same have to stay apart in the same way as they do for dots: a format
with the fields `user-id`, `user_id` and `user.id`, in this order, has the named fields `user_id`, `user__id` and
`user___id`, and all three values can be read under their written names.""",
    ),
    Pair(
        Archive("humanize", "4.12.2", "ce0715740e9caacc982bb89098182cf8ded3552693a433311c6a4ce6f4e12a2c"),
        Archive("humanize", "4.12.3", "8430be3a615106fdfceb0b2c1b41c4c98c6b0fc5cc59663a5539b111dd325fb0"),
        _HUMANIZE,
        """`humanize.naturalsize` writes a single byte with a decimal when the number does not come as an `int`:
`naturalsize(1.0)` and `naturalsize("1")` both give "1.0 Byte". They should give "1 Byte", as `naturalsize(1)` does and
as other counts of bytes are written ("2 Bytes" for 2.0).""",
    ),
    Pair(
        Archive("sqlparse", "0.5.1", "bb6b4df465655ef332548e24f08e205afc81b9ab86cb1c45657a7ff173a3a00e"),
        Archive("sqlparse", "0.5.2", "9e37b35e16d1cc652a2545f0997c1deb23ea28fa1f3eefe609eee3063c3b105f"),
        _SQLPARSE,
        """`sqlparse.format(sql, strip_comments=True)` also removes optimizer hints. They look like comments but mean
something to the database: `/*+ ... */`, a line that begins with `--+`, and `#+`.

Hints have to be kept where they are, while ordinary comments around them are still removed. For example,
`SELECT /*+cluster(T)*/* FROM T` must come out unchanged, and from

    select --+full(u)
    --comment simple

only the second line's comment goes (the line break after the hint stays).""",
    ),
    Pair(
        _OLD_WCWIDTH,
        Archive("wcwidth", "0.2.13", "72ea0c06399eb286d978fdedb6923a9eb47e1c486ce63e9b4e64fc18303972b5"),
        _WCWIDTH,
        """Hangul syllables that are written as separate jamo are measured too wide. A leading consonant is two columns
wide; the vowel and the final consonant that follow are drawn into the same two columns, so they have no width of their
own. `wcswidth("\\u1100\\u1161")` should be 2, with `wcwidth` giving 2 and 0 for the two characters, and the same holds
for the filler U+1160.

This concerns the blocks U+1160 to U+11FF and U+D7B0 to U+D7FF, in the tables of every Unicode version. A character that
a version's tables list both as wide and as zero-width counts as zero-width; the wide table should not hold it.""",
    ),
    Pair(
        Archive("sqlparse", "0.4.3", "69ca804846bb114d2ec380e4360a8a340db83f0ccf3afceeb1404df028f57268"),
        Archive("sqlparse", "0.4.4", "d446183e84b8349fa3061f0fe7f06ca94ba65b426946ffebe6e3e8295332420c"),
        _SQLPARSE,
        """Three things about the lexer of sqlparse should change.

1. Its syntax should be configurable. `sqlparse.lexer.Lexer` gets a class method `get_default_instance()` that returns
   the one lexer which the package itself uses (`parse` and the others must go through it). A lexer has the methods
   `clear()` (forget all patterns and keywords), `set_SQL_REGEX(patterns)` (patterns in the form of
   `keywords.SQL_REGEX`, kept compiled in `_SQL_REGEX` as pairs of a match function and a token type),
   `add_keywords(mapping)` (another dictionary, looked up after those added before) and `default_initialization()`
   (back to the package's own syntax). `keywords.SQL_REGEX` becomes a plain list of pairs of a pattern's text and its
   token type, in the order of today; a pattern whose match is to be looked up in the keywords has a marker object
   instead of the type.
2. `IN` should be a keyword again and not a comparison operator: the first token of `in(1, 2)` has the type `Keyword`,
   and `NOT IN` is no single operator.
3. A backslash inside a quoted string escapes nothing but the quote that follows it. Two backslashes are no escape of
   their own: `select '\\'; select '\\'';` (one backslash in each literal) is two statements.""",
    ),
    Pair(
        Archive("more-itertools", "8.13.0", "a42901a0a5b169d925f6f217cd5a190e32ef54360905b9c39ee7db5313bfec0f"),
        Archive("more-itertools", "8.14.0", "c09443cd3d5438b8dafccd867a6bc1cb0894389e90cb53d227456b0b0bccb750"),
        Layout("MIT", ("more_itertools/",)),
        """Please add two functions to `more_itertools` (importable from the package itself):

- `longest_common_prefix(iterables)` yields the elements that all of the given iterables have in common at their
  beginning, taken from the first of them. It is lazy, so it works with infinite iterables and iterators; elements need
  not be hashable. Of no iterables, or if one is empty, the prefix is empty.
- `iequals(*iterables)` tells whether all iterables have equal elements in the same order and number, whatever their
  types; `None` is an element like any other. It is true for one iterable and for none.

`tail(n, iterable)` should no longer walk through all of an iterable that knows its length.""",
    ),
)

HOSTS = (
    Host(_OLD_XMLTODICT, _XMLTODICT),
    Host(_OLD_PARSE, _PARSE),
    Host(_OLD_WCWIDTH, _WCWIDTH),
    Host(
        Archive("toolz", "0.12.0", "88c570861c440ee3f2f6037c4654613228ff40c93a6c25e0eba70d17282c6194"),
        Layout("BSD-3-Clause", ("toolz/", "tlz/"), ("toolz/tests/", "toolz/sandbox/tests/"),
               not_mutated=("toolz/_version.py", "toolz/compatibility.py", "toolz/_signatures.py", "toolz/utils.py",
                            "toolz/sandbox/", "tlz/")),
    ),
    Host(
        Archive("inflection", "0.5.1", "1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417"),
        Layout("MIT", ("inflection/",), ("test_inflection.py",)),
    ),
    Host(
        Archive("itsdangerous", "2.1.2", "5dbbc68b317e5e42f327f9021763545dc3fc3bfe22e6deb96aaf1fc38874156a"),
        Layout("BSD-3-Clause", ("src/itsdangerous/",), root="src", deps=_CLOCK),
    ),
    Host(
        Archive("cachetools", "5.3.3", "ba29e2dfa0b8b556606f097407ed1aa62080ee108ab0dc5ec9d6a723a007d105"),
        Layout("MIT", ("src/cachetools/",), root="src"),
        split="heldout",
    ),
    Host(
        Archive("click", "8.1.5", "4be4b1af8d665c6d942909916d31a213a106800c47d0eeba73d34da3cbc11367"),
        Layout("BSD-3-Clause", ("src/click/",), root="src",
               not_mutated=("src/click/_compat.py", "src/click/_winconsole.py", "src/click/_textwrap.py")),
    ),
    Host(
        Archive("mistune", "3.0.2", "fc7f93ded930c92394ef2cb6f04a8aabab4117a91449e72dcc8dfa646a508be8"),
        Layout("BSD-3-Clause", ("src/mistune/",), root="src", not_mutated=("src/mistune/__main__.py",)),
        split="heldout",
    ),
    Host(
        Archive("boltons", "23.1.1", "d2cb2fa83cf2ebe791be1e284183e8a43a1031355156a968f8e0a333ad2448fc"),
        Layout("BSD-3-Clause", ("boltons/",), not_mutated=("boltons/deprutils.py", "boltons/easterutils.py")),
    ),
)  # fmt: skip
