"""Lints the chart in deploy/helm, renders it with the values in argv[1] (JSON), and validates each resource
that Kubernetes itself knows, strictly. Prints the resources as a list of JSON.
"""

import json
import sys

import helm_python
import kubernetes_validate
import yaml

chart, values = sys.argv[1], json.loads(sys.argv[2])
linted = helm_python.lint(chart, values, strict=True)
# 1 is information: a chart may have an icon.
findings = [finding for finding in linted["messages"] if finding["severity"] != 1]
assert not findings and not linted["errors"], linted

with helm_python.Chart.load(chart) as loaded:
    rendered = loaded.render(values, name="shop", namespace="shop")
resources = [
    resource
    for name, text in sorted(rendered.items())
    if name.endswith(".yaml")
    for resource in yaml.safe_load_all(text)
    if resource
]
for resource in resources:
    if resource["apiVersion"] != "monitoring.coreos.com/v1":
        for version in ("1.25", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(resource, version, strict=True)
json.dump(resources, sys.stdout)
