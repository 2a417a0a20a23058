"""Save the curated dashboard as a view of a W&B project: python scripts/push_workspace.py --project=jacreg

Needs `wandb login` and `pip install wandb-workspaces`.
"""

import argparse
import sys

from jacreg_train.experiments.workspace import DEFAULT_NAME, WorkspaceError, push_workspace


def main() -> int:
    parser = argparse.ArgumentParser(description="Save the curated dashboard as a view of a W&B project.")
    parser.add_argument("--project", default="jacreg", help="the W&B project (jacreg)")
    parser.add_argument("--entity", help="user or team (the login's default)")
    parser.add_argument("--name", default=DEFAULT_NAME, help=f"of the view ({DEFAULT_NAME})")
    arguments = parser.parse_args()
    try:
        print(push_workspace(arguments.project, entity=arguments.entity, name=arguments.name))
    except WorkspaceError as error:
        print(f"push_workspace.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
