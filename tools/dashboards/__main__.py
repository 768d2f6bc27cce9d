"""Write all dashboards into a folder, the chart's if none is named."""

import sys
from pathlib import Path

from tools.dashboards.all import BOARDS

FOLDER = Path(__file__).resolve().parents[2] / "helm" / "popwheel" / "dashboards"


def main() -> None:
    """Write the files, and remove those of dashboards that are no more."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / f"{board.name}.json": board.as_json() for board in BOARDS}
    for path in set(folder.glob("*.json")) - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
