"""Draw steps and the edges between them as static SVG, from left to right.

Each node is in the layer after the last node that it waits for. Four sweeps order the nodes of each layer by the mean
position of their neighbours. Then each node is moved as close to its neighbours as the order allows. Edges are
horizontal and vertical lines. Above MAX_NODES nodes, the nodes of a layer with the same job are merged: "24 x resize,
20 done".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from jobq.observe.chart import ChartFrame, Drawing, short, text

#: More nodes than this are folded.
MAX_NODES = 300
#: Layers that are drawn, and parts of edges between two layers; the shortest edges are drawn first.
MAX_LAYERS, MAX_SEGMENTS = 100, 4_000
SWEEPS = 4
BOX_WIDTH, BOX_HEIGHT, GAP, LANE = 168, 52, 18, 12
#: Between two layers: room for the arrow, and for each vertical line.
GUTTER, TRACK = 40, 10
MARGIN, CORNER = 4, 6
#: A drawing that is a little too wide for a page is shown smaller: style sheets know it by the class `fits`.
FITS = 1_400
#: Characters that a box has room for.
TITLE, NOTE = 19, 23


class GraphNode(NamedTuple):
    """A step in a drawing.

    Attributes:
        state: The step's state, as text.
        style: CSS class of the node's colour.
        share: Finished share of the step, from 0 to 1; None to draw no progress bar.
        job: The step's job. Nodes of one layer with the same job may be merged.
        on_path: True if the node is on the critical path.
        title: Title of the node, by default its name.
    """

    name: str
    state: str
    style: str = "unknown"
    glyph: str = ""
    note: str = ""
    job: str = ""
    share: float | None = None
    on_path: bool = False
    href: str = ""
    title: str = ""


class GraphEdge(NamedTuple):
    """An edge between two nodes, which are given by name.

    Attributes:
        when: The edge's condition: the start node must be `done`, `ended` or `failed`.
    """

    start: str
    end: str
    when: str = "done"
    on_path: bool = False


class DrawnGraph(NamedTuple):
    """A drawing of a graph.

    Attributes:
        drawing: The SVG markup, empty if the graph has no nodes.
        folded: Number of steps merged into other nodes.
        steps, edges: Number of omitted steps, and number of omitted edges.
    """

    drawing: Drawing
    folded: int = 0
    steps: int = 0
    edges: int = 0


def draw(
    frame: ChartFrame, nodes: Sequence[GraphNode], edges: Iterable[GraphEdge],
    urgency: Sequence[str] = (),
) -> DrawnGraph:  # fmt: skip
    """Draw an acyclic graph.

    Edges to unknown nodes and edges in a cycle are left out. (Flows have no cycles.)

    Args:
        urgency: The styles of nodes, most urgent first. A merged node has the most urgent style of its original nodes.
    """
    if not nodes:
        return DrawnGraph(Drawing())
    every = {node.name: node for node in nodes}
    known = [edge for edge in edges if {edge.start, edge.end} <= every.keys()]
    layer_of = layers(every, known)
    shown = {name: node for name, node in every.items() if layer_of[name] < MAX_LAYERS}
    left_out = len(every) - len(shown)
    drawn = [
        edge for edge in known if edge.end in shown and layer_of[edge.start] < layer_of[edge.end]
    ]
    if len(shown) > MAX_NODES:
        shown, drawn, layer_of = folded(shown, drawn, layer_of, urgency)
    drawn, longest = _short_ones(drawn, layer_of)
    plan = _Plan(shown, drawn, layer_of)
    return DrawnGraph(_drawn(frame, plan), len(every) - left_out - len(shown), left_out, longest)


def _short_ones(edges: list[GraphEdge], layer_of: Mapping[str, int]) -> tuple[list[GraphEdge], int]:
    """Return the shortest edges whose lengths add up to at most MAX_SEGMENTS, and the number of omitted edges."""
    order = sorted(edges, key=lambda edge: layer_of[edge.end] - layer_of[edge.start])
    room = accumulate(layer_of[edge.end] - layer_of[edge.start] for edge in order)
    kept = sum(total <= MAX_SEGMENTS for total in room)
    return order[:kept], len(edges) - kept


def layers(names: Iterable[str], edges: Sequence[GraphEdge]) -> dict[str, int]:
    """Return the layer of each node, which is the length of the longest path to the node."""
    levels = dict.fromkeys(names, 0)
    behind, before = defaultdict[str, list[str]](list), Counter[str]()
    for edge in edges:
        behind[edge.start].append(edge.end)
        before[edge.end] += 1
    free = [name for name in levels if not before[name]]
    for name in free:
        for end in behind[name]:
            levels[end] = max(levels[end], levels[name] + 1)
            before[end] -= 1
            if not before[end]:
                free.append(end)
    return levels


def folded(
    nodes: Mapping[str, GraphNode], edges: Sequence[GraphEdge], layer_of: Mapping[str, int],
    urgency: Sequence[str],
) -> tuple[dict[str, GraphNode], list[GraphEdge], dict[str, int]]:  # fmt: skip
    """In each layer, merge nodes with the same job. If more than MAX_NODES remain, merge each whole layer."""
    for by_job in (True, False):
        groups = defaultdict[tuple[int, str], list[GraphNode]](list)
        for name, node in nodes.items():
            groups[layer_of[name], node.job if by_job else ""].append(node)
        if len(groups) <= MAX_NODES:
            break
    made, place = dict[str, GraphNode](), dict[str, str]()
    levels = dict[str, int]()
    for (layer, _), group in groups.items():
        node = group[0] if len(group) == 1 else _one_of(group, urgency)
        made[node.name], levels[node.name] = node, layer
        place |= dict.fromkeys((member.name for member in group), node.name)
    joined = dict[tuple[str, str], GraphEdge]()
    for edge in sorted(edges, key=lambda edge: edge.on_path):
        start, end = place[edge.start], place[edge.end]
        joined[start, end] = GraphEdge(start, end, edge.when, edge.on_path)
    return made, list(joined.values()), levels


def _one_of(group: Sequence[GraphNode], urgency: Sequence[str]) -> GraphNode:
    jobs = {node.job for node in group}
    what = jobs.pop().rpartition(".")[2] if len(jobs) == 1 else "steps"
    states, styles = Counter(node.state for node in group), {node.style for node in group}
    style = next((known for known in urgency if known in styles), group[0].style)
    told = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    sign = next(node.glyph for node in group if node.style == style or style not in styles)
    done = sum(node.share if node.share is not None else node.state == "done" for node in group)
    return GraphNode(
        group[0].name, style, style, sign, told, "", done / len(group), any(node.on_path for node in group),
        group[0].href, f"{len(group):,} x {what or 'step'}",
    )  # fmt: skip


# Where everything is.


class _Lane(NamedTuple):
    """The part of an edge inside a layer that the edge crosses."""

    edge: GraphEdge
    layer: int


_Item = str | _Lane


@dataclass(frozen=True)
class _Segment:
    """The part of an edge between two neighbouring layers.

    Attributes:
        origin: Segments of the same origin share their vertical line.
    """

    edge: GraphEdge
    start: _Item
    end: _Item

    @property
    def origin(self) -> tuple[_Item, str]:
        return self.start, self.edge.when


class _Plan:
    """The order and the position of the items in each layer."""

    def __init__(
        self, nodes: Mapping[str, GraphNode], edges: Sequence[GraphEdge], layer_of: Mapping[str, int]
    ) -> None:  # fmt: skip
        self.nodes = nodes
        self.rows: list[list[_Item]] = [
            [] for _ in range(max(layer_of[node] for node in nodes) + 1)
        ]
        for name in nodes:
            self.rows[layer_of[name]].append(name)
        self.gutters: list[list[_Segment]] = [[] for _ in self.rows]
        self._left = defaultdict[_Item, list[_Item]](list)
        self._right = defaultdict[_Item, list[_Item]](list)
        for edge in edges:
            self._route(edge, layer_of[edge.start], layer_of[edge.end])
        self._order()
        self.y = self._heights()
        self.tracks = [_tracks(gutter, self.y) for gutter in self.gutters]
        self.x = [float(MARGIN)]
        for tracks in self.tracks[:-1]:
            wide = GUTTER + TRACK * max(0, max(tracks.values(), default=0))
            self.x.append(self.x[-1] + BOX_WIDTH + wide)

    def _route(self, edge: GraphEdge, first: int, last: int) -> None:
        before: _Item = edge.start
        for layer in range(first + 1, last + 1):
            item: _Item = edge.end if layer == last else _Lane(edge, layer)
            if layer < last:
                self.rows[layer].append(item)
            self.gutters[layer - 1].append(_Segment(edge, before, item))
            self._right[before].append(item)
            self._left[item].append(before)
            before = item

    def _order(self) -> None:
        """Sort each layer by the mean position of each item's neighbours. Keep the order with the fewest crossings."""
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(SWEEPS):
            forth = sweep % 2 == 0
            order = range(1, len(self.rows)) if forth else range(len(self.rows) - 2, -1, -1)
            for at in order:
                beside = self.rows[at - 1 if forth else at + 1]
                place = {item: float(i) for i, item in enumerate(beside)}
                near = self._left if forth else self._right
                own = {item: float(i) for i, item in enumerate(self.rows[at])}
                means = {item: _mean([place[i] for i in near[item]], own[item]) for item in own}
                self.rows[at].sort(key=means.__getitem__)
            crossed = self._crossings()
            if crossed < fewest:
                best, fewest = [list(row) for row in self.rows], crossed
        self.rows = best

    def _crossings(self) -> int:
        total = 0
        for at, gutter in enumerate(self.gutters[:-1]):
            left = {item: i for i, item in enumerate(self.rows[at])}
            right = {item: i for i, item in enumerate(self.rows[at + 1])}
            ends = [e for _, e in sorted((left[seg.start], right[seg.end]) for seg in gutter)]
            total += _inversions(ends)
        return total

    def _heights(self) -> dict[_Item, float]:
        """Return the vertical centre of each item: close to the item's neighbours, in the layer's order, and without
        overlaps.
        """
        y = {
            item: place for row in self.rows for item, place in zip(row, _stacked(row), strict=True)
        }
        for sweep in range(2 * SWEEPS):
            forth = sweep % 2 == 0
            near = self._left if forth else self._right
            for row in self.rows if forth else reversed(self.rows):
                wanted = [_mean([y[other] for other in near[item]], y[item]) for item in row]
                weights = [4.0 if isinstance(item, _Lane) else 1.0 for item in row]
                moved = [at + low for at, low in zip(
                    _rising([want - low for want, low in zip(wanted, _stacked(row), strict=True)], weights),
                    _stacked(row), strict=True,
                )]  # fmt: skip
                y |= zip(row, moved, strict=True)
        for row in self.rows:
            self._straighten(row, y)
        top = min(y[item] - _high(item) / 2 for item in y)
        return {item: round(at - top + MARGIN) for item, at in y.items()}

    def _straighten(self, row: Sequence[_Item], y: dict[_Item, float]) -> None:
        """Align an item with its only neighbour on the left, if the distance is small and there is room."""
        low = _stacked(row)
        for i, item in enumerate(row):
            near = self._left[item]
            if len(near) != 1 or abs(y[near[0]] - y[item]) > BOX_HEIGHT / 2:
                continue
            least = y[row[i - 1]] + low[i] - low[i - 1] if i else y[near[0]]
            most = y[row[i + 1]] - low[i + 1] + low[i] if i + 1 < len(row) else y[near[0]]
            y[item] = max(least, min(most, y[near[0]]))

    @property
    def size(self) -> tuple[float, float]:
        low = max(at + _high(item) / 2 for item, at in self.y.items())
        return self.x[-1] + BOX_WIDTH + MARGIN, low + MARGIN


