"""What google-cloud-translate, unmodified, gets of a server: a program of its own, as its protocol's names clash with
ours.

Prints one JSON object. Usage: python google_client.py ADDRESS MODEL TEXT ...
"""

import json
import sys

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import translate_v3
from google.cloud.translate_v3.services.translation_service.transports import TranslationServiceGrpcTransport

PARENT = "projects/any/locations/global"
address, model, *texts = sys.argv[1:]
transport = TranslationServiceGrpcTransport(channel=grpc.insecure_channel(address))
client = translate_v3.TranslationServiceClient(transport=transport)


def translate(*contents, mime_type="text/plain", model=f"{PARENT}/models/{model}", timeout=60, **fields):
    request = {"parent": PARENT, "contents": contents, "mime_type": mime_type, "model": model, **fields}
    return client.translate_text({"target_language_code": "de", **request}, timeout=timeout).translations


def failure(call):
    try:
        call()
    except GoogleAPICallError as error:
        return [error.grpc_status_code.name, error.message, error.reason]
    return None


english = {"source_language_code": "en"}
listed = client.get_supported_languages(parent=PARENT).languages
print(
    json.dumps(
        {
            "many": [one.translated_text for one in translate(*texts, **english)],
            "detected": [one.detected_language_code for one in translate(*texts)],
            "chosen": [one.translated_text for one in translate(*texts, model="", **english)],
            "html": [one.translated_text for one in translate(f"<p>{texts[0]}</p>", mime_type="", **english)],
            "errors": [
                failure(lambda: translate(*texts, model=f"{PARENT}/models/none", **english)),
                failure(lambda: translate(texts[0], "", **english)),
                failure(
                    lambda: translate(*texts, glossary_config={"glossary": f"{PARENT}/glossaries/none"}, **english)
                ),
                failure(lambda: translate(*texts * 64, timeout=0.001, **english)),
            ],
            "languages": [[one.language_code, one.support_source, one.support_target] for one in listed],
            "language": client.detect_language(parent=PARENT, content=" ".join(texts)).languages[0].language_code,
        }
    )
)
