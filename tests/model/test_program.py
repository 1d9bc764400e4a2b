"""Counting what a compiled program does: loops as often as they run, collectives by their groups."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from metaagent_x.model import program, sharding
from metaagent_x.model.program import Operation, ProgramError, operations

# A product in a loop of 3 within a loop of unknown length, and a loop of i + 1 steps within a loop of 3 over i.
NESTED = """HloModule nested

%product (p.1: (f32[2,8], f32[8,4])) -> f32[2,4] {
  %p.1 = (f32[2,8]{1,0}, f32[8,4]{1,0}) parameter(0)
  %a = f32[2,8]{1,0} get-tuple-element(%p.1), index=0
  %b = f32[8,4]{1,0} get-tuple-element(%p.1), index=1
  %r = bf16[4,4]{1,0} all-gather(%b), replica_groups={{0,1},{2,3}}, dimensions={0}
  ROOT %c = f32[2,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="here"}
}

%three (p.2: (f32[2,8], f32[8,4])) -> f32[2,4] {
  %p.2 = (f32[2,8]{1,0}, f32[8,4]{1,0}) parameter(0)
  ROOT %w = f32[2,4]{1,0} while(%p.2), condition=%yes, body=%product, backend_config={"known_trip_count":{"n":"3"}}
}

%some (p.3: (f32[2,8], f32[8,4])) -> f32[2,4] {
  %p.3 = (f32[2,8]{1,0}, f32[8,4]{1,0}) parameter(0)
  ROOT %w = f32[2,4]{1,0} while(%p.3), condition=%yes, body=%product
}

ENTRY %main (q: (f32[2,8], f32[8,4])) -> f32[2,4] {
  %q = (f32[2,8]{1,0}, f32[8,4]{1,0}) parameter(0)
  %outer = f32[2,4]{1,0} while(%q), condition=%yes, body=%three
  ROOT %tri = f32[2,4]{1,0} while(%q), condition=%yes, body=%some, backend_config={"known_trip_count":{"n":"3"}}
}
"""


def test_loops_count_as_often_as_they_run() -> None:
    """5 x 3 runs of the one product, 3 x mean(1, 2, 3) of the other; 2 x 2 x 4 x 8 FLOPs each."""
    found = operations(NESTED, outer_trips=5)
    assert [o for o in found if o.kind == "dot"] == [
        Operation("dot", 15, 128, 1, "here"),
        Operation("dot", 6, 128, 1, "here"),
    ]
    assert found[0] == Operation("all-gather", 15, 128, 2, "")  # the operand is larger than what is said to come out


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2}}", 3),
        ("[2,4]<=[8]", 4),
        ("mesh['a'=2,'b'=4] {'b'}", 4),
        ("mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", 4),
    ],
)
def test_groups_of_every_notation(groups, size) -> None:
    text = NESTED.replace("{{0,1},{2,3}}", groups)
    assert {o.group for o in operations(text) if o.kind == "all-gather"} == {size}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ENTRY ", "", "no entry computation"),
        ("replica_groups={{0,1},{2,3}}, ", "", "which devices take part"),
        ("bf16[4,4]", "f4e2m1[4,4]", "element type 'f4e2m1'"),
        (" dot(%a, %b)", ' custom-call(%a, %b), custom_call_target="onednn$matmul"', "by another library"),
    ],
)
def test_what_cannot_be_counted_is_refused(old, new, words) -> None:
    with pytest.raises(ProgramError, match=words):
        operations(NESTED.replace(old, new))


def test_bytes_of_arrays_and_tuples() -> None:
    assert program.bytes_of("f32[2,3]{1,0}") == 24
    assert program.bytes_of("(bf16[5], s32[], pred[3]{0})") == 17


def test_a_real_program_with_a_scan_and_a_sum_over_devices() -> None:
    mesh = sharding.make_mesh(8)

    def f(x, w):
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)
        return x.sum(0)

    x = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=sharding.batch_sharding(mesh))
    w = jax.ShapeDtypeStruct((7, 32, 32), jnp.float32, sharding=sharding.replicated(mesh))
    with jax.set_mesh(mesh):
        done = jax.jit(f, out_shardings=sharding.replicated(mesh)).lower(x, w).compile()
    found = operations(done.as_text())
    assert sum(o.times * o.amount for o in found if o.kind == "dot") == 7 * 2 * 2 * 32 * 32
    assert [(o.kind, o.times, o.amount, o.group) for o in found if o.kind != "dot"] == [("all-reduce", 1, 4 * 32, 8)]
