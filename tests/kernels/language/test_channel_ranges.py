"""The pitch of ranges of channels, whatever strides torch gives to axes of one element."""

import pytest
import torch

from tvdnn.kernels.language.channel_ranges import is_range, pitch_of, split_even_odd


@pytest.mark.parametrize("sides", [(1, 1), (1, 5), (5, 1), (3, 4)])
@pytest.mark.parametrize("samples", [2, 3])
def test_the_pitch_is_that_of_the_wider_map(samples: int, sides: tuple[int, int]) -> None:
    part = torch.empty(samples, *sides, 6)[..., 2:5]
    pixels = sides[0] * sides[1]
    for view in (part, part.view(samples, -1, 3), part.view(samples, *sides, 3)):
        assert pitch_of(view) == 6
    assert is_range(part)
    assert is_range(
        part.as_strided(part.shape, (pixels * 6, 7 if sides[0] == 1 else sides[1] * 6, 6, 1))
    )


def test_maps_of_one_pixel_and_one_sample_have_their_own_channels() -> None:
    assert pitch_of(torch.empty(1, 1, 1, 6)[..., 2:5]) == 3
    assert pitch_of(torch.empty(4, 2, 3, 6)) == 6


def test_maps_with_skipped_rows_are_no_ranges() -> None:
    assert not is_range(torch.empty(2, 4, 4, 6)[:, ::2, ::2])


@pytest.mark.parametrize("samples", [1, 3])
def test_halves_have_every_second_column(samples: int) -> None:
    wide = torch.arange(samples * 4 * 6 * 24).view(samples, 4, 6, 24)
    part = wide[..., 8:18]
    for half, view in enumerate(split_even_odd(part)):
        assert torch.equal(view, part[:, :, half::2].unflatten(1, (-1, 2)))
        assert view.untyped_storage().data_ptr() == wide.untyped_storage().data_ptr()
        assert all(start % 8 == 0 for start in (view.storage_offset(), *view.stride()[:-1]))
