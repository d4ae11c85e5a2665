"""The descriptor set of deploy/envoy: it is that of the stubs, is complete, and has a path for every method."""

import re

import pytest
from google.api import annotations_pb2, http_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc

from codegen import descriptors
from codegen.generated_files import ROOT
from glossa.v1 import glossa_pb2

METHODS = [method for service in glossa_pb2.DESCRIPTOR.services_by_name.values() for method in service.methods]


def rule(method):
    """The `google.api.http` of a method."""
    return method.GetOptions().Extensions[annotations_pb2.http]


def test_the_file_is_that_of_the_stubs():
    descriptors.main(["--check"])


def test_a_file_that_is_out_of_date_is_refused_and_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptors, "DESCRIPTORS", tmp_path / "deploy.binpb")
    descriptors.DESCRIPTORS.write_bytes(b"old")
    with pytest.raises(SystemExit, match="make descriptors"):
        descriptors.main(["--check"])
    descriptors.main([])
    descriptors.main(["--check"])


def test_every_file_of_the_set_follows_those_that_it_imports():
    pool, files = DescriptorPool(), FileDescriptorSet.FromString(descriptors.DESCRIPTORS.read_bytes()).file
    for file in files:
        pool.Add(file)
        pool.FindFileByName(file.name)
    for name in ("glossa.v1.TranslateRequest", "google.rpc.Status", "google.rpc.ErrorInfo", "google.rpc.RetryInfo"):
        assert pool.FindMessageTypeByName(name)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_has_a_path_that_names_it(method):
    found = rule(method)
    if method.client_streaming and method.name != "TranslateDocument":  # which reads all messages before it answers
        assert not found.ByteSize(), "a call with items both ways has no form in HTTP/1.1"
    elif method.name == "ListModels":
        assert (found.get, found.body) == ("/v1/models", "")
    elif method.name == "GetModel":
        assert (found.get, found.body) == ("/v1/models/{model}", "")
    elif method.containing_service.name == "LanguageService":  # of no model
        assert (found.get or found.post) in ("/v1/languagePairs", "/v1/languages:detect")
    else:
        name = method.name[0].lower() + method.name[1:]
        assert (found.post, found.body) == (f"/v1/models/{{model}}:{name}", "*")


def test_no_two_methods_share_a_path():
    paths = [
        re.sub(r"\{\w+\}", "*", rule(method).get or rule(method).post) for method in METHODS if rule(method).ByteSize()
    ]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("module", [annotations_pb2, http_pb2], ids=["annotations", "http"])
def test_the_copies_of_googles_files_are_those_of_the_package_that_clients_install(module, tmp_path):
    name, out = module.DESCRIPTOR.name, tmp_path / "set"
    protos = ROOT / "protos"
    include = f"-I{protoc.__file__.removesuffix('protoc.py')}_proto"
    assert protoc.main(["protoc", f"-I{protos}", include, f"--descriptor_set_out={out}", name]) == 0
    (copied,) = FileDescriptorSet.FromString(out.read_bytes()).file
    installed = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for message in copied.message_type:  # protoc writes what the stubs leave to be computed
        for field in message.field:
            field.ClearField("json_name")
    for extension in copied.extension:
        extension.ClearField("json_name")
    assert copied == installed
