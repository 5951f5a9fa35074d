"""Whether a repository's history holds the future (H1): a fix that a policy could read out of git."""

from __future__ import annotations

from glmgym.errors import EnvFailure
from glmgym.sandbox import Sandbox

TIMEOUT_S = 60.0
_LOOK = r"""
cd "$1" || exit 9
g() { git -c safe.directory='*' "$@" 2>/dev/null; }
g rev-parse --git-dir >/dev/null || exit 9
commits=$(g rev-list --all HEAD --count)
[ "$commits" = 1 ] || echo "the history has $commits commits, not one"
[ -z "$(g reflog show --all)" ] || echo "the reflog has entries"
[ -z "$(g remote)" ] || echo "there is a remote"
[ -z "$(g tag)" ] || echo "there is a tag"
[ -z "$(g stash list)" ] || echo "there is a stash"
[ -z "$(g fsck --lost-found --no-progress)" ] || echo "there are lost objects"
dir=$(g rev-parse --git-dir)
[ ! -s "$dir/objects/info/alternates" ] || echo "objects are borrowed from another repository"
for name in FETCH_HEAD ORIG_HEAD MERGE_HEAD packed-refs.lock; do [ ! -e "$dir/$name" ] || echo "$name is left"; done
all=$(g cat-file --batch-all-objects --batch-check='%(objectname)' | wc -l)
known=$( (g rev-list --all --objects HEAD; g ls-files -s | cut -d' ' -f2) | cut -d' ' -f1 | sort -u | wc -l)
[ "$all" -le "$known" ] || echo "$((all - known)) objects belong to no commit"
exit 0
"""


async def git_problems(box: Sandbox, path: str) -> tuple[str, ...]:
    """What of the history at ``path`` is more than one commit and its files: a sentence each.

    Raises:
        EnvFailure: there is no repository at ``path``, or no git in the box.
    """
    result = await box.run(["/bin/sh", "-c", _LOOK, "sh", path], timeout_s=TIMEOUT_S)
    if result.exit_code != 0 or result.timed_out:
        raise EnvFailure(f"the git history at {path} cannot be looked at: {result.text or 'no repository there'}")
    return tuple(result.stdout.decode("utf-8", "replace").splitlines())


async def git_is_clean(box: Sandbox, path: str) -> bool:
    """True if the history at ``path`` is one commit with no reflog, remote, tag, or object beyond it."""
    return not await git_problems(box, path)
