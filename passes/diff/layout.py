"""Places the nodes of a small graph in layers, inputs at the top (Sugiyama's method).

1. rank: longest path from the inputs; an input sits right above its first user;
2. bend: an edge over several ranks gets an empty cell in each rank between;
3. order: a few barycentre sweeps within each rank;
4. place: each cell moves towards its neighbours, keeping its distance to the next.

Knows sizes only; colours, text and markup are for `svg`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import networkx as nx

__all__ = ["Layout", "Point", "place_nodes"]

_ROW_GAP = 24.0
_COLUMN_GAP = 22.0
_BEND_WIDTH = 8.0
_SWEEPS = 12

_Cell = tuple[int, int, int]  # (source, user, rank) of a bend; (node, -1, 0) of a node
Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Centres of the nodes, and for each edge the points it passes, from its upper end to its lower."""

    width: float
    height: float
    centres: dict[int, Point]
    routes: dict[tuple[int, int], list[Point]]


def place_nodes(sizes: Mapping[int, tuple[float, float]], edges: Mapping[tuple[int, int], float]) -> Layout:
    """Lay out nodes of the given (width, height).

    Keys are in drawing order: an edge runs down from the smaller to the larger. An edge's number is how
    strongly it pulls its ends into one column.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(sorted(sizes))
    graph.add_edges_from(sorted((min(edge), max(edge)) for edge in edges if edge[0] != edge[1]))
    ranks = _rank(graph)
    cells = _bend(graph, ranks, edges)
    layers = _order(cells, ranks)
    widths = {cell: _BEND_WIDTH if cell[1] >= 0 else sizes[cell[0]][0] for layer in layers for cell in layer}
    columns = _place(layers, cells, widths)
    return _measure(graph, ranks, layers, widths, columns, sizes)


def _rank(graph: "nx.DiGraph[int]") -> dict[int, int]:
    ranks = {node: i for i, layer in enumerate(nx.topological_generations(graph)) for node in layer}
    for node in graph:
        if graph.in_degree(node) == 0 and graph.out_degree(node) > 0:
            ranks[node] = min(ranks[user] for user in graph.successors(node)) - 1
    return ranks


def _path(source: int, user: int, ranks: dict[int, int]) -> list[_Cell]:
    bends = [(source, user, rank) for rank in range(ranks[source] + 1, ranks[user])]
    return [(source, -1, 0), *bends, (user, -1, 0)]


def _bend(
    graph: "nx.DiGraph[int]", ranks: dict[int, int], edges: Mapping[tuple[int, int], float]
) -> "nx.Graph[_Cell]":
    """Cells, with an edge between neighbours in adjacent ranks, weighted by its pull."""
    cells: nx.Graph[_Cell] = nx.Graph()
    cells.add_nodes_from((node, -1, 0) for node in graph)
    for source, user in graph.edges:
        pull = edges.get((source, user)) or edges[user, source]
        cells.add_edges_from(pairwise(_path(source, user, ranks)), pull=pull)
    return cells


def _order(cells: "nx.Graph[_Cell]", ranks: dict[int, int]) -> list[list[_Cell]]:
    def rank(cell: _Cell) -> int:
        return cell[2] if cell[1] >= 0 else ranks[cell[0]]

    layers: list[list[_Cell]] = [[] for _ in range(max(ranks.values()) + 1)]
    for cell in cells:
        layers[rank(cell)].append(cell)
    for _ in range(4):
        for sweep, towards in ((range(1, len(layers)), -1), (range(len(layers) - 2, -1, -1), 1)):
            for i in sweep:
                fixed = {cell: place for place, cell in enumerate(layers[i + towards])}
                middle = {
                    cell: _mean([(fixed[n], 1.0) for n in cells[cell] if n in fixed], float(place))
                    for place, cell in enumerate(layers[i])
                }
                layers[i].sort(key=middle.__getitem__)
    return layers


def _mean(weighted: list[tuple[float, float]], default: float) -> float:
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total else default


def _place(
    layers: list[list[_Cell]], cells: "nx.Graph[_Cell]", widths: dict[_Cell, float]
) -> dict[_Cell, float]:
    weights = {cell: sum(cells.edges[cell, n]["pull"] for n in cells[cell]) or 1.0 for cell in cells}
    columns = dict.fromkeys(cells, 0.0)
    for sweep in range(_SWEEPS):
        # Each sweep looks one way only, so that a chain follows its end within one sweep.
        ordered = layers if sweep % 2 == 0 else layers[::-1]
        for fixed, layer in zip([[], *ordered], ordered, strict=False):
            above = set(fixed)
            wanted = [
                _mean(
                    [(columns[n], cells.edges[cell, n]["pull"]) for n in cells[cell] if n in above],
                    columns[cell],
                )
                for cell in layer
            ]
            spread = _spread(wanted, [widths[cell] for cell in layer], [weights[cell] for cell in layer])
            columns.update(zip(layer, spread, strict=True))
    return columns


def _spread(wanted: list[float], widths: list[float], weights: list[float]) -> list[float]:
    """The columns nearest to the wanted ones (weighted least squares) that keep order and distance.

    With the distances taken out the columns only have to ascend, which is isotonic regression: neighbours
    that would cross are pooled at their mean.
    """
    offsets = [0.0, *accumulate((a + b) / 2 + _COLUMN_GAP for a, b in pairwise(widths))]
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of cells
    for want, offset, weight in zip(wanted, offsets, weights, strict=True):
        pool = (want - offset, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, total, count = pools.pop()
            pool = (_mean([(mean, total), (pool[0], pool[1])], 0.0), total + pool[1], count + pool[2])
        pools.append(pool)
    level = [mean for mean, _, count in pools for _ in range(count)]
    return [base + offset for base, offset in zip(level, offsets, strict=True)]


def _measure(
    graph: "nx.DiGraph[int]",
    ranks: dict[int, int],
    layers: list[list[_Cell]],
    widths: dict[_Cell, float],
    columns: dict[_Cell, float],
    sizes: Mapping[int, tuple[float, float]],
) -> Layout:
    left = min(columns[cell] - widths[cell] / 2 for cell in columns)
    right = max(columns[cell] + widths[cell] / 2 for cell in columns)
    tops, y = [], 0.0
    for layer in layers:
        height = max((sizes[cell[0]][1] for cell in layer if cell[1] < 0), default=0.0)
        tops.append((y, height))
        y += height + _ROW_GAP
    centres = {
        node: (columns[node, -1, 0] - left, tops[ranks[node]][0] + tops[ranks[node]][1] / 2) for node in graph
    }
    routes = {}
    for source, user in graph.edges:
        points = [(centres[source][0], centres[source][1] + sizes[source][1] / 2)]
        for bend in _path(source, user, ranks)[1:-1]:
            top, height = tops[bend[2]]
            points += [(columns[bend] - left, top), (columns[bend] - left, top + height)]
        points.append((centres[user][0], centres[user][1] - sizes[user][1] / 2))
        routes[source, user] = points
    return Layout(right - left, y - _ROW_GAP, centres, routes)
