"""Which variants of kernels are assembled, and that those that are not are as those that are."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.offline.compiler import Report
from bench.offline.limits import faults
from bench.offline.register_operands import products_in_flight
from bench.offline.sass import early_reads
from bench.offline.variants import Variant, covering, facts_of, merged, once_each, quickly_checked
from tests.support.scripts import run_compiler

BOTH_WAYS = """
from triton import knobs
from triton.runtime import driver
from bench.offline.cases import CASES
from bench.offline.compiler import OfflineDriver
from bench.offline.read_backs import early_read_backs
from bench.offline.variants import Allocated, compile_variant, variants_of

knobs.compilation.always_compile = True  # what the cache has is not stopped
driver.set_active(OfflineDriver(90))
chosen = [case for case in CASES if case.name.startswith(("conv2d_grad_bias", "sum_cells"))][:4]
asked = [v for case in chosen for v in variants_of(case.launch, str, case.name, wgmma=False)]
assert len(asked) == 4, asked
for each in asked:
    stopped = compile_variant(each, assembles=False)
    assert isinstance(stopped, Allocated), stopped
    made = compile_variant(each, assembles=True)
    assert made.metadata.shared == stopped.shared_nbytes, each
    assert early_read_backs(made.asm["ttgir"]) == stopped.early_read_backs == 0
    assert made.asm["cubin"]
"""
SOUND = Report("case", 90, "launcher", "kernel", 1000, 1, True, 0, 0, registers=255)


def variant(
    key: str,
    *facts: tuple[str, str],
    kernel: str = "k",
    launcher: str = "l",
    module: str = "m",
) -> Variant:
    named = SimpleNamespace(fn=SimpleNamespace(__name__=kernel, __module__=module))
    return Variant("case", False, launcher, named, key, (), frozenset(facts) | {("", "")})


def test_facts_are_types_and_constants_but_no_numbers() -> None:
    names = ["x", "y", "size", "RELU", "KIND", "BLOCK"]
    box = "tensordesc<bf16[1, 16, 64],NVMMASharedLayout(rank=3)>"
    signature: dict[str, Any] = {"x": "*fp32", "y": box, "size": "i32", "RELU": "constexpr"}
    constants = {(3,): True, (4,): "mean", (5,): 64, (0, 1): False}
    assert facts_of(names, signature, constants) == {
        ("", ""),
        ("x", "*fp32"),
        ("y", "tensordesc<bf16[n, n, n"),
        ("RELU", "True"),
        ("KIND", "mean"),
    }


def test_those_assembled_have_every_fact_of_a_kernel() -> None:
    on, off, wide, narrow = ("RELU", "True"), ("RELU", "False"), ("x", "*fp32"), ("x", "*bf16")
    asked = [variant("a", on, wide), variant("b", on, narrow), variant("c", off, narrow)]
    asked += [variant("d", off, wide), variant("e", on, wide, kernel="other")]
    chosen = covering(asked)
    assert [each.key for each in chosen] == ["a", "c", "e"]


def test_no_variant_is_assembled_whose_facts_come_with_those_of_few() -> None:
    common = [("x", str(number)) for number in range(3)]
    asked = [variant("most", *common), variant("a", ("y", "1"), *common[:2])]
    asked += [variant("b", ("y", "2"), *common[2:])]
    assert [each.key for each in covering(asked)] == ["a", "b"]


def test_products_are_checked_with_all_their_tiles() -> None:
    asked = [
        variant(key, module=f"tvdnn.kernels.{part}")
        for part in ("conv.tma", "loss")
        for key in "ab"
    ]
    chosen = quickly_checked(asked)
    assert [(each.place, each.key) for each in chosen] == [
        ("conv.tma.k", "a"),
        ("conv.tma.k", "b"),
        ("loss.k", "a"),
    ]


def test_one_of_each_launcher_or_kernel_is_its_first() -> None:
    asked = [variant("a"), variant("b", launcher="m"), variant("c"), variant("d", kernel="other")]
    assert [each.key for each in once_each(asked, by_launcher=True)] == ["a", "b", "d"]
    assert [each.key for each in once_each(asked, by_launcher=False)] == ["a", "d"]


def test_kernels_of_one_name_in_two_modules_are_two() -> None:
    asked = [variant("a", module="tvdnn.kernels.loss.cross_entropy"), variant("a", module="other")]
    assert [each.place for each in once_each(asked, by_launcher=False)] == [
        "loss.cross_entropy.k",
        "other.k",
    ]
    assert len(merged(asked)) == 2


def test_equal_variants_are_one_that_needs_what_any_needs() -> None:
    needing = Variant("other", True, "l", variant("a").kernel, "a", (), frozenset())
    (found,) = merged([variant("a"), needing])
    assert (found.case, found.needs_wgmma) == ("case", True)
    assert len(merged([variant("a"), variant("a", launcher="m"), variant("b")])) == 3


def test_a_variant_takes_the_shared_memory_that_it_has_when_assembled() -> None:
    run_compiler(BOTH_WAYS)


WAITS = """
    /*0000*/  HGMMA.64x64x16.F32.BF16 R24, gdesc[UR20], R24 ;
    /*0010*/  HGMMA.64x64x16.F32.BF16 R24, gdesc[UR24], R24, gsb0 ;
    /*0020*/  WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
    /*0030*/  UIADD3 UR24, UR24, 0x1, URZ ;
    /*0040*/  F2FP.BF16.F32.PACK_AB R2, R22, R23 ;
    /*0050*/  WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
    /*0060*/  F2FP.BF16.F32.PACK_AB R9, R54, R55 ;
    /*0070*/  EXIT ;
