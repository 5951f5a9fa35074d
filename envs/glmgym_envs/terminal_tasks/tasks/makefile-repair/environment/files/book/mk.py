"""A small make: `python3 mk.py [TARGET]` builds from ./Makefile (this machine has no make program).

It knows variables (`NAME = value`, `$(NAME)`), rules with several targets and prerequisites, one pattern (`%.x: %.y`), recipe
lines that begin with a TAB, and `$@`, `$<`, `$^`. A target is rebuilt if it is missing, or older than a prerequisite, or
if a prerequisite was rebuilt. `.PHONY` is honoured. Every recipe line is printed and run by sh; the first failure stops.
"""

import os
import re
import subprocess
import sys

variables, rules, patterns, phony = {}, {}, {}, set()


def expand(text, **automatic):
    text = re.sub(r"\$\((\w+)\)", lambda match: expand(variables.get(match[1], "")), text)
    for name, value in automatic.items():
        text = text.replace({"target": "$@", "first": "$<", "all": "$^"}[name], value)
    return text


def stop(message):
    sys.exit(f"mk: *** {message}. Stop.")


def read(path):
    recipes = []
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if line.startswith("\t"):
            for recipe in recipes:
                recipe.append(line[1:])
        elif not line.strip() or line.startswith("#"):
            continue
        elif match := re.match(r"(\w+)\s*=\s*(.*)", line):
            variables[match[1]] = match[2]
        elif ":" in line and not line.startswith(" "):
            targets, needs = (expand(part).split() for part in line.split(":", 1))
            recipes = []
            for target in targets:
                if target == ".PHONY":
                    phony.update(needs)
                    continue
                table = patterns if "%" in target else rules
                known = table.setdefault(target, ([], []))
                known[0].extend(needs)
                recipes.append(known[1])
        else:
            stop(f"{path}:{number}: missing separator")


def rule_of(target):
    needs, recipe = rules.get(target, ([], []))
    if not recipe:
        for pattern, (pattern_needs, pattern_recipe) in patterns.items():
            head, tail = pattern.split("%")
            if target.startswith(head) and target.endswith(tail):
                stem = target[len(head) : len(target) - len(tail)]
                return [need.replace("%", stem) for need in pattern_needs] + needs, pattern_recipe
    return needs, recipe


def build(target, done, path=()):
    if target in path:
        stop(f"{target} depends on itself")
    if target in done:
        return done[target]
    needs, recipe = rule_of(target)
    if not needs and not recipe and target not in rules and not os.path.exists(target):
        stop(f"no rule to make {target}")
    rebuilt = [build(need, done, (*path, target)) for need in needs]
    stale = target in phony or not os.path.exists(target) or any(rebuilt)
    if not stale:
        stale = any(os.path.getmtime(need) > os.path.getmtime(target) for need in needs if os.path.exists(need))
    if stale:
        for line in recipe:
            line = expand(line, target=target, first=needs[0] if needs else "", all=" ".join(dict.fromkeys(needs)))
            print(line, flush=True)
            if subprocess.run(["/bin/sh", "-c", line]).returncode:
                stop(f"{target} failed")
    done[target] = stale and bool(recipe or any(rebuilt))
    return done[target]


if __name__ == "__main__":
    read("Makefile")
    first = next((name for name in rules if name not in phony or name == "all"), None)
    done = {}
    for target in sys.argv[1:] or [first]:
        build(target, done)
    if not any(done.values()):
        print("mk: nothing to be done")
