"""One synth of the pipeline for all its tests, with a run and its gate."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cdk8s_charts.manifests import texts, write
from cdk8s_charts.render import render
from infra.pipeline.pipeline_file import FILE, PipelineConfiguration, read_pipeline
from infra.synthesis import pipeline_app
from tests.infra.conftest import KEY
from tests.infra.findings import Found, nag
from tests.infra.templates import Deployment
from trnspec.experiment import Experiment

PROD_KEY = KEY.replace("111122223333", "444455556666")


@pytest.fixture(scope="session")
def manifests(tmp_path_factory: pytest.TempPathFactory, reference: Experiment) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    write(texts(reference, render(reference), folder))
    return folder


@pytest.fixture(scope="session")
def configuration(manifests: Path, tmp_path_factory: pytest.TempPathFactory) -> PipelineConfiguration:
    """The committed file, with a run to be no worse than, and a production account that has wishes."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    data["stages"]["prod"] |= {"kms_key": PROD_KEY, "log_days": 365}
    path = tmp_path_factory.mktemp("pipeline") / "pipeline.yaml"
    measured = {**data, "run": "measure", "baseline_run": "20260401T120000Z-0dc3e1ca"}
    path.write_text(yaml.safe_dump(measured), encoding="utf-8")
    return read_pipeline(path, manifests=manifests)


@pytest.fixture(scope="session")
def _synthesized(
    configuration: PipelineConfiguration, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Found]:
    outdir = tmp_path_factory.mktemp("cdk-out")
    app = pipeline_app(configuration, outdir=str(outdir))
    app.synth()
    return outdir, nag(app)


@pytest.fixture(scope="session")
def assembly(_synthesized: tuple[Path, Found]) -> Path:
    return _synthesized[0]


@pytest.fixture(scope="session")
def nagged(_synthesized: tuple[Path, Found]) -> Found:
    """What cdk-nag finds."""
    return _synthesized[1]


@pytest.fixture(scope="session")
def pipeline(assembly: Path) -> Deployment:
    return Deployment.read(assembly)


@pytest.fixture(scope="session")
def stages(assembly: Path) -> dict[str, Deployment]:
    return {name: Deployment.read(assembly / f"assembly-pipeline-{name}") for name in ("dev", "prod")}
