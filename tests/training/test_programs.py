import pytest

from jacreg_train.training.programs import Programs, cycle_share


def test_the_share_of_a_cycle():
    assert cycle_share([3.0, 3.0, 9.0], [1.0, 1.0, 1.0], 1) == pytest.approx(2 / 3)
    assert cycle_share([3.0], [1.0], 4) == pytest.approx(2 / 6)


def test_which_step_has_the_penalty():
    never = lambda *_: pytest.fail("nothing runs here")
    programs = Programs(penalised=never, plain=never, gradient_norms=None, every_steps=3)
    kinds = [programs.train_step(step)[0] for step in range(6)]
    assert kinds == ["penalised", "plain", "plain"] * 2
    programs = Programs(penalised=None, plain=never, gradient_norms=None, every_steps=1)
    assert programs.train_step(0)[0] == "plain"
