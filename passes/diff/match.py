"""Decides which node of one graph is which node of the other.

Two nodes are the same when their origin is: operator, inputs, users, module path and name. Names are
right after a rewrite in place but shifted after a new trace, so they count last:

1. inputs of the graph and its output, by target;
2. nodes with equal surroundings that occur once in each graph, wide surroundings first;
3. the same operator for the same matched users;
4. in execution order, the same operator, in any spelling, next to a matched neighbour (a linear whose
   weight is matched);
5. the same operator and name, unless inputs and module path say otherwise;
6. the same name with another operator, next to a matched neighbour.

Whenever a node is matched, a user of it that is the only one with its operator, constants and inputs on
both sides is matched too. The steps start over once one finds something. Says nothing about what changed
in a pair.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot, Ref
from oproj_pass.passes.diff.labels import short_name
from oproj_pass.passes.diff.neighbourhood import MAX_TELLING_USERS, neighbourhood_labels

__all__ = ["match_nodes"]

_RADIUS = 3


def match_nodes(before: GraphSnapshot, after: GraphSnapshot) -> dict[str, str]:
    """Names in `before` to names in `after`, one to one, of the nodes that are the same."""
    matching = _Matching(before, after)
    matching.match_anchors()
    matching.match_surroundings()
    steps = (
        matching.match_by_users,
        matching.match_next_to_matched,
        matching.match_by_name,
        matching.match_other_operator,
    )
    while any(step() for step in steps):
        pass
    return matching.forward


class _Matching:
    """The pairs found so far, and the steps that find more; each step says whether it did."""

    def __init__(self, before: GraphSnapshot, after: GraphSnapshot) -> None:
        self.before, self.after = before, after
        self.open_before, self.open_after = dict(before.by_name), dict(after.by_name)
        self.forward: dict[str, str] = {}
        self.backward: dict[str, str] = {}
        self.same_call: dict[object, list[NodeSnapshot]] = defaultdict(list)
        for node in before.nodes:
            self.same_call[node.op, node.target, node.args].append(node)

    def match_anchors(self) -> None:
        def key(node: NodeSnapshot) -> object:
            return (node.op, node.target) if node.is_input or node.op == "output" else None

        self._match_equal(key, key)

    def match_surroundings(self) -> None:
        numbers: dict[object, int] = {}
        before = list(neighbourhood_labels(self.before, numbers, _RADIUS))
        after = list(neighbourhood_labels(self.after, numbers, _RADIUS))
        for old_labels, new_labels in zip(before[:0:-1], after[:0:-1], strict=True):
            old_counts, new_counts = Counter(old_labels.values()), Counter(new_labels.values())
            once = {label: name for name, label in old_labels.items() if old_counts[label] == 1}
            for name, label in new_labels.items():
                if label in once and new_counts[label] == 1:
                    self._match(self.before.by_name[once[label]], self.after.by_name[name])

    def match_next_to_matched(self) -> bool:
        readers: dict[object, list[NodeSnapshot]] = defaultdict(list)
        for node in self.open_before.values():
            for position, name in enumerate(node.inputs):
                if self._is_telling(name):
                    readers[name, position, short_name(node)].append(node)
        found = False
        for new in list(self.open_after.values()):
            candidates = self._same_call_before(new) or [
                old
                for position, name in enumerate(new.inputs)
                for old in readers.get((self.backward.get(name), position, short_name(new)), ())
                if old.name in self.open_before and _compatible(old, new) and not self._is_claimed(old, new)
            ]
            found |= self._match(max(candidates, key=partial(self._support, new), default=None), new)
        return found

    def match_by_users(self) -> bool:
        def key_before(node: NodeSnapshot) -> object:
            users = self.before.users[node.name]
            return (node.op, node.target, frozenset(users)) if users else None

        def key_after(node: NodeSnapshot) -> object:
            users = self.after.users[node.name]
            if not users or any(user in self.open_after for user, _ in users):
                return None
            known = frozenset((self.backward[user], position) for user, position in users)
            return node.op, node.target, known

        return self._match_equal(key_before, key_after)

    def match_by_name(self) -> bool:
        def same(old: NodeSnapshot, new: NodeSnapshot) -> bool:
            if (old.op, old.target) != (new.op, new.target):
                return False
            return old.path == new.path != "" or self._agreeing(old, new) > 0 or not self._conflict(old, new)

        return self._match_named(same)

    def match_other_operator(self) -> bool:
        return self._match_named(
            lambda old, new: self._agreeing(old, new) > 0 and not self._conflict(old, new)
        )

    def _match_named(self, same: Callable[[NodeSnapshot, NodeSnapshot], bool]) -> bool:
        found = False
        for new in list(self.open_after.values()):
            old = self.open_before.get(new.name)
            if old is not None and "placeholder" not in (old.op, new.op):
                found |= _compatible(old, new) and same(old, new) and self._match(old, new)
        return found

    def _match_equal(
        self, key_before: Callable[[NodeSnapshot], object], key_after: Callable[[NodeSnapshot], object]
    ) -> bool:
        """Match open nodes of equal keys, from the end of the graph; a key of None is no key."""
        buckets: dict[object, list[NodeSnapshot]] = defaultdict(list)
        for node in self.open_before.values():
            buckets[key_before(node)].append(node)
        found = False
        for new in reversed(list(self.open_after.values())):
            if (key := key_after(new)) is not None:
                candidates = [old for old in buckets.get(key, ()) if old.name in self.open_before]
                found |= self._match(max(candidates, key=partial(_likeness, new), default=None), new)
        return found

    def _match(self, old: NodeSnapshot | None, new: NodeSnapshot) -> bool:
        if old is None or old.name not in self.open_before or new.name not in self.open_after:
            return False
        self._record(old, new)
        unfinished = [new]
        while unfinished:
            for user, _ in self.after.users[unfinished.pop().name]:
                reader = self.after.by_name[user]
                if user in self.open_after and len(twins := self._same_call_before(reader)) == 1:
                    self._record(twins[0], reader)
                    unfinished.append(reader)
        return True

    def _record(self, old: NodeSnapshot, new: NodeSnapshot) -> None:
        self.forward[old.name] = new.name
        self.backward[new.name] = old.name
        del self.open_before[old.name], self.open_after[new.name]

    def _same_call_before(self, new: NodeSnapshot) -> list[NodeSnapshot]:
        """The open nodes before that do the same on the same values; none while a value is unmatched."""
        if any(name not in self.backward for name in new.inputs):
            return []
        args = tuple(Ref(self.backward[part.name]) if isinstance(part, Ref) else part for part in new.args)
        calls = self.same_call.get((new.op, new.target, args), [])
        return [old for old in calls if old.name in self.open_before]

    def _is_claimed(self, old: NodeSnapshot, new: NodeSnapshot) -> bool:
        """Whether another open node after goes by the name of `old` and may well be it."""
        twin = self.open_after.get(old.name)
        if twin is None or twin is new or (twin.op, twin.target) != (old.op, old.target):
            return False
        return _compatible(old, twin) and not self._conflict(old, twin)

    def _is_telling(self, name: str) -> bool:
        return len(self.before.users[name]) <= MAX_TELLING_USERS

    def _support(self, new: NodeSnapshot, old: NodeSnapshot) -> tuple[int, tuple[bool, ...]]:
        return self._agreeing(old, new), _likeness(new, old)

    def _agreeing(self, old: NodeSnapshot, new: NodeSnapshot) -> int:
        """How many arguments are the same matched node, hubs not counted."""
        pairs = zip(old.inputs, new.inputs, strict=False)
        return sum(self.forward.get(a) == b and self._is_telling(a) for a, b in pairs)

    def _conflict(self, old: NodeSnapshot, new: NodeSnapshot) -> bool:
        """Whether some argument is matched on both sides, to another node than its counterpart."""
        pairs = zip(old.inputs, new.inputs, strict=False)
        return any(a in self.forward and b in self.backward and self.forward[a] != b for a, b in pairs)


def _compatible(old: NodeSnapshot, new: NodeSnapshot) -> bool:
    return not old.path or not new.path or old.path == new.path


def _likeness(new: NodeSnapshot, old: NodeSnapshot) -> tuple[bool, ...]:
    return old.path == new.path, old.name == new.name, old.source == new.source
