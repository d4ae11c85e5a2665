import math

from service.presence import Presence


def test_a_tenant_alone_has_no_others():
    presence = Presence()
    presence.see("a", 1.0)
    presence.see("a", 2.0)
    assert presence.others_s("a") == -math.inf
    assert presence.others_s("b") == 2.0


def test_others_were_there_when_any_of_them_was_seen_last():
    presence = Presence()
    for now_s, tenant in enumerate("abcc"):
        presence.see(tenant, float(now_s))
    assert presence.others_s("c") == 1.0
    assert presence.others_s("a") == presence.others_s("b") == 3.0
    presence.see("a", 4.0)
    assert presence.others_s("a") == 3.0