def _high(item: _Item) -> float:
    return LANE if isinstance(item, _Lane) else BOX_HEIGHT


def _stacked(row: Sequence[_Item]) -> list[float]:
    """Return the vertical centres of items that are stacked with gaps."""
    middles, at = [], 0.0
    for item in row:
        middles.append(at + _high(item) / 2)
        at += _high(item) + (GAP if not isinstance(item, _Lane) else GAP / 2)
    return middles


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the values that are closest to `values` but never decrease. Values in the wrong order become their
    weighted mean.
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, number = pools.pop()
            mean = (mean * total + before * heavy) / (total + heavy)
            total, count = total + heavy, count + number
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def _inversions(values: list[int]) -> int:
    if len(values) < 2:
        return 0
    half = len(values) // 2
    left, right = values[:half], values[half:]
    total, merged = _inversions(left) + _inversions(right), []
    left_at = 0
    for value in right:
        while left_at < len(left) and left[left_at] <= value:
            merged.append(left[left_at])
            left_at += 1
        total += len(left) - left_at
        merged.append(value)
    values[:] = [*merged, *left[left_at:]]
    return total


def _tracks(gutter: Sequence[_Segment], y: Mapping[_Item, float]) -> dict[tuple[_Item, str], int]:
    """Assign a number to each origin's vertical line. Lines that overlap or touch get different numbers."""
    spans: dict[tuple[_Item, str], tuple[float, float]] = {}
    for segment in gutter:
        here = (y[segment.start], y[segment.end])
        low, high = spans.get(segment.origin, (here[0], here[0]))
        spans[segment.origin] = (min(low, *here), max(high, *here))
    ends: list[float] = []
    tracks = {}
    for origin, (low, high) in sorted(spans.items(), key=lambda span: (span[1], span[0][1])):
        if low == high:
            continue
        track = next((i for i, end in enumerate(ends) if end < low), len(ends))
        ends[track : track + 1] = [high]
        tracks[origin] = track
    return tracks


