"""Loads of what another thread of a program may not have stored yet are found."""

import pytest

from bench.offline.read_backs import early_read_backs

STORED = """
%0 = tt.splat %y_ptr : !tt.ptr<f32> -> tensor<64x32x!tt.ptr<f32>, #rows> loc(#loc7)
%1 = tt.addptr %0, %offsets : tensor<64x32x!tt.ptr<f32>, #rows>, tensor<64x32xi32, #rows> loc(#loc7)
tt.store %1, %sums, %mask : tensor<64x32x!tt.ptr<f32>, #rows> loc(#loc8)
"""
LOADED = """
%2 = tt.splat %y_ptr : !tt.ptr<f32> -> tensor<64x32x!tt.ptr<f32>, #lanes> loc(#loc9)
%y = tt.load %2, %mask, %zeros : tensor<64x32x!tt.ptr<f32>, #lanes> loc(#loc10)
"""
BARRIER = "ttg.barrier local|global_read|global_write loc(#loc11)\n"
LOOP = "scf.for %i = %c0 to %n step %c1  : i32 {\n"
CARRYING = (
    "%p:2 = scf.for %i = %c0 to %n step %c1 iter_args(%q = %2, %r = %1)"
    " -> (tensor<64x32x!tt.ptr<f32>, #lanes>, tensor<64x32x!tt.ptr<f32>, #rows>)  : i32 {\n"
)


@pytest.mark.parametrize(
    ("code", "early"),
    [
        (STORED + LOADED, 1),
        (STORED + BARRIER + LOADED, 0),
        (STORED + "gpu.barrier\n" + LOADED, 0),
        (LOADED + STORED, 0),
        (LOOP + LOADED + STORED + "}\n", 1),
        (LOOP + LOADED + STORED + BARRIER + "}\n", 0),
        (STORED + LOADED.replace("#lanes", "#rows"), 0),
        (STORED + LOADED.replace("%y_ptr", "%x_ptr"), 0),
        (LOADED + STORED + CARRYING + LOADED.replace("tt.load %2", "tt.load %q") + "}\n", 2),
        (LOADED + STORED + CARRYING + "}\n" + LOADED.replace("tt.load %2", "tt.load %p#0"), 1),
    ],
    ids=[
        "another layout",
        "behind a barrier",
        "behind an older barrier",
        "ahead of the store",
        "in the next turn of a loop",
        "behind a loop's barrier",
        "the same layout",
        "another argument",
        "by an address that a loop carries",
        "by an address that a loop left",
    ],
)
def test_loads_ahead_of_other_threads_stores_are_counted(code: str, early: int) -> None:
    assert early_read_backs(code) == early
