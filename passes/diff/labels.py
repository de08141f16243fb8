"""Prints nodes and their values in one line each.

Decides the wording that text and page share. Escapes what no line may hold (control characters,
direction marks, lone surrogates) and nothing else: markup is escaped where markup is written.
"""

import re
from itertools import groupby

from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref

__all__ = [
    "fold_paths",
    "format_nbytes",
    "format_value",
    "plain_name",
    "print_constants",
    "print_node",
    "printable",
    "short_name",
    "shorten",
]

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_DTYPE = re.compile(r"^(bfloat|float|uint|int|complex)(?=\d)")
_SHORT_DTYPE = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c"}
_OPERATOR = "torch.ops."


def printable(text: str) -> str:
    """`text` on one line, control characters as `\\n`, `\\x00` and the like."""
    return _UNPRINTABLE.sub(lambda char: char[0].encode("unicode_escape").decode("ascii"), text)


def shorten(text: str, limit: int) -> str:
    """`text`, its middle replaced by an ellipsis where it is longer than `limit`: both ends tell."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def format_nbytes(nbytes: int) -> str:
    """`512 B`, `224 KiB`, `1.5 GiB`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, 4)
    return f"{nbytes / 1024**power:.4g} {'KMGT'[power - 1]}iB"


def format_value(node: NodeSnapshot) -> str:
    """`bf16[s33, 7168]`; empty where the value is not one tensor or its shape is unknown."""
    dtype = _DTYPE.sub(lambda kind: _SHORT_DTYPE[kind[0]], node.dtype or "")
    return dtype if node.shape is None else f"{dtype}[{', '.join(map(str, node.shape))}]"


def short_name(node: NodeSnapshot) -> str:
    """What a reader calls the node: `all_to_all_single`, `linear`, `view`; an input goes by its own name."""
    if node.op in ("placeholder", "get_attr"):
        return printable(plain_name(node.name))
    if node.target.startswith(_OPERATOR):
        return printable(node.target.split(".")[3])
    return printable(node.target if node.op == "call_method" else node.target.rpartition(".")[2])


def plain_name(name: str) -> str:
    """`layers.0.w.bias` for Dynamo's `l_self_modules_layers_modules_0_modules_w_parameters_bias_`."""
    parts = re.split(r"_(?:modules|parameters|buffers)_", name)
    return ".".join(parts[1:]).rstrip("_") if len(parts) > 1 else name


def print_constants(node: NodeSnapshot) -> str:
    """The arguments after the first node, each node among them a dot: `(-1, 8, 2048)`, `[·×8], 'sum'`.

    Empty where no constant is among them.
    """
    text = "".join("·" if isinstance(part, Ref) else part for part in node.args)
    text = re.sub(r"^·(, )?|(, None)+$", "", text)
    if not text.strip("·, "):
        return ""
    return printable(
        re.sub(r"·(?:, ·){2,}", lambda run: f"·\N{MULTIPLICATION SIGN}{run[0].count('·')}", text)
    )


def print_node(node: NodeSnapshot) -> str:
    """`%linear: bf16[s33, 7168] = torch._C._nn.linear(%x, %layers.0.o_proj.weight, None)`."""
    args = "".join(f"%{plain_name(part.name)}" if isinstance(part, Ref) else part for part in node.args)
    name = plain_name(node.name)
    call = {
        "placeholder": f"placeholder {node.target}" if name == node.name else "placeholder",
        "get_attr": f"get_attr {node.target}",
        "output": f"return {args}",
        "call_method": f".{node.target}({args})",
    }.get(node.op, f"{node.target}({args})")
    value = format_value(node)
    return printable(f"%{name}{f': {value}' if value else ''} = {call}")


def fold_paths(paths: list[str]) -> list[str]:
    """`layers.1.attn`, `layers.2.attn`, `layers.3.attn` as `layers.1-3.attn`; order kept."""
    folded = []
    for (head, tail), run in groupby(map(_split_index, paths), key=lambda part: (part[0], part[2])):
        indices = [index for _, index, _ in run]
        folded += [f"{head}{numbers}{tail}" for numbers in _runs(indices)]
    return folded


def _split_index(path: str) -> tuple[str, int | None, str]:
    match = re.search(r"(?:^|(?<=\.))\d+(?=\.|$)", path)
    return (path[: match.start()], int(match[0]), path[match.end() :]) if match else (path, None, "")


def _runs(indices: list[int | None]) -> list[str]:
    runs: list[list[int]] = []
    for index in indices:
        if index is None:
            return ["" for _ in indices]
        if runs and runs[-1][-1] + 1 == index:
            runs[-1].append(index)
        else:
            runs.append([index])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
