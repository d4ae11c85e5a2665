"""A served model as the message `Model`: what it is, what requests it accepts, how it was verified and quantized."""

from __future__ import annotations

from typing import Any

from export.bundle.confidence import Calibration
from export.bundle.manifest import Encoding, Quantization, SchemeMeasurement
from glossa.v1 import glossa_pb2 as pb
from service.edge.models.served_model import ServedModel
from service.edge.requests.request_limits import TextLimits
from service.edge.rpcs.proto_conversion import enum_number
from service.machine.execution_choice import ExecutionChoice


def describe(model: ServedModel, limits: TextLimits, *, is_default: bool = True, has_checks: bool = True) -> pb.Model:
    """The message of one version of a model. limits: those of the server. has_checks: with every check of its export,
    which are four fifths of the message."""
    manifest, choice, encoding = model.manifest, model.choice, model.encoding
    attention, lineage = manifest.alignment, manifest.lineage
    training = lineage.get("metrics") or {}
    return pb.Model(
        name=model.name,
        task=enum_number(pb.Task, manifest.task),
        architecture=manifest.architecture,
        limits=pb.Limits(
            max_prompt_tokens=model.max_prompt_tokens,
            max_tokens=model.max_tokens,
            max_hypotheses=model.max_hypotheses,
            max_text_bytes=limits.max_text_bytes,
            max_stop_strings=limits.max_stop_strings,
            max_stop_bytes=limits.max_stop_bytes,
            max_document_bytes=limits.max_document_bytes,
        ),
        vocab_size=manifest.limits.vocab_size,
        source_vocab_size=manifest.limits.source_vocab_size,
        precision=choice.precision,
        execution_provider=_provider(choice),
        parity=_parity(manifest.parity, has_checks=has_checks),
        lineage=pb.Lineage(
            steps=training.get("steps") or 0,
            data_sha256=lineage.get("data_sha256") or "",
            git_commit=lineage.get("git_commit") or "",
        ),
        bundle_sha256=model.bundle_sha256,
        format_version=manifest.format_version,
        has_alignment=attention is not None,
        alignment_layers=attention.layers if attention else 0,
        alignment_heads=attention.heads if attention else 0,
        has_shortlist=model.shortlist is not None,
        labels=encoding.labels if encoding and model.is_classifier else (),
        token_labels=encoding.labels if encoding and model.is_tagger else (),
        mask_token=model.mask_token,
        quantization=_quantization(model.quantization, model.quantization_measurement),
        languages=sorted(model.languages),
        source_languages=sorted(model.directions.sources) if model.directions.are_known else (),
        target_languages=sorted(model.directions.targets) if model.directions.are_known else (),
        draft_tokens=model.draft_tokens,
        engines=model.engines,
        engine_processes=model.processes,
        version=model.version,
        is_default=is_default,
        attention=[
            pb.AttentionLayers(kind=enum_number(pb.AttentionKind, maps.kind), layers=maps.layers, heads=maps.heads)
            for maps in manifest.attention_maps
        ],
        calibration=_calibration(model.calibration),
        context_sentences=model.context_sentences,
        splits_sentences=manifest.source_unit == "sentence",
        has_chat_template=model.chat is not None,
        translation_template=model.translation.template.name if model.translation else "",
        keeps_answers=model.kept_answers is not None,
        answers_not_kept=model.unrepeatable,
        **(_vectors(encoding) if encoding else {}),
    )


def _provider(choice: ExecutionChoice) -> pb.ExecutionProvider:
    nodes = [pb.GraphNodes(**nodes._asdict()) for nodes in choice.nodes]
    return pb.ExecutionProvider(**_same_fields(pb.ExecutionProvider, choice), graph_nodes=nodes)


def _vectors(encoding: Encoding) -> dict[str, Any]:
    """The fields about an encoder's outputs."""
    return {
        "embedding_size": encoding.dense_width or encoding.width,
        "multi_label": encoding.multi_label,
        "has_pooler": encoding.has_pooler,
        "pooling": enum_number(pb.Pooling, encoding.pooling),
        "embeddings_normalized": encoding.normalized,
        "prompts": encoding.prompts,
        "default_prompt_name": encoding.default_prompt,
    }


def _calibration(calibration: Calibration | None) -> pb.Calibration | None:
    if calibration is None:
        return None
    words, sentences = calibration.words, calibration.sentences
    return pb.Calibration(
        ece_before=words.ece_before,
        ece_after=words.ece_after,
        samples=calibration.samples,
        method=words.map.method,
        sentence_ece_before=sentences.ece_before,
        sentence_ece_after=sentences.ece_after,
        sentence_method=sentences.map.method,
        data=calibration.data,
    )


def _quantization(quantization: Quantization | None, figures: SchemeMeasurement | None) -> pb.Quantization | None:
    if quantization is None:
        return None
    measured = _same_fields(pb.Quantization, figures) if figures else {}
    return pb.Quantization(**measured | _same_fields(pb.Quantization, quantization))


def _same_fields(kind: Any, source: object) -> dict[str, Any]:
    """The fields of a message that `source` has, too."""
    return {name: getattr(source, name) for name in kind.DESCRIPTOR.fields_by_name if hasattr(source, name)}


def _parity(report: dict[str, Any], *, has_checks: bool) -> pb.Parity:
    if not has_checks:
        return pb.Parity(passed=report.get("passed") is True)
    names = pb.ParityCheck.DESCRIPTOR.fields_by_name
    checks = [{name: check[name] for name in names if name in check} for check in report.get("checks", ())]
    return pb.Parity(passed=report.get("passed") is True, checks=[pb.ParityCheck(**check) for check in checks])
