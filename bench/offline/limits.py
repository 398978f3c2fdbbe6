"""What a kernel compiled offline may take, and what it must and must not do."""

from collections.abc import Iterator
from typing import Final

from bench.offline.compiler import HOPPER, SHARED_NBYTES, Report
from tvdnn.kernels.language import gluon

# Bytes of registers that a version of Triton spills on Hopper; and kernels whose products 3.9
# leaves to ptxas to serialize. The tiles were chosen by the times of 3.6.
SPILLED: Final[dict[tuple[int, int], dict[str, int]]] = {
    (3, 6): {
        "conv.warp_specialized.conv_specialized_kernel": 40,  # 128x128 sums masked by sign bits
        "codec.to_host._values_kernel": 64,
        # pointers to the sums of a band, where the kernel ends
        "conv.grad_weight.transposed.grad_weight_transposed_kernel": 196,
        # of filters of 7x7, at most a hundredth of the loop's instructions
        "conv.depthwise_grad_weight._depthwise_grad_weight_kernel": 196,
        # addresses of a strip, of filters of 11x11 most; loops have at most 3 loads of them in 972
        "conv.depthwise_strips_grad_weight._strips_grad_weight_kernel": 224,
        "conv.depthwise_rows._depthwise_rows_kernel": 80,
        # sums of 64 x 128 in float32 by two warps, as fast as any (tiles in windows_plan.py)
        "conv.grad_weight.row_windows.grad_weight_windows_kernel": 16,
    },
    (3, 7): {"conv.tma.conv_box_kernel": 304, "conv.pointer.conv_kernel": 112},
    (3, 9): {
        "pointwise.broadcast._broadcast_sums_kernel": 28,
        "reduce.axes._reduce_grad_kernel": 12,
        "conv.tma.conv_box_kernel": 564,
        "conv.pointer.conv_kernel": 184,
        "conv.warp_specialized.conv_specialized_kernel": 168,
        "loss.cross_entropy_grad._rows_kernel": 8,
        "copy.host._transfer_kernel": 44,
        # pointers to the sums of a group, where the kernel ends
        "conv.grad_weight.transposed.grad_weight_transposed_kernel": 268,
        "linear.gemm._product_kernel": 28,
        "conv.depthwise_grad_weight._depthwise_grad_weight_kernel": 80,
        "conv.depthwise_strips_grad_weight._strips_grad_weight_kernel": 104,
        "conv.depthwise_rows._depthwise_rows_kernel": 40,
        "conv.grad_weight.row_windows.grad_weight_windows_kernel": 56,
    },
}
SERIALIZED: Final = {(3, 9): {"conv.grad_weight.transposed.grad_weight_transposed_kernel"}}


def faults(report: Report) -> Iterator[str]:
    """Messages about each limit that a kernel exceeds."""
    if report.shared_nbytes > SHARED_NBYTES[report.arch]:
        yield f"takes {report.shared_nbytes} bytes of shared memory"
    if report.early_read_backs:
        yield f"loads in {report.early_read_backs} places what another thread may store later"
    if report.arch == HOPPER:
        yield from _faults_on_hopper(report)


def _faults_on_hopper(report: Report) -> Iterator[str]:
    version = gluon.version()
    if report.spilled_nbytes > SPILLED.get(version, {}).get(report.kernel, 0):
        yield f"spills {report.spilled_nbytes} bytes of registers"
    if report.serialized and report.kernel not in SERIALIZED.get(version, ()):
        yield "has products that ptxas serializes"
    if report.early_arrivals:
        yield f"arrives {report.early_arrivals} times before other warps may have waited"
    if report.products_in_flight:
        yield f"writes registers that {report.products_in_flight} products may still read"
    if report.early_reads:
        yield f"reads sums of products in {report.early_reads} places before the products end"
    if report.needs_wgmma and not report.num_wgmma:
        yield "has no warpgroup products"
