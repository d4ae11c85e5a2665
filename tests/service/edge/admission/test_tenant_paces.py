import pytest

from service.answer_pace import AnswerPace
from service.edge.admission.tenant_paces import TenantPaces
from service.edge.admission.tenant_shares import TenantShares
from service.progress import Timings
from service.request import Caller, Finished, FinishReason

VICTIM, ABUSER = Caller("victim"), Caller("abuser")


def answer(seconds):
    return Finished(FinishReason.LENGTH, generated_tokens=10, timings=Timings(total_s=seconds))


@pytest.fixture
def paces():
    return TenantPaces(AnswerPace(0.0))


@pytest.fixture
def shares():
    found = TenantShares(0.8)
    found.enter(Caller("other"))
    return found


def test_slow_answers_of_a_tenant_are_not_predicted_for_others(paces, shares):
    for _ in range(10):
        paces.learn("victim", answer(0.1), 4)
        paces.learn("abuser", answer(5.0), 4)
    shares.enter(VICTIM)
    shares.enter(ABUSER)
    assert paces.predicted_s(VICTIM, shares, 64) == pytest.approx(0.1, rel=0.15)
    assert paces.predicted_s(ABUSER, shares, 64) == pytest.approx(5.0, rel=0.15)


def test_a_tenant_that_learned_slowness_alone_learns_again(paces, shares):
    paces.learn("victim", answer(9.0), 2)
    for _ in range(20):
        paces.learn("other", answer(0.1), 2)
    assert paces.predicted_s(VICTIM, shares, 64) < 0.3
    shares.enter(VICTIM)
    assert paces.predicted_s(VICTIM, shares, 64) > 1.0


def test_an_unknown_tenant_takes_the_pace_of_all(paces, shares):
    paces.learn("other", answer(0.5), 2)
    assert paces.predicted_s(Caller("new"), shares, 64) == paces.predicted_s(Caller("other"), shares, 64) > 0


def test_an_idle_process_refuses_nobody(paces):
    paces.learn("victim", answer(9.0), 2)
    assert paces.predicted_s(VICTIM, TenantShares(0.8), 64) == 0.0
