"""Regular expressions that cut text into words, as tables of an automaton.

What a character class holds is found out by asking the engine of the package tokenizers. Everything
else follows the rule of backtracking engines, that earlier alternatives and longer repetitions come
first: a state of the automaton is the list of places in the expression, in that order, and those
behind a match are dropped (Cox, *Regular Expression Matching: the Virtual Machine Approach*, 2009).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .code_points import CODE_POINTS, blocks, component
from .errors import TokenizerFormError, refused
from .tables import Array, CodePointTable

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ByteLevel finds words with."""
_LONGEST, _DEEPEST, _MOST_REPEATED = 1000, 16, 16
_MOST_STEPS, _MOST_STATES, _MOST_SETS = 500, 255, 60
_CLASS = re.compile(r"\[\^?(?:\\.|[^\[\]\\&])+\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pP]\{\^?[A-Za-z_]+\}|[sSdDwW])")
_PLAIN = re.compile(r"\\(\W)|([^\\\[\](){}.^$|*+?])")
_CONTROLS = {r"\r": "\r", r"\n": "\n", r"\t": "\t"}
_COUNTS = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")


_Tree: TypeAlias = tuple[Any, ...]
"""Kind of a part, and what belongs to it."""


@dataclass
class _Step:
    """A step of the automaton before it is made deterministic.

    Attributes
    ----------
    kind
        ``"set"``: a character of a set; ``"any"``: the first of `next` that fits;
        ``"ahead"``, ``"not"``: whether the next character is of a set; ``"match"``.
    of
        Which set.
    next
        Steps that follow, the preferred first.
    """

    kind: str
    of: int = 0
    next: list[int] = field(default_factory=list)


class _Parser:
    """Builds steps from the end of an expression to its beginning."""

    def __init__(self, expression: str) -> None:
        self.text, self.at = expression, 0
        self.sets: list[str] = []
        self.steps: list[_Step] = []
        self.folded: list[str] = []

    def parse(self) -> int:
        """The first step of the whole."""
        tree = self._alternatives(False, 0)
        if self.at < len(self.text):
            raise self._refused()
        return self._build(tree, self._step("match"))

    def _refused(self, why: str = "") -> TokenizerFormError:
        rest = self.text[self.at : self.at + 20]
        return _unknown(self.text, why or f"is not implemented from {rest!r} on")

    def _step(self, kind: str, of: int = 0, *following: int) -> int:
        if len(self.steps) == _MOST_STEPS:
            raise self._refused(f"needs more than {_MOST_STEPS} steps")
        self.steps.append(_Step(kind, of, [*following]))
        return len(self.steps) - 1

    def _alternatives(self, fold: bool, depth: int) -> _Tree:
        found = [self._sequence(fold, depth)]
        while self.text[self.at : self.at + 1] == "|":
            self.at += 1
            found.append(self._sequence(fold, depth))
        return ("any", found)

    def _sequence(self, fold: bool, depth: int) -> _Tree:
        found = []
        letters = ""
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            start = self.at
            atom = self._atom(fold, depth)
            letters = letters + self.text[start] if fold and self.at == start + 1 else ""
            if len(letters) > 1:
                self.folded += [letters[first:] for first in range(len(letters) - 1)]
            found.append(self._repeated(atom, fold))
        return ("all", found)

    def _atom(self, fold: bool, depth: int) -> _Tree:
        if depth > _DEEPEST:
            raise self._refused()
        for opening, kind in (("(?!", "not"), ("(?=", "ahead")):
            if self.text.startswith(opening, self.at):
                self.at += len(opening)
                inner = self._atom(fold, depth + 1)
                self._close()
                if inner[0] != "set":
                    raise self._refused()
                return (kind, inner[1])
        for opening, folds in (("(?:", fold), ("(?i:", True)):
            if self.text.startswith(opening, self.at):
                self.at += len(opening)
                inner = self._alternatives(folds, depth + 1)
                self._close()
                return inner
        for pattern in (_CLASS, _ESCAPE):
            found = pattern.match(self.text, self.at)
            if found and not fold:
                self.at = found.end()
                return ("set", self._set(found[0]))
        control = _CONTROLS.get(self.text[self.at : self.at + 2])
        found = _PLAIN.match(self.text, self.at)
        if control is None and found is None:
            raise self._refused()
        character = control or (found[1] or found[2] if found else "")
        if fold and not character.isascii():
            raise self._refused()
        self.at += 2 if control or self.text[self.at] == "\\" else 1
        written = re.escape(character)
        return ("set", self._set(f"(?i:{written})" if fold and character.isalpha() else written))

    def _close(self) -> None:
        if self.text[self.at : self.at + 1] != ")":
            raise self._refused()
        self.at += 1

    def _set(self, written: str) -> int:
        if written not in self.sets:
            self.sets.append(written)
        if len(self.sets) > _MOST_SETS:
            raise self._refused(f"has more than {_MOST_SETS} sets of characters")
        return self.sets.index(written)

    def _repeated(self, atom: _Tree, fold: bool) -> _Tree:
        counts = _COUNTS.match(self.text, self.at)
        mark = self.text[self.at : self.at + 1]
        if counts and not fold:
            least = int(counts[1])
            most = None if counts[2] and not counts[3] else int(counts[3] or least)
            self.at = counts.end()
        elif mark and mark in "?*+":
            least, most = int(mark == "+"), 1 if mark == "?" else None
            self.at += 1
        else:
            return atom
        if self.text[self.at : self.at + 1] in {"?", "*", "+", "{"}:  # lazy, possessive, twice
            raise self._refused()
        if max(least, most or 0) > _MOST_REPEATED or least > (most or least) or _may_be_empty(atom):
            raise self._refused()
        return ("repeat", atom, least, most)

    def _build(self, tree: _Tree, after: int) -> int:
        """Steps of a part; the number of the first."""
        kind = tree[0]
        if kind == "any":
            branches = [self._build(part, after) for part in tree[1]]
            return branches[0] if len(branches) == 1 else self._step("any", 0, *branches)
        if kind == "all":
            for part in reversed(tree[1]):
                after = self._build(part, after)
            return after
        if kind != "repeat":
            return self._step(kind, tree[1], after)
        _, inner, least, most = tree
        if most is None:
            loop = self._step("any")
            self.steps[loop].next = [self._build(inner, loop), after]
            after = loop
        else:
            behind = after
            for _ in range(most - least):
                after = self._step("any", 0, self._build(inner, after), behind)
        for _ in range(least):
            after = self._build(inner, after)
        return after


