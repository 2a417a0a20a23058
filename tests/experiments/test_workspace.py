"""The online dashboard is built offline; saving it needs a login."""

import pytest
import wandb

from jacreg_train.experiments.panels import PANELS
from jacreg_train.experiments.workspace import SCALARS, WorkspaceError, build_workspace, push_workspace
from jacreg_train.telemetry import METRICS


def test_all_panels_are_in_it():
    pytest.importorskip("wandb_workspaces", reason="needs wandb-workspaces")
    workspace = build_workspace("someone", "jacreg")
    sections = {section.name: section.panels for section in workspace.sections}
    assert list(sections) == [*PANELS, "Once a run", "Sweeps"]
    assert [panel.title for panel in sections["Task"]] == [chart.title for chart in PANELS["Task"]]
    penalty = sections["Jacobian"][0]
    assert penalty.y == ["train/penalty", "train/penalty_standard_error"]
    assert penalty.x == "step"
    assert workspace._to_model().spec.section.panel_bank_config.sections  # what would be sent


def test_it_names_known_metrics():
    assert set(SCALARS.values()) <= METRICS.keys()


def test_needs_a_login(monkeypatch):
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    with pytest.raises(WorkspaceError, match="run `wandb login` first"):
        push_workspace("jacreg")