# Markup.


def _drawn(frame: ChartFrame, plan: _Plan) -> Drawing:
    width, height = plan.size
    name = text(frame.name)
    fits = " fits" if width <= FITS else ""
    edges = [part for at in range(len(plan.rows)) for part in _edges(plan, at)]
    boxes = [
        _box(node, plan.x[at], plan.y[item] - BOX_HEIGHT / 2)
        for at, row in enumerate(plan.rows) for item in row
        if not isinstance(item, _Lane) for node in [plan.nodes[item]]
    ]  # fmt: skip
    return Drawing(
        f'<svg class="graph{fits}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="group" aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{text(frame.title)}</title>'
        f'<desc id="{name}-d">{text(frame.says)}</desc>{"".join(edges)}{"".join(boxes)}</svg>'
    )


def _edges(plan: _Plan, at: int) -> Iterable[str]:
    """Draw the edges between a layer and the next layer, and the edges that cross the layer."""
    left = plan.x[at] + BOX_WIDTH
    for item in plan.rows[at]:
        if isinstance(item, _Lane):
            path = f"M{plan.x[at]:g} {plan.y[item]:g}H{left:g}"
            yield f'<path class="{_style(item.edge)}" d="{path}"/>'
    for gutter in plan.gutters[at]:
        right = plan.x[at + 1]
        x = left + GUTTER / 2 - 6 + TRACK * plan.tracks[at].get(gutter.origin, 0)
        path = _bent(left, plan.y[gutter.start], x, right, plan.y[gutter.end])
        yield f'<path class="{_style(gutter.edge)}" d="{path}"/>'
        if not isinstance(gutter.end, _Lane):
            y = plan.y[gutter.end]
            yield f'<path class="{_style(gutter.edge).replace("edge", "tip")}" d="M{right:g} {y:g}l-7 -4v8z"/>'


