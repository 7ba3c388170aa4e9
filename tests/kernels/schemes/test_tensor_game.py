"""The tensor game: its rewards add up, its wins are exact schemes, and it is an environment others can use."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from nightshift.kernels.schemes import tensor_game
from nightshift.kernels.schemes.scheme import Format, definition, packed


def test_the_game_passes_the_environment_checks() -> None:
    from stable_baselines3.common.env_checker import check_env

    check_env(tensor_game.TensorGame(), warn=False)


def test_the_potential_is_one_for_one_term_and_a_bound_for_the_product() -> None:
    game = tensor_game.TensorGame()
    one = np.zeros((4, 4, 4), np.int64)
    one[1, 2, 3] = 1
    assert tensor_game.potential(one) == 1.0
    assert 5.0 < tensor_game.potential(game.start) <= 7.0
    assert tensor_game.potential(np.zeros((4, 4, 4), np.int64)) == 0.0


def test_rewards_of_a_game_are_the_potential_less_the_moves() -> None:
    game = tensor_game.TensorGame()
    game.reset(seed=1)
    rng = np.random.default_rng(1)
    total, over, moves = 0.0, False, 0
    while not over:
        _, reward, won, late, _ = game.step(np.int64(rng.integers(tensor_game.MENU)))
        total, over, moves = total + reward, won or late, moves + 1
    assert total == pytest.approx(tensor_game.potential(game.start) - tensor_game.potential(game.left) - moves)


def test_without_time_the_game_keeps_the_definition() -> None:
    found, _ = tensor_game.learned(7, 0, 0.0)
    assert packed(found) == packed(definition(Format.of("2x2x2"), "GF(2)"))
