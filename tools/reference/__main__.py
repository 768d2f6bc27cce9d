"""`python -m tools.reference`: write all pages of docs/reference anew."""

from tools.reference.pages import FOLDER, PAGES

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, made in PAGES.items():
        (FOLDER / name).write_text(made(), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