def _bent(left: float, y: float, x: float, right: float, end: float) -> str:
    if y == end:
        return f"M{left:g} {y:g}H{right:g}"
    by = min(CORNER, abs(end - y) / 2)
    down = by if end > y else -by
    return f"M{left:g} {y:g}H{x - by:g}q{by:g} 0 {by:g} {down:g}V{end - down:g}q0 {down:g} {by:g} {down:g}H{right:g}"


def _style(edge: GraphEdge) -> str:
    return f"edge {edge.when}" + (" path" if edge.on_path else "")


def _box(node: GraphNode, x: float, y: float) -> str:
    title = node.title or node.name
    said = f"{title}: {node.note or node.state}"
    parts = [
        f"<title>{text(said)}</title>",
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>',
        f'<path class="side" d="M{x + 8:g} {y:g}a8 8 0 0 0 -8 8v{BOX_HEIGHT - 16}a8 8 0 0 0 8 8h-3v{-BOX_HEIGHT}z"/>',
        f'<text class="glyph" x="{x + 19:g}" y="{y + 22:g}">{text(node.glyph)}</text>',
        f'<text class="name" x="{x + 32:g}" y="{y + 22:g}">{text(short(title, TITLE))}</text>',
        f'<text class="tick" x="{x + 32:g}" y="{y + 40:g}">{text(short(node.note or node.state, NOTE))}</text>',
    ]
    if node.share is not None:
        wide = BOX_WIDTH - 16
        parts.append(
            f'<rect class="rest" x="{x + 8:g}" y="{y + BOX_HEIGHT - 5:g}" width="{wide}" height="3" rx="1.5"/>'
            f'<rect class="share" x="{x + 8:g}" y="{y + BOX_HEIGHT - 5:g}" width="{wide * min(1, node.share):.1f}" '
            f'height="3" rx="1.5"/>'
        )
    style = f"step {node.style}" + (" path" if node.on_path else "")
    inner = "".join(parts)
    if not node.href:
        return f'<g class="{style}">{inner}</g>'
    return f'<a class="{style}" href="{text(node.href)}">{inner}</a>'
