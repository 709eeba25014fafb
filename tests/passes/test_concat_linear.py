"""Linear layers of one input."""

from __future__ import annotations

from xpuruntime.ir import parse
from xpuruntime.passes import concat_linear


def test_query_key_value(golden) -> None:
    golden(
        "concat_linear",
        """
        input %x: float32[2, 5, 3]
        weight %w: float32[4, 3]
        weight %u: float32[2, 3]
        weight %a: float32[4]
        weight %b: float32[2]
        weight %o: float32[7, 3]
        %q: float32[2, 5, 4] = linear(%x, %w, %a)
        %k: float32[2, 5, 2] = linear(%x, %u, %b)
        %v: float32[2, 5, 7] = linear(%x, %o)
        %y: float32[2, 5, 4] = relu(%q)
        output "y" = %y
        output "k" = %k
        output "v" = %v
        """,
        """
        %cat: float32[6, 3] = cat(%w, %u, dim=0)
        %cat_1: float32[6] = cat(%a, %b, dim=0)
        %linear: float32[2, 5, 6] = linear(%x, %cat, %cat_1)
        %split: float32[2, 5, 4], %split_1: float32[2, 5, 2] = split(%linear, sizes=[4, 2], dim=2)
        %k: float32[2, 5, 2] = clone(%split_1)
        %v: float32[2, 5, 7] = linear(%x, %o)
        %y: float32[2, 5, 4] = relu(%split)
        """,
    )


TWO_LAYERS = """
graph "two" {
  input %x: float32[5, 4]
  weight %w: float32[4, 4]
  weight %u: float32[4, 4]
  %linear: float32[5, 4] = linear(%x, %w)
  %linear_1: float32[5, 4] = linear(%x, %u)
  %add: float32[5, 4] = add(%linear, %linear_1)
  %linear_2: float32[5, 4] = linear(%add, %w)
  %linear_3: float32[5, 4] = linear(%add, %u)
  %mul: float32[5, 4] = mul(%linear_2, %linear_3)
  output "y" = %mul
}
"""


def test_a_merged_layer_has_no_name_of_a_former_value() -> None:
    """A second run may not use the names that the first one freed: tools compare values of the model and of the program by name."""
    before = parse(TWO_LAYERS)
    after = concat_linear.run(before)
    wide = [n for n in after.nodes if n.op == "linear"]
    assert len(wide) == 2
    assert not {n.name for n in wide} & set(before.values)
    assert {"linear", "linear_1", "linear_2", "linear_3"} <= after.former_names
    first = wide[0]
    again = after.rewrite(lambda editor, node: editor.forward(first.name, editor.insert(node, "linear", *first.inputs)) if node.name == first.name else None)  # fmt: skip
    added = {n.name for n in again.nodes} - {n.name for n in after.nodes}
    assert added
    assert not added & set(before.values)