def _may_be_empty(tree: _Tree) -> bool:
    kind = tree[0]
    if kind in ("any", "all"):
        return (any if kind == "any" else all)(map(_may_be_empty, tree[1]))
    return kind in ("ahead", "not") or (
        kind == "repeat" and (not tree[2] or _may_be_empty(tree[1]))
    )


@functools.cache
def members(expression: str, apart: bool = False) -> NDArray[np.int64]:
    """Code points [any] that an expression matches alone, as the package tokenizers finds them.

    Parameters
    ----------
    expression
        Of single characters, or of others that match no new line.
    apart
        Whether it is of others, so that two neighbours must not be taken for what it matches.
    """
    if len(expression) == 1 or (len(expression) == 2 and not expression[1].isalnum()):
        return np.array([ord(expression[-1])])
    pattern = {"type": "Split", "pattern": {"Regex": expression}}
    record = json.dumps({**pattern, "behavior": "Removed", "invert": False})
    splitter = component("pre_tokenizer", record)
    found = []
    for block in blocks():
        text = "\n".join(block) if apart else block
        matched = np.ones(len(text), bool)
        for _, (start, end) in splitter.pre_tokenize_str(text):
            matched[start:end] = False
        found.append(ord(block[0]) + np.flatnonzero(matched[:: 2 if apart else 1]))
    return np.concatenate(found)


@dataclass(frozen=True)
class Automaton:
    """Tables by which an expression is matched.

    Attributes
    ----------
    classes
        Of code points.
    width
        Number of classes, with that of the end of a text, which is the last.
    transitions
        By state and class: twice the next state, and whether the expression has matched what comes
        before the character. State 0 ends the search, and 1 starts it.
    """

    classes: CodePointTable
    width: int
    transitions: Array


@functools.cache
def automaton(expression: str) -> Automaton:
    """Tables of an expression.

    Raises
    ------
    TokenizerFormError
        If it has a part that is not implemented, matches nothing at all, or needs too many states.
    """
    if len(expression) > _LONGEST:
        raise _unknown(expression, f"has more than {_LONGEST} characters")
    parser = _Parser(expression)
    first = parser.parse()
    if parser.folded and members(f"(?i:{'|'.join(map(re.escape, parser.folded))})", True).size:
        raise _unknown(expression, "has letters that are one character in another case")
    masks = np.zeros(CODE_POINTS, np.uint64)
    for number, written in enumerate(parser.sets):
        masks[members(written)] |= np.uint64(1 << number)
    # Neighbours are mostly of one class, and runs of them are soon sorted.
    starts = np.flatnonzero(np.diff(masks, prepend=~masks[:1]))
    kinds, numbers = np.unique(masks[starts], return_inverse=True)
    last = int(numbers[-1])  # the class of the last code point is 0
    order = [last, *(number for number in range(len(kinds)) if number != last)]
    renumbered = np.argsort(order)[numbers].repeat(np.diff(starts, append=CODE_POINTS))
    rows = _rows(parser.steps, first, [int(kinds[number]) for number in order])
    if rows is None:
        raise _unknown(expression, f"needs more than {_MOST_STATES} states")
    if any(step & 1 for step in rows[1]):
        raise _unknown(expression, "matches without a character")
    table = CodePointTable.smallest("character_class", renumbered.astype(np.uint32))
    flat = Array("transitions", [step for row in rows for step in row])
    return Automaton(table, len(kinds) + 1, flat)


def _rows(steps: Sequence[_Step], first: int, kinds: Sequence[int]) -> list[list[int]] | None:
    """Transitions of every state, by the class of the next character; None of too many states."""
    numbers: dict[tuple[int, ...], int] = {(): 0, (first,): 1}
    rows: list[list[int]] = []
    while len(rows) < len(numbers) <= _MOST_STATES:
        state = [*numbers][len(rows)]
        row = []
        for kind in (*kinds, None):
            following, accepts = _follow(steps, state, kind)
            row.append(2 * numbers.setdefault(following, len(numbers)) + accepts)
        rows.append(row)
    return rows if len(rows) == len(numbers) else None


def _follow(
    steps: Sequence[_Step], state: Sequence[int], kind: int | None
) -> tuple[tuple[int, ...], bool]:
    """The state behind a character of these sets, None at the end; whether there was a match."""
    following: dict[int, None] = {}
    seen: set[int] = set()
    left = [*reversed(state)]
    while left:
        place = left.pop()
        if place in seen:
            continue
        seen.add(place)
        step = steps[place]
        fits = kind is not None and bool(kind >> step.of & 1)
        if step.kind == "match":
            return tuple(following), True
        if step.kind == "set":
            following |= dict.fromkeys(step.next if fits else ())
        elif step.kind == "any" or fits == (step.kind == "ahead"):
            left += reversed(step.next)
    return tuple(following), False


def _unknown(expression: str, why: str) -> TokenizerFormError:
    return refused("pre_tokenizer", f"the regular expression {expression!r:.300} {why}")
