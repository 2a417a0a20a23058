"""The online dashboard: a W&B workspace with the sections and charts of `panels`, built here and saved there."""

from typing import Any

from jacreg_train.experiments.panels import PANELS, Chart

DEFAULT_NAME = "Jacobian training"
SCALARS = {"Memory of the compiled step": "memory/compiled_gib", "Compile time": "time/compile_s"}
SWEEP_FIELDS = ("jacobian.weight", "jacobian.estimator.name", "optimizer.learning_rate")


class WorkspaceError(RuntimeError):
    """The workspace can't be saved: one line that says what to do."""


def build_workspace(entity: str, project: str, name: str = DEFAULT_NAME) -> Any:
    """The workspace as a `wandb_workspaces.workspaces.Workspace`; needs neither login nor network.

    Raises:
        WorkspaceError: wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as workspaces
    except ModuleNotFoundError:
        raise WorkspaceError("wandb-workspaces is missing: pip install wandb-workspaces") from None

    def line_plot(chart: Chart) -> Any:
        metrics = [*chart.metrics, *([chart.band] if chart.band else [])]
        return panels.LinePlot(title=chart.title, x="step", y=metrics)

    def section(title: str, plots: list[Any]) -> Any:
        return workspaces.Section(name=title, panels=plots, is_open=True)

    sections = [section(title, [line_plot(chart) for chart in charts]) for title, charts in PANELS.items()]
    bars = [panels.BarPlot(title=title, metrics=[metric]) for title, metric in SCALARS.items()]
    columns = [panels.ParallelCoordinatesPlotColumn(panels.Config(field)) for field in SWEEP_FIELDS]
    columns.append(panels.ParallelCoordinatesPlotColumn(panels.SummaryMetric("test/accuracy")))
    sections += [
        section("Once a run", bars),
        section("Sweeps", [panels.ParallelCoordinatesPlot(title="Test accuracy", columns=columns)]),
    ]
    return workspaces.Workspace(entity=entity, project=project, name=name, sections=sections)


def push_workspace(project: str, *, entity: str | None = None, name: str = DEFAULT_NAME) -> str:
    """Save the workspace as a new view of a project; returns its address.

    Raises:
        WorkspaceError: nobody is logged in, wandb-workspaces is missing, or W&B refuses.
    """
    import wandb

    if not wandb.login(prompt=False, verify=False):
        raise WorkspaceError("not logged in: run `wandb login` first")
    try:
        workspace = build_workspace(entity or str(wandb.Api().default_entity), project, name)
        return workspace.save().url
    except WorkspaceError:
        raise
    except Exception as failure:  # the client's many kinds
        raise WorkspaceError(f"W&B: {' '.join(str(failure).split())[:300]}") from None
