from typing import get_type_hints

from glossa.client import options as client
from service.options import OPTIONS


def test_the_client_takes_every_option():
    assert set(get_type_hints(client.DecodingOptions)) == set(OPTIONS)
    assert set(get_type_hints(client.ScoringOptions)) == {name for name, option in OPTIONS.items() if option.scores}
