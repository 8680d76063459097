"""Features of shapes counted tile by tile, and times that go back to a roofline far from samples."""

import itertools

import numpy as np
import pytest

from costmodel.timing.gaussian_process import fit_sparse_process
from costmodel.timing.sampled_source import TILES, Rates, SampledTimes, Shapes, matmul_shapes, streaming_shapes
from tests.cases import in_one_case

RATES = Rates(flops_per_second=1e14, bytes_per_second=1e12, smallest_seconds=2e-6)


def computed_tile_by_tile(m, n, batch, tile, num_processors):
    """Elements that a device computes, dealing tiles one by one to processors until all have had as many."""
    dealt = [0] * num_processors
    turn = itertools.cycle(range(num_processors))
    for _ in range(batch):
        for _row in range(0, m, tile[0]):
            for _column in range(0, n, tile[1]):
                dealt[next(turn)] += 1
    return max(dealt) * num_processors * tile[0] * tile[1]


class TestSampledTimes:
    @in_one_case(("m", "n", "batch"), [(1, 1, 1), (129, 300, 1), (4096, 1000, 1), (200, 512, 7)])
    def test_waves_are_what_dealing_tiles_computes(self, m, n, batch):
        shapes = matmul_shapes(np.array([m]), np.array([n]), np.array([64]), batch=batch, num_processors=5)

        start = 6
        for place, tile in enumerate(TILES):
            computed = computed_tile_by_tile(m, n, batch, tile, 5)
            assert 2 ** shapes.features[0, start + place] == pytest.approx(computed / (m * n * batch))

    def test_work_of_matmuls_and_of_what_moves_bytes(self):
        shapes = matmul_shapes(np.array([4.0]), np.array([8.0]), np.array([16.0]), batch=3.0, num_processors=10)
        moved = streaming_shapes(np.array([4.0]), np.array([8.0]), bytes_per_element=6.0)

        assert shapes.flops == pytest.approx(2 * 3 * 4 * 8 * 16)
        assert shapes.nbytes == pytest.approx(2 * 3 * (4 * 16 + 16 * 8 + 4 * 8))
        assert (moved.flops[0], moved.nbytes[0]) == (0.0, 4 * 8 * 6)
        np.testing.assert_allclose(moved.features, [[2.0, 3.0]])

    def test_rates_take_the_slower_of_computing_and_moving_and_a_kernel(self):
        shapes = Shapes(flops=np.array([1e12, 0.0]), nbytes=np.array([1e9, 1e9]), features=np.zeros((2, 1)))

        np.testing.assert_allclose(RATES.seconds(shapes), [1e-2 + 2e-6, 1e-3 + 2e-6])
        assert RATES.text == "100 TFLOP/s, 1.00 TB/s, at least 2.0 us"

    def test_far_from_samples_times_are_a_multiple_of_the_roofline_and_said_to_be_outside(self):
        widths = np.linspace(4, 12, 60)
        near = streaming_shapes(np.full(60, 1024.0), 2.0**widths, bytes_per_element=4.0)
        process = fit_sparse_process(
            near.features, np.full(60, np.log(1.2)), lengths=np.ones(2), variance=0.1, noise=1e-4, num_points=60
        )
        times = SampledTimes(
            rates=RATES,
            processes=(process,),
            lowest=near.features.min(axis=0),
            highest=near.features.max(axis=0),
            widening=2.0,
        )
        far = streaming_shapes(np.array([2.0**40]), np.array([2.0**30]), bytes_per_element=4.0)

        np.testing.assert_allclose(times.seconds(near), 1.2 * RATES.seconds(near), rtol=1e-3)
        assert times.seconds(far) == pytest.approx(1.2 * RATES.seconds(far))
        assert times.is_outside(far).all()
        assert not times.is_outside(near).any()
        next_to = streaming_shapes(np.array([1024.0, 2047.0, 2049.0]), np.full(3, 2.0**12), bytes_per_element=4.0)
        assert times.is_outside(next_to).tolist() == [False, False, True]
        low, high = times.interval(far)
        assert np.log(high / low) == pytest.approx(2 * 1.6449 * 2 * np.sqrt(0.1 + 1e-4))
