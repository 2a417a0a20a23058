import sys
from pathlib import Path

# `scripts/` is no package: a script's folder is where Python looks first when the script runs.
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
