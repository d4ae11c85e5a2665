import numpy as np
import torch

from export.verification.input_rounding import round_blocks, round_rows, round_to_grid


def test_rows_blocks_and_grids_are_rounded_as_by_hand():
    x = np.array([[2.0, -1.0, 0.5, 0.003], [0.0, 0.0, 0.0, 0.0]], np.float32)
    expected = np.array([np.rint(x[0] / (2 / 127)) * (2 / 127), x[1]])
    np.testing.assert_allclose(round_rows(torch.from_numpy(x)), expected, atol=1e-6)
    first, last = np.rint(x[0, :3] / (2 / 127)) * (2 / 127), x[0, 3:]  # a block of one value is exact
    np.testing.assert_allclose(round_blocks(3)(torch.from_numpy(x))[0], [*first, *last], atol=1e-6)
    grid = round_to_grid(0.5, 3, 0, 255)
    assert grid(torch.tensor([-9.0, -1.4, 0.2, 0.3, 999.0])).tolist() == [-1.5, -1.5, 0.0, 0.5, 126.0]
