"""Shared memory that kernels address themselves, to move values between threads by computed places.

Triton scatters to global memory alone. Encoding 64 MiB of bfloat16 as bitmap takes 50 us by stores
of single values at their places, and 45 us by way of shared memory; as ssdc 82 and 52 us (H100,
2026-11-26). The operations are PTX, which the interpreter does not run: kernels have a path without
them. An address counts bytes of shared memory. A flag is an integer, set where it is not 0. Between
puts and gets of different threads a kernel has a barrier.

A pair of values lies at an address, low before high. A value whose flag is not set takes no room.
"""

from typing import Final

import triton
import triton.language as tl

# Predicates of a pair and the address of its first value.
PAIR: Final = "setp.ne.b32 l, {low}, 0; setp.ne.b32 h, {high}, 0; mov.b32 n, {at};"
NAMES: Final = ".reg .pred l, h; .reg .b32 n;"
PUT_BYTES: Final = tl.constexpr(
    f"{{ {NAMES} .reg .b32 c; {PAIR.format(at='$1', low='$3', high='$4')} add.u32 c, $2, 1;"
    " @l st.shared.b8 [n], $2; @l add.u32 n, n, 1; @h st.shared.b8 [n], c; mov.b32 $0, n; }"
)
PUT_HALVES: Final = tl.constexpr(
    f"{{ {NAMES} .reg .b16 a, b; {PAIR.format(at='$1', low='$3', high='$4')} mov.b32 {{a, b}}, $2;"
    " @l st.shared.b16 [n], a; @l add.u32 n, n, 2; @h st.shared.b16 [n], b; mov.b32 $0, n; }"
)
PUT_WORDS: Final = tl.constexpr(
    f"{{ {NAMES} {PAIR.format(at='$1', low='$4', high='$5')}"
    " @l st.shared.b32 [n], $2; @l add.u32 n, n, 4; @h st.shared.b32 [n], $3; mov.b32 $0, n; }"
)
GET_HALVES: Final = tl.constexpr(
    f"{{ {NAMES} .reg .b16 a, b; {PAIR.format(at='$1', low='$2', high='$3')}"
    " mov.b16 a, 0; mov.b16 b, 0; @l ld.shared.b16 a, [n]; @l add.u32 n, n, 2;"
    " @h ld.shared.b16 b, [n]; mov.b32 $0, {a, b}; }"
)
GET_WORDS: Final = tl.constexpr(
    f"{{ {NAMES} {PAIR.format(at='$2', low='$3', high='$4')} mov.b32 $0, 0; mov.b32 $1, 0;"
    " @l ld.shared.b32 $0, [n]; @l add.u32 n, n, 4; @h ld.shared.b32 $1, [n]; }"
)
FLAG: Final = ".reg .pred p; setp.ne.b32 p, {flag}, 0;"
PUT_1: Final = tl.constexpr(
    f"{{ {FLAG.format(flag='$3')} @p st.shared.b8 [$1], $2; mov.b32 $0, $1; }}"
)
PUT_2: Final = tl.constexpr(
    f"{{ {FLAG.format(flag='$3')} .reg .b16 a; cvt.u16.u32 a, $2;"
    " @p st.shared.b16 [$1], a; mov.b32 $0, $1; }"
)
PUT_4: Final = tl.constexpr(
    f"{{ {FLAG.format(flag='$3')} @p st.shared.b32 [$1], $2; mov.b32 $0, $1; }}"
)
GET_1: Final = tl.constexpr(
    f"{{ {FLAG.format(flag='$2')} mov.b32 $0, 0; @p ld.shared.u8 $0, [$1]; }}"
)
GET_2: Final = tl.constexpr(
    f"{{ {FLAG.format(flag='$2')} .reg .b16 a; mov.b16 a, 0;"
    " @p ld.shared.b16 a, [$1]; cvt.u32.u16 $0, a; }"
)
GET_4: Final = tl.constexpr(
    f"{{ {FLAG.format(flag='$2')} mov.b32 $0, 0; @p ld.shared.b32 $0, [$1]; }}"
)
ZERO_16: Final = tl.constexpr(
    "{ .reg .b32 z; mov.b32 z, 0; st.shared.v4.b32 [$1], {z, z, z, z}; mov.b32 $0, z; }"
)
GET_16: Final = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")


def room(name: str, nbytes: int) -> str:
    """The constant with which `address` gives so many bytes, at a multiple of 16."""
    return f"{{ .shared .align 16 .b8 {name}[{nbytes}]; mov.u32 $0, {name}; }}"


@triton.jit
def address(ROOM: tl.constexpr) -> tl.tensor:
    """The address of a program's bytes that `room` describes: int32."""
    program = tl.program_id(0)
    return tl.inline_asm_elementwise(ROOM, "=r,r", [program], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def put(at, values, flags, SIZE: tl.constexpr) -> None:
    """Put int32 values, of which SIZE bytes each, 1, 2 or 4, where flags are set."""
    ASM: tl.constexpr = PUT_1 if SIZE == 1 else PUT_2 if SIZE == 2 else PUT_4
    tl.inline_asm_elementwise(
        ASM, "=r,r,r,r", [at, values, flags], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def get(at, flags, SIZE: tl.constexpr) -> tl.tensor:
    """The values of SIZE bytes at addresses whose flags are set, int32; else 0."""
    ASM: tl.constexpr = GET_1 if SIZE == 1 else GET_2 if SIZE == 2 else GET_4
    return tl.inline_asm_elementwise(
        ASM, "=&r,r,r", [at, flags], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def put_halves(at, words, low, high) -> None:
    """Put the two halves of words as pairs, where the flags `low` and `high` are set."""
    tl.inline_asm_elementwise(
        PUT_HALVES, "=&r,r,r,r,r", [at, words, low, high], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def put_words(at, first, second, low, high) -> None:
    """Put pairs of words, where the flags `low` and `high` are set."""
    operands = [at, first, second, low, high]
    tl.inline_asm_elementwise(
        PUT_WORDS, "=&r,r,r,r,r,r", operands, dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def put_bytes(at, numbers, low, high) -> None:
    """Put pairs of bytes, numbers and the next ones, where the flags are set."""
    tl.inline_asm_elementwise(
        PUT_BYTES, "=&r,r,r,r,r", [at, numbers, low, high], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def get_halves(at, low, high) -> tl.tensor:
    """The words int32 whose halves `put_halves` put, 0 where a flag is not set."""
    return tl.inline_asm_elementwise(
        GET_HALVES, "=&r,r,r,r", [at, low, high], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def get_words(at, low, high) -> tuple[tl.tensor, tl.tensor]:
    """The pairs of words int32 that `put_words` put, 0 where a flag is not set."""
    return tl.inline_asm_elementwise(
        GET_WORDS, "=&r,=&r,r,r,r", [at, low, high], dtype=(tl.int32, tl.int32),
        is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def put_zeros(at) -> None:
    """Put 16 bytes of zeros at each address, a multiple of 16."""
    tl.inline_asm_elementwise(ZERO_16, "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def get_fours(at) -> tl.tensor:
    """The four words int32 at each address, a multiple of 16: [addresses, 4]."""
    first, second, third, fourth = tl.inline_asm_elementwise(
        GET_16, "=r,=r,=r,=r,r", [at], dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=False, pack=1,
    )  # fmt: skip
    return tl.join(tl.join(first, third), tl.join(second, fourth)).reshape(at.shape[0], 4)
