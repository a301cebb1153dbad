"""The drawing of flows: layers, order, places that don't overlap, folding, and texts from anywhere."""

from __future__ import annotations

import itertools
import random
import re
from xml.etree import ElementTree

import pytest

from jobq.observe.chart import ChartFrame
from jobq.observe.graph import (
    BOX_HEIGHT,
    MAX_LAYERS,
    MAX_NODES,
    DrawnGraph,
    GraphEdge,
    GraphNode,
    draw,
    layers,
)
from tests.hostile import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
FRAME = ChartFrame("g", "Steps", "says")


def node(name: str, state: str = "done", **more: object) -> GraphNode:
    return GraphNode(name, state, state, "✓", **more)  # type: ignore[arg-type]


def random_graph(seed: int, size: int) -> tuple[list[GraphNode], list[GraphEdge]]:
    """A graph in which each node waits for a few of those before it."""
    dice = random.Random(seed)
    names = [f"s{i}" for i in range(size)]
    edges = [
        GraphEdge(names[start], names[end], dice.choice(["done", "ended", "failed"]))
        for end in range(1, size)
        for start in dice.sample(range(end), min(end, dice.choice([0, 1, 1, 2, 4])))
    ]
    return [node(name) for name in names], edges


def boxes(drawn: DrawnGraph) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, right and bottom of each box, by the title of its node."""
    root = ElementTree.fromstring(
        drawn.drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    )
    found = {}
    for part in (*root.findall(f"{SVG}g"), *root.findall(f"{SVG}a")):
        box = part.find(f"{SVG}rect")
        title = part.findtext(f"{SVG}title") or ""
        assert box is not None
        x, y, wide, high = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        found[title] = (x, y, x + wide, y + high)
    return found


def names(drawn: DrawnGraph) -> dict[str, tuple[float, float, float, float]]:
    return {title.partition(":")[0]: box for title, box in boxes(drawn).items()}


@pytest.mark.parametrize("seed", range(12))
def test_each_node_is_right_of_all_that_it_waits_for_and_no_two_overlap(seed: int):
    nodes, edges = random_graph(seed, 40)
    drawn = draw(FRAME, nodes, edges)
    assert drawn[1:] == (0, 0, 0)
    places = names(drawn)
    assert places.keys() == {one.name for one in nodes}
    for edge in edges:
        assert places[edge.start][2] < places[edge.end][0]
    found = layers([one.name for one in nodes], edges)
    for name, layer in found.items():
        before = [found[edge.start] for edge in edges if edge.end == name]
        assert layer == 1 + max(before, default=-1)
    columns: dict[float, list[tuple[float, float]]] = {}
    for left, top, _, bottom in places.values():
        columns.setdefault(left, []).append((top, bottom))
    assert len(columns) == 1 + max(found.values())
    for column in columns.values():
        column.sort()
        assert all(low[1] < high[0] for low, high in itertools.pairwise(column))
    wide, high = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn.drawing)[0])
    assert all(
        x > 0 and y > 0 and right < wide and low < high for x, y, right, low in places.values()
    )
    for path in re.findall(r'class="edge[^"]*" d="([^"]+)"', drawn.drawing):
        assert all(-1e9 < float(part) < 1e9 for part in re.findall(r"-?[\d.]+", path))


def test_sweeps_uncross_what_need_not_cross():
    pairs = [("a", "z"), ("b", "y"), ("c", "x")]
    nodes = [node(name) for name in "abcxyz"]
    drawn = draw(FRAME, nodes, [GraphEdge(*pair) for pair in pairs])
    places = names(drawn)
    assert all(places[start][1] == places[end][1] for start, end in pairs)
    assert " V" not in drawn.drawing and "V" not in "".join(
        re.findall(r'class="edge[^"]*" d="([^"]+)"', drawn.drawing)
    )


def test_a_chain_is_straight_and_long_edges_go_around_boxes():
    chain = [GraphEdge(a, b, "done", True) for a, b in zip("abcd", "bcde")]
    drawn = draw(FRAME, [node(name) for name in "abcde"], [*chain, GraphEdge("a", "e", "failed")])
    places = names(drawn)
    assert len({places[name][1] for name in "bcd"}) == 1
    assert drawn.drawing.count('class="edge done path"') == 4
    lanes = re.findall(r'class="edge failed" d="M([\d.]+) ([\d.]+)H([\d.]+)"', drawn.drawing)
    assert len(lanes) >= 3
    for _, y, _ in lanes[:-1]:
        top = places["c"][1]
        assert not top <= float(y) <= top + BOX_HEIGHT


def test_a_large_layer_folds_into_one_node_of_each_job():
    work = [
        node(
            f"resize-{i}",
            "failed" if i == 7 else "done" if i < 320 else "running",
            job="shop.images.resize",
        )
        for i in range(340)
    ] + [node("notify", job="shop.mail.notify")]
    nodes = [node("split", job="shop.split"), *work, node("join", "waiting", job="shop.join")]
    edges = [
        *(GraphEdge("split", one.name) for one in work),
        *(GraphEdge(one.name, "join") for one in work),
    ]
    drawn = draw(FRAME, nodes, edges, ["failed", "running", "done"])
    assert drawn[1:] == (339, 0, 0)
    assert set(boxes(drawn)) == {
        "split: done", "notify: done", "join: waiting", "340 x resize: 319 done, 20 running, 1 failed",
    }  # fmt: skip
    assert drawn.drawing.count('class="step failed"') == 1
    assert drawn.drawing.count('class="edge') == 4


def test_what_is_too_large_is_left_out_and_counted():
    nodes, edges = random_graph(3, 3_000)
    nodes = [one._replace(job=f"job-{i}") for i, one in enumerate(nodes)]
    drawn = draw(FRAME, nodes, edges)
    assert drawn.drawing.count('class="box"') <= MAX_NODES
    assert drawn.folded + drawn.steps + drawn.drawing.count('class="box"') == 3_000
    line = [node(f"n{i}") for i in range(250)]
    every = [GraphEdge(a.name, b.name) for i, a in enumerate(line) for b in line[i + 1 :]]
    drawn = draw(FRAME, line, every)
    assert drawn.steps == 250 - MAX_LAYERS and drawn.edges > 0
    assert len(drawn.drawing) < 1_000_000
    assert draw(FRAME, [], []) == DrawnGraph(draw(FRAME, [], []).drawing)


def test_texts_from_anywhere_and_edges_that_lead_nowhere_do_no_harm():
    nodes = [
        GraphNode(text, text, text.split()[0] if text.split() and text.isalnum() else "x", text, text, text, 0.5,
                  href=text, title=text)
        for text in HOSTILE
    ]  # fmt: skip
    edges = [GraphEdge(a, b) for a, b in zip(HOSTILE, [*HOSTILE[1:], HOSTILE[0]])]
    drawn = draw(
        ChartFrame("g", HOSTILE[0], HOSTILE[1]), nodes, [*edges, GraphEdge("none", HOSTILE[0])]
    )
    root = ElementTree.fromstring(
        drawn.drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    )
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        "svg",
        "title",
        "desc",
        "g",
        "a",
        "rect",
        "path",
        "text",
    }
