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
ENGLISH = {"source_language_code": "en"}


def translate(*contents, mime_type="text/plain", model=f"{PARENT}/models/{model}", timeout=60, **fields):
    request = {"parent": PARENT, "contents": contents, "mime_type": mime_type, "model": model, **fields}
    answer = client.translate_text({"target_language_code": "de", **request}, timeout=timeout)
    return [[one.translated_text, one.detected_language_code] for one in answer.translations]


def failure(*contents, **fields):
    try:
        translate(*contents, **ENGLISH, **fields)
    except GoogleAPICallError as error:
        return " ".join(filter(None, (error.grpc_status_code.name, error.reason)))
    return None


listed = client.get_supported_languages(parent=PARENT).languages
print(
    json.dumps(
        {
            "translate": translate(texts[0], **ENGLISH)[0][0],
            "batch": [text for text, _ in translate(*texts, **ENGLISH)],
            "detect": client.detect_language(parent=PARENT, content=" ".join(texts)).languages[0].language_code,
            "error": failure(*texts, model=f"{PARENT}/models/none"),
            "deadline": failure(*texts * 32, timeout=0.001),
            "detected": translate(*texts),
            "chosen": translate(*texts, model="", **ENGLISH),
            "html": translate(f"<p>{texts[0]}</p>", mime_type="", **ENGLISH),
            "errors": [
                failure(texts[0], ""),
                failure(*texts, glossary_config={"glossary": f"{PARENT}/glossaries/none"}),
            ],
            "languages": [[one.language_code, one.support_source, one.support_target] for one in listed],
        }
    )
)
