"""Writing a chart or page: whole or not at all."""
import os


def save(figure, path):
    """Writes the figure beside its destination, then renames: no half-written chart is left.

    Of a link, the file that it leads to is the destination."""
    suffix = os.path.splitext(path)[1].lower()
    path = os.path.realpath(path)
    if isinstance(figure, str):
        save_text(figure, path)
        return
    temporary = f"{path}.{os.getpid()}.tmp"
    # No date and no version in the file: the same rows give the same bytes.
    metadata = {".png": {"Software": None}, ".pdf": {"CreationDate": None, "Producer": None},
                ".svg": {"Date": None}}[suffix]
    try:
        figure.savefig(temporary, format=suffix[1:], dpi=160, metadata=metadata)
        replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def replace(temporary, path):
    """Who may read what was there may read what takes its place, and nobody else."""
    if os.path.exists(path):
        os.chmod(temporary, os.stat(path).st_mode & 0o777)
    os.replace(temporary, path)


def save_text(text, path):
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
