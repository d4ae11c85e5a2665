"""helm and kubernetes-validate: where they are, and how tests call them."""

import os
import shutil
import subprocess

import yaml

from deploy.kubernetes.__main__ import CHART, HELM_IS_MISSING, KUBERNETES

VALIDATE_IS_MISSING = (
    "no kubernetes-validate: pip install kubernetes-validate in an environment of its own, and name "
    "its program with KUBERNETES_VALIDATE=…"
)


def program(variable, name, hint):
    """The path of a program: what the variable names, or that on the path. A test fails without it: those that need it
    are left to `make test-all`."""
    found = shutil.which(os.environ.get(variable, name))
    assert found, hint
    return found


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)


def helm(*arguments):
    return run(program("HELM", "helm", HELM_IS_MISSING), *arguments)


def template(*arguments, release="glossa", namespace="default"):
    """Runs `helm template` on the chart; see `rendered` for its objects."""
    return helm("template", release, CHART, "--namespace", namespace, "--kube-version", KUBERNETES, *arguments)


def rendered(*arguments, release="glossa", namespace="default"):
    """The objects that the chart gives."""
    done = template(*arguments, release=release, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def validate(path):
    """Checks objects of Kubernetes itself, strictly: a field that it does not know is an error."""
    name = program("KUBERNETES_VALIDATE", "kubernetes-validate", VALIDATE_IS_MISSING)
    done = run(name, "--strict", path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
