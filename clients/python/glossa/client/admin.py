"""Exchanges the models of a running server: `AdminClient`, for its admin socket or admin port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import grpc

from glossa.client.channel import NO_RETRIES, OWN_CONNECTION, Tls, authenticate
from glossa.client.errors import ClientError
from glossa.v1 import admin_pb2 as pb
from glossa.v1 import admin_pb2_grpc as stubs

TIMEOUT_S = 600.0  # of a call: opening a large bundle takes minutes


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a model. state: opening, serving or draining. bundle_sha256: empty while it is opened. calls: that
    use it now. weight: how many of a hundred requests without a version it gets. shadow_share: how many of a hundred of
    the default version run on it too."""

    model: str
    version: str
    state: str
    is_default: bool
    bundle_sha256: str
    path: str
    calls: int
    engine_processes: int
    weight: int = 0
    shadow_share: int = 0


@dataclass(frozen=True, kw_only=True)
class LoadedVersion:
    """A version that serves. chrf, default_chrf: of its answers and those of the default before it, 0..100; None
    without a test set."""

    version: Version
    chrf: float | None = None
    default_chrf: float | None = None


@dataclass(frozen=True, kw_only=True)
class Canary:
    """A version that is judged, or was. state: running, promoted, sent_back or stopped. bound, reason: why it was not
    promoted. calls, failed: its requests that were counted."""

    model: str
    version: str
    state: str
    bound: str
    reason: str
    judged_s: float
    calls: int
    failed: int


