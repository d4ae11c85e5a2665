"""The TrainJob against the API of Kubeflow Trainer and against the command that it starts."""

import shlex

import pytest
import typer.testing
import yaml

import cli.main
from tests.packages import ROOT

FILE = ROOT / "deploy" / "training" / "trainjob.yaml"
PAGE = ROOT / "docs" / "several-machines.md"


@pytest.fixture
def read():
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob  # a second of imports

    return TrainerV1alpha1TrainJob.from_dict


@pytest.fixture
def job():
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def unknown(given, known, path=""):
    """Fields that the API read as nothing: its classes drop what they do not know."""
    if isinstance(given, dict):
        for name, value in given.items():
            if name not in known:
                yield f"{path}.{name}"
            else:
                yield from unknown(value, known[name], f"{path}.{name}")
    elif isinstance(given, list):
        for number, (value, read) in enumerate(zip(given, known, strict=True)):
            yield from unknown(value, read, f"{path}[{number}]")


def test_the_job_is_one_of_kubeflow_trainer(job, read):
    assert list(unknown(job, read(job).to_dict())) == []
    job["spec"]["trainer"]["numNodes"] = "two"
    with pytest.raises(ValueError, match="numNodes"):
        read(job)


def test_a_field_that_the_api_lacks_is_found(job, read):
    job["spec"]["trainer"]["nodes"] = 2
    assert list(unknown(job, read(job).to_dict())) == [".spec.trainer.nodes"]


def test_its_command_is_that_of_the_page(job):
    """Every flag is one of `glossa train`, and the volumes hold what the command names."""
    trainer = job["spec"]["trainer"]
    assert f"{shlex.join(trainer['command'])} " in PAGE.read_text(encoding="utf-8").replace("--nproc-per-node 2 ", "")
    printed = typer.testing.CliRunner().invoke(cli.main.app, ["train", "--help"], env={"COLUMNS": "200"}).output
    flags = [argument.partition("=")[0] for argument in trainer["args"] if argument.startswith("--")]
    assert [flag for flag in flags if flag not in printed] == []
    (patch,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = patch["template"]["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert sorted(mounts.values()) == sorted(volume["name"] for volume in pod["volumes"])
    paths = [argument.rpartition("=")[2] for argument in trainer["args"] if "/" in argument]
    assert len(paths) == 3
    assert all(f"/{path.split('/')[1]}" in mounts for path in paths)
    assert "--resume" in flags
