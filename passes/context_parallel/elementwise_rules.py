"""Rules for what treats every row by itself: element by element, or along other dimensions than the rows'."""

from typing import Any

import torch
from torch.fx import Node

from oproj_pass.passes.context_parallel.rows import Call, CannotSplit, Followed, Rows, shape_of
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.symbols import statically_known_true

COMPARE = ops.targets(
    "eq", "ne", "lt", "le", "gt", "ge", "and", "and_", "or", "or_", "xor", "invert", "logical_and",
    "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "isnan", "isinf",
    "__and__", "__or__", "__xor__",
)  # fmt: skip
ELEMENTWISE = (
    ops.POINTWISE | ops.COMBINE | ops.COPY | COMPARE
    | ops.targets("floordiv", "remainder", "mod", "fmod", "expm1", "log1p", "exp2", "leaky_relu", "hardswish",
                  "mish", "softsign", "sign", "view_as_complex", "view_as_real", "copy", "logsigmoid",
                  "expand_as")
)  # fmt: skip
_COMPLEX = ops.targets("view_as_complex", "view_as_real")

# Where the dimensions are given that these run along, and what they are if left out (None: all of them).
ALONG: dict[Any, tuple[int, str, Any]] = {
    target: (position, "dim", default)
    for names, position, default in (
        (("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"), 1, None),
        (
            ("mean", "sum", "var", "amax", "amin", "logsumexp", "argmax", "argmin", "prod", "all", "any"),
            1,
            None,
        ),
        (("max", "min"), 1, None),
        (("sort", "argsort"), 1, -1),
        (("topk",), 2, -1),
        (("norm", "linalg_vector_norm"), 2, None),
        (("normalize",), 2, 1),
    )
    for target in ops.targets(*names)
}
NORMS = ops.targets("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")


def elementwise(call: Call) -> Followed:
    """Right-aligned broadcasting; of a whole input that has rows, this rank's are taken."""
    if ops.operation(call.node) in ops.CAST | _COMPLEX:
        return Followed(call.first(alone=False)[1])
    shape = call.shape
    rows = aligned_rows(call, call.node.all_input_nodes, len(shape))
    return Followed(rows, aligned_splits(call, call.node.all_input_nodes, rows, shape))


def aligned_rows(call: Call, sources: list[Node], rank: int) -> Rows:
    """Where rows lie on a result of ``rank`` dimensions that all local sources agree on."""
    found = {}
    for source in sources:
        if (rows := call.rows(source)) is not None:
            dim = rows.dim - len(shape_of(source) or ()) + rank
            found[dim] = Rows(dim, rows.outer)
    if len(found) != 1:
        raise CannotSplit(f"`{call.node.name}` joins rows along dimensions {sorted(found)}")
    return next(iter(found.values()))


def aligned_splits(
    call: Call, sources: list[Node], rows: Rows, shape: torch.Size
) -> tuple[tuple[Node, int], ...]:
    """The whole sources that have rows where the result has them, each with that dimension."""
    splits = []
    for source in sources:
        own = shape_of(source)
        if own is None or call.rows(source) is not None:
            continue
        dim = rows.dim - len(shape) + len(own)
        if dim < 0 or statically_known_true(own[dim] == 1):
            continue
        splits.append(split_of(call, source, dim, rows))
    return tuple(splits)


def split_of(call: Call, source: Node, dim: int, rows: Rows) -> tuple[Node, int]:
    """A whole source to be split along ``dim``; refused if that does not count the rows alone."""
    size = (shape_of(source) or ())[dim]
    if not (rows.is_plain and call.is_total(size)):
        raise CannotSplit(
            f"`{call.node.name}` meets `{source.name}`, whose dimension {dim}, of {size}, counts no rows"
        )
    return source, dim


def along(call: Call) -> Followed:
    """Reductions, softmax, sorting: along other dimensions than the rows'."""
    operation = ops.operation(call.node)
    position, name, default = ALONG[operation]
    given = argument(call.node, position, name, default)
    if isinstance(given, Node):  # torch.max(a, b)
        return elementwise(call)
    source, rows = call.first()
    rank = len(shape_of(source) or ())
    is_open = given is None or isinstance(given, bool)  # x.var(False) names no dimension
    dims = range(rank) if is_open else given if isinstance(given, list | tuple) else (given,)
    reduced = sorted(dim % rank for dim in dims)
    if rows.dim in reduced:
        raise CannotSplit(f"`{call.node.name}` runs along the rows")
    if len(call.shape) == rank:
        return Followed(rows)
    return Followed(Rows(rows.dim - sum(dim < rows.dim for dim in reduced), rows.outer))


def normed(call: Call) -> Followed:
    """Norms over the last dimensions."""
    source, rows = call.first()
    normalised = argument(call.node, 1, "normalized_shape")
    if rows.dim >= len(shape_of(source) or ()) - len(normalised):
        raise CannotSplit(f"`{call.node.name}` normalises along the rows")
    return Followed(rows)


def made_like(call: Call) -> Followed:
    """Fresh memory of another value's shape, or of stated sizes that count rows at the same place."""
    source, rows = call.first()
    shape, own = call.shape, shape_of(source) or ()
    if tuple(shape) == tuple(own) and len(call.node.args) == 1:
        return Followed(rows)
    sizes = call.node.args[1:]
    if sizes and (stated := call.rows_of_shape(sizes[0])):
        return Followed(stated)
    listed = isinstance(sizes[0], list | tuple) if sizes else False
    if len(shape) <= rows.dim or not call.is_total(shape[rows.dim], rows.outer):
        return Followed(None)
    place = ("args", 1, rows.dim) if listed else ("args", 1 + rows.dim)
    return Followed(rows, sizes=((place, rows.outer),))
