import pytest

from tests.decoders import make_decoder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    make_decoder("llama").save_pretrained(path)
    return path
