"""`glossa web` in front of a server, by clicks and keys in Chromium: what a person sees, and what a person is told."""

import pytest

from bench.load.web_process import web_process
from cli.local_server import free_port
from tests.browser import browsing, needs_browser
from tests.e2e.process import serving
from tests.tiny import TEXTS

pytestmark = needs_browser

SHOWN = "document.querySelector('{0}') && !document.querySelector('{0}').hidden"


@pytest.fixture(scope="module")
def models(tiny_attention_bundle, tiny_generation_bundle):
    return {"en-de": str(tiny_attention_bundle), "en": str(tiny_generation_bundle)}


@pytest.fixture(scope="module")
def page(models, tmp_path_factory):
    """The page's address and a browser."""
    with (
        serving(models=models) as server,
        web_process(server.address, "--ops", server.wait_for("serving")["http"]) as address,
        browsing(tmp_path_factory.mktemp("browser")) as browser,
    ):
        yield address, browser


@pytest.fixture
def tab(page):
    """A new tab with the page, in whose pages nothing must go wrong."""
    address, browser = page
    tab = browser.tab()
    tab.go(address + "/")
    tab.until("document.querySelector('#status').dataset.state === 'up'")
    yield tab
    assert browser.errors == []


def text_of(tab, selector):
    return tab.run(f"document.querySelector('{selector}').textContent")


def open_tab(tab, name):
    tab.point(f"#tab-{name}")
    tab.until(SHOWN.format(f"#{name}"))


def write(tab, text, most=20):
    """Types a text, and waits for its translation of at most some tokens."""
    tab.run(f"document.querySelector('#most').value = {most}")
    tab.point("#text")
    tab.type(text)
    tab.until("document.querySelector('#facts').textContent")


def test_a_text_is_translated_as_it_is_typed_and_can_be_asked_about(tab):
    write(tab, TEXTS[0])
    assert "first word after" in text_of(tab, "#facts")
    assert text_of(tab, "#spoken") == text_of(tab, "#answer")
    assert "No confidence: the model has no calibrated confidence" in text_of(tab, "#answer-help")
    tab.point("#answer .word", click=False)
    tab.until(SHOWN.format("#attention"))
    assert tab.run("document.querySelectorAll('#maps canvas').length") == 2 * 4  # layers and heads
    assert tab.run("document.querySelectorAll('#mirror span').length") > 0
    tab.point("#maps button")
    assert tab.run("[document.querySelector('#layer').value, document.querySelector('#head').value]") == ["1", "1"]
    tab.point("#others")
    tab.until("document.querySelector('#other-answers button')")


def test_words_are_reached_by_keys_and_others_put_in_their_place(tab):
    write(tab, TEXTS[0])
    before = text_of(tab, "#answer")
    tab.run("document.querySelector('#answer .word').focus()")
    tab.press("ArrowRight", number=39)
    assert tab.run("[...document.querySelectorAll('.word')].indexOf(document.activeElement)") == 1
    tab.press("Enter", number=13, text="\r")
    tab.until("document.activeElement.matches('#menu button')")
    tab.press("Escape", number=27)
    assert tab.run("[...document.querySelectorAll('.word')].indexOf(document.activeElement)") == 1
    tab.press("Enter", number=13, text="\r")
    tab.until("document.activeElement.matches('#menu button')")
    tab.press("Enter", number=13, text="\r")
    tab.until("document.querySelector('#facts').textContent === 'chosen by you'")
    assert text_of(tab, "#answer") != before


def test_refusals_of_the_server_are_shown_where_they_arose(tab):
    tab.point("#options summary")
    tab.run("document.querySelector('#beams').focus(), document.querySelector('#beams').select()")
    tab.type("99")
    tab.point("#text")
    tab.type(TEXTS[0])
    tab.until(SHOWN.format("#problem"))
    assert text_of(tab, "#problem") == "options.beam_size: must be 1..32, got 99"


def test_a_prompt_is_continued_and_nothing_of_it_is_markup(tab):
    open_tab(tab, "generate")
    assert text_of(tab, "#generate-missing") == "No chat: the model has no chat template, which messages need."
    assert tab.run("document.querySelector('[name=mode][value=chat]').disabled")
    tab.point("#prompt")
    tab.type("<img src=x>")
    tab.point("#send")
    tab.until(SHOWN.format("#generate-problem"))
    assert text_of(tab, "#continued") == "<img src=x>"
    tab.run("document.querySelector('#prompt').focus(), document.querySelector('#prompt').select()")
    tab.type("three birds")
    tab.point("#send")
    tab.until("document.querySelector('#generate-facts').textContent")
    assert text_of(tab, "#continued").startswith("three birds")
    assert not tab.run(SHOWN.format("#generate-problem"))


def test_a_document_goes_in_and_comes_out(tab):
    open_tab(tab, "document")
    tab.run(
        """(() => {
          const files = new DataTransfer();
          files.items.add(new File([`<p>TEXT</p>`], "a.html"));
          document.querySelector("#file").files = files.files;
          document.querySelector("#file").dispatchEvent(new Event("change"));
        })()""".replace("TEXT", TEXTS[0])
    )
    tab.until(SHOWN.format("#download"))
    assert text_of(tab, "#document-text").startswith("<p>")
    assert tab.run("document.querySelector('#download').download") == "a.translated.html"


def test_live_figures_and_the_model_are_shown(tab):
    open_tab(tab, "server")
    tab.until("document.querySelector('#figures dd')")
    assert "Rows in use" in text_of(tab, "#figures")
    assert "against PyTorch, at export" in text_of(tab, "#about")


def test_a_server_that_is_killed_is_shown_and_recovered_from(models, page):
    _, browser = page
    port = free_port()
    tab = browser.tab()
    with web_process(f"127.0.0.1:{port}") as address:
        tab.go(address + "/")
        tab.until(SHOWN.format("#down"))
        assert f"no server at 127.0.0.1:{port}; start one with `glossa serve" in text_of(tab, "#down-message")
        tab.point("#text")
        tab.type(TEXTS[0])
        with serving(models=models, port=port) as server:
            tab.until("document.querySelector('#down').hidden && document.querySelector('#facts').textContent")
            server.process.kill()
            server.wait()
            tab.until(SHOWN.format("#down"))
        assert tab.run("document.querySelector('#text').value") == TEXTS[0]
