"""The config that a run recorded, as a config file again: ``--config=WORKDIR/config.json`` comes here.

jacreg-train --config=runs/a/config.json --workdir=runs/a_again
"""

import json
from pathlib import Path

from ml_collections import ConfigDict

from configs import default


def get_config(path: str) -> ConfigDict:
    """The recorded config.

    Args:
      path: of a ``config.json``.

    Raises:
      ValueError: not such a file, a field that no config has, or a value of another type.
    """
    config = default.get_config()
    config.lock()
    try:
        config.update(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a recorded config ({' '.join(str(error).split())[:200]})") from None
    return config
