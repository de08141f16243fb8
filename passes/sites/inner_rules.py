"""One rule an operation: what of an MLP's I a node holds, if its inputs' share of it is known.

I lies on the last dimension, ``parts`` times side by side where gate and up are one GEMM. A rule that cannot
show that a rank's part of the result follows from its part of the inputs raises ``NotElementwise``.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.literals import EMPTY, NEW, PARTS, UNFLATTEN, VIEW
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.effects import mutated_inputs
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.inner_parts import (
    chunked,
    in_parts,
    item,
    note_sizes,
    selected,
    sliced,
    split,
    unbound,
    viewed,
)
from oproj_pass.passes.sites.inner_state import (
    Held,
    Holds,
    NotElementwise,
    Reading,
    is_last,
    mixed,
    parted,
    shape_of,
)


def hold(reading: Reading, node: Node) -> None:
    """Note what ``node`` holds, by its operation's rule."""
    operation = ops.operation(node)
    rule = next((rule for family, rule in _RULES if operation in family), None)
    if rule is None and operation in ops.registered(*ops.GATED_PAIR):
        rule = _gated
    if rule is None and operation in ops.registered(*ops.QUANTISE):
        rule = _quantised
    if rule is None:
        raise mixed(node)
    reading.held[node] = rule(reading, node)


def _cast(reading: Reading, node: Node) -> Holds:
    """Of another argument only the type is taken."""
    return reading.held[node.args[0]]  # type: ignore[index]


def _elementwise(reading: Reading, node: Node) -> Holds:
    known = {source: reading.of(source) for source in node.all_input_nodes if source in reading.held}
    for source in node.all_input_nodes:
        if source not in known:
            _require_one_value(reading, source)
    scales = {held for held in known.values() if not held.parts}
    values = {held for held in known.values() if held.parts}
    (found, *others) = values or scales
    if others or any(scale.group != found.group for scale in scales):
        raise NotElementwise(f"joins intermediate features of different places in `{node.name}`")
    widths = {shape_of(source)[-1] for source, held in known.items() if held.parts}
    if values and (widths != {shape_of(node)[-1]} or (scales and ops.operation(node) not in _SCALES)):
        raise mixed(node)
    return found


def _require_one_value(reading: Reading, source: Node) -> None:
    """What is not of the ups must be the same for every row and feature."""
    value = value_of(source)
    if reading.dependence.is_activation(source):
        raise NotElementwise(f"combines its intermediate with `{source.name}`, which its GEMMs do not make")
    if isinstance(value, Tensor) and value.numel() != 1:
        raise NotElementwise(f"combines its intermediate with the stored vector `{source.name}`")


def _dropped_out(reading: Reading, node: Node) -> Holds:
    if argument(node, 2, "training", True):
        raise NotElementwise(f"drops intermediate features at random in `{node.name}`")
    return _cast(reading, node)


def _gated(reading: Reading, node: Node) -> Holds:
    """One half gates the other, in one operator, which may fill a buffer with the result."""
    buffers = [*mutated_inputs(node)]
    source = next(x for x in node.all_input_nodes if x in reading.held and x not in buffers)
    dim = -1 if buffers else argument(node, 1, "dim", -1)
    is_filled_right = all(reading.of(buffer) == Held(1) for buffer in buffers)
    if reading.of(source) != Held(2) or not is_last(source, dim) or not is_filled_right:
        raise parted(node)
    return in_parts(reading, Held(2), [1])[0]


def _buffer(reading: Reading, node: Node) -> Holds:
    """What an operator of an engine is given to fill."""
    held = Held(shape_of(node)[-1] // reading.size)
    if shape_of(node)[-1] % reading.size:
        raise parted(node)
    note_sizes(reading, node, held)
    return held


def _largest(reading: Reading, node: Node) -> Holds:
    """The scale of a quantised row, by which its product is scaled again, or of a group of its features."""
    source: Any = node.args[0]
    held, dims = reading.of(source), argument(node, 1, "dim", ())
    listed = dims if isinstance(dims, list | tuple) else (dims,)
    is_of_row = held == Held(1) and reading.down.row_scales and Held(0) not in reading.held.values()
    is_of_group = held.group is not None and listed
    if not all(is_last(source, dim) for dim in listed) or not (is_of_row or is_of_group):
        raise mixed(node)
    return Held(0, group=held.group)


def _quantised(reading: Reading, node: Node) -> Holds:
    if any(source is not node.args[0] for source in node.all_input_nodes):
        for source in node.all_input_nodes:
            if source is not node.args[0]:
                _require_one_value(reading, source)
    held = reading.of(node.args[0])  # type: ignore[arg-type]
    return held if isinstance(value_of(node), Tensor) else (held, Held(0))


_SCALES = ops.targets("mul", "div", "truediv")
_RULES: tuple[tuple[frozenset[Any], Callable[[Reading, Node], Holds]], ...] = (
    (ops.CAST | ops.COPY, _cast),
    (ops.targets("dropout"), _dropped_out),
    (ops.targets("amax"), _largest),
    (ops.ELEMENTWISE, _elementwise),
    (VIEW | UNFLATTEN | ops.targets("flatten", "squeeze", "unsqueeze"), viewed),
    (ops.targets("chunk"), chunked),
    (PARTS, split),
    (ops.targets("slice", "narrow"), sliced),
    (ops.targets("getitem"), item),
    (ops.targets("select"), selected),
    (ops.targets("unbind"), unbound),
    (ops.GLU, _gated),
    (EMPTY | NEW, _buffer),
)