class AdminClient:
    """Blocking calls of AdminService. All raise ClientError."""

    def __init__(
        self,
        address: str,
        *,
        tls: Tls = False,
        token: str = "",
        metadata: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """address: unix:PATH of the admin socket, or HOST:PORT of the admin port, which needs a token with the right
        `admin`. The others are as of `Client`; raises what that does."""
        credentials, self._metadata = authenticate(address, tls=tls, token=token, metadata=metadata)
        options = [OWN_CONNECTION, NO_RETRIES]
        self._channel = (
            grpc.insecure_channel(address, options=options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=options)
        )
        self._stub: Any = stubs.AdminServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def load(
        self,
        model: str,
        path: str | Path = "",
        *,
        version: str = "",
        keep_default: bool = False,
        keep_previous: bool = False,
        test_set: Iterable[tuple[str, str]] | None = None,
        max_loss: float | None = None,
        source_language: str = "",
        target_language: str = "",
    ) -> LoadedVersion:
        """Open a bundle as a version of a model, and make it the default. Returns when it takes requests.

        path: absolute, on the server; empty: that of the default. keep_default: the default stays. keep_previous: the
        default before it goes on serving those who name it. test_set: texts and references; the version is refused if
        its chrF is more than `max_loss` points (1) below that of the default.
        """
        evaluation = _evaluation(test_set, source_language, target_language, max_loss)
        response = self._call(
            "LoadVersion",
            pb.LoadVersionRequest(
                model=model,
                path=str(path),
                version=version,
                keep_default=keep_default,
                keep_previous=keep_previous,
                evaluation=evaluation,
            ),
        )
        found = response.evaluation
        scores = {"chrf": found.chrf, "default_chrf": found.default_chrf} if found.examples else {}
        return LoadedVersion(version=_version(response.version), **scores)

    def unload(self, model: str, version: str) -> Version:
        """End a version that is not the default, when its last request has ended."""
        return _version(self._call("UnloadVersion", pb.UnloadVersionRequest(model=model, version=version)).version)

    def versions(self, model: str = "") -> list[Version]:
        """All versions of a model, or of all models."""
        return [_version(each) for each in self._call("ListVersions", pb.ListVersionsRequest(model=model)).versions]

    def set_default(self, model: str, version: str) -> Version:
        """Make a version the one of requests that name none."""
        request = pb.SetDefaultVersionRequest(model=model, version=version)
        return _version(self._call("SetDefaultVersion", request).version)

    def roll_back(self, model: str, *, keep_previous: bool = False) -> Version:
        """Make the default before the present one the default again."""
        return _version(self._call("RollBack", pb.RollBackRequest(model=model, keep_previous=keep_previous)).version)

    def set_traffic(
        self,
        model: str,
        weights: Mapping[str, int] | None = None,
        *,
        by_request_id: bool = False,
        shadow: tuple[str, int] | None = None,
    ) -> list[Version]:
        """Spread the requests that name no version, from now on.

        weights: of versions, out of a hundred; none: all to the default. by_request_id: also those of a tenant, which
        otherwise get one version. shadow: a version, and how many of a hundred requests of the default run on it too.
        """
        request = pb.SetTrafficRequest(
            model=model,
            weights=[pb.VersionShare(version=version, percent=percent) for version, percent in (weights or {}).items()],
            by_request_id=by_request_id,
            shadow=shadow and pb.VersionShare(version=shadow[0], percent=shadow[1]),
        )
        return [_version(each) for each in self._call("SetTraffic", request).versions]

    def start_canary(
        self,
        model: str,
        version: str,
        *,
        share: int,
        duration_s: float,
        patience_s: float | None = None,
        shadow_share: int = 0,
        bounds: Mapping[str, float] | None = None,
        test_set: Iterable[tuple[str, str]] | None = None,
        source_language: str = "",
        target_language: str = "",
        unload_loser: bool = False,
    ) -> Canary:
        """Give a version a share of the requests, and have it judged. Returns at once.

        share, shadow_share: of a hundred requests. patience_s: None: a tenth of duration_s. bounds: as `CanaryBounds`
        of the API names them. unload_loser: the version that does not serve in the end stops.
        """
        request = pb.StartCanaryRequest(
            model=model,
            version=version,
            share=share,
            shadow_share=shadow_share,
            bounds=pb.CanaryBounds(**(bounds or {})),
            evaluation=_evaluation(test_set, source_language, target_language),
            unload_loser=unload_loser,
        )
        request.duration.FromTimedelta(timedelta(seconds=duration_s))
        if patience_s is not None:
            request.patience.FromTimedelta(timedelta(seconds=patience_s))
        return _canary(self._call("StartCanary", request).canary)

    def canaries(self, model: str = "") -> list[Canary]:
        """The last canary of a model, or of each model that had one."""
        return [_canary(each) for each in self._call("ListVersions", pb.ListVersionsRequest(model=model)).canaries]

    def _call(self, name: str, request: Any) -> Any:
        try:
            return getattr(self._stub, name)(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise ClientError(error) from None


def _version(message: pb.Version) -> Version:
    state = pb.VersionState.Name(message.state).removeprefix("VERSION_STATE_").lower()
    return Version(
        model=message.model,
        version=message.version,
        state=state,
        is_default=message.is_default,
        bundle_sha256=message.bundle_sha256,
        path=message.path,
        calls=message.calls,
        engine_processes=message.engine_processes,
        weight=message.weight,
        shadow_share=message.shadow_share,
    )


def _canary(message: pb.Canary) -> Canary:
    return Canary(
        model=message.model,
        version=message.version,
        state=pb.CanaryState.Name(message.state).removeprefix("CANARY_STATE_").lower(),
        bound=message.bound,
        reason=message.reason,
        judged_s=message.judged.ToTimedelta().total_seconds(),
        calls=message.calls,
        failed=message.failed,
    )


def _evaluation(
    test_set: Iterable[tuple[str, str]] | None, source: str, target: str, max_loss: float | None = None
) -> pb.Evaluation | None:
    if test_set is None:
        return None
    return pb.Evaluation(
        examples=[pb.EvaluationExample(text=text, reference=reference) for text, reference in test_set],
        source_language=source,
        target_language=target,
        max_loss=max_loss,
    )
