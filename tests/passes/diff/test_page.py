"""The page and the text: hostile labels stay text, sizes stay small, nothing comes from outside."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oproj_pass.passes.diff import GraphSnapshot, diff_graphs
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref
from oproj_pass.passes.diff.layout import place_nodes
from tests.support.page_tags import Tags

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "]]> <!-- --> &amp; & \" ' ` {x} {{x}} ${x} %s \\l \\n a,a->a",
    "</title></svg></style><b>",
    "line\nbreak\r\x00\x1b\x7f\u2028\u202e\ud800",
    "javascript:alert(1)",
]
SVG = "{http://www.w3.org/2000/svg}"


def hostile_diff(label):
    x = NodeSnapshot("x", "placeholder", label, (), (1, label), "bfloat16", label, label)
    weight = NodeSnapshot(f"w{label}", "get_attr", label, (), (label,), label)
    old = NodeSnapshot(label, "call_function", label, (Ref("x"), f", {label}"), (label,), label, label, label)
    new = NodeSnapshot("new", "call_method", label, (Ref("x"), Ref(f"w{label}")), None, None, label, label)
    collective = NodeSnapshot(
        "c", "call_function", "torch.ops._c10d_functional.all_reduce", (Ref("x"), label)
    )
    return diff_graphs(GraphSnapshot((x, weight, old)), GraphSnapshot((x, weight, new, collective)))


def svgs(page):
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_add_no_tag_and_no_attribute(label):
    hostile, harmless = Tags(hostile_diff(label).to_html()), Tags(hostile_diff("label").to_html())
    assert hostile.tags == harmless.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in harmless.attributes]


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_leave_valid_drawings_with_the_text_intact(label):
    drawings = [ElementTree.fromstring(svg) for svg in svgs(hostile_diff(label).to_html())]
    titles = "".join(title.text for svg in drawings for title in svg.iter(f"{SVG}title"))
    assert drawings
    assert all(part in titles for part in re.split(r"[^ -~]+", label))


@pytest.mark.parametrize("label", HOSTILE)
def test_no_label_can_forge_a_line_of_text(label):
    assert len(hostile_diff(label).to_text().split("\n")) == len(hostile_diff("label").to_text().split("\n"))
    hostile_diff(label).to_text().encode("utf-8")


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=40)
def test_any_label_is_text(label):
    if label in ("x", "c", "new"):
        return
    page = hostile_diff(label).to_html()
    page.encode("utf-8")
    # Equal sets only: a label that is a module path may rightly group the nodes otherwise.
    tags, harmless = Tags(page), Tags(hostile_diff("label").to_html())
    assert set(tags.tags) == set(harmless.tags)
    assert {name for name, _ in tags.attributes} == {name for name, _ in harmless.attributes}
    assert all(ElementTree.fromstring(svg) is not None for svg in svgs(page))


def test_names_no_outside_resource(decoder):
    tags = Tags(diff_graphs(*decoder(2)).to_html())
    assert {"src", "href", "action", "style"}.isdisjoint(name for name, _ in tags.attributes)
    assert not any(name.startswith("on") for name, _ in tags.attributes)
    (policy,) = [value for _, value in tags.attributes if value and "default-src" in value]
    assert policy.startswith("default-src 'none'")


def test_shows_shapes_payload_and_provenance(decoder):
    page = diff_graphs(*decoder(3)).to_html()
    (svg,) = map(ElementTree.fromstring, svgs(page))
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    titles = [title.text for title in svg.iter(f"{SVG}title")]
    assert "bf16[64, 128] → [64, 32]" in texts
    assert any(re.fullmatch(r"moves 4\*s\d+\*64\*2 B", text) for text in texts)
    assert any(
        "module layers.0.attn.o_proj" in t and re.search(r"source .*conftest\.py:\d+", t) for t in titles
    )
    assert "2 more like this" in page


def test_says_that_equal_graphs_are_equal(decoder):
    before, _ = decoder(2)
    page = diff_graphs(before, before).to_html()
    assert "The graphs are equal." in page
    assert "<svg" not in page


def test_a_notebook_shows_the_whole_page_in_a_frame_of_its_own(decoder):
    diff = diff_graphs(*decoder(1))
    tags = Tags(diff._repr_html_())
    assert tags.tags == ["iframe"]
    attributes = dict(tags.attributes)
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == diff.to_html()


@pytest.mark.parametrize("hunks", ["one", "many", "many equal"])
def test_a_page_of_ten_thousand_changes_can_be_opened(hunks):
    nodes = [NodeSnapshot("x", "placeholder", "x")]
    for i in range(10_000):
        source, path = (nodes[-1].name, "") if hunks == "one" else ("x", f"layers.{i // 3}.mlp")
        args = (Ref(source), f", {1 if hunks == 'many equal' else i}" * 100)
        nodes.append(NodeSnapshot(f"n{i}", "call_function", "f", args, (8,), "int8", path))
    diff = diff_graphs(GraphSnapshot(tuple(nodes[:1])), GraphSnapshot(tuple(nodes)))
    assert diff.summary()["added"] == 10_000
    assert len(diff.to_html().encode()) < 4_000_000


def test_networkx_holds_both_graphs(decoder):
    diff = diff_graphs(*decoder(1))
    graph = diff.to_networkx()
    kinds = [kind for _, kind in graph.nodes(data="kind")]
    assert len(graph) == len(diff.changes)
    assert kinds.count("added") == diff.summary()["added"]
    added = [(a, b) for a, b, kind in graph.edges(data="kind") if kind == "added"]
    linear = next(name for name, target in graph.nodes(data="target") if target == "torch.transpose")
    assert any(b == linear for _, b in added)


@given(st.integers(2, 14), st.sets(st.tuples(st.integers(0, 13), st.integers(0, 13))), st.data())
def test_boxes_never_overlap_and_edges_run_down(count, pairs, data):
    size = st.tuples(st.floats(20, 300), st.floats(20, 60))
    sizes = {i: data.draw(size) for i in range(count)}
    edges = {(a, b): 1.0 for a, b in pairs if a < count and b < count and (b, a) not in pairs}
    layout = place_nodes(sizes, edges)
    boxes = [(*layout.centres[i], *sizes[i]) for i in sizes]
    for i, (x, y, width, height) in enumerate(boxes):
        assert x - width / 2 >= -1e-6
        assert x + width / 2 <= layout.width + 1e-6
        for other_x, other_y, other_width, other_height in boxes[:i]:
            apart = (
                abs(x - other_x) > (width + other_width) / 2 or abs(y - other_y) > (height + other_height) / 2
            )
            assert apart
    for (a, b), points in layout.routes.items():
        assert a < b
        assert [y for _, y in points] == sorted(y for _, y in points)
