"""Bytes and seconds as people write and read them."""

import pytest

from tvdnn.errors import InputError
from tvdnn.units import GIB, KIB, MIB, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GiB", 4 * GIB),
        ("512 MiB", 512 * MIB),
        ("1.5 gib", 3 * GIB // 2),
        (" 64KiB ", 64 * KIB),
        ("2tib", 2 * 2**40),
        ("3e9", 3_000_000_000),
        ("1.5e3kb", 1_500_000),
        ("10MB", 10_000_000),
        ("2GB", 2_000_000_000),
        ("1TB", 10**12),
        ("100", 100),
        ("100b", 100),
        (123, 123),
        (None, None),
        ("none", None),
        (" None ", None),
    ],
)
def test_bytes_are_read(text: str | int | None, nbytes: int | None) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "lots", "4 GiBs", "GiB", "-1", "-4KiB", "1.2.3", ".", "4,5"])
def test_what_is_no_number_of_bytes_is_named(text: str) -> None:
    with pytest.raises(InputError, match="is not a number of bytes; write for example 4GiB") as at:
        parse_bytes(text)
    assert repr(text) in str(at.value)


@pytest.mark.parametrize("text", [0, -5, "0", "0.0GiB", "0.2b"])
def test_no_bytes_are_refused(text: str | int) -> None:
    with pytest.raises(InputError, match="is not a positive number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (None, "none"),
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (MIB - 1, "1024.00 KiB"),
        (3.21 * GIB, "3.21 GiB"),
        (5000 * GIB, "5000.00 GiB"),
        (-2 * MIB, "-2.00 MiB"),
    ],
)
def test_bytes_are_written(nbytes: float | None, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 us"),
        (2.0, "2 s"),
        (0.071234, "71.23 ms"),
        (12.3456e-6, "12.35 us"),
        (1.0, "1 s"),
    ],
)
def test_seconds_are_written(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text
