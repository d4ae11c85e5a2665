"""What libretranslatepy and deep-translator, unmodified, get of `glossa web`.

Prints one JSON object. Usage: python libretranslate_clients.py CLIENT ADDRESS TEXT ...
"""

import json
import sys
import urllib.error

from deep_translator import LibreTranslator
from deep_translator.exceptions import ServerException
from libretranslatepy import LibreTranslateAPI

name, address, *texts = sys.argv[1:]


def failure(call):
    """What a call raises: the status of HTTP where the client tells it."""
    try:
        call()
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP {error.code}"
    except urllib.error.URLError as error:
        return type(error.reason).__name__
    except (TimeoutError, ServerException) as error:
        return type(error).__name__
    return None


def libretranslatepy():
    client = LibreTranslateAPI(address)
    return {
        "translate": client.translate(texts[0], "en", "de"),
        "batch": None,  # one text a call
        "detect": client.detect(" ".join(texts))[0]["language"],
        "error": failure(lambda: client.translate(texts[0], "en", "fr")),
        "deadline": failure(lambda: client.translate("\n".join(texts * 16), "en", "de", timeout=0.001)),
        "languages": [[one["code"], one["targets"]] for one in client.languages()],
    }


def deep_translator():
    def client(target="de"):
        return LibreTranslator(source="en", target=target, api_key="any", custom_url=f"{address}/")

    return {
        "translate": client().translate(texts[0]),
        "batch": client().translate_batch(texts),
        "detect": None,  # it asks another service
        "error": failure(lambda: client("fr").translate(texts[0])),
        "deadline": None,  # it has none
    }


print(json.dumps({"libretranslatepy": libretranslatepy, "deep-translator": deep_translator}[name]()))
