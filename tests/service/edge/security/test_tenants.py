import pytest

from service.edge.security.tenants import PRIORITY, TENANT, Tenants
from service.errors import InvalidRequest
from service.request import Caller, Priority
from tests.edge import settings

TENANTS = Tenants(settings(tenant_weights="acme=2.5,team/b=0.5"))


def caller(*metadata, tenants=TENANTS):
    return tenants.caller((("user-agent", "x"), *metadata))


def test_a_call_without_a_tenant_is_the_anonymous_ones():
    assert caller() == Caller("", 1.0, Priority.NORMAL)


def test_weights_come_from_the_settings():
    assert caller((TENANT, "acme")) == Caller("acme", 2.5)
    assert caller((TENANT, "team/b")) == Caller("team/b", 0.5)
    assert caller((TENANT, "stranger")) == Caller("stranger", 1.0)


def test_unknown_tenants_may_share_one_share():
    shared = Tenants(settings(tenant_weights="acme=2", unknown_tenants="shared"))
    assert caller((TENANT, "stranger"), tenants=shared) == caller(tenants=shared) == Caller()
    assert caller((TENANT, "acme"), tenants=shared) == Caller("acme", 2.0)


def test_a_tenant_with_a_quota_is_no_unknown_one():
    shared = Tenants(settings(tenant_tokens_per_minute="acme=20", unknown_tenants="shared"))
    assert caller((TENANT, "acme"), tenants=shared) == Caller("acme")


@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "{evil}", "ß", "a\n", b"bytes"])
def test_an_unsafe_name_is_refused(value):
    with pytest.raises(InvalidRequest, match=r"must be 1\.\.128 letters, digits and characters of") as caught:
        caller((TENANT, value))
    assert caught.value.field == TENANT
    assert len(str(caught.value)) < 200


def test_two_names_are_refused():
    with pytest.raises(InvalidRequest, match="must be given once"):
        caller((TENANT, "acme"), (TENANT, "other"))
    assert caller((TENANT, "acme"), (TENANT, "acme")) == caller((TENANT, "acme"))


def test_a_stranger_may_not_claim_a_high_priority():
    assert caller((TENANT, "acme"), (PRIORITY, "high")).priority is Priority.HIGH
    assert caller((PRIORITY, "high"), (TENANT, "acme")).priority is Priority.HIGH
    assert caller((TENANT, "stranger"), (PRIORITY, "low")).priority is Priority.LOW
    for metadata in (((PRIORITY, "high"),), ((TENANT, "stranger"), (PRIORITY, "high"))):
        with pytest.raises(InvalidRequest, match="must be normal or below for tenants without a weight"):
            caller(*metadata)


def test_strangers_may_be_given_a_low_priority_only():
    low = Tenants(settings(tenant_weights="acme=1", unknown_tenant_priority="low"))
    assert caller(tenants=low).priority is Priority.LOW
    assert caller((TENANT, "acme"), tenants=low).priority is Priority.NORMAL
    with pytest.raises(InvalidRequest, match="must be low or below"):
        caller((PRIORITY, "normal"), tenants=low)


@pytest.mark.parametrize("value", ["", "HIGH", "urgent", "0", "x" * 1000])
def test_an_unknown_priority_is_refused(value):
    with pytest.raises(InvalidRequest, match="must be one of high, normal, low, got") as caught:
        caller((PRIORITY, value))
    assert len(str(caught.value)) < 200