"""


@pytest.mark.parametrize(
    ("old", "new", "reads"),
    [
        ("", "", 0),
        ("R22, R23", "R24, R25", 1),
        ("R2, R22", "R55, R22", 1),
        ("gsb0, 0x0", "gsb0, 0x1", 1),
        ("gsb0, 0x1", "gsb0, 0x0", 0),
    ],
    ids=["right", "read", "written", "too few waited for", "waited for before"],
)
def test_sums_are_used_once_their_products_have_ended(old: str, new: str, reads: int) -> None:
    assert early_reads(WAITS.replace(old, new) if old else WAITS) == reads


REGISTERS = "tensor<64x16xbf16, #ttg.dot_op<{opIdx = 0, parent = #mma}>>"
IN_FLIGHT = f"""
%acc:2 = scf.for %i = %c0 to %n iter_args(%sum = %zero, %j = %c0) -> (tensor<64x64xf32>, i32) {{
  %a = ttng.warp_group_dot %x, %y, %sum : {REGISTERS} * !ttg.memdesc<16x64> -> tensor<64x64xf32>
  %b = ttng.warp_group_dot_wait %a {{pendings = 0 : i32}} : tensor<64x64xf32>
  scf.yield %b, %k : tensor<64x64xf32>, i32
}} {{tt.num_stages = 4 : i32}}
"""


@pytest.mark.parametrize(
    ("old", "new", "products"),
    [
        ("", "", 0),
        ("pendings = 0", "pendings = 1", 1),
        ("pendings = 0", "pendings = 10", 1),
        (REGISTERS, "!ttg.memdesc<64x16>", 0),
    ],
    ids=["waited for", "in flight", "many in flight", "from shared memory"],
)
def test_products_end_before_a_step_writes_their_registers(
    old: str, new: str, products: int
) -> None:
    code = IN_FLIGHT.replace(old, new) if old else IN_FLIGHT
    assert products_in_flight(code) == products


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"shared_nbytes": 232449}, "232449 bytes of shared memory"),
        ({"spilled_nbytes": 8}, "spills 8 bytes"),
        ({"serialized": True}, "serializes"),
        ({"early_arrivals": 2}, "arrives 2 times"),
        ({"early_read_backs": 2}, "loads in 2 places"),
        ({"products_in_flight": 4}, "registers that 4 products may still read"),
        ({"early_reads": 3}, "reads sums of products in 3 places"),
        ({"num_wgmma": 0}, "no warpgroup products"),
    ],
)
def test_every_fault_is_told(changed: dict[str, Any], fault: str) -> None:
    assert [*faults(SOUND)] == []
    fields = {name: getattr(SOUND, name) for name in Report.__slots__}
    (found,) = faults(Report(**fields | changed))
    assert fault in found
